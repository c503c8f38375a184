//! Flat buckets against a naive one: cut the full tensors by loops, lay them end to end, slice.

#![allow(clippy::unwrap_used)]

mod naive;

use naive::{Array, kept, local_buffer, prove_world};
use proptest::prelude::*;
use reshard_shard::{
    Cuts, DType, FlatBuffer, ParallelSizes, Pieces, Replica, ShardError, ShardedTensor, Topology,
};

#[derive(Clone, Debug)]
struct Parameter {
    shape: Vec<u64>,
    /// Axis and segments that tensor parallelism cuts; `None` = replicated.
    cut: Option<(usize, Vec<u64>)>,
}

/// Column, row, packed on either axis, stacked experts, norms, 0-dim and empty ones. Sizes are multiples of 12, so
/// that tp 1, 2, 3 and 4 divide them.
fn parameters() -> impl Strategy<Value = Vec<Parameter>> {
    let one = (0u8..8, 1u64..4, 1u64..6).prop_map(|(kind, n, m)| {
        let (shape, cut) = match kind {
            0 => (vec![12 * n, m], Some((0, vec![]))),
            1 => (vec![m, 12 * n], Some((1, vec![]))),
            2 => (vec![12 * n + 24, m], Some((0, vec![12 * n, 12, 12]))),
            3 => (vec![2, m, 12 * n + 12], Some((2, vec![12 * n, 12]))),
            4 => (vec![12 * n + 24], Some((0, vec![12 * n, 12, 12]))),
            5 => (vec![m], None),
            6 => (vec![], None),
            _ => (vec![m, 0], None),
        };
        Parameter { shape, cut }
    });
    proptest::collection::vec(one, 1..6)
}

struct World {
    topology: Topology,
    full: Vec<Array>,
}

impl World {
    fn new(parameters: &[Parameter], tp: u64, dp: u64) -> Self {
        let topology = ParallelSizes { tp, dp, ..Default::default() }.topology().unwrap();
        let full =
            parameters.iter().enumerate().map(|(i, p)| Array::full(&p.shape, 10_000 * i as u64)).collect();
        Self { topology, full }
    }

    fn bucket(&self, parameters: &[Parameter], rank: u64, align: u64) -> FlatBuffer {
        let (tp, r) = (self.topology.size("tp").unwrap(), self.topology.coordinate(rank, "tp").unwrap());
        let mut bucket = FlatBuffer::new();
        for (i, parameter) in parameters.iter().enumerate() {
            let mut cuts = Cuts::whole(&parameter.shape);
            if let Some((axis, segments)) = &parameter.cut {
                cuts = cuts.cut_segments(*axis, segments, &Pieces::EVEN, r, tp).unwrap();
            }
            let shard = ShardedTensor::builder(DType::BF16, &parameter.shape)
                .cuts(&cuts)
                .unwrap()
                .build("p")
                .unwrap();
            bucket.push(i.to_string(), shard, align).unwrap();
        }
        bucket
    }

    /// The bucket of element ids, `None` = padding.
    fn naive_bucket(&self, parameters: &[Parameter], rank: u64, align: u64, dp: u64) -> Vec<Option<u64>> {
        let (tp, r) = (self.topology.size("tp").unwrap(), rank % self.topology.size("tp").unwrap());
        let mut bucket = Vec::new();
        for (parameter, full) in parameters.iter().zip(&self.full) {
            while !(bucket.len() as u64).is_multiple_of(align) {
                bucket.push(None);
            }
            let local = match &parameter.cut {
                Some((axis, segments)) => {
                    full.take(*axis, &kept(parameter.shape[*axis], segments, &Pieces::EVEN, r, tp))
                }
                None => full.clone(),
            };
            bucket.extend(local.data.into_iter().map(Some));
        }
        while !(bucket.len() as u64).is_multiple_of(dp) {
            bucket.push(None);
        }
        bucket
    }

    /// Norms lie at the same place of every tensor-parallel rank's bucket.
    fn replica(&self, parameters: &[Parameter], rank: u64, key: &str) -> Result<Replica, ShardError> {
        let parameter = &parameters[key.parse::<usize>().unwrap()];
        self.topology.replica(rank, if parameter.cut.is_some() { &["tp", "dp"] } else { &["dp"] })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_slice_is_the_naive_slice(
        parameters in parameters(), tp in 1u64..5, dp in 1u64..8, align in prop::sample::select(vec![1u64, 2, 7, 16]),
    ) {
        let world = World::new(&parameters, tp, dp);
        let mut shards: Vec<Vec<ShardedTensor>> = vec![Vec::new(); parameters.len()];
        for rank in 0..tp * dp {
            let bucket = world.bucket(&parameters, rank, align);
            let expected = world.naive_bucket(&parameters, rank, align, dp);
            let owned = bucket.even_range(world.topology.coordinate(rank, "dp").unwrap(), dp);
            prop_assert_eq!(owned.end - owned.start, expected.len() as u64 / dp);
            let parts = bucket
                .parts(owned.clone(), DType::F32, |key| world.replica(&parameters, rank, key))
                .unwrap();
            let mut slice = vec![None; (owned.end - owned.start) as usize];
            for (i, part) in parts.iter().enumerate() {
                prop_assert_eq!(part.key.parse::<usize>().unwrap(), i);
                prop_assert_eq!(part.tensor.dtype(), DType::F32);
                let regions = parameters[i].cut.as_ref().map_or(1, |(_, segments)| segments.len().max(1));
                let ndim = parameters[i].shape.len().max(1);
                prop_assert!(part.tensor.placements().len() <= regions * (2 * ndim - 1));
                let buffer = local_buffer(&part.tensor, &world.full[i]);
                for (at, element) in buffer.into_iter().enumerate() {
                    slice[part.offset as usize + at] = Some(element.unwrap()); // padding is in no shard
                }
                shards[i].push(part.tensor.clone());
            }
            prop_assert_eq!(slice.as_slice(), &expected[owned.start as usize..owned.end as usize]);
        }
        for shards in &shards {
            prove_world((0..).zip(shards));
        }
    }

    #[test]
    fn any_range_of_a_box_is_few_boxes(
        shape in proptest::collection::vec(1u64..5, 0..4), from in 0u64..64, length in 0u64..64,
    ) {
        let full = Array::full(&shape, 0);
        let shard = ShardedTensor::builder(DType::F32, &shape).build("p").unwrap();
        let elements = shard.local_elements();
        let range = from.min(elements)..(from + length).min(elements);
        let mut bucket = FlatBuffer::new();
        bucket.place("p", shard, 100).unwrap();
        let owned = 100 + range.start..100 + range.end;
        let parts = bucket.parts(owned, DType::F32, |_| Ok(Replica::SOLE)).unwrap();
        let buffer: Vec<u64> = local_buffer(&parts[0].tensor, &full).into_iter().map(Option::unwrap).collect();
        prop_assert_eq!(buffer, (range.start..range.end).collect::<Vec<_>>());
        prop_assert!(parts[0].tensor.placements().len() <= (2 * shape.len()).saturating_sub(1).max(1));
    }
}

#[test]
fn a_shard_that_is_only_padding_is_empty_and_legal() {
    let parameters = [Parameter { shape: vec![3], cut: None }, Parameter { shape: vec![], cut: None }];
    let world = World::new(&parameters, 1, 7);
    let bucket = world.bucket(&parameters, 0, 1);
    assert_eq!(bucket.elements(), 4);
    for (index, expected) in [(0, [1, 0]), (2, [1, 0]), (3, [0, 1]), (4, [0, 0]), (6, [0, 0]), (7, [0, 0])] {
        let parts = bucket.parts(bucket.even_range(index, 7), DType::F32, |_| Ok(Replica::SOLE)).unwrap();
        let lengths: Vec<u64> = parts.iter().map(|part| part.tensor.local_elements()).collect();
        assert_eq!(lengths, expected);
    }
    assert_eq!(bucket.even_range(0, 0), 0..0);
}

#[test]
fn parameters_of_a_bucket_may_not_overlap() {
    let shard = || ShardedTensor::builder(DType::F32, [4, 2]).build("p").unwrap();
    let mut bucket = FlatBuffer::new();
    bucket.place("a", shard(), 3).unwrap();
    let error = bucket.place("b", shard(), 10).unwrap_err();
    assert_eq!(error, ShardError::Bucket { key: "b".into(), start: 10, elements: 11 });
    bucket.push("b", shard(), 16).unwrap();
    assert_eq!(bucket.elements(), 24);
    assert!(bucket.place("c", shard(), u64::MAX - 1).is_err());
    assert!(bucket.push("c", shard(), u64::MAX).is_err());
}
