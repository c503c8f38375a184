//! Conversion of elements between dtypes, run by run, on the host.
//!
//! | from, to | what happens |
//! |---|---|
//! | float, float | rounded once, to nearest, ties to even; subnormals are kept as such |
//! | integer, integer | the same value, or an error that names it |
//! | all others | there is no converter: `bool`, complex, opaque, and float against integer |
//!
//! NaN stays NaN and keeps its sign where the target's NaN has one. It becomes quiet, as IEEE 754 says of every
//! conversion: the first payload bit is set and the others are kept as far as they fit, so it never turns into an
//! infinity. -0.0 stays -0.0; the FNUZ formats have none, there it is 0, and so is what rounds to it.
//!
//! A finite value beyond the target's range becomes an infinity with its sign. OCP E4M3 and the FNUZ formats have no
//! infinity, so there it becomes NaN; so does an infinity. All of these are counted, none saturates.
//!
//! Everything is integer arithmetic or an instruction that no "flush denormals" mode of the calling thread changes.

mod float;
mod float_format;
mod half_single;
mod integer;

#[cfg(test)]
mod oracle;

use float::FloatPair;
use half_single::HalfSingle;
use integer::IntegerPair;
use reshard_shard::DType;

/// Converts runs of little-endian elements from one dtype to another. See the [module](self) for what becomes of them.
#[derive(Clone, Copy, Debug)]
pub struct Converter {
    from_bytes: usize,
    to_bytes: usize,
    kernel: Kernel,
}

#[derive(Clone, Copy, Debug)]
enum Kernel {
    HalfSingle(HalfSingle),
    Float(FloatPair),
    Integer(IntegerPair),
}

/// What happened to the elements of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConvertCounts {
    /// Elements that were too large for the target and became an infinity, or NaN where it has none.
    pub overflowed_to_infinity: u64,
}

/// Why a run of elements was not converted. What the destination then holds is unspecified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConvertError {
    /// An integer that the target can't hold.
    #[error("element {index} is {value}, which does not fit {to}; load it with a wider dtype")]
    OutOfRange {
        /// Which element of the run, from 0.
        index: usize,
        /// Its value.
        value: i128,
        /// The target.
        to: DType,
    },
    /// Source and destination don't hold the same whole number of elements.
    #[error("{from} bytes and {to} bytes are not the same number of elements")]
    Lengths {
        /// Bytes of the source.
        from: usize,
        /// Bytes of the destination.
        to: usize,
    },
}

impl Converter {
    /// A converter, or `None` where values of `from` are never converted to `to`. Equal dtypes have none either: their
    /// bytes are copied as they are.
    pub fn new(from: DType, to: DType) -> Option<Self> {
        if from == to {
            return None;
        }
        let kernel = if from.is_float() && to.is_float() {
            match HalfSingle::new(from, to) {
                Some(pair) => Kernel::HalfSingle(pair),
                None => Kernel::Float(FloatPair::new(from, to)?),
            }
        } else if from.is_integer() && to.is_integer() {
            Kernel::Integer(IntegerPair::new(from, to)?)
        } else {
            return None;
        };
        let bytes = |dtype: DType| usize::try_from(dtype.element_bytes()?).ok();
        Some(Self { from_bytes: bytes(from)?, to_bytes: bytes(to)?, kernel })
    }

    /// Converts all elements of `src` into `dst`. Neither needs to be aligned.
    ///
    /// # Errors
    /// [`ConvertError::OutOfRange`] for the first integer that does not fit; [`ConvertError::Lengths`].
    pub fn convert(&self, src: &[u8], dst: &mut [u8]) -> Result<ConvertCounts, ConvertError> {
        let elements = src.len() / self.from_bytes;
        let fits =
            elements * self.from_bytes == src.len() && elements.checked_mul(self.to_bytes) == Some(dst.len());
        if !fits {
            return Err(ConvertError::Lengths { from: src.len(), to: dst.len() });
        }
        let overflowed_to_infinity = match &self.kernel {
            Kernel::HalfSingle(pair) => pair.convert(src, dst),
            Kernel::Float(pair) => pair.convert(src, dst),
            Kernel::Integer(pair) => {
                pair.convert(src, dst)?;
                0
            }
        };
        Ok(ConvertCounts { overflowed_to_infinity })
    }
}
