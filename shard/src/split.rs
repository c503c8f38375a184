use crate::region::Dims;
use serde::{Deserialize, Serialize};

/// How a tensor is meant to be cut: the axis, and the segments along it that are each cut on their own.
///
/// Packed QKV has the segments Q, K and V; a fused `[gate; up]` has two; a plain column- or row-parallel weight
/// has one. It is declared even when the tensor is not cut at present, because the writer lays chunks along it
/// for the readers to come.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// The axis of the global shape.
    pub axis: usize,
    /// Lengths of the segments along the axis, in order. Empty = one segment, the whole axis. Otherwise their sum
    /// is at most the axis's size (a padded tail belongs to no segment).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<u64>,
}

impl Split {
    /// One segment: the whole axis.
    pub fn axis(axis: usize) -> Self {
        Self { axis, segments: Vec::new() }
    }

    /// Several segments, each cut on its own.
    pub fn segmented(axis: usize, segments: impl Into<Vec<u64>>) -> Self {
        Self { axis, segments: segments.into() }
    }

    /// The segments as `(start, length)` along the axis of a tensor of `global_shape`, gapless and covering the
    /// axis; the last is what a padded tail leaves, where there is one. `None` where the split does not fit.
    pub fn spans(&self, global_shape: &[u64]) -> Option<Vec<(u64, u64)>> {
        let size = *global_shape.get(self.axis)?;
        if self.segments.is_empty() {
            return Some(vec![(0, size)]);
        }
        let mut spans = Vec::with_capacity(self.segments.len() + 1);
        let mut start = 0u64;
        for &length in &self.segments {
            if length == 0 {
                return None;
            }
            spans.push((start, length));
            start = start.checked_add(length).filter(|&end| end <= size)?;
        }
        if start < size {
            spans.push((start, size - start));
        }
        Some(spans)
    }

    pub(crate) fn fits(&self, global_shape: &Dims) -> bool {
        self.spans(global_shape).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_the_axis_or_the_split_does_not_fit() {
        assert_eq!(Split::axis(1).spans(&[3, 8]), Some(vec![(0, 8)]));
        assert_eq!(Split::segmented(0, [8, 2, 2]).spans(&[12, 4]), Some(vec![(0, 8), (8, 2), (10, 2)]));
        assert_eq!(Split::segmented(0, [8, 2]).spans(&[12]), Some(vec![(0, 8), (8, 2), (10, 2)]));
        assert_eq!(Split::segmented(0, [8, 5]).spans(&[12]), None);
        assert_eq!(Split::segmented(0, [8, 0]).spans(&[12]), None);
        assert_eq!(Split::segmented(0, [u64::MAX, 2]).spans(&[12]), None);
        assert_eq!(Split::axis(2).spans(&[12, 4]), None);
    }
}
