use super::copy::{Copy, CopyKind};
use reshard_shard::{Placement, Region};
use smallvec::SmallVec;

/// Where the elements of a region lie in a local buffer, in row-major order of the region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalPattern {
    /// Where the first byte lies.
    pub offset: u64,
    /// `(count, stride in bytes)` of the axes outside a row, outermost first.
    pub axes: SmallVec<[(u64, u64); 3]>,
    /// Bytes of a row.
    pub row_bytes: u64,
}

impl LocalPattern {
    /// The pattern of `part`, which lies inside the placed region, with elements of `element_bytes`.
    pub(crate) fn of(placement: &Placement, part: &Region, element_bytes: u64) -> Self {
        // A copy between the part itself, dense, and the local buffer: its local side is the pattern.
        let kind = CopyKind { tensor: 0, file_element: element_bytes, local_element: element_bytes };
        let copy = Copy::between(kind, 0, part, 0, placement, part);
        Self {
            offset: copy.local_offset,
            axes: copy.axes.iter().map(|axis| (axis.count, axis.local_stride)).collect(),
            row_bytes: copy.row_elements * element_bytes,
        }
    }

    /// `length` bytes from the start of a buffer.
    pub(crate) fn contiguous(length: u64) -> Self {
        Self { offset: 0, axes: SmallVec::new(), row_bytes: length }
    }
}
