//! Do chunks tile their tensor? [`prove_tiling`] decides any case but hashes 2^axes corners a chunk, which a layout of a
//! million chunks would feel. Nearly all layouts come apart by straight cuts: all the way through along some axis,
//! then each slab through along another. Those are proven by sorting, and only what is left is hashed.

use crate::format::ChunkTable;
use reshard_shard::{CoverageFault, Region, prove_tiling};

/// Straight cuts one within the other that are looked for. Grids need one for each axis; slices of a flat buffer of a
/// matrix that is itself cut need a few more.
const MAX_DEPTH: usize = 8;

/// The part of a row of a [`ChunkTable`] before the region: file and offset.
const ROW_HEAD: usize = 2;

/// Proves that the chunks cover every element of a tensor of `global_shape` exactly once. All chunks lie inside it.
///
/// # Errors
/// The first element that is covered too often or not at all.
pub(super) fn prove(
    global_shape: &[u64],
    whole: Option<&Region>,
    chunks: &ChunkTable,
) -> Result<(), CoverageFault> {
    let ndim = global_shape.len();
    let mut rows: Vec<&[u64]> =
        chunks.words().chunks_exact(ROW_HEAD + 2 * ndim).map(|row| &row[ROW_HEAD..]).collect();
    let mut slab: Vec<(u64, u64)> = global_shape.iter().map(|&size| (0, size)).collect();
    if whole.is_some() && comes_apart(&mut rows, &mut slab, MAX_DEPTH) {
        return Ok(());
    }
    let regions: Vec<Region> = chunks.iter().map(|chunk| chunk.region).collect();
    prove_tiling(whole, &regions)
}

/// Whether straight cuts take the rows (offset per axis, then size per axis) apart until each is alone in its slab
/// and fills it; then they tile the slab. `false` says nothing.
fn comes_apart(rows: &mut [&[u64]], slab: &mut [(u64, u64)], depth: usize) -> bool {
    let ndim = slab.len();
    if let [row] = rows {
        return slab
            .iter()
            .enumerate()
            .all(|(axis, &(start, end))| row[axis] == start && row[ndim + axis] == end - start);
    }
    if depth == 0 {
        return false;
    }
    for axis in 0..ndim {
        rows.sort_unstable_by_key(|row| row[axis]);
        if let Some(cuts) = cuts_through(rows, axis, slab[axis]) {
            let outer = slab[axis];
            let mut rest = &mut *rows;
            let mut apart = true;
            for (count, start, end) in cuts {
                let (group, others) = rest.split_at_mut(count);
                rest = others;
                slab[axis] = (start, end);
                apart = apart && comes_apart(group, slab, depth - 1);
            }
            slab[axis] = outer;
            return apart;
        }
    }
    false
}

/// The slabs between straight cuts across `axis`, each as number of rows, start and end; `None` where there is no cut,
/// or the slabs do not fill `span`. The rows are sorted by their offset on the axis.
fn cuts_through(rows: &[&[u64]], axis: usize, span: (u64, u64)) -> Option<Vec<(usize, u64, u64)>> {
    let ndim = rows.first()?.len() / 2;
    let mut slabs = Vec::new();
    let (mut count, mut start, mut end) = (0, span.0, span.0);
    for row in rows {
        let offset = row[axis];
        if offset == end && count > 0 {
            slabs.push((count, start, end));
            (count, start) = (0, offset);
        } else if offset > end || offset < start {
            return None;
        }
        count += 1;
        end = end.max(offset + row[ndim + axis]);
    }
    slabs.push((count, start, end));
    (slabs.len() > 1 && end == span.1).then_some(slabs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Chunk;
    use proptest::prelude::*;

    fn table(ndim: usize, regions: &[Region]) -> ChunkTable {
        let mut table = ChunkTable::new(ndim);
        regions.iter().for_each(|region| table.push(&Chunk { region: region.clone(), file: 0, offset: 0 }));
        table
    }

    fn straight(shape: &[u64], regions: &[Region]) -> bool {
        let table = table(shape.len(), regions);
        let mut rows: Vec<&[u64]> =
            table.words().chunks_exact(ROW_HEAD + 2 * shape.len()).map(|row| &row[ROW_HEAD..]).collect();
        comes_apart(&mut rows, &mut shape.iter().map(|&size| (0, size)).collect::<Vec<_>>(), MAX_DEPTH)
    }

    fn region(offset: &[u64], shape: &[u64]) -> Region {
        Region::new(offset, shape).unwrap()
    }

    #[test]
    fn layouts_of_jobs_come_apart_without_hashing() {
        // Columns over tp, rows over dp.
        let grid: Vec<Region> =
            (0..4).flat_map(|d| (0..4).map(move |t| region(&[d * 2, t * 3], &[2, 3]))).collect();
        assert!(straight(&[8, 12], &grid));
        // A matrix of 3 x 5 as slices of a flat buffer, cut after 7 and 8 elements.
        let flat = [([0, 0], [1, 5]), ([1, 0], [1, 2]), ([1, 2], [1, 1]), ([1, 3], [1, 2]), ([2, 0], [1, 5])];
        assert!(straight(&[3, 5], &flat.map(|(offset, shape)| region(&offset, &shape))));
        assert!(straight(&[], &[region(&[], &[])]) && !straight(&[], &[region(&[], &[]), region(&[], &[])]));
        // A pinwheel tiles, but has no straight cut.
        let wheel =
            [([0, 0], [1, 2]), ([0, 2], [2, 1]), ([2, 1], [1, 2]), ([1, 0], [2, 1]), ([1, 1], [1, 1])];
        let wheel = wheel.map(|(offset, shape)| region(&offset, &shape));
        assert!(!straight(&[3, 3], &wheel));
        let whole = Region::whole(&[3, 3]).unwrap();
        assert!(prove(&[3, 3], whole.as_ref(), &table(2, &wheel)).is_ok());
    }

    proptest! {
        /// Whatever the boxes are, the answer is that of hashing.
        #[test]
        fn agrees_with_hashing(
            boxes in proptest::collection::vec((0u64..3, 0u64..3, 1u64..4, 1u64..4), 0..6),
            cuts in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..2, 1u64..4), 0..6),
            drop in proptest::option::weighted(0.2, any::<proptest::sample::Index>()),
        ) {
            let shape = [3u64, 3];
            let whole = Region::whole(&shape).unwrap();
            let random: Vec<Region> = boxes.iter()
                .map(|&(y, x, h, w)| region(&[y, x], &[h.min(3 - y), w.min(3 - x)]))
                .collect();
            // A tiling, made by cutting the whole again and again, perhaps without one piece.
            let mut tiling = vec![whole.clone().unwrap()];
            for (index, axis, at) in cuts {
                let piece = tiling.swap_remove(index.index(tiling.len()));
                let cut = piece.offset()[axis] + at;
                tiling.extend([piece.clip(axis, 0, cut), piece.clip(axis, cut, 3)].into_iter().flatten());
            }
            if let Some(index) = drop {
                tiling.swap_remove(index.index(tiling.len()));
            }
            for regions in [random, tiling] {
                prop_assert_eq!(prove(&shape, whole.as_ref(), &table(2, &regions)), prove_tiling(&whole, &regions));
            }
        }
    }
}
