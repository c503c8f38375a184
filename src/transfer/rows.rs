use crate::plan::{Copy, CopyAxis};
use std::ops::Range;

/// A part of a row of a copy: contiguous on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// Where it lies in the file, in bytes.
    pub(super) file_offset: u64,
    /// Where it lies in the local buffer, in bytes.
    pub(super) local_offset: u64,
    /// Number of elements.
    pub(super) elements: u64,
}

/// The parts of a copy's rows that lie in `range` of the file, in file order, without visiting the others. A request
/// never cuts an element, so what is left of a row is whole elements.
pub(super) fn rows_in<E>(
    copy: &Copy,
    range: &Range<u64>,
    mut visit: impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    descend(copy, &copy.axes, copy.file_offset, copy.local_offset, range, &mut visit)
}

fn descend<E>(
    copy: &Copy,
    axes: &[CopyAxis],
    file: u64,
    local: u64,
    range: &Range<u64>,
    visit: &mut impl FnMut(Row) -> Result<(), E>,
) -> Result<(), E> {
    let row_bytes = copy.row_elements * copy.file_element;
    let Some((axis, inner)) = axes.split_first() else {
        let from = range.start.saturating_sub(file).div_ceil(copy.file_element).min(copy.row_elements);
        let to = range.end.saturating_sub(file).min(row_bytes) / copy.file_element;
        if from < to {
            return visit(Row {
                file_offset: file + from * copy.file_element,
                local_offset: local + from * copy.local_element,
                elements: to - from,
            });
        }
        return Ok(());
    };
    let span = row_bytes + inner.iter().map(|axis| (axis.count - 1) * axis.file_stride).sum::<u64>();
    let first = range.start.saturating_sub(file + span - 1).div_ceil(axis.file_stride);
    let past = range.end.saturating_sub(file).div_ceil(axis.file_stride).min(axis.count);
    for step in first..past {
        descend(copy, inner, file + step * axis.file_stride, local + step * axis.local_stride, range, visit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn visits_exactly_the_elements_in_the_range(
            counts in (1u64..5, 1u64..5, 1u64..6), gaps in (0u64..4, 0u64..9), cut in (0u64..140, 0u64..140),
        ) {
            let row = counts.2 * 2;
            let inner = row + gaps.0 * 2;
            let outer = inner * counts.1 + gaps.1 * 2;
            let axes = [(counts.0, outer), (counts.1, inner)].into_iter()
                .filter(|&(count, _)| count > 1)
                .map(|(count, file_stride)| CopyAxis { count, file_stride, local_stride: file_stride * 2 }).collect();
            let copy = Copy { tensor: 0, file: 0, file_offset: 10, local_offset: 3, axes, row_elements: counts.2, file_element: 2, local_element: 4 };
            let range = 10 + cut.0 / 2 * 2..10 + cut.1 / 2 * 2;
            let mut expected = Vec::new();
            for x in 0..counts.0 { for y in 0..counts.1 { for z in 0..counts.2 {
                let at = x * outer + y * inner;
                if range.contains(&(10 + at + z * 2)) { expected.push((10 + at + z * 2, 3 + at * 2 + z * 4)); }
            }}}
            let mut found = Vec::new();
            let ok: Result<(), ()> = rows_in(&copy, &range, |row| {
                found.extend((0..row.elements).map(|i| (row.file_offset + 2 * i, row.local_offset + 4 * i)));
                Ok(())
            });
            prop_assert!(ok.is_ok());
            prop_assert_eq!(found, expected);
        }
    }
}
