//! Kinds of faults that users of other systems met; each test is named after its kind. docs/field-faults.md lists where
//! the others are.

use crate::harness::{dict, errors, handle, load, memory, on_ranks, save_with, trainer_state};
use reshard::checkpoint::{CommitMode, CommitState, LoadRequest, SaveRequest};
use reshard::collective::{Collective, Single};
use reshard::format::Iteration;
use reshard::plan::{DTypeContract, DTypeRule};
use reshard::shard::{
    DType, ParallelSizes, Placement, Region, Rules, ShardedStateDict, ShardedTensor, Split, UnshardedTensor,
};
use reshard_oracle::{cut, first_difference, full_tensor};
use std::collections::BTreeMap;

/// All ranks' shards by a table of rules.
fn by_rules(rules: &str, sizes: ParallelSizes, tensors: &[(&str, DType, &[u64])]) -> Vec<ShardedStateDict> {
    let topology = sizes.topology().unwrap();
    let unsharded =
        tensors.iter().map(|&(key, dtype, shape)| UnshardedTensor::from((key.to_owned(), dtype, shape)));
    let bound = Rules::from_toml(rules).unwrap().bind(unsharded.collect::<Vec<_>>(), &topology).unwrap();
    (0..topology.world_size()).map(|rank| bound.rank(rank).unwrap()).collect()
}

fn local(dicts: &[ShardedStateDict]) -> impl Fn(usize, &str) -> Vec<u8> + Sync {
    move |rank, key| {
        let shard = dicts[rank].get(key).unwrap();
        cut(&full_tensor(key, shard.dtype(), shard.global_shape()), shard)
    }
}

/// Saves from one layout and loads on another, and compares every byte.
fn round_trip(source: &[ShardedStateDict], target: &[ShardedStateDict]) {
    let storage = memory();
    save_with(&storage, 1, source, local(source)).into_iter().for_each(|report| drop(report.unwrap()));
    for (rank, loaded) in load(&storage, target, |_| {}).into_iter().enumerate() {
        let loaded = loaded.unwrap();
        for (key, _) in target[rank].iter() {
            let found = loaded.tensors[key].as_ref();
            assert_eq!(first_difference(found, &local(target)(rank, key)), None, "{key} of rank {rank}");
        }
    }
}

/// One handle, one layout, other weights at every step.
#[test]
fn stale_data_saved() {
    let storage = memory();
    let run = handle(&storage);
    let state = [dict([("w", ShardedTensor::builder(DType::U8, [100]))])];
    for step in 1..4u8 {
        let (weights, trainer) = (vec![step; 100], trainer_state(u64::from(step)));
        let data = BTreeMap::from([("w", weights.as_slice())]);
        run.save(&Single, SaveRequest::new(Iteration(u64::from(step)), &state[0], data, &trainer)).unwrap();
    }
    for step in 1..4u8 {
        let mut request = LoadRequest::new(&state[0]);
        request.iteration = Some(Iteration(u64::from(step)));
        assert_eq!(run.load(&Single, request).unwrap().tensors["w"].as_ref(), vec![step; 100]);
    }
}

/// `[gate; up]` over tensor parallel ranks, and what is left of it over data parallel ones, along both axes in turn.
#[test]
fn fused_tensors() {
    let tensors: &[(&str, DType, &[u64])] = &[("mlp.gate_up", DType::BF16, &[48, 20])];
    let rules = |axis: u64| {
        format!(
            "[[rule]]\nkeys = [\"*\"]\ncut = [{{ axis = 0, over = \"tp\", segments = [1, 1] }}, {{ axis = {axis}, over = \"dp\", pieces = \"chunk\" }}]\n"
        )
    };
    let worlds: Vec<_> = [(1, 1), (2, 3), (4, 2), (3, 4)]
        .into_iter()
        .flat_map(|(tp, dp)| [0, 1].map(|axis| (tp, dp, axis)))
        .map(|(tp, dp, axis)| {
            by_rules(&rules(axis), ParallelSizes { tp, dp, ..ParallelSizes::default() }, tensors)
        })
        .collect();
    for (source, target) in worlds.iter().zip(worlds.iter().rev()) {
        round_trip(source, target);
    }
}

/// A conversion fills the caller's own tensor, not a copy of it.
#[test]
fn throwaway_destination() {
    let storage = memory();
    let saved = [dict([("w", ShardedTensor::builder(DType::BF16, [2]))])];
    save_with(&storage, 1, &saved, |_, _| vec![0x80, 0x3f, 0x00, 0x40]).pop().unwrap().unwrap();
    let wanted = dict([("w", ShardedTensor::builder(DType::F32, [2]))]);
    let expected: Vec<u8> = [1f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    for staged in [false, true] {
        let mut own = vec![0xee; 8];
        let buffers = BTreeMap::from([("w", own.as_mut_slice())]);
        let mut request = LoadRequest::new(&wanted);
        request.rules.contract = DTypeContract::new(DTypeRule::Widen);
        request.mode = if staged { CommitMode::Staged(buffers) } else { CommitMode::InPlace(buffers) };
        assert!(handle(&storage).load(&Single, request).unwrap().tensors.is_empty());
        assert_eq!(own, expected);
    }
}

/// Every expert's name is there, but one rank forgot a part of one: the save says so and nothing is committed.
#[test]
fn names_all_there_bytes_half_missing() {
    let storage = memory();
    let rows = |start: u64, count: u64| {
        ShardedTensor::builder(DType::F32, [8, 2]).region([start, 0], [count, 2]).unwrap()
    };
    let dicts = [
        dict([("experts.0", rows(0, 4)), ("experts.1", rows(0, 4))]),
        dict([("experts.0", rows(4, 4)), ("experts.1", rows(4, 3))]),
    ];
    for result in save_with(&storage, 1, &dicts, local(&dicts)) {
        let error = result.unwrap_err();
        assert_eq!(error.state, CommitState::NotCommitted);
        assert!(error.to_string().contains("`experts.1`") && error.to_string().contains("[7, 0]"), "{error}");
    }
    assert!(errors(load(&storage, &dicts, |_| {}))[0].contains("no committed checkpoint"));
}

/// Three rows over five ranks, in the form that FSDP2 cuts: the last two hold nothing of it.
fn three_rows() -> Vec<ShardedStateDict> {
    let rules = "[[rule]]\nkeys = [\"*\"]\ncut = [{ axis = 0, over = \"dp\", pieces = \"chunk\" }]\n";
    by_rules(
        rules,
        ParallelSizes { dp: 5, ..ParallelSizes::default() },
        &[("w", DType::F32, &[3, 4]), ("b", DType::F32, &[7])],
    )
}

#[test]
fn zero_size_local_shards() {
    round_trip(&three_rows(), &three_rows());
    round_trip(
        &three_rows(),
        &[dict([
            ("w", ShardedTensor::builder(DType::F32, [3, 4])),
            ("b", ShardedTensor::builder(DType::F32, [7])),
        ])],
    );
}

/// Every rank gets every key it lists, also where its shard is empty.
#[test]
fn params_with_empty_local_shards_dropped() {
    let storage = memory();
    let dicts = three_rows();
    save_with(&storage, 1, &dicts, local(&dicts)).into_iter().for_each(|report| drop(report.unwrap()));
    for (rank, loaded) in load(&storage, &dicts, |_| {}).into_iter().enumerate() {
        let tensors = loaded.unwrap().tensors;
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["b", "w"]);
        assert_eq!(tensors["w"].as_ref().len(), if rank < 3 { 16 } else { 0 });
    }
}

/// A shard that is the middle of a larger array: its own bytes are saved and loaded, those around it are not touched.
#[test]
fn shared_storage_views() {
    let storage = memory();
    let region = Region::new([0, 0], [2, 3]).unwrap();
    let view = Placement::in_array(region, &[4, 8], &[1, 2]).unwrap();
    let state = [dict([("w", ShardedTensor::builder(DType::U8, [2, 3]).placed(vec![view], [4, 8]))])];
    let array: Vec<u8> = (0..32).collect();
    let report = save_with(&storage, 1, &state, |_, _| array.clone()).pop().unwrap().unwrap();
    assert_eq!(report.bytes, 6, "the rank's object is empty");
    let whole = [dict([("w", ShardedTensor::builder(DType::U8, [2, 3]))])];
    let loaded = load(&storage, &whole, |_| {}).pop().unwrap().unwrap();
    assert_eq!(loaded.tensors["w"].as_ref(), [10, 11, 12, 18, 19, 20]);
    let mut own = vec![0xee; 32];
    let mut request = LoadRequest::new(&state[0]);
    request.mode = CommitMode::InPlace(BTreeMap::from([("w", own.as_mut_slice())]));
    handle(&storage).load(&Single, request).unwrap();
    let expected = |at: usize| if matches!(at, 10..13 | 18..21) { at as u8 } else { 0xee };
    assert_eq!(own, (0..32).map(expected).collect::<Vec<_>>());
}

/// Every dtype there is, the packed ones whole.
#[test]
fn fp8_fp4_e8m0_dtypes() {
    let half = |dtype: DType, rank: u64| {
        let builder = ShardedTensor::builder(dtype, [8, 4]);
        match (dtype.is_opaque(), rank) {
            (true, 0) => builder,
            (true, _) => builder.regions([]),
            (false, _) => builder.region([4 * rank, 0], [4, 4]).unwrap(),
        }
    };
    let dicts = |ranks: u64| -> Vec<ShardedStateDict> {
        let tensor = |dtype: DType, rank| {
            if ranks == 1 { ShardedTensor::builder(dtype, [8, 4]) } else { half(dtype, rank) }
        };
        (0..ranks)
            .map(|rank| dict(DType::ALL.iter().map(|&dtype| (dtype.name(), tensor(dtype, rank)))))
            .collect()
    };
    round_trip(&dicts(2), &dicts(1));
    round_trip(&dicts(1), &dicts(2));
}

#[test]
fn keys() {
    let names = [
        "",
        ".",
        "..",
        "a/b",
        "module.w",
        "_orig_mod.w",
        "w",
        "W",
        "é\u{301} \n",
        "__metadata__",
        "w[0:2]",
        "%41",
        "A",
    ];
    let tensor = || ShardedTensor::builder(DType::F32, [4]);
    let whole = [dict(names.map(|name| (name, tensor())))];
    let halves: Vec<_> = (0..2)
        .map(|rank| dict(names.map(|name| (name, tensor().region([2 * rank], [2]).unwrap()))))
        .collect();
    round_trip(&whole, &halves);
    round_trip(&halves, &whole);
}

/// Columns of a wide matrix, whose rows would be 1,024 reads each: laid along the declared axis they are a few.
#[test]
fn strided_read_storm() {
    let columns = |ranks: u64| -> Vec<ShardedStateDict> {
        let part = 2048 / ranks;
        let tensor = |rank| {
            ShardedTensor::builder(DType::F32, [1024, 2048])
                .split(Split::axis(1))
                .region([0, rank * part], [1024, part])
        };
        (0..ranks).map(|rank| dict([("w", tensor(rank).unwrap())])).collect()
    };
    let storage = memory();
    let source = columns(2);
    save_with(&storage, 1, &source, local(&source)).into_iter().for_each(|report| drop(report.unwrap()));
    let target = columns(8);
    let reports = on_ranks(8, |rank| {
        let mut request = LoadRequest::new(&target[rank.rank()]);
        request.objects = reshard::plan::ObjectChoice::Fresh;
        let loaded = handle(&storage).load(&rank, request).unwrap();
        assert_eq!(first_difference(loaded.tensors["w"].as_ref(), &local(&target)(rank.rank(), "w")), None);
        loaded.report
    });
    for report in reports {
        assert_eq!((report.own.bytes_needed, report.own.bytes_fetched), (1 << 20, 1 << 20));
        // One extent in slots of the small staging memory, and the block table.
        assert!(report.own.requests <= 6, "{}", report.own.requests);
    }
}
