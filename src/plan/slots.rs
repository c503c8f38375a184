//! Slots: how a writer cuts a tensor for the readers to come.
//!
//! A tensor is cut along its declared split axis into `k` equal slots (each segment on its own), and a file holds
//! all slot-0 chunks of all tensors, then all slot-1 chunks, and so on. A reader whose tensor-parallel size
//! divides `k` then needs whole neighbouring slots: one or two contiguous extents of a file, on inner axes too.

use reshard_shard::{DType, Dims, Region, Split};

/// Most slots of a tensor; also the number of slot positions that order a file.
pub(crate) const MAX_SLOTS: u64 = 64;
/// A slot of a tensor holds at least this many bytes.
const MIN_SLOT_BYTES: u64 = 64 << 10;

/// Which run of a data file a chunk belongs to; the order of the variants is their order in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Run {
    /// Tensors without a declared split: every reader wants them whole.
    Whole,
    /// Tensors too small, or of a size too odd, to be cut.
    Uncut,
    /// The slots at this position of [`MAX_SLOTS`]. A tensor with `k` slots has them at every `MAX_SLOTS / k`-th,
    /// so that what one reader wants is together whatever the tensors' own `k`.
    Slot(u64),
}

/// The slots of one tensor.
pub(crate) struct Slots {
    /// Axis, and `(start, length)` of each segment along it; none where the tensor has no declared split.
    segments: Option<(usize, Vec<(u64, u64)>)>,
    /// Number of slots, a power of two.
    count: u64,
    /// How many of the segments are cut; a padded tail behind them is not.
    declared: usize,
}

impl Slots {
    /// The slots of a tensor. The split must fit the shape, as that of any `ShardedTensor` does; one that does
    /// not is not cut.
    pub(crate) fn of(dtype: DType, global_shape: &Dims, split: Option<&Split>) -> Self {
        let Some((split, spans)) = split.and_then(|split| Some((split, split.spans(global_shape)?))) else {
            return Self { segments: None, count: 1, declared: 0 };
        };
        let declared = split.segments.len().max(1);
        let bytes = global_shape.iter().product::<u64>() * dtype.bits() / 8;
        let divides = |k: u64| spans[..declared].iter().all(|&(_, length)| length % k == 0);
        let mut count = 1;
        while count < MAX_SLOTS && divides(count * 2) && bytes / (count * 2) >= MIN_SLOT_BYTES {
            count *= 2;
        }
        Self { segments: Some((split.axis, spans)), count, declared }
    }

    /// Cuts a region at the borders of segments and slots.
    pub(crate) fn cut(&self, region: &Region) -> Vec<(Run, Region)> {
        let Some((axis, spans)) = &self.segments else { return vec![(Run::Whole, region.clone())] };
        if self.count == 1 {
            return vec![(Run::Uncut, region.clone())];
        }
        let step = MAX_SLOTS / self.count;
        let mut parts = Vec::new();
        for (index, &(start, length)) in spans.iter().enumerate() {
            if index >= self.declared {
                let tail = region.clip(*axis, start, start + length);
                parts.extend(tail.map(|tail| (Run::Slot((self.count - 1) * step), tail)));
                continue;
            }
            let slot = length / self.count;
            let first = region.offset()[*axis].saturating_sub(start) / slot;
            let past = region.end(*axis).saturating_sub(start).div_ceil(slot).min(self.count);
            for position in first..past {
                let begin = start + position * slot;
                let part = region.clip(*axis, begin, begin + slot);
                parts.extend(part.map(|part| (Run::Slot(position * step), part)));
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_shard::prove_tiling;

    fn count(dtype: DType, shape: &[u64], split: Option<Split>) -> u64 {
        Slots::of(dtype, &Dims::from_slice(shape), split.as_ref()).count
    }

    #[test]
    fn the_largest_power_of_two_that_divides_and_leaves_64_kib() {
        assert_eq!(count(DType::F32, &[3072, 768], Some(Split::axis(0))), 64);
        assert_eq!(count(DType::BF16, &[768], Some(Split::axis(0))), 1);
        assert_eq!(count(DType::F32, &[24, 1 << 20], Some(Split::axis(0))), 8);
        assert_eq!(count(DType::F32, &[50257, 768], Some(Split::axis(0))), 1);
        assert_eq!(count(DType::F32, &[256, 256], Some(Split::axis(1))), 4);
        assert_eq!(count(DType::BF16, &[3072, 2048], Some(Split::segmented(0, [2048, 512, 512]))), 64);
        assert_eq!(count(DType::BF16, &[3072, 2048], None), 1);
    }

    proptest! {
        #[test]
        fn cuts_tile_the_region_and_lie_in_their_slots(
            q in 1u64..5, kv in 1u64..3, tail in 0u64..3, start in 0u64..100, size in 1u64..300, axis in 0usize..2,
        ) {
            let segments = [q * 64, kv * 64, kv * 64];
            let along = segments.iter().sum::<u64>() + tail;
            let mut shape = [2048, 2048];
            shape[axis] = along;
            let slots = Slots::of(DType::F64, &Dims::from_slice(&shape), Some(&Split::segmented(axis, segments)));
            let start = start.min(along - 1);
            let mut offset = [3, 3];
            let mut sizes = [7, 7];
            offset[axis] = start;
            sizes[axis] = size.min(along - start);
            let region = Region::new(offset, sizes).unwrap();
            let parts = slots.cut(&region);
            prop_assert!(prove_tiling([&region], parts.iter().map(|(_, part)| part)).is_ok());
            for (run, part) in &parts {
                let Run::Slot(position) = *run else { panic!("{run:?}") };
                let slot = position * slots.count / MAX_SLOTS;
                for at in part.offset()[axis]..part.end(axis) {
                    let mut from = 0;
                    let segment = segments.iter().find(|&&length| { from += length; at < from });
                    let expected = segment.map_or(slots.count - 1, |&length| (at - (from - length)) * slots.count / length);
                    prop_assert_eq!(expected, slot);
                }
            }
        }
    }
}
