//! Random shardings: tensors of any kind, cut over any number of ranks in any way that the types allow.
#![allow(
    clippy::unwrap_used,
    reason = "the oracle is for tests: a case that cannot be built should stop them"
)]

use crate::Random;
use reshard_shard::{DType, Placement, Region, Replica, ShardedStateDict, ShardedTensor, Split, StateGroup};

/// A tensor without any sharding.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its key.
    pub key: String,
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Vec<u64>,
    /// Segments along axis 0; none where it is not packed.
    pub segments: Vec<u64>,
    /// Model or optimizer.
    pub group: StateGroup,
}

/// A handful of tensors of any dtype and shape.
pub fn tensors(random: &mut Random) -> Vec<Tensor> {
    const DTYPES: [DType; 9] = [
        DType::F32,
        DType::BF16,
        DType::Bool,
        DType::U8,
        DType::I64,
        DType::C64,
        DType::F8E5M2Fnuz,
        DType::F4,
        DType::F16,
    ];
    (0..random.between(1, 6))
        .map(|index| {
            let dtype = *random.pick(&DTYPES);
            let ndim = random.between(0, 4);
            let mut shape: Vec<u64> = (0..ndim).map(|_| random.between(1, 14)).collect();
            if random.once_in(12) && !shape.is_empty() {
                shape[0] = 0;
            }
            if random.once_in(3) && ndim == 2 {
                shape = vec![64 * random.between(1, 6), 64 * random.between(4, 20)]; // large enough for slots
            }
            if dtype == DType::F4 {
                shape.push(2); // whole bytes
            }
            let mut segments = Vec::new();
            if random.once_in(3) && !dtype.is_opaque() && shape.first().is_some_and(|&rows| rows > 0) {
                let unit = shape[0];
                segments = vec![unit * random.between(1, 3), unit, unit];
                shape[0] = segments.iter().sum();
            }
            let group = if random.once_in(2) { StateGroup::Model } else { StateGroup::Optimizer };
            Tensor { key: format!("h.{index}.[w]é"), dtype, shape, segments, group }
        })
        .collect()
}

/// All ranks' shards of all tensors, cut anew for `ranks` ranks.
pub fn shard(random: &mut Random, tensors: &[Tensor], ranks: u64) -> Vec<ShardedStateDict> {
    let mut dicts = vec![ShardedStateDict::new(); ranks as usize];
    for tensor in tensors {
        let shards = cut_tensor(random, tensor, ranks);
        for (dict, shard) in dicts.iter_mut().zip(shards) {
            // A rank without a part of it may list the empty shard or not list the tensor at all.
            if let Some(shard) = shard {
                dict.insert(&tensor.key, shard).unwrap();
            }
        }
    }
    dicts
}

fn cut_tensor(random: &mut Random, tensor: &Tensor, ranks: u64) -> Vec<Option<ShardedTensor>> {
    let cells = match random.between(0, 3) {
        _ if tensor.dtype.is_opaque() || tensor.shape.is_empty() || tensor.shape.contains(&0) => {
            whole(tensor)
        }
        0 => whole(tensor),
        1 if !tensor.segments.is_empty() => segmented(random, tensor, ranks),
        2 => flat(random, tensor, ranks),
        _ => grid(random, tensor, ranks),
    };
    // Ranks in random order take cells round robin; those beyond the last full round hold nothing.
    let copies = (ranks / cells.len() as u64).max(1);
    let mut order: Vec<u64> = (0..ranks).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, random.between(0, index as u64) as usize);
    }
    let by_rank = random.once_in(2);
    let list_empty = random.once_in(2);
    let mut shards: Vec<Option<ShardedTensor>> = vec![None; ranks as usize];
    for (cell, (placements, local_shape)) in cells.iter().enumerate() {
        let mut holders: Vec<u64> =
            (0..copies).map(|copy| order[(copy * cells.len() as u64) as usize + cell]).collect();
        holders.sort_unstable();
        for (id, &rank) in holders.iter().enumerate() {
            let replica = match by_rank {
                true => Replica::among(rank, &holders).unwrap(),
                false => Replica::new(id as u32, copies as u32).unwrap(),
            };
            let builder = describe(tensor).replica(replica).placed(placements.clone(), local_shape);
            shards[rank as usize] = Some(builder.build(&tensor.key).unwrap());
        }
    }
    for shard in &mut shards {
        if shard.is_none() && list_empty {
            *shard = Some(describe(tensor).regions([]).build(&tensor.key).unwrap());
        }
    }
    shards
}

fn describe(tensor: &Tensor) -> reshard_shard::ShardedTensorBuilder {
    let builder = ShardedTensor::builder(tensor.dtype, &tensor.shape).group(tensor.group);
    match tensor.shape.len() {
        0 => builder,
        _ if tensor.dtype.is_opaque() => builder,
        1 if tensor.segments.is_empty() => builder,
        _ if tensor.segments.is_empty() => builder.split(Split::axis(tensor.shape.len() % 2)),
        _ => builder.split(Split::segmented(0, tensor.segments.clone())),
    }
}

type Cell = (Vec<Placement>, Vec<u64>);

fn whole(tensor: &Tensor) -> Vec<Cell> {
    let region = Region::whole(&tensor.shape).unwrap();
    let placements = region.map(|region| Placement::dense(region, 0).unwrap());
    vec![(placements.into_iter().collect(), tensor.shape.clone())]
}

/// Random cut points on every axis; at most `ranks` cells.
fn grid(random: &mut Random, tensor: &Tensor, ranks: u64) -> Vec<Cell> {
    let mut cells: Vec<(Vec<u64>, Vec<u64>)> = vec![(Vec::new(), Vec::new())];
    for &size in &tensor.shape {
        let room = (ranks / cells.len() as u64).min(size);
        let pieces = if room > 1 { random.between(1, room) } else { 1 };
        let cuts = cut_points(random, size, pieces);
        cells = cells
            .into_iter()
            .flat_map(|(offset, shape)| {
                cuts.windows(2)
                    .map(|pair| {
                        (
                            [offset.as_slice(), &[pair[0]]].concat(),
                            [shape.as_slice(), &[pair[1] - pair[0]]].concat(),
                        )
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    let pad = random.between(0, 2); // a local array wider than the shard: a view of something larger
    cells
        .into_iter()
        .map(|(offset, shape)| {
            let array: Vec<u64> = shape.iter().map(|size| size + pad).collect();
            let start = vec![pad; shape.len()];
            let region = Region::new(offset, &shape).unwrap();
            (vec![Placement::in_array(region, &array, &start).unwrap()], array)
        })
        .collect()
}

fn cut_points(random: &mut Random, size: u64, pieces: u64) -> Vec<u64> {
    let mut cuts = std::collections::BTreeSet::from([0, size]);
    while (cuts.len() as u64) < pieces + 1 {
        cuts.insert(random.between(1, size - 1));
    }
    cuts.into_iter().collect()
}

/// Each segment cut into the same number of parts; a cell holds its part of every segment.
fn segmented(random: &mut Random, tensor: &Tensor, ranks: u64) -> Vec<Cell> {
    let most = ranks.min(*tensor.segments.iter().min().unwrap());
    let parts = random.between(1, most);
    let cuts: Vec<Vec<u64>> =
        tensor.segments.iter().map(|&length| cut_points(random, length, parts)).collect();
    (0..parts as usize)
        .map(|part| {
            let mut local_shape = tensor.shape.clone();
            local_shape[0] = cuts.iter().map(|cuts| cuts[part + 1] - cuts[part]).sum();
            let mut placements = Vec::new();
            let (mut segment_start, mut local) = (0, 0);
            for (cuts, &length) in cuts.iter().zip(&tensor.segments) {
                let mut offset = vec![0; tensor.shape.len()];
                let mut shape = tensor.shape.clone();
                offset[0] = segment_start + cuts[part];
                shape[0] = cuts[part + 1] - cuts[part];
                let mut start = vec![0; shape.len()];
                start[0] = local;
                local += shape[0];
                segment_start += length;
                let region = Region::new(offset, shape).unwrap();
                placements.push(Placement::in_array(region, &local_shape, &start).unwrap());
            }
            (placements, local_shape)
        })
        .collect()
}

/// Slices of the flattened tensor: element by element, then neighbours joined along the last axis.
fn flat(random: &mut Random, tensor: &Tensor, ranks: u64) -> Vec<Cell> {
    let count: u64 = tensor.shape.iter().product();
    let pieces = random.between(1, ranks.min(count));
    let cuts = cut_points(random, count, pieces);
    let last = *tensor.shape.last().unwrap();
    cuts.windows(2)
        .map(|pair| {
            let mut placements = Vec::new();
            let mut at = pair[0];
            while at < pair[1] {
                let length = (last - at % last).min(pair[1] - at);
                let mut rest = at;
                let mut offset = vec![0; tensor.shape.len()];
                for axis in (0..offset.len()).rev() {
                    offset[axis] = rest % tensor.shape[axis];
                    rest /= tensor.shape[axis];
                }
                let mut shape = vec![1; offset.len()];
                *shape.last_mut().unwrap() = length;
                placements.push(Placement::dense(Region::new(offset, shape).unwrap(), at - pair[0]).unwrap());
                at += length;
            }
            (placements, vec![pair[1] - pair[0]])
        })
        .collect()
}
