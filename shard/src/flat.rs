//! Flat buffers: many parameters laid end to end in one bucket, of which a rank owns a range of elements.
//!
//! That is how ZeRO and Megatron's distributed optimizer keep optimizer state. A range of a parameter's flat
//! elements is a few boxes of its global shape, so the state is described like any other tensor: no checkpoint
//! knows of buckets, and another bucket layout, or none, can load it.

use crate::{DType, Dims, MAX_AXES, Placement, Region, RegionError, Replica, ShardError, ShardedTensor};
use std::ops::Range;

/// A bucket: parameters' local (tensor-parallel) shards, each flat and dense, with padding between and behind.
#[derive(Clone, Debug, Default)]
pub struct FlatBuffer {
    /// In ascending order of start.
    parameters: Vec<FlatParameter>,
    elements: u64,
}

#[derive(Clone, Debug)]
struct FlatParameter {
    key: String,
    shard: ShardedTensor,
    start: u64,
}

/// What a rank owns of one parameter of a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlatPart {
    /// The parameter.
    pub key: String,
    /// The state's shard; its local array has one axis, the owned elements. None of them: an empty shard.
    pub tensor: ShardedTensor,
    /// Where these elements begin in the rank's own slice of the bucket. The slice's elements
    /// `offset .. offset + tensor.local_elements()` are the shard's local buffer.
    pub offset: u64,
}

impl FlatBuffer {
    /// An empty bucket.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a parameter's local shard at element `start`, behind all parameters before it. Its local array lies
    /// there dense and row-major, as [`ShardedTensor::placements`] have it. The bucket grows to its end.
    ///
    /// # Errors
    /// [`ShardError::Bucket`] where it begins before the bucket's end.
    pub fn place(
        &mut self,
        key: impl Into<String>,
        shard: ShardedTensor,
        start: u64,
    ) -> Result<(), ShardError> {
        let key = key.into();
        match start.checked_add(shard.local_elements()) {
            Some(end) if start >= self.elements => {
                self.elements = end;
                self.parameters.push(FlatParameter { key, shard, start });
                Ok(())
            }
            _ => Err(ShardError::Bucket { key, start, elements: self.elements }),
        }
    }

    /// Puts a parameter's local shard at the next multiple of `align` elements (0 and 1 alike: at once).
    ///
    /// # Errors
    /// [`ShardError::Bucket`] where the bucket's size overflows.
    pub fn push(
        &mut self,
        key: impl Into<String>,
        shard: ShardedTensor,
        align: u64,
    ) -> Result<(), ShardError> {
        let start = self.elements.checked_next_multiple_of(align.max(1)).unwrap_or(u64::MAX);
        self.place(key, shard, start)
    }

    /// Size of the bucket in elements, padding inside it included.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// What owner `index` of `count` owns of the bucket, padded behind to a multiple of `count`; empty where
    /// there is no such owner. The last ranges may lie in the padding in part or in whole.
    pub fn even_range(&self, index: u64, count: u64) -> Range<u64> {
        let each = if count == 0 { 0 } else { self.elements.div_ceil(count) };
        let start = each.saturating_mul(index);
        start..start.saturating_add(if index < count { each } else { 0 })
    }

    /// The shards, of `dtype`, that the owner of the elements `owned` holds: one for every parameter of the bucket,
    /// in order, empty where it owns nothing of it. `replica_of` tells which copy of its part the rank holds.
    ///
    /// A shard has at most `2 * ndim - 1` regions for each region of the parameter's local shard. Padding lies in
    /// no shard. Everything else, the declared split too, is as in the parameter; an alias is dropped.
    ///
    /// # Errors
    /// [`ShardError`] naming the parameter, as for [`ShardedTensorBuilder::build`](crate::ShardedTensorBuilder::build),
    /// or what `replica_of` returns.
    pub fn parts(
        &self,
        owned: Range<u64>,
        dtype: DType,
        mut replica_of: impl FnMut(&str) -> Result<Replica, ShardError>,
    ) -> Result<Vec<FlatPart>, ShardError> {
        let part = |parameter: &FlatParameter| {
            let FlatParameter { key, shard, start } = parameter;
            let end = start + shard.local_elements(); // checked when it was placed
            let (from, to) = (owned.start.max(*start), owned.end.min(end));
            let length = to.saturating_sub(from);
            let mut placements = Vec::new();
            if length > 0 {
                for placement in shard.placements() {
                    cut_flat(placement, from - start..to - start, &mut placements)
                        .map_err(|source| ShardError::Region { key: key.clone(), source })?;
                }
            }
            let builder = shard.derive().no_alias().dtype(dtype).replica(replica_of(key)?);
            let tensor = builder.placed(placements, [length]).build(key)?;
            let offset = if length > 0 { from - owned.start } else { 0 };
            Ok(FlatPart { key: key.clone(), tensor, offset })
        };
        self.parameters.iter().map(part).collect()
    }
}

/// The elements of `placement` whose place in its local buffer lies in `range`, as boxes; their places count from
/// the start of the range.
fn cut_flat(placement: &Placement, range: Range<u64>, boxes: &mut Vec<Placement>) -> Result<(), RegionError> {
    // Longest stride first: what lies below an axis then spans less than one step along it.
    let mut axes: Vec<usize> = (0..placement.region.ndim()).collect();
    axes.sort_by_key(|&axis| std::cmp::Reverse((placement.strides[axis], placement.region.shape()[axis])));
    let walk = Walk { placement, axes: &axes, range };
    let whole = Dims::from_slice(placement.region.shape());
    walk.descend(0, placement.local_offset, &mut Dims::from_elem(0, whole.len()), boxes)
}

struct Walk<'a> {
    placement: &'a Placement,
    axes: &'a [usize],
    range: Range<u64>,
}

impl Walk<'_> {
    /// Takes what lies in the range of the sub-box that fixes the axes before `depth` at `at`. Its first element
    /// lies at `place`.
    fn descend(
        &self,
        depth: usize,
        place: u64,
        at: &mut Dims,
        boxes: &mut Vec<Placement>,
    ) -> Result<(), RegionError> {
        let (shape, strides) = (self.placement.region.shape(), &self.placement.strides);
        let reach = |axes: &[usize]| -> u64 {
            axes.iter().map(|&axis| (shape[axis] - 1) * strides[axis]).sum::<u64>() + 1
        };
        let Range { start, end } = self.range;
        if place >= end || place + reach(&self.axes[depth..]) <= start {
            return Ok(());
        }
        let Some((&axis, below)) = self.axes.get(depth).zip(self.axes.get(depth + 1..)) else {
            return self.take(depth, 0..1, place, at, boxes);
        };
        let (size, stride, inner) = (shape[axis], strides[axis].max(1), reach(below));
        // Steps along the axis that lie in the range in whole: from the first that starts in it to the last that
        // ends in it.
        let full_from = start.saturating_sub(place).div_ceil(stride).min(size);
        let full_to = match (end - place).checked_sub(inner) {
            Some(room) => (room / stride + 1).min(size),
            None => 0,
        };
        if full_from < full_to {
            self.take(depth, full_from..full_to, place, at, boxes)?;
        }
        // The steps that the range begins and ends in, at most one each.
        let (head, tail) = (full_from.checked_sub(1), full_to.max(full_from));
        for step in head.into_iter().chain((tail < size).then_some(tail)) {
            at[axis] = step;
            self.descend(depth + 1, place + step * stride, at, boxes)?;
            at[axis] = 0;
        }
        Ok(())
    }

    /// Takes `steps` along the axis at `depth`, all of the axes below it, one element of those above.
    fn take(
        &self,
        depth: usize,
        steps: Range<u64>,
        place: u64,
        at: &Dims,
        boxes: &mut Vec<Placement>,
    ) -> Result<(), RegionError> {
        debug_assert!(self.axes.len() <= MAX_AXES);
        let region = &self.placement.region;
        let mut offset = Dims::from_slice(region.offset());
        let mut shape = Dims::from_slice(region.shape());
        for &axis in &self.axes[..depth] {
            offset[axis] += at[axis];
            shape[axis] = 1;
        }
        let mut place = place;
        if let Some(&axis) = self.axes.get(depth) {
            offset[axis] += steps.start;
            shape[axis] = steps.end - steps.start;
            place += steps.start * self.placement.strides[axis];
        }
        boxes.push(Placement {
            region: Region::new(offset, shape)?,
            local_offset: place - self.range.start,
            strides: self.placement.strides.clone(),
        });
        Ok(())
    }
}
