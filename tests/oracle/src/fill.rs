use crate::Random;
use reshard_shard::DType;

/// The bytes of the whole tensor `key`, dense and row-major: arbitrary bits (NaNs and negative zeros among them),
/// different for every key, and 0 or 1 for `bool`.
pub fn full_tensor(key: &str, dtype: DType, global_shape: &[u64]) -> Vec<u8> {
    let bytes = (global_shape.iter().product::<u64>() * dtype.bits() / 8) as usize;
    let mut random = Random::of(key);
    let mut full = vec![0; bytes];
    for piece in full.chunks_mut(8) {
        let word = random.word().to_le_bytes();
        piece.copy_from_slice(&word[..piece.len()]);
    }
    if dtype == DType::Bool {
        full.iter_mut().for_each(|byte| *byte &= 1);
    }
    full
}

/// A dense tensor at another global shape: what both shapes have is kept, the rest is zero.
pub fn resized(full: &[u8], from: &[u64], to: &[u64], element_bytes: u64) -> Vec<u8> {
    let size = element_bytes as usize;
    let count = to.iter().product::<u64>();
    let mut out = vec![0; count as usize * size];
    for element in 0..count {
        let mut rest = element;
        let mut index = vec![0; to.len()];
        for axis in (0..to.len()).rev() {
            index[axis] = rest % to[axis];
            rest /= to[axis];
        }
        if index.iter().zip(from).all(|(at, size)| at < size) {
            let source = index.iter().zip(from).fold(0, |place, (at, size)| place * size + at) as usize;
            let target = element as usize;
            out[target * size..(target + 1) * size]
                .copy_from_slice(&full[source * size..(source + 1) * size]);
        }
    }
    out
}

/// The first byte at which two buffers differ, or their lengths if those do.
pub fn first_difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    Some(format!("byte {at} is {:#04x} instead of {:#04x}", found[at], expected[at]))
}
