//! Parts of a checkpoint.

use crate::harness::{dict, errors, load, memory, save_with, trainer_state};
use reshard::checkpoint::{LoadRequest, Loaded};
use reshard::plan::{CostModel, Select};
use reshard::shard::{DType, ShardedStateDict, ShardedTensor, StateGroup};
use reshard::storage::{Meter, Metered, Operation, StorageBackend};
use reshard_oracle::full_tensor;
use std::sync::Arc;

const ROWS: u64 = 64;
const BYTES: u64 = ROWS * 8 * 4;

/// Two stages: rank r has layer r and its moment.
fn stages(layers: &[u64]) -> Vec<ShardedStateDict> {
    let layer = |layer: u64| {
        let (weight, moment) = (format!("h.{layer}.w"), format!("m.h.{layer}.w"));
        let tensor = || ShardedTensor::builder(DType::F32, [ROWS, 8]);
        let state = tensor().group(StateGroup::Optimizer).parameter(weight.as_str());
        dict([(weight.as_str(), tensor()), (moment.as_str(), state)])
    };
    layers.iter().map(|&index| layer(index)).collect()
}

fn saved() -> (Arc<dyn StorageBackend>, Arc<Meter>) {
    let storage = memory();
    let local = |_: usize, key: &str| full_tensor(key, DType::F32, &[ROWS, 8]);
    save_with(&storage, 9, &stages(&[0, 1]), local).into_iter().for_each(|report| drop(report.unwrap()));
    let meter = Meter::recording();
    (Arc::new(Metered::new(storage, Arc::clone(&meter))), meter)
}

/// Loads without verification and without reading over gaps, and counts what reached the store.
fn cost(select: Select, target: &[ShardedStateDict]) -> (Vec<Loaded>, u64, u64) {
    let (storage, meter) = saved();
    let loaded: Vec<_> = load(&storage, target, |request| {
        request.rules.select = select.clone();
        request.rules.cost = CostModel::exact();
        request.rules.verify = false;
    })
    .into_iter()
    .map(Result::unwrap)
    .collect();
    let reads: Vec<_> =
        meter.take_records().into_iter().filter(|record| record.operation == Operation::Read).collect();
    let bytes = reads.iter().map(|record| record.bytes).sum();
    assert_eq!(loaded[0].report.total.bytes_fetched, bytes);
    assert_eq!(loaded[0].report.total.requests, reads.len() as u64);
    (loaded, bytes, reads.len() as u64)
}

#[test]
fn a_selection_costs_what_it_needs_and_the_rest_is_not_unexpected() {
    let all = stages(&[0, 1]);
    // A stage's weight and moment lie side by side in files of their own.
    assert_eq!(cost(Select::all(), &all).1, 4 * BYTES);
    let (model, bytes, requests) = cost(Select::group(StateGroup::Model), &all);
    assert_eq!((bytes, requests), (2 * BYTES, 2));
    assert_eq!(model[1].tensors.keys().collect::<Vec<_>>(), ["h.1.w"]);
    let (optimizer, bytes, requests) = cost(Select::group(StateGroup::Optimizer), &all);
    assert_eq!((bytes, requests), (2 * BYTES, 2));
    assert_eq!(optimizer[0].tensors.keys().collect::<Vec<_>>(), ["m.h.0.w"]);
    let (keys, bytes, requests) = cost(Select::all().keys(["m.h.1*"]).unwrap(), &all);
    assert_eq!((bytes, requests), (BYTES, 1));
    assert!(keys[0].tensors.is_empty());
    assert_eq!(keys[1].tensors["m.h.1.w"].as_ref(), full_tensor("m.h.1.w", DType::F32, &[ROWS, 8]));
    for loaded in model.iter().chain(&optimizer).chain(&keys) {
        assert!(loaded.report.unexpected.is_empty() && loaded.report.missing.is_empty());
    }
}

#[test]
fn the_trainer_state_alone_costs_no_data() {
    let (loaded, bytes, requests) = cost(Select::trainer_state(), &[ShardedStateDict::new()]);
    assert_eq!((bytes, requests), (0, 0));
    assert_eq!(loaded[0].trainer_state, Some(trainer_state(9)));
}

#[test]
fn per_rank_objects_come_with_everything_and_not_with_a_group() {
    let (storage, _) = saved();
    let own = |request: &mut LoadRequest<'_>| request.objects = Default::default();
    for (rank, loaded) in load(&storage, &stages(&[0, 1]), own).into_iter().enumerate() {
        let objects = loaded.unwrap().objects;
        assert_eq!(objects[&("rng".to_owned(), rank as u32)].as_ref(), vec![rank as u8; rank * 7]);
    }
    // On another number of ranks there are no own ones; a group wants none.
    let one = [dict([("h.0.w", ShardedTensor::builder(DType::F32, [ROWS, 8]))])];
    let unexpected = |request: &mut LoadRequest<'_>| (own(request), request.allow_unexpected = true).1;
    assert!(errors(load(&storage, &one, unexpected))[0].contains("saved by 2 rank(s) and this run has 1"));
    let group = |request: &mut LoadRequest<'_>| {
        unexpected(request);
        request.rules.select = Select::group(StateGroup::Model);
    };
    assert!(load(&storage, &one, group).pop().unwrap().unwrap().objects.is_empty());
}

/// No stage has all keys, and together they have.
#[test]
fn missing_and_unexpected_are_judged_over_the_union_of_ranks() {
    let (storage, _) = saved();
    for loaded in load(&storage, &stages(&[1, 0]), |_| {}) {
        assert!(loaded.unwrap().report.unexpected.is_empty());
    }
    // Nobody wants layer 1: the same error on every rank.
    for error in errors(load(&storage, &stages(&[0, 0]), |_| {})) {
        assert!(error.contains("`h.1.w`, `m.h.1.w`") && error.contains("wanted by no rank"), "{error}");
    }
    // Rank 1 wants a layer that is not there: the same error on every rank.
    for error in errors(load(&storage, &stages(&[0, 2]), |request| request.allow_unexpected = true)) {
        assert!(error.contains("`h.2.w`, `m.h.2.w`") && error.contains("not in the checkpoint"), "{error}");
    }
    let allowed = load(&storage, &stages(&[0, 2]), |request| {
        request.allow_unexpected = true;
        request.allow_missing = true;
    });
    for loaded in allowed {
        let report = loaded.unwrap().report;
        assert_eq!(report.missing, ["h.2.w", "m.h.2.w"]);
        assert_eq!(report.unexpected, ["h.1.w", "m.h.1.w"]);
    }
}

#[test]
fn optimizer_state_dropped_in_silence() {
    let (storage, _) = saved();
    let model_only: Vec<_> = [0, 1]
        .map(|layer| dict([(&*format!("h.{layer}.w"), ShardedTensor::builder(DType::F32, [ROWS, 8]))]))
        .into();
    for error in errors(load(&storage, &model_only, |_| {})) {
        assert!(error.contains("`m.h.0.w`, `m.h.1.w`"), "{error}");
    }
}
