//! bf16 and f16 to and from f32: the conversions of nearly every load that converts at all, written to vectorise.

use half::f16;
use half::slice::HalfFloatSliceExt;
use reshard_shard::DType;

/// Elements per chunk, converted in aligned buffers: source and destination may lie anywhere.
const CHUNK: usize = 512;

const F32_INFINITY: u32 = 0x7f80_0000;
const F32_QUIET: u32 = 0x0040_0000;
const F16_INFINITY: u16 = 0x7c00;

/// A 16-bit format and f32, and the direction.
#[derive(Clone, Copy, Debug)]
pub(super) enum HalfSingle {
    BrainToSingle,
    SingleToBrain,
    HalfToSingle,
    SingleToHalf,
}

impl HalfSingle {
    /// `None` for every other pair of dtypes.
    pub(super) fn new(from: DType, to: DType) -> Option<Self> {
        Some(match (from, to) {
            (DType::BF16, DType::F32) => Self::BrainToSingle,
            (DType::F32, DType::BF16) => Self::SingleToBrain,
            (DType::F16, DType::F32) => Self::HalfToSingle,
            (DType::F32, DType::F16) => Self::SingleToHalf,
            _ => return None,
        })
    }

    /// Converts runs of equally many elements; how many were too large.
    pub(super) fn convert(self, src: &[u8], dst: &mut [u8]) -> u64 {
        match self {
            Self::BrainToSingle => {
                for (code, wide) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
                    *wide = brain_to_single(u16::from_le_bytes(*code)).to_le_bytes();
                }
                0
            }
            Self::SingleToBrain => src
                .chunks(4 * CHUNK)
                .zip(dst.chunks_mut(2 * CHUNK))
                .map(|(src, dst)| {
                    // A 32-bit count per chunk keeps the loop's lanes equally wide.
                    let mut overflowed = 0u32;
                    for (wide, code) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
                        let wide = u32::from_le_bytes(*wide);
                        let narrow = single_to_brain(wide);
                        overflowed += u32::from(
                            narrow & 0x7fff == (F32_INFINITY >> 16) as u16
                                && wide & 0x7fff_ffff != F32_INFINITY,
                        );
                        *code = narrow.to_le_bytes();
                    }
                    u64::from(overflowed)
                })
                .sum(),
            Self::HalfToSingle => {
                half_to_single(src, dst);
                0
            }
            Self::SingleToHalf => single_to_half(src, dst),
        }
    }
}

fn brain_to_single(code: u16) -> u32 {
    let wide = u32::from(code) << 16;
    let nan = wide & 0x7fff_ffff > F32_INFINITY;
    wide | if nan { F32_QUIET } else { 0 }
}

fn single_to_brain(wide: u32) -> u16 {
    let nan = wide & 0x7fff_ffff > F32_INFINITY;
    let odd = wide >> 16 & 1;
    // A carry out of the fraction moves to the next exponent, up to infinity, which is what rounding up means. Only a
    // NaN could carry past the sign, and it is not rounded.
    let rounded = wide.wrapping_add(0x7fff + odd);
    ((if nan { wide | F32_QUIET } else { rounded }) >> 16) as u16
}

/// By the processor's own conversion where it has one. Both it and its replacement round to nearest even, make NaN quiet
/// and keep subnormals.
fn half_to_single(src: &[u8], dst: &mut [u8]) {
    let mut codes = [f16::ZERO; CHUNK];
    let mut wides = [0f32; CHUNK];
    for (src, dst) in src.chunks(2 * CHUNK).zip(dst.chunks_mut(4 * CHUNK)) {
        let src = src.as_chunks().0;
        let (codes, wides) = (&mut codes[..src.len()], &mut wides[..src.len()]);
        for (code, bytes) in codes.iter_mut().zip(src) {
            *code = f16::from_le_bytes(*bytes);
        }
        codes.convert_to_f32_slice(wides);
        for (wide, bytes) in wides.iter().zip(dst.as_chunks_mut().0) {
            *bytes = wide.to_le_bytes();
        }
    }
}

fn single_to_half(src: &[u8], dst: &mut [u8]) -> u64 {
    let mut codes = [f16::ZERO; CHUNK];
    let mut wides = [0f32; CHUNK];
    let mut total = 0;
    for (src, dst) in src.chunks(4 * CHUNK).zip(dst.chunks_mut(2 * CHUNK)) {
        let src = src.as_chunks().0;
        let (codes, wides) = (&mut codes[..src.len()], &mut wides[..src.len()]);
        for (wide, bytes) in wides.iter_mut().zip(src) {
            *wide = f32::from_le_bytes(*bytes);
        }
        codes.convert_from_f32_slice(wides);
        let mut overflowed = 0u32;
        for ((code, wide), bytes) in codes.iter().zip(&*wides).zip(dst.as_chunks_mut().0) {
            let infinite = wide.to_bits() & 0x7fff_ffff == F32_INFINITY;
            overflowed += u32::from(code.to_bits() & 0x7fff == F16_INFINITY && !infinite);
            *bytes = code.to_le_bytes();
        }
        total += u64::from(overflowed);
    }
    total
}
