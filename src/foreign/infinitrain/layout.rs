//! From shards to a saved layout: copies dropped, coverage proved.

use super::entry::{Cut, Shard};
use crate::foreign::error::group_name;
use crate::foreign::{ForeignError, ShardFault};
use crate::format::{Chunk, ChunkTable, SavedFile, SavedLayout, SavedTensor};
use reshard_shard::{Dims, Region, Split, prove_tiling};
use std::collections::BTreeMap;

/// Most axes that shards of one tensor may differ on. Real ones are cut along one or two, and the proof of coverage takes
/// time and memory in proportion to 2^axes.
const MAX_CUT_AXES: usize = 4;

/// The names of the tensors whose rows are words of the vocabulary, which InfiniTrain may pad.
const VOCABULARY: [&str; 2] = ["transformer.wte.weight", "lm_head.weight"];
/// What their names begin with in the optimizer.
const MOMENTS: [&str; 2] = ["adam.m.", "adam.v."];

/// Puts the shards of all ranks together, whatever order they come in.
pub(super) fn assemble(
    metadata: &str,
    shards: Vec<Shard>,
    lengths: &BTreeMap<String, u64>,
) -> Result<SavedLayout, ForeignError> {
    check_bytes(metadata, &shards)?;
    let mut files: BTreeMap<String, u32> = shards.iter().map(|shard| (shard.file.clone(), 0)).collect();
    let mut layout = SavedLayout::default();
    for ((path, index), number) in files.iter_mut().zip(0..) {
        *index = number;
        let length = lengths.get(path).copied().unwrap_or(0);
        layout.files.push(SavedFile { path: path.clone(), length, blocks: None });
    }
    let mut by_key: BTreeMap<String, Vec<Shard>> = BTreeMap::new();
    for shard in shards {
        by_key.entry(shard.key.clone()).or_default().push(shard);
    }
    for (key, mut shards) in by_key {
        shards.sort_by(|a, b| (a.rank, &a.file, a.bytes.start).cmp(&(b.rank, &b.file, b.bytes.start)));
        let tensor = tensor(metadata, &key, &shards, &files)?;
        layout.tensors.insert(key, tensor);
    }
    Ok(layout)
}

/// Says how many rows of the vocabulary's tensors are words, so that a load never drops one.
pub(super) fn state_vocabulary(layout: &mut SavedLayout, rows: u64) {
    for (key, tensor) in &mut layout.tensors {
        let parameter = MOMENTS.iter().find_map(|moment| key.strip_prefix(moment)).unwrap_or(key);
        let mut shape = tensor.global_shape.clone();
        if VOCABULARY.contains(&parameter)
            && let Some(size) = shape.first_mut()
            && *size >= rows
        {
            *size = rows;
            tensor.logical_shape = Some(shape);
        }
    }
}

fn fault(metadata: &str, shard: &Shard, fault: ShardFault) -> ForeignError {
    ForeignError::Shard {
        file: metadata.to_owned(),
        key: shard.key.clone(),
        writer: format!("`{}`", shard.file),
        fault: Box::new(fault),
    }
}

/// No byte belongs to two shards.
fn check_bytes(metadata: &str, shards: &[Shard]) -> Result<(), ForeignError> {
    let mut order: Vec<&Shard> = shards.iter().collect();
    order.sort_by_key(|shard| (&shard.file, shard.bytes.start, shard.bytes.end));
    match order
        .windows(2)
        .find(|pair| pair[0].file == pair[1].file && pair[0].bytes.end > pair[1].bytes.start)
    {
        Some(pair) => {
            let (before, shard) = (pair[0], pair[1]);
            if before.key == shard.key && before.rank == shard.rank {
                return Err(fault(metadata, shard, ShardFault::Twice(shard.rank)));
            }
            let shared = ShardFault::SharedBytes { offset: shard.bytes.start, other: before.key.clone() };
            Err(fault(metadata, shard, shared))
        }
        None => Ok(()),
    }
}

/// One tensor from its shards, of which there is at least one, by rank.
fn tensor(
    metadata: &str,
    key: &str,
    shards: &[Shard],
    files: &BTreeMap<String, u32>,
) -> Result<SavedTensor, ForeignError> {
    let Some((first, rest)) = shards.split_first() else {
        return Err(ForeignError::Malformed {
            file: metadata.to_owned(),
            why: format!("`{key}` has no shards"),
        });
    };
    for shard in rest {
        check_agreement(first, shard).map_err(|disagreement| fault(metadata, shard, disagreement))?;
    }
    // The lowest rank's copy of each region, in row-major order of the regions.
    let mut stored: BTreeMap<&Region, (&Shard, u64)> = BTreeMap::new();
    for shard in shards {
        for (region, offset) in &shard.regions {
            match stored.get(region) {
                None => {
                    stored.insert(region, (shard, *offset));
                }
                Some((kept, _)) if kept.rank == shard.rank => {
                    return Err(fault(metadata, shard, ShardFault::Twice(shard.rank)));
                }
                Some(_) => {}
            }
        }
    }
    prove_coverage(metadata, first, stored.keys().copied())?;
    let mut chunks = ChunkTable::new(first.global_shape.len());
    for (region, (shard, offset)) in stored {
        let file = files.get(&shard.file).copied().unwrap_or(0);
        chunks.push(&Chunk { region: region.clone(), file, offset });
    }
    Ok(SavedTensor {
        dtype: first.dtype,
        global_shape: first.global_shape.clone(),
        logical_shape: None,
        split: split(&first.global_shape, shards),
        alias_of: None,
        group: first.group,
        chunks,
    })
}

fn check_agreement(first: &Shard, shard: &Shard) -> Result<(), ShardFault> {
    let (what, found, expected) = if shard.dtype != first.dtype {
        ("dtype", shard.dtype.to_string(), first.dtype.to_string())
    } else if shard.global_shape != first.global_shape {
        ("global_shape", format!("{:?}", shard.global_shape), format!("{:?}", first.global_shape))
    } else if shard.group != first.group {
        ("group", group_name(shard.group).to_owned(), group_name(first.group).to_owned())
    } else {
        return Ok(());
    };
    Err(ShardFault::Disagreement { what, found, expected, other: first.file.clone() })
}

/// The regions tile the tensor. Axes that none of them cuts are left out of the proof.
fn prove_coverage<'a>(
    metadata: &str,
    first: &Shard,
    regions: impl Iterator<Item = &'a Region> + Clone,
) -> Result<(), ForeignError> {
    let shape = &first.global_shape;
    let cut: Vec<usize> = (0..shape.len())
        .filter(|&axis| regions.clone().any(|region| region.shape()[axis] != shape[axis]))
        .collect();
    if cut.len() > MAX_CUT_AXES {
        return Err(fault(metadata, first, ShardFault::TooManyCuts(cut.len())));
    }
    let project = |region: &Region| {
        let pick = |sizes: &[u64]| cut.iter().map(|&axis| sizes[axis]).collect::<Dims>();
        Region::new(pick(region.offset()), pick(region.shape()))
    };
    let whole = Region::whole(shape).and_then(|whole| whole.map(|whole| project(&whole)).transpose());
    let parts: Result<Vec<_>, _> = regions.map(project).collect();
    let (whole, parts) = match (whole, parts) {
        (Ok(whole), Ok(parts)) => (whole, parts),
        (Err(error), _) | (_, Err(error)) => return Err(fault(metadata, first, error.into())),
    };
    prove_tiling(&whole, &parts).map_err(|mut found| {
        let mut point = Dims::from_elem(0, shape.len());
        for (&axis, &at) in cut.iter().zip(&found.point) {
            point[axis] = at;
        }
        found.point = point;
        ForeignError::Coverage { file: metadata.to_owned(), key: first.key.clone(), fault: found }
    })
}

/// How the tensor is meant to be cut, as far as its writers say it; only for those who save or print it.
fn split(global_shape: &[u64], shards: &[Shard]) -> Option<Split> {
    let mut axes: Vec<usize> = Vec::new();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for shard in shards {
        match &shard.cut {
            Cut::Whole => {}
            Cut::Axes(cut) => axes.extend(cut),
            // Segment i of the tensor reaches from the first to the last row of any rank's segment i.
            Cut::Segments(parts) if spans.is_empty() => {
                spans = parts.iter().map(|&(start, length)| (start, start + length)).collect();
            }
            Cut::Segments(parts) if parts.len() == spans.len() => {
                for (span, &(start, length)) in spans.iter_mut().zip(parts) {
                    *span = (span.0.min(start), span.1.max(start + length));
                }
            }
            Cut::Segments(_) => return None,
        }
    }
    axes.sort_unstable();
    axes.dedup();
    if spans.is_empty() {
        return match axes.as_slice() {
            [axis] => Some(Split::axis(*axis)),
            _ => None,
        };
    }
    let gapless = spans.first().map(|span| span.0) == Some(0)
        && spans.windows(2).all(|pair| pair[0].1 == pair[1].0)
        && spans.last().map(|span| span.1) == global_shape.first().copied();
    gapless.then(|| Split::segmented(0, spans.iter().map(|span| span.1 - span.0).collect::<Vec<_>>()))
}
