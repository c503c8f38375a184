use crate::{Dims, Region};

/// The first element that two of the regions share. Regions of one shard are few and usually differ on one axis,
/// so sorting along one axis settles nearly every case; cutting into slabs does the rest.
pub(crate) fn first_overlap<'a, I>(regions: impl Fn() -> I) -> Option<Dims>
where
    I: Iterator<Item = &'a Region>,
{
    let ndim = regions().next()?.ndim();
    for axis in 0..ndim {
        let mut spans: Vec<(u64, u64)> =
            regions().map(|region| (region.offset()[axis], region.end(axis))).collect();
        spans.sort_unstable();
        if spans.windows(2).all(|pair| pair[0].1 <= pair[1].0) {
            return None;
        }
    }
    overlap_in_slabs(&regions().collect::<Vec<_>>(), 0)
}

/// Cuts the set along `axis` at every start and end and descends into each slab: exact for any set, and linear
/// for the grids that shards form.
fn overlap_in_slabs(regions: &[&Region], axis: usize) -> Option<Dims> {
    let (first, rest) = regions.split_first()?;
    if rest.is_empty() {
        return None;
    }
    if axis == first.ndim() {
        return Some(Dims::new());
    }
    let mut cuts: Vec<u64> =
        regions.iter().flat_map(|region| [region.offset()[axis], region.end(axis)]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    for &cut in &cuts {
        let slab: Vec<&Region> = regions
            .iter()
            .copied()
            .filter(|region| region.offset()[axis] <= cut && cut < region.end(axis))
            .collect();
        if let Some(mut point) = overlap_in_slabs(&slab, axis + 1) {
            point.insert(0, cut);
            return Some(point);
        }
    }
    None
}
