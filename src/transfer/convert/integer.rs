//! Any integer to any other. Tensors of integers are counters and indices, so this is written to be plainly right.

use super::ConvertError;
use reshard_shard::DType;

/// Two different integer dtypes.
#[derive(Clone, Copy, Debug)]
pub(super) struct IntegerPair {
    from_bytes: usize,
    from_signed: bool,
    to_bytes: usize,
    least: i128,
    most: i128,
    to: DType,
}

impl IntegerPair {
    /// `None` where one of them is no integer.
    pub(super) fn new(from: DType, to: DType) -> Option<Self> {
        let (from_signed, from_bits) = integer(from)?;
        let (to_signed, to_bits) = integer(to)?;
        let (least, most) = match to_signed {
            true => (-(1i128 << (to_bits - 1)), (1i128 << (to_bits - 1)) - 1),
            false => (0, (1i128 << to_bits) - 1),
        };
        let bytes = |bits: u32| bits as usize / 8;
        Some(Self { from_bytes: bytes(from_bits), from_signed, to_bytes: bytes(to_bits), least, most, to })
    }

    /// Converts runs of equally many elements.
    pub(super) fn convert(&self, src: &[u8], dst: &mut [u8]) -> Result<(), ConvertError> {
        let elements = src.chunks_exact(self.from_bytes).zip(dst.chunks_exact_mut(self.to_bytes));
        for (index, (bytes, out)) in elements.enumerate() {
            let negative = self.from_signed && bytes.last().is_some_and(|&top| top >= 0x80);
            let mut word = [if negative { 0xff } else { 0 }; 16];
            word[..bytes.len()].copy_from_slice(bytes);
            let value = i128::from_le_bytes(word);
            if value < self.least || value > self.most {
                return Err(ConvertError::OutOfRange { index, value, to: self.to });
            }
            out.copy_from_slice(&word[..self.to_bytes]);
        }
        Ok(())
    }
}

/// Whether it is signed, and its size in bits.
fn integer(dtype: DType) -> Option<(bool, u32)> {
    Some(match dtype {
        DType::U8 => (false, 8),
        DType::I8 => (true, 8),
        DType::U16 => (false, 16),
        DType::I16 => (true, 16),
        DType::U32 => (false, 32),
        DType::I32 => (true, 32),
        DType::U64 => (false, 64),
        DType::I64 => (true, 64),
        _ => return None,
    })
}
