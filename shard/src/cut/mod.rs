//! How a tensor is cut: pieces along an axis, one cut after another, on any number of axes.
//!
//! Every cut works on what the cuts before it left, so tensor parallelism, then FSDP on the same axis, gives the
//! strided pieces that torch keeps as `_StridedShard`; here they are just several spans.

mod pieces;
mod spans;

pub use pieces::{CutError, Pieces};
pub use spans::Spans;

use crate::{Dims, MAX_AXES, Placement, Region, RegionError, Split};

/// What is left to one rank of a tensor after a number of cuts: spans on every axis, whose products are regions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cuts {
    axes: Vec<Spans>,
}

impl Cuts {
    /// No cut yet: the whole tensor.
    pub fn whole(global_shape: &[u64]) -> Self {
        Self { axes: global_shape.iter().map(|&size| Spans::whole(size)).collect() }
    }

    /// Keeps piece `index` of `count` of what is left of `axis`.
    ///
    /// # Errors
    /// [`CutError`].
    pub fn cut(self, axis: usize, pieces: &Pieces, index: u64, count: u64) -> Result<Self, CutError> {
        self.cut_segments(axis, &[], pieces, index, count)
    }

    /// Keeps piece `index` of `count` of every segment of what is left of `axis`, and lays these one after another
    /// (packed QKV: `[q_r | k_r | v_r]`). Segments are as in [`Split::segments`].
    ///
    /// # Errors
    /// [`CutError`].
    pub fn cut_segments(
        mut self,
        axis: usize,
        segments: &[u64],
        pieces: &Pieces,
        index: u64,
        count: u64,
    ) -> Result<Self, CutError> {
        let ndim = self.axes.len();
        let left = self.axes.get_mut(axis).ok_or(CutError::Axis { axis, ndim })?;
        let size = left.total();
        let segments = Split::segmented(0, segments)
            .spans(&[size])
            .ok_or_else(|| CutError::Segments { segments: segments.to_vec(), size })?;
        let mut kept = Spans::default();
        for (start, length) in segments {
            let (from, size) = pieces.piece(length, index, count)?;
            kept.append(&left.part(start + from, size));
        }
        *left = kept;
        Ok(self)
    }

    /// What is left of `axis`; `None` where there is no such axis.
    pub fn spans(&self, axis: usize) -> Option<&Spans> {
        self.axes.get(axis)
    }

    /// Shape of the local array.
    pub fn local_shape(&self) -> Dims {
        self.axes.iter().map(Spans::total).collect()
    }

    /// The regions and their places in a dense row-major local array of [`Cuts::local_shape`]; none for an empty
    /// shard.
    ///
    /// # Errors
    /// [`RegionError`] where a region has too many axes or overflows.
    pub fn placements(&self) -> Result<Vec<Placement>, RegionError> {
        if self.axes.len() > MAX_AXES {
            return Err(RegionError::TooManyAxes(self.axes.len()));
        }
        let local_shape = self.local_shape();
        // (global offset, shape, local start) of every product of spans, the last axis the fastest.
        let mut boxes = vec![(Dims::new(), Dims::new(), Dims::new())];
        for spans in &self.axes {
            let mut next = Vec::with_capacity(boxes.len() * spans.iter().len());
            for (offset, shape, local) in boxes {
                let mut at = 0;
                for (start, length) in spans.iter() {
                    let (mut offset, mut shape, mut local) = (offset.clone(), shape.clone(), local.clone());
                    offset.push(start);
                    shape.push(length);
                    local.push(at);
                    next.push((offset, shape, local));
                    at += length;
                }
            }
            boxes = next;
        }
        boxes
            .into_iter()
            .map(|(offset, shape, local)| {
                Placement::in_array(Region::new(offset, shape)?, &local_shape, &local)
            })
            .collect()
    }
}
