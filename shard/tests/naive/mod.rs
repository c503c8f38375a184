//! The oracle: full tensors of distinct element ids, cut by plain loops over elements.

#![allow(dead_code)] // every test binary uses a part of it

use reshard_shard::{Pieces, Region, ShardedTensor, prove_tiling};
use std::collections::HashMap;

/// A dense array of element ids, row-major.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    pub shape: Vec<u64>,
    pub data: Vec<u64>,
}

impl Array {
    /// The full tensor: element ids count up from `first` in row-major order.
    pub fn full(shape: &[u64], first: u64) -> Self {
        let count: u64 = shape.iter().product();
        Self { shape: shape.to_vec(), data: (first..first + count).collect() }
    }

    /// numpy's `take(indices, axis)`.
    pub fn take(&self, axis: usize, indices: &[u64]) -> Self {
        let outer: u64 = self.shape[..axis].iter().product();
        let inner: u64 = self.shape[axis + 1..].iter().product();
        let mut data = Vec::new();
        for o in 0..outer {
            for &index in indices {
                for i in 0..inner {
                    data.push(self.data[((o * self.shape[axis] + index) * inner + i) as usize]);
                }
            }
        }
        let mut shape = self.shape.clone();
        shape[axis] = indices.len() as u64;
        Self { shape, data }
    }
}

/// The indices along an axis of `size` that rank `index` of `count` keeps, asked element by element.
pub fn kept(size: u64, segments: &[u64], pieces: &Pieces, index: u64, count: u64) -> Vec<u64> {
    let mut lengths = segments.to_vec();
    lengths.push(size - segments.iter().sum::<u64>());
    let mut start = 0;
    let mut all = Vec::new();
    for length in lengths {
        for j in 0..length {
            let mine = match pieces {
                Pieces::Even { .. } => j * count / length == index,
                Pieces::Shared { unit } => {
                    let units = length / unit;
                    if units >= count {
                        j * count / length == index
                    } else {
                        index * units / count == j / unit
                    }
                }
                Pieces::Chunk => j / length.div_ceil(count) == index,
                Pieces::Sizes(sizes) => {
                    let mut owner = 0;
                    let mut left = j;
                    while left >= sizes[owner] {
                        left -= sizes[owner];
                        owner += 1;
                    }
                    owner as u64 == index
                }
            };
            if mine {
                all.push(start + j);
            }
        }
        start += length;
    }
    all
}

/// What a shard's placements put into its local buffer; `None` where no region reaches.
pub fn local_buffer(tensor: &ShardedTensor, full: &Array) -> Vec<Option<u64>> {
    let mut buffer = vec![None; tensor.local_elements() as usize];
    for placement in tensor.placements() {
        let region = &placement.region;
        let mut at = vec![0u64; region.ndim()];
        for _ in 0..region.volume() {
            let global = (0..at.len()).fold(0, |index, a| index * full.shape[a] + region.offset()[a] + at[a]);
            let local: u64 =
                placement.local_offset + (0..at.len()).map(|a| at[a] * placement.strides[a]).sum::<u64>();
            let place = &mut buffer[local as usize];
            assert_eq!(*place, None, "an element of the local buffer is given twice");
            *place = Some(full.data[global as usize]);
            for a in (0..at.len()).rev() {
                at[a] += 1;
                if at[a] < region.shape()[a] {
                    break;
                }
                at[a] = 0;
            }
        }
    }
    buffer
}

/// Proves that the shards of one replica of every group tile the tensor once, and that the replicas of a group are
/// alike, complete and numbered.
pub fn prove_world<'a>(shards: impl Iterator<Item = (u64, &'a ShardedTensor)>) {
    let mut groups: HashMap<_, Vec<(u64, &ShardedTensor)>> = HashMap::new();
    let mut shape = Vec::new();
    for (rank, shard) in shards {
        shape = shard.global_shape().to_vec();
        groups.entry(shard.replica().group().unwrap()).or_default().push((rank, shard));
    }
    let mut regions = Vec::new();
    for (group, members) in groups {
        let (_, first) = members[0];
        assert_eq!(group, reshard_shard::GroupId::of_ranks(members.iter().map(|&(rank, _)| rank)));
        for (place, (_, shard)) in members.iter().enumerate() {
            assert_eq!(shard.placements(), first.placements());
            let replica = shard.replica();
            assert_eq!((replica.id() as usize, replica.count() as usize), (place, members.len()));
        }
        regions.extend(first.placements().iter().map(|placement| placement.region.clone()));
    }
    let whole = Region::whole(&shape).unwrap();
    prove_tiling(&whole, &regions).unwrap();
}
