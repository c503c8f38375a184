use reshard_shard::{Dims, Placement, Region};
use smallvec::SmallVec;

/// One axis of a [`struct@Copy`]: how many steps, and how far each step goes in the file and in the local buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyAxis {
    /// Number of steps, at least 2.
    pub count: u64,
    /// Bytes between neighbours in the file.
    pub file_stride: u64,
    /// Bytes between neighbours in the local buffer.
    pub local_stride: u64,
}

/// An n-d copy between a dense chunk in a file and a rank's local buffer.
///
/// Axes are outermost first, and those that are contiguous on both sides are joined. In the file the elements of a
/// copy lie in ascending order, since a chunk is dense and row-major.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Index of the tensor in the plan.
    pub tensor: u32,
    /// Index of the file in the saved layout.
    pub file: u32,
    /// Where the first element lies in the file, in bytes.
    pub file_offset: u64,
    /// Where the first element lies in the local buffer, in bytes.
    pub local_offset: u64,
    /// The axes outside a row.
    pub axes: SmallVec<[CopyAxis; 3]>,
    /// Elements of a row: contiguous in the file and in the local buffer.
    pub row_elements: u64,
    /// Bytes of an element in the file.
    pub file_element: u64,
    /// Bytes of an element in the local buffer; differs from `file_element` where the dtype is converted.
    pub local_element: u64,
}

/// Which tensor and element sizes a copy is for.
#[derive(Clone, Copy)]
pub(crate) struct CopyKind {
    pub(crate) tensor: u32,
    pub(crate) file_element: u64,
    pub(crate) local_element: u64,
}

impl Copy {
    /// The copy of `common` between the chunk `stored` (which begins at `offset` of `file`) and `placed`. All three
    /// regions are of one tensor, and `common` lies inside the other two.
    pub(crate) fn between(
        kind: CopyKind,
        file: u32,
        stored: &Region,
        offset: u64,
        placed: &Placement,
        common: &Region,
    ) -> Self {
        let ndim = common.ndim();
        let mut file_strides: Dims = Dims::from_elem(1, ndim);
        for axis in (1..ndim).rev() {
            file_strides[axis - 1] = file_strides[axis] * stored.shape()[axis];
        }
        let mut copy = Self {
            tensor: kind.tensor,
            file,
            file_offset: offset,
            local_offset: placed.local_offset * kind.local_element,
            axes: SmallVec::new(),
            row_elements: 1,
            file_element: kind.file_element,
            local_element: kind.local_element,
        };
        for axis in 0..ndim {
            let start = common.offset()[axis];
            copy.file_offset += (start - stored.offset()[axis]) * file_strides[axis] * kind.file_element;
            copy.local_offset +=
                (start - placed.region.offset()[axis]) * placed.strides[axis] * kind.local_element;
        }
        // From the innermost axis outwards: first what extends the row, then what joins the axis before it.
        let mut axes: SmallVec<[CopyAxis; 3]> = SmallVec::new();
        for axis in (0..ndim).rev() {
            let count = common.shape()[axis];
            if count == 1 {
                continue;
            }
            let next = CopyAxis {
                count,
                file_stride: file_strides[axis] * kind.file_element,
                local_stride: placed.strides[axis] * kind.local_element,
            };
            match axes.last_mut() {
                None if next.file_stride == copy.row_elements * kind.file_element
                    && next.local_stride == copy.row_elements * kind.local_element =>
                {
                    copy.row_elements *= count;
                }
                Some(inner)
                    if next.file_stride == inner.file_stride * inner.count
                        && next.local_stride == inner.local_stride * inner.count =>
                {
                    inner.count *= count;
                }
                _ => axes.push(next),
            }
        }
        axes.reverse();
        copy.axes = axes;
        copy
    }

    /// Bytes of the elements in the file.
    pub fn file_bytes(&self) -> u64 {
        self.elements() * self.file_element
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.row_elements * self.axes.iter().map(|axis| axis.count).product::<u64>()
    }

    /// One past the last byte in the file.
    pub fn file_end(&self) -> u64 {
        self.file_offset
            + self.row_elements * self.file_element
            + self.axes.iter().map(|axis| (axis.count - 1) * axis.file_stride).sum::<u64>()
    }

    /// The extents `(start, end)` of the file that hold the copy's elements, ascending, where gaps of up to
    /// `max_gap` bytes inside the copy are read rather than skipped. With `max_gap` 0 these are exactly its bytes.
    pub(crate) fn extents(&self, max_gap: u64) -> Vec<(u64, u64)> {
        let mut length = self.row_elements * self.file_element;
        let mut outer = self.axes.len();
        while outer > 0 && self.axes[outer - 1].file_stride - length <= max_gap {
            let axis = self.axes[outer - 1];
            length += axis.file_stride * (axis.count - 1);
            outer -= 1;
        }
        let mut starts = vec![self.file_offset];
        for axis in &self.axes[..outer] {
            starts = starts
                .iter()
                .flat_map(|&start| (0..axis.count).map(move |i| start + i * axis.file_stride))
                .collect();
        }
        starts.into_iter().map(|start| (start, start + length)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against walking over every element with global coordinates.
        #[test]
        fn moves_each_element_to_its_place(
            stored in (0u64..4, 0u64..4, 0u64..4, 1u64..5, 1u64..5, 1u64..5),
            placed in (0u64..4, 0u64..4, 0u64..4, 1u64..5, 1u64..5, 1u64..5),
            pad in (0u64..3, 0u64..3, 0u64..3), max_gap in 0u64..40,
        ) {
            let region = |r: (u64, u64, u64, u64, u64, u64)| Region::new([r.0, r.1, r.2], [r.3, r.4, r.5]).unwrap();
            let (stored, placed) = (region(stored), region(placed));
            let Some(common) = stored.intersect(&placed) else { return Ok(()) };
            let array: Vec<u64> = placed.shape().iter().zip([pad.0, pad.1, pad.2]).map(|(n, p)| n + p).collect();
            let placement = Placement::in_array(placed.clone(), &array, &[pad.0, pad.1, pad.2]).unwrap();
            let kind = CopyKind { tensor: 0, file_element: 2, local_element: 4 };
            let copy = Copy::between(kind, 0, &stored, 100, &placement, &common);
            let mut expected = Vec::new();
            for x in common.offset()[0]..common.end(0) { for y in common.offset()[1]..common.end(1) { for z in common.offset()[2]..common.end(2) {
                let at = |r: &Region, shape: &[u64]| ((x - r.offset()[0]) * shape[1] + y - r.offset()[1]) * shape[2] + z - r.offset()[2];
                let local = ((x - placed.offset()[0] + pad.0) * array[1] + y - placed.offset()[1] + pad.1) * array[2] + z - placed.offset()[2] + pad.2;
                expected.push((100 + 2 * at(&stored, stored.shape()), 4 * local));
            }}}
            let mut starts = vec![(copy.file_offset, copy.local_offset)];
            for axis in &copy.axes {
                starts = starts.iter().flat_map(|&(f, l)| (0..axis.count).map(move |i| (f + i * axis.file_stride, l + i * axis.local_stride))).collect();
            }
            let walked: Vec<(u64, u64)> = starts.iter()
                .flat_map(|&(f, l)| (0..copy.row_elements).map(move |i| (f + 2 * i, l + 4 * i))).collect();
            prop_assert_eq!(&walked, &expected);
            prop_assert_eq!(copy.file_end(), expected.last().unwrap().0 + 2);
            // Exact extents hold exactly the elements' bytes; merged ones cover them with gaps of at most max_gap.
            let exact: Vec<u64> = copy.extents(0).into_iter().flat_map(|(s, e)| s..e).collect();
            let bytes: Vec<u64> = expected.iter().flat_map(|&(f, _)| [f, f + 1]).collect();
            prop_assert_eq!(exact, bytes.clone());
            let merged: Vec<u64> = copy.extents(max_gap).into_iter().flat_map(|(s, e)| s..e).collect();
            prop_assert!(merged.is_sorted_by(|a, b| a < b));
            prop_assert!(bytes.iter().all(|at| merged.binary_search(at).is_ok()));
        }
    }
}
