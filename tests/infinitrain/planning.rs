//! Which rows of which file go where.

use crate::store::{Shard, layout};
use reshard::format::SavedLayout;
use reshard::plan::{Copy, LoadPlan, LoadPlanner, LoadRules, PlanError};
use reshard::shard::{DType, Region, ShardedStateDict, ShardedTensor, Split};

const KEY: &str = "layer.0.weight";
/// Bytes of a row of four fp32.
const ROW: u64 = 16;

fn rows(global: &[u64], start: u64, count: u64) -> ShardedTensor {
    let mut shape = global.to_vec();
    shape[0] = count;
    let mut offset = vec![0; global.len()];
    offset[0] = start;
    ShardedTensor::builder(DType::F32, global)
        .split(Split::axis(0))
        .region(offset, shape)
        .unwrap()
        .build(KEY)
        .unwrap()
}

fn segments(global: &[u64], lengths: &[u64], held: &[(u64, u64)]) -> ShardedTensor {
    let regions = held.iter().map(|&(start, count)| Region::new([start, 0], [count, global[1]]).unwrap());
    let split = Split::segmented(0, lengths);
    ShardedTensor::builder(DType::F32, global).split(split).regions(regions).build(KEY).unwrap()
}

fn plan(saved: &SavedLayout, target: ShardedTensor) -> Result<LoadPlan, PlanError> {
    let mut dict = ShardedStateDict::new();
    dict.insert(KEY, target).unwrap();
    LoadPlanner::new(saved, &LoadRules::default()).plan(&dict)
}

/// The reads in the order of the target: rank, source row, target row, rows.
fn reads(saved: &SavedLayout, target: ShardedTensor) -> Vec<(u64, u64, u64, u64)> {
    let mut plan = plan(saved, target).unwrap();
    plan.copies.sort_by_key(|copy| copy.local_offset);
    let rank = |copy: &Copy| saved.files[copy.file as usize].path[5..11].parse().unwrap();
    // The payload begins after 12 bytes of the file's header and the tensor's name.
    let source = |copy: &Copy| (copy.file_offset - 12 - KEY.len() as u64) / ROW;
    plan.copies
        .iter()
        .map(|copy| (rank(copy), source(copy), copy.local_offset / ROW, copy.file_bytes() / ROW))
        .collect()
}

/// One shard a rank, of equal numbers of rows.
fn even(global: &[u64; 2], ranks: u64) -> SavedLayout {
    let count = global[0] / ranks;
    let offsets: Vec<[u64; 2]> = (0..ranks).map(|rank| [rank * count, 0]).collect();
    let local = [count, global[1]];
    let shards: Vec<Shard<'_>> =
        (0..ranks).map(|rank| Shard::rows(rank, KEY, global, &local, &offsets[rank as usize])).collect();
    layout(&shards).unwrap()
}

#[test]
fn from_two_ranks_to_four() {
    assert_eq!(reads(&even(&[16, 4], 2), rows(&[16, 4], 4, 4)), [(0, 4, 0, 4)]);
}

#[test]
fn from_four_ranks_to_two() {
    assert_eq!(reads(&even(&[16, 4], 4), rows(&[16, 4], 8, 8)), [(2, 0, 0, 4), (3, 0, 4, 4)]);
}

#[test]
fn uneven_shards_with_explicit_offsets() {
    let saved = layout(&[
        Shard::rows(0, KEY, &[8, 4], &[3, 4], &[0, 0]),
        Shard::rows(1, KEY, &[8, 4], &[5, 4], &[3, 0]),
    ]);
    assert_eq!(reads(&saved.unwrap(), rows(&[8, 4], 2, 4)), [(0, 2, 0, 1), (1, 0, 1, 3)]);
}

#[test]
fn segments_of_one_rank() {
    let whole = Shard {
        segments: &[(0, 0, 8), (8, 8, 2), (10, 10, 2)],
        ..Shard::rows(0, KEY, &[12, 4], &[12, 4], &[0, 0])
    };
    let target = segments(&[12, 4], &[8, 2, 2], &[(0, 8), (8, 2), (10, 2)]);
    assert_eq!(target.split().unwrap().axis, 0);
    assert_eq!(reads(&layout(&[whole]).unwrap(), target), [(0, 0, 0, 8), (0, 8, 8, 2), (0, 10, 10, 2)]);
}

/// A quarter of Q, K and V: `[q_r | k_r | v_r]`.
fn quarters(key: &str) -> SavedLayout {
    let held: Vec<_> = (0..4).map(|r| [(4 * r, 0, 4), (16 + r, 4, 1), (20 + r, 5, 1)]).collect();
    let shard = |rank: u64| Shard {
        segments: &held[rank as usize],
        ..Shard::rows(rank, key, &[24, 4], &[6, 4], &[0, 0])
    };
    layout(&(0..4).map(shard).collect::<Vec<_>>()).unwrap()
}

#[test]
fn segments_from_four_ranks_to_two() {
    let target = segments(&[24, 4], &[16, 4, 4], &[(0, 8), (16, 2), (20, 2)]);
    let expected = [(0, 0, 0, 4), (1, 0, 4, 4), (0, 4, 8, 1), (1, 4, 9, 1), (0, 5, 10, 1), (1, 5, 11, 1)];
    assert_eq!(reads(&quarters(KEY), target), expected);
}

#[test]
fn a_stage_plans_its_own_layer_only() {
    let saved = layout(&[
        Shard::rows(0, "layer.0.weight", &[8, 4], &[8, 4], &[0, 0]),
        Shard::rows(1, "layer.1.weight", &[8, 4], &[8, 4], &[0, 0]),
    ])
    .unwrap();
    let mut dict = ShardedStateDict::new();
    dict.insert("layer.1.weight", ShardedTensor::builder(DType::F32, [8, 4]).build("l").unwrap()).unwrap();
    let plan = LoadPlanner::new(&saved, &LoadRules::default()).plan(&dict).unwrap();
    assert_eq!((plan.tensors.len(), plan.copies.len()), (1, 1));
    assert_eq!(saved.files[plan.copies[0].file as usize].path, "rank_000001/model.ckpt");
    assert_eq!(plan.used.into_iter().collect::<Vec<_>>(), ["layer.1.weight"]);
}

#[test]
fn a_column_slice_is_a_strided_read() {
    let saved = even(&[4, 4], 1);
    let target =
        ShardedTensor::builder(DType::F32, [4, 4]).split(Split::axis(1)).region([0, 1], [4, 2]).unwrap();
    let plan = plan(&saved, target.build(KEY).unwrap()).unwrap();
    let [copy] = &plan.copies[..] else { panic!("{:?}", plan.copies) };
    // Column 1 is the second element of a row; four rows of two elements.
    assert_eq!((copy.file_offset - 12 - KEY.len() as u64, copy.row_elements, copy.local_offset), (4, 2, 0));
    assert_eq!(copy.axes.iter().map(|axis| (axis.count, axis.file_stride)).collect::<Vec<_>>(), [(4, ROW)]);
}

/// What InfiniTrain refuses, regions make possible.
#[test]
fn two_cut_axes_segments_on_one_side_and_other_axes_are_planned_too() {
    let quarter = |rank: u64, offset: &'static [u64]| Shard::rows(rank, KEY, &[4, 4], &[2, 2], offset);
    let saved = layout(&[quarter(0, &[0, 0]), quarter(1, &[0, 2]), quarter(2, &[2, 0]), quarter(3, &[2, 2])])
        .unwrap();
    let middle =
        ShardedTensor::builder(DType::F32, [4, 4]).region([1, 1], [2, 2]).unwrap().build(KEY).unwrap();
    assert_eq!(plan(&saved, middle).unwrap().copies.len(), 4);
    let target = segments(&[16, 4], &[8, 4, 4], &[(0, 4), (8, 2), (12, 2)]);
    assert_eq!(reads(&even(&[16, 4], 1), target), [(0, 0, 0, 4), (0, 8, 4, 2), (0, 12, 6, 2)]);
    let columns =
        ShardedTensor::builder(DType::F32, [16, 4]).split(Split::axis(1)).region([0, 0], [16, 2]).unwrap();
    assert_eq!(plan(&even(&[16, 4], 2), columns.build(KEY).unwrap()).unwrap().copies.len(), 2);
}

#[test]
fn a_hole_and_an_overlap_in_the_saved_shards_are_refused() {
    for (start, words) in [
        (5, "nothing covers the element at [4, 0]"),
        (3, "more than one region covers the element at [3, 0]"),
    ] {
        let offset = [start, 0];
        let local = [8 - start, 4];
        let shards =
            [Shard::rows(0, KEY, &[8, 4], &[4, 4], &[0, 0]), Shard::rows(1, KEY, &[8, 4], &local, &offset)];
        let error = layout(&shards).unwrap_err().to_string();
        assert!(error.contains(KEY) && error.contains(words), "{error}");
    }
}

#[test]
fn copies_of_a_replicated_tensor_are_read_once() {
    let copy = |rank| Shard::rows(rank, KEY, &[2, 4], &[2, 4], &[0, 0]);
    assert_eq!(reads(&layout(&[copy(1), copy(0), copy(2)]).unwrap(), rows(&[2, 4], 0, 2)), [(0, 0, 0, 2)]);
}

#[test]
fn a_key_that_was_not_saved_is_missing_by_name() {
    let plan = plan(&quarters("other"), rows(&[24, 4], 0, 24)).unwrap();
    assert_eq!(plan.missing, [KEY]);
}

#[test]
fn an_entry_of_the_metadata_round_trips() {
    let shard = |rank, offset| Shard { segments: &[], ..Shard::rows(rank, KEY, &[8, 4], &[4, 4], offset) };
    let first = Shard { segments: &[(0, 0, 4)], ..shard(0, &[0, 0]) };
    assert_eq!(first.bytes.len(), 64);
    let layout = layout(&[first, shard(1, &[4, 0])]).unwrap();
    let tensor = &layout.tensors[KEY];
    assert_eq!((tensor.dtype, tensor.global_shape.as_slice()), (DType::F32, &[8, 4][..]));
    let chunk = tensor.chunks.get(0).unwrap();
    assert_eq!(chunk.region, Region::new([0, 0], [4, 4]).unwrap());
    assert_eq!(layout.files[chunk.file as usize].path, "rank_000000/model.ckpt");
    assert_eq!((chunk.offset, chunk.region.volume() * 4), (12 + KEY.len() as u64, 64));
}

#[test]
fn an_unknown_dtype_is_refused_by_its_name() {
    let shard = Shard { dtype: "fp3", ..Shard::rows(0, KEY, &[2, 4], &[2, 4], &[0, 0]) };
    let error = layout(&[shard]).unwrap_err().to_string();
    assert!(error.contains(KEY) && error.contains("fp3"), "{error}");
}
