//! From the extents that copies need to the requests that fetch them.

use super::CostModel;
use crate::format::BlockLayout;
use std::ops::Range;

/// The ranges to fetch of one file, and what of them is not needed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileReads {
    /// Disjoint, ascending.
    pub(crate) requests: Vec<Range<u64>>,
    /// Bytes fetched only because blocks are verified whole.
    pub(crate) verify_over_read: u64,
    /// Bytes fetched only to save requests.
    pub(crate) coalesce_over_read: u64,
}

/// One file's part of the input.
pub(crate) struct FileExtents<'a> {
    /// `(start, end)` in any order; may touch or overlap. Gaps *inside* one (see `Copy::extents`) count as needed
    /// here and are corrected by the planner.
    pub(crate) extents: Vec<(u64, u64)>,
    /// The file's blocks, where what is read is verified.
    pub(crate) blocks: Option<&'a BlockLayout>,
    /// Where elements may not be cut: `(chunk start, chunk end, element bytes)`, ascending and disjoint.
    pub(crate) elements: Vec<(u64, u64, u64)>,
}

/// Plans the requests of all files together, so that the budget for gaps goes to the cheapest gaps of all.
pub(crate) fn coalesce(files: Vec<FileExtents<'_>>, cost: &CostModel, needed: u64) -> Vec<FileReads> {
    let mut reads: Vec<FileReads> = Vec::with_capacity(files.len());
    let mut merged: Vec<Vec<Range<u64>>> = Vec::with_capacity(files.len());
    for file in &files {
        let exact = union(file.extents.iter().map(|&(start, end)| start..end).collect());
        let covered = match file.blocks {
            None => exact.clone(),
            Some(blocks) => union(exact.iter().map(|range| cover(blocks, range)).collect()),
        };
        let over_read = total(&covered) - total(&exact);
        reads.push(FileReads { verify_over_read: over_read, ..FileReads::default() });
        merged.push(covered);
    }
    let chosen = choose_gaps(&merged, cost, needed);
    for (((file, ranges), read), gaps) in files.iter().zip(merged).zip(&mut reads).zip(chosen) {
        let before = total(&ranges);
        let joined = join(ranges, &gaps);
        read.coalesce_over_read = total(&joined) - before;
        read.requests = joined.into_iter().flat_map(|range| split(range, file, cost.request_bytes)).collect();
    }
    reads
}

fn cover(blocks: &BlockLayout, range: &Range<u64>) -> Range<u64> {
    blocks.cover(range.clone()).unwrap_or_else(|| range.clone())
}

fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Sorts and joins ranges that touch or overlap.
fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// For each file, whether the gap behind each of its ranges is read. The smallest gaps come first, in the order of
/// size, file and place, so that the choice is deterministic.
fn choose_gaps(files: &[Vec<Range<u64>>], cost: &CostModel, needed: u64) -> Vec<Vec<bool>> {
    let mut chosen: Vec<Vec<bool>> = files.iter().map(|ranges| vec![false; ranges.len()]).collect();
    let break_even = cost.break_even_gap();
    let mut gaps: Vec<(u64, usize, usize)> = Vec::new();
    for (file, ranges) in files.iter().enumerate() {
        for (index, pair) in ranges.windows(2).enumerate() {
            let gap = pair[1].start - pair[0].end;
            if gap <= break_even {
                gaps.push((gap, file, index));
            }
        }
    }
    gaps.sort_unstable();
    let budget = (needed as f64 * cost.max_over_read) as u64;
    let mut spent = 0u64;
    for (gap, file, index) in gaps {
        if gap > cost.small_gap && spent + gap > budget {
            break;
        }
        spent += gap;
        chosen[file][index] = true;
    }
    chosen
}

fn join(ranges: Vec<Range<u64>>, read_gap_after: &[bool]) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    let mut joins = false;
    for (range, &next_joins) in ranges.into_iter().zip(read_gap_after) {
        match out.last_mut() {
            Some(last) if joins => last.end = range.end,
            _ => out.push(range),
        }
        joins = next_joins;
    }
    out
}

/// Splits a range into nearly equal requests of at most `request_bytes`, at block borders where the file has
/// blocks, and never inside an element.
fn split(range: Range<u64>, file: &FileExtents<'_>, request_bytes: u64) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let left = range.end - start;
        let pieces = left.div_ceil(request_bytes);
        // Nearly equal pieces: a last one of a few bytes would cost a whole request.
        let mut end = if pieces <= 1 { range.end } else { start + left.div_ceil(pieces) };
        if end < range.end {
            end = cut_before(start, end, file)
                .or_else(|| cut_after(end, file))
                .unwrap_or(range.end)
                .min(range.end);
        }
        out.push(start..end);
        start = end;
    }
    out
}

/// The last legal cut in `start+1 ..= at`.
fn cut_before(start: u64, at: u64, file: &FileExtents<'_>) -> Option<u64> {
    let cut = match file.blocks.and_then(|blocks| blocks.block_at(at)) {
        Some((_, block)) => block.start,
        None => align(at, &file.elements, false),
    };
    (cut > start).then_some(cut)
}

/// The first legal cut after `at`: a block may be longer than a request.
fn cut_after(at: u64, file: &FileExtents<'_>) -> Option<u64> {
    match file.blocks {
        Some(blocks) => blocks.block_at(at).map(|(_, block)| block.end),
        None => Some(align(at, &file.elements, true)),
    }
}

/// Moves `at` to the border of the element that it cuts, if it cuts one.
fn align(at: u64, elements: &[(u64, u64, u64)], up: bool) -> u64 {
    let index = elements.partition_point(|&(start, _, _)| start <= at);
    let Some(&(start, end, size)) = index.checked_sub(1).and_then(|index| elements.get(index)) else {
        return at;
    };
    let past = (at - start) % size;
    if at >= end || past == 0 {
        return at;
    }
    if up { at - past + size } else { at - past }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(extents: &[(u64, u64)]) -> FileExtents<'static> {
        FileExtents { extents: extents.to_vec(), blocks: None, elements: Vec::new() }
    }

    #[test]
    fn exact_reads_are_the_union_of_the_extents() {
        let reads = coalesce(vec![file(&[(30, 40), (0, 10), (10, 12), (11, 20)])], &CostModel::exact(), 30);
        assert_eq!(reads[0].requests, vec![0..20, 30..40]);
        assert_eq!((reads[0].coalesce_over_read, reads[0].verify_over_read), (0, 0));
    }

    #[test]
    fn the_budget_goes_to_the_smallest_gaps_of_all_files() {
        let cost = CostModel {
            small_gap: 2,
            max_over_read: 0.1,
            request_seconds: 1.0,
            bytes_per_second: 50.0,
            ..CostModel::default()
        };
        let a = file(&[(0, 100), (108, 200), (202, 300)]);
        let b = file(&[(0, 100), (105, 200), (260, 300)]);
        let reads = coalesce(vec![a, b], &cost, 150);
        // 2 is small and always read; 5 and 8 fit into 15, the gap of 60 is past break-even.
        assert_eq!(reads[0].requests, vec![0..300]);
        assert_eq!(reads[1].requests, vec![0..200, 260..300]);
        assert_eq!(reads[0].coalesce_over_read + reads[1].coalesce_over_read, 15);
    }

    proptest! {
        #[test]
        fn requests_cover_the_extents_and_keep_their_promises(
            raw in proptest::collection::vec((0u64..5000, 1u64..300), 1..30),
            request_bytes in 1u64..700, verify: bool, small_gap in 0u64..100,
            runs in proptest::collection::btree_set(1u64..5000, 0..5), block_bytes in 1u64..200,
        ) {
            let extents: Vec<(u64, u64)> = raw.iter().map(|&(start, length)| (start, start + length)).collect();
            let starts: Vec<u64> = std::iter::once(0).chain(runs).collect();
            let blocks = BlockLayout::new(block_bytes, starts, 6000, 6000, 0).unwrap();
            let elements: Vec<(u64, u64, u64)> = (0..8).map(|i| (i * 700, i * 700 + 600, [1, 2, 4, 8][i as usize % 4])).collect();
            let needed: u64 = union(extents.iter().map(|&(s, e)| s..e).collect()).iter().map(|r| r.end - r.start).sum();
            let cost = CostModel { small_gap, request_bytes, ..CostModel::default() };
            let input = FileExtents { extents: extents.clone(), blocks: verify.then_some(&blocks), elements: elements.clone() };
            let read = coalesce(vec![input], &cost, needed).pop().unwrap();
            let mut fetched = 0;
            for pair in read.requests.windows(2) { prop_assert!(pair[0].end <= pair[1].start); }
            for request in &read.requests {
                prop_assert!(request.start < request.end);
                fetched += request.end - request.start;
                if verify {
                    prop_assert_eq!(blocks.cover(request.clone()), Some(request.clone()));
                    prop_assert!(request.end - request.start <= request_bytes.max(block_bytes));
                } else {
                    prop_assert!(request.end - request.start <= request_bytes.max(8));
                }
            }
            for window in read.requests.windows(2) {
                if !verify && window[0].end == window[1].start {
                    let cut = window[0].end;
                    for &(start, end, size) in &elements {
                        prop_assert!(cut <= start || cut >= end || (cut - start) % size == 0);
                    }
                }
            }
            for (start, end) in extents {
                prop_assert!((start..end).all(|at| read.requests.iter().any(|request| request.contains(&at))));
            }
            prop_assert_eq!(fetched, needed + read.verify_over_read + read.coalesce_over_read);
        }
    }
}
