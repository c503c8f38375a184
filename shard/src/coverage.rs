//! Proof that boxes tile a box exactly once, in O(n log n) for any number of axes.
//!
//! The indicator function of a box is a signed sum of 2^d step functions, one per corner, and step functions at
//! different points are linearly independent. So the counts "how many regions cover this point" of two sets of
//! regions are equal everywhere exactly when their signed corners cancel. That needs no sweep and no pairwise
//! test; and at the lexicographically smallest corner that is left over, the count differs by just what is left
//! over there, which names a point where something is missing or doubled.

use crate::region::{Dims, Region};
use std::collections::HashMap;

/// What is wrong at a point of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// No region covers the point.
    Hole,
    /// More than one region covers the point.
    Overlap,
}

/// The first point (in row-major order) at which regions fail to tile what they should.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} at {point:?}", match .kind { FaultKind::Hole => "nothing covers the element", FaultKind::Overlap => "more than one region covers the element" })]
pub struct CoverageFault {
    /// Hole or overlap.
    pub kind: FaultKind,
    /// Global coordinates of the element.
    pub point: Dims,
}

/// Proves that `parts` cover every element of `wholes` exactly as often as `wholes` do (once, where those are
/// disjoint) and nothing else. All regions must have the same number of axes.
///
/// # Errors
/// [`CoverageFault`] with the smallest element, in row-major order, that is covered too often or too rarely.
pub fn prove_tiling<'a>(
    wholes: impl IntoIterator<Item = &'a Region>,
    parts: impl IntoIterator<Item = &'a Region>,
) -> Result<(), CoverageFault> {
    let mut corners = Corners::default();
    for part in parts {
        corners.add(part, 1);
    }
    for whole in wholes {
        corners.add(whole, -1);
    }
    match corners.first() {
        None => Ok(()),
        Some((point, count)) => {
            Err(CoverageFault { kind: if count < 0 { FaultKind::Hole } else { FaultKind::Overlap }, point })
        }
    }
}

/// Signed corner counts; those that cancel to 0 stay in the map and are passed over.
#[derive(Default)]
struct Corners {
    counts: HashMap<Dims, i64>,
}

impl Corners {
    fn add(&mut self, region: &Region, sign: i64) {
        let ndim = region.ndim();
        // Mask bit a set = the far end of axis a. `MAX_AXES` bounds the shift.
        for mask in 0u64..1 << ndim {
            let corner: Dims = (0..ndim)
                .map(|axis| if mask >> axis & 1 == 1 { region.end(axis) } else { region.offset()[axis] })
                .collect();
            let parity = if mask.count_ones() % 2 == 0 { sign } else { -sign };
            *self.counts.entry(corner).or_default() += parity;
        }
    }

    fn first(self) -> Option<(Dims, i64)> {
        self.counts.into_iter().filter(|&(_, count)| count != 0).min_by(|a, b| a.0.cmp(&b.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(offset: &[u64], shape: &[u64]) -> Region {
        Region::new(offset, shape).unwrap()
    }

    #[test]
    fn names_the_first_hole_and_the_first_overlap() {
        let whole = region(&[0, 0], &[4, 4]);
        let left = region(&[0, 0], &[4, 2]);
        let right = region(&[0, 2], &[4, 2]);
        assert!(prove_tiling([&whole], [&left, &right]).is_ok());
        let hole = prove_tiling([&whole], [&left]).unwrap_err();
        assert_eq!((hole.kind, hole.point.as_slice()), (FaultKind::Hole, [0, 2].as_slice()));
        let overlap = prove_tiling([&whole], [&left, &right, &region(&[3, 3], &[1, 1])]).unwrap_err();
        assert_eq!((overlap.kind, overlap.point.as_slice()), (FaultKind::Overlap, [3, 3].as_slice()));
        let scalar = region(&[], &[]);
        assert!(prove_tiling([&scalar], [&scalar]).is_ok());
        assert!(prove_tiling([&scalar], [&scalar, &scalar]).is_err());
        assert!(prove_tiling([], []).is_ok());
    }

    proptest! {
        /// Against counting every cell of a small grid.
        #[test]
        fn agrees_with_counting_cells(
            boxes in proptest::collection::vec((0u64..4, 0u64..4, 0u64..3, 1u64..5, 1u64..5, 1u64..4), 0..7)
        ) {
            let whole = region(&[0, 0, 0], &[4, 4, 3]);
            let parts: Vec<Region> = boxes.iter()
                .map(|&(x, y, z, a, b, c)| region(&[x, y, z], &[a.min(4 - x), b.min(4 - y), c.min(3 - z)]))
                .collect();
            let mut first = None;
            for x in 0..4 { for y in 0..4 { for z in 0..3 {
                let count = parts.iter().filter(|part| part.contains_point(&[x, y, z])).count();
                if count != 1 && first.is_none() {
                    first = Some((if count == 0 { FaultKind::Hole } else { FaultKind::Overlap }, vec![x, y, z]));
                }
            }}}
            let found = prove_tiling([&whole], &parts).err().map(|fault| (fault.kind, fault.point.to_vec()));
            prop_assert_eq!(found, first);
        }
    }
}
