//! Any float to any other, in chunks that stay in the first-level cache.

use super::float_format::FloatFormat;
use reshard_shard::DType;

/// Elements per chunk.
const CHUNK: usize = 128;

/// Two different float formats.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloatPair {
    from: FloatFormat,
    to: FloatFormat,
}

impl FloatPair {
    /// `None` where one of them is no float.
    pub(super) fn new(from: DType, to: DType) -> Option<Self> {
        Some(Self { from: FloatFormat::of(from)?, to: FloatFormat::of(to)? })
    }

    /// Converts runs of equally many elements; how many were too large.
    pub(super) fn convert(&self, src: &[u8], dst: &mut [u8]) -> u64 {
        let mut values = [0u64; CHUNK];
        let mut overflowed = 0;
        let chunks = src.chunks(CHUNK * self.from.bytes()).zip(dst.chunks_mut(CHUNK * self.to.bytes()));
        for (src, dst) in chunks {
            match self.from.bytes() {
                1 => decode::<1>(self.from, src, &mut values),
                2 => decode::<2>(self.from, src, &mut values),
                4 => decode::<4>(self.from, src, &mut values),
                _ => decode::<8>(self.from, src, &mut values),
            }
            overflowed += match self.to.bytes() {
                1 => encode::<1>(self.to, &values, dst),
                2 => encode::<2>(self.to, &values, dst),
                4 => encode::<4>(self.to, &values, dst),
                _ => encode::<8>(self.to, &values, dst),
            };
        }
        overflowed
    }
}

fn decode<const BYTES: usize>(format: FloatFormat, src: &[u8], values: &mut [u64; CHUNK]) {
    for (code, value) in src.as_chunks::<BYTES>().0.iter().zip(values) {
        let mut word = [0; 8];
        word[..BYTES].copy_from_slice(code);
        *value = format.decode(u64::from_le_bytes(word));
    }
}

fn encode<const BYTES: usize>(format: FloatFormat, values: &[u64; CHUNK], dst: &mut [u8]) -> u64 {
    let mut overflowed = 0;
    for (code, &value) in dst.as_chunks_mut::<BYTES>().0.iter_mut().zip(values) {
        let (word, over) = format.encode(value);
        code.copy_from_slice(&word.to_le_bytes()[..BYTES]);
        overflowed += u64::from(over);
    }
    overflowed
}
