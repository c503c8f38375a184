//! Random cuts of random tensors over random meshes, against the oracle.

#![allow(clippy::unwrap_used)]

mod naive;

use naive::{Array, kept, local_buffer, prove_world};
use proptest::prelude::*;
use reshard_shard::{CutError, Cuts, DType, Pieces, ShardedTensor, Split, Topology};

#[derive(Clone, Debug)]
struct Cut {
    segments: Vec<u64>,
    pieces: Pieces,
}

/// Which tensor axis, which kind of cut, numbers for it; `None` = replicated.
type RawCut = Option<(usize, u8, Vec<u64>)>;

/// Mesh sizes, a shape, and for each mesh axis, in turn, a way to cut a tensor axis or none (replicated along it).
fn cases() -> impl Strategy<Value = (Vec<u64>, Vec<u64>, Vec<RawCut>)> {
    (
        proptest::collection::vec(1u64..4, 1..4),
        proptest::collection::vec(0u64..14, 0..4),
        proptest::collection::vec(
            proptest::option::of((0usize..4, 0u8..4, proptest::collection::vec(1u64..5, 3))),
            3,
        ),
    )
}

/// Turns raw numbers into a cut that comes out for `size` elements over `count` ranks.
fn fit(raw: &(usize, u8, Vec<u64>), size: u64, count: u64) -> Cut {
    let (_, kind, numbers) = raw;
    let (segments, pieces) = match kind {
        0 if size.is_multiple_of(count) => (vec![], Pieces::EVEN),
        1 => (vec![], Pieces::Chunk),
        2 if size > 0 => {
            let first = numbers[0].min(size);
            (vec![first], Pieces::Chunk)
        }
        _ => {
            // Sizes that add up: cut the axis at sorted points.
            let mut points: Vec<u64> = numbers[..count as usize - 1].iter().map(|n| n * size / 5).collect();
            points.sort_unstable();
            points.push(size);
            let mut before = 0;
            let sizes = points
                .iter()
                .map(|&p| {
                    let s = p - before;
                    before = p;
                    s
                })
                .collect();
            (vec![], Pieces::Sizes(sizes))
        }
    };
    Cut { segments, pieces }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_rank_holds_the_naive_cut_and_together_they_tile((mesh, shape, raw) in cases()) {
        let names = ["x", "y", "z"];
        let topology = Topology::mesh(names.into_iter().zip(mesh.iter().copied())).unwrap();
        let full = Array::full(&shape, 0);
        let mut shards = Vec::new();
        for rank in 0..topology.world_size() {
            let mut cuts = Cuts::whole(&shape);
            let mut array = full.clone();
            let mut sharded = Vec::new();
            for (mesh_axis, raw) in raw.iter().enumerate().take(mesh.len()) {
                let Some(raw) = raw.as_ref().filter(|_| !shape.is_empty()) else { continue };
                let axis = raw.0 % shape.len();
                let name = names[mesh_axis];
                let (index, count) = (topology.coordinate(rank, name).unwrap(), mesh[mesh_axis]);
                let size = array.shape[axis];
                let cut = fit(raw, size, count);
                cuts = cuts.cut_segments(axis, &cut.segments, &cut.pieces, index, count).unwrap();
                array = array.take(axis, &kept(size, &cut.segments, &cut.pieces, index, count));
                sharded.push(name);
            }
            let shard = ShardedTensor::builder(DType::BF16, &shape)
                .cuts(&cuts).unwrap()
                .replica(topology.replica(rank, &sharded).unwrap())
                .build("t").unwrap();
            prop_assert_eq!(shard.local_shape().as_slice(), array.shape.as_slice());
            let buffer: Vec<u64> = local_buffer(&shard, &full).into_iter().map(Option::unwrap).collect();
            prop_assert_eq!(&buffer, &array.data);
            shards.push(shard);
        }
        prove_world((0..).zip(&shards));
    }

    /// `n` KV heads of `d` elements over more ranks than heads, or fewer.
    #[test]
    fn ranks_share_heads_where_there_are_fewer(heads in 1u64..9, d in 1u64..4, factor in 1u64..5, many in any::<bool>()) {
        let tp = if many { heads * factor } else { (1..=heads).rev().find(|tp| heads % tp == 0 && *tp <= factor).unwrap() };
        let pieces = Pieces::Shared { unit: d };
        let full = Array::full(&[heads * d, 3], 0);
        for rank in 0..tp {
            let cuts = Cuts::whole(&full.shape).cut(0, &pieces, rank, tp).unwrap();
            let shard = ShardedTensor::builder(DType::F32, &full.shape).cuts(&cuts).unwrap().build("k").unwrap();
            let array = full.take(0, &kept(heads * d, &[], &pieces, rank, tp));
            let buffer: Vec<u64> = local_buffer(&shard, &full).into_iter().map(Option::unwrap).collect();
            prop_assert_eq!(buffer, array.data);
        }
        prop_assert_eq!(pieces.shared_by(heads * d, tp).unwrap(), if many { factor } else { 1 });
    }
}

/// `(global start, length)` of every region along axis 0, with its place along the local axis.
fn rows(shard: &ShardedTensor) -> Vec<(u64, u64, u64)> {
    let width: u64 = shard.global_shape()[1..].iter().product();
    shard
        .placements()
        .iter()
        .map(|p| (p.region.offset()[0], p.local_offset / width, p.region.shape()[0]))
        .collect()
}

fn packed(rows: u64, width: u64, segments: [u64; 3], rank: u64, tp: u64) -> ShardedTensor {
    let shape = [rows, width];
    let cuts = Cuts::whole(&shape).cut_segments(0, &segments, &Pieces::EVEN, rank, tp).unwrap();
    let split = Split::segmented(0, segments);
    ShardedTensor::builder(DType::F32, shape).split(split).cuts(&cuts).unwrap().build("c_attn").unwrap()
}

#[test]
fn packed_qkv_of_mha_and_gqa() {
    let mha = packed(2304, 768, [768; 3], 1, 2);
    assert_eq!(rows(&mha), [(384, 0, 384), (1152, 384, 384), (1920, 768, 384)]);
    assert_eq!(mha.local_shape().as_slice(), [1152, 768]);
    let gqa = packed(3072, 2048, [2048, 512, 512], 1, 4);
    assert_eq!(rows(&gqa), [(512, 0, 512), (2176, 512, 128), (2688, 640, 128)]);
    assert_eq!(gqa.local_shape().as_slice(), [768, 2048]);
    for rank in 0..4 {
        let from = packed(24, 4, [16, 4, 4], rank, 4);
        assert_eq!(rows(&from), [(4 * rank, 0, 4), (16 + rank, 4, 1), (20 + rank, 5, 1)]);
    }
    assert_eq!(rows(&packed(24, 4, [16, 4, 4], 0, 2)), [(0, 0, 8), (16, 8, 2), (20, 10, 2)]);
    // One rank holds all three segments, one after another as they are: one region. The split still says three.
    let whole = packed(12, 4, [8, 2, 2], 0, 1);
    assert_eq!(rows(&whole), [(0, 0, 12)]);
    assert_eq!(whole.split(), Some(&Split::segmented(0, [8, 2, 2])));
}

/// A fused `[gate; up]` under tensor parallelism and then FSDP: halves never mix.
#[test]
fn a_fused_weight_under_a_second_axis_is_cut_inside_its_halves() {
    let shape = [16, 3];
    for (tp, fsdp, expected) in [
        (0, 0, vec![(0, 0, 2)]),
        (0, 1, vec![(2, 0, 2)]),
        (0, 3, vec![(10, 0, 2)]),
        (1, 1, vec![(6, 0, 2)]),
        (1, 2, vec![(12, 0, 2)]),
    ] {
        let cuts = Cuts::whole(&shape)
            .cut_segments(0, &[8, 8], &Pieces::EVEN, tp, 2)
            .unwrap()
            .cut(0, &Pieces::Chunk, fsdp, 4)
            .unwrap();
        let shard = ShardedTensor::builder(DType::F32, shape).cuts(&cuts).unwrap().build("gate_up").unwrap();
        assert_eq!(rows(&shard), expected);
    }
    // Three ranks of FSDP: the middle one holds the end of gate and the start of up.
    let cuts = Cuts::whole(&shape).cut_segments(0, &[8, 8], &Pieces::EVEN, 1, 2).unwrap();
    let middle = cuts.cut(0, &Pieces::Chunk, 1, 3).unwrap();
    assert_eq!(middle.spans(0).unwrap().iter().collect::<Vec<_>>(), [(7, 1), (12, 2)]);
}

#[test]
fn uneven_shards_and_faults() {
    // 3 rows at 0 and 5 rows at 3.
    let sizes = Pieces::Sizes(vec![3, 5]);
    let cuts = Cuts::whole(&[8, 4]).cut(0, &sizes, 1, 2).unwrap();
    assert_eq!(cuts.spans(0).unwrap().iter().collect::<Vec<_>>(), [(3, 5)]);
    assert_eq!(Cuts::whole(&[]).cut(0, &Pieces::EVEN, 0, 1), Err(CutError::Axis { axis: 0, ndim: 0 }));
    let segments = Cuts::whole(&[8]).cut_segments(0, &[6, 3], &Pieces::EVEN, 0, 1);
    assert_eq!(segments, Err(CutError::Segments { segments: vec![6, 3], size: 8 }));
}
