//! The oracle of all correctness tests. It knows nothing of plans, chunks or files: it builds whole tensors and cuts
//! them element by element, by the definition of a placement.

mod fill;
pub mod infinitrain;
pub mod layouts;
mod random;
mod tier;

pub use fill::{first_difference, full_tensor, resized};
pub use random::Random;
pub use tier::{cases, long};

use reshard_shard::ShardedTensor;

/// The local buffer of a shard: every element of every placement taken from the whole tensor `full` (dense,
/// row-major, of the shard's global shape). Places that no region fills are zero.
pub fn cut(full: &[u8], shard: &ShardedTensor) -> Vec<u8> {
    let Some(size) = shard.dtype().element_bytes() else {
        // An opaque tensor is held whole or not at all.
        return if shard.placements().is_empty() { Vec::new() } else { full.to_vec() };
    };
    let size = size as usize;
    let mut local = vec![0; shard.local_bytes() as usize];
    for placement in shard.placements() {
        let shape = placement.region.shape();
        let mut index = vec![0u64; shape.len()];
        'elements: loop {
            let mut from = 0;
            let mut to = placement.local_offset;
            for (axis, &at) in index.iter().enumerate() {
                from = from * shard.global_shape()[axis] + placement.region.offset()[axis] + at;
                to += at * placement.strides[axis];
            }
            let (from, to) = (from as usize * size, to as usize * size);
            // The innermost axis goes in one step where it is contiguous; all else is one element at a time.
            let run = match (shape.last(), placement.strides.last()) {
                (Some(&count), Some(1)) => count as usize,
                _ => 1,
            };
            local[to..to + run * size].copy_from_slice(&full[from..from + run * size]);
            let mut axis = shape.len();
            loop {
                if axis == 0 {
                    break 'elements;
                }
                axis -= 1;
                index[axis] += if axis + 1 == shape.len() { run as u64 } else { 1 };
                if index[axis] < shape[axis] {
                    break;
                }
                index[axis] = 0;
            }
        }
    }
    local
}
