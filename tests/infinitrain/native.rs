//! The same through this library's own format: Adam, trainer state, skipping.

use reshard::checkpoint::{Checkpoint, CheckpointError, LoadRequest, Options, SaveRequest};
use reshard::collective::Single;
use reshard::format::{Iteration, ModelConfig, ParallelSizes};
use reshard::shard::{
    DType, ModelConfig as Architecture, Naming, ParallelSizes as Mesh, Preset, Region, ShardError,
    ShardedStateDict, ShardedTensor, StateGroup,
};
use reshard::storage::{OpenOptions, open};
use reshard::training::{ResumeRequest, Resumed, Retention, TrainingRun};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

fn run(name: &str, model: ModelConfig, sizes: ParallelSizes) -> TrainingRun {
    let storage = open(&format!("memory://infinitrain-native-{name}"), &OpenOptions::new()).unwrap();
    TrainingRun::new(Checkpoint::new(storage, Options::default()), model, sizes, Retention::All).unwrap()
}

fn sizes(tp: u32, dp: u32) -> ParallelSizes {
    let size = |size| NonZeroU32::new(size).unwrap();
    ParallelSizes { tp: size(tp), pp: size(1), dp: size(dp), sp: size(1), vpp: size(1) }
}

#[test]
fn moments_have_the_shards_of_their_parameter_and_their_own_dtype() {
    let config = Architecture {
        n_layer: 1,
        n_head: 16,
        n_kv_head: 4,
        n_embd: 4,
        head_dim: 1,
        hidden: 8,
        block_size: 2,
        original_vocab_size: 8,
        padded_vocab_size: 8,
        ..Architecture::GPT2_124M
    };
    let topology = Mesh { tp: 4, ..Mesh::default() }.topology().unwrap();
    let bound = Preset::new(Naming::InfiniTrain, config).bind_with_adam(DType::BF16, &topology).unwrap();
    let dict = bound.rank(0).unwrap();
    let parameter = "transformer.h.0.attn.c_attn.weight";
    let expected = [([0, 0], [4, 4]), ([16, 0], [1, 4]), ([20, 0], [1, 4])]
        .map(|(offset, shape)| Region::new(offset, shape).unwrap());
    for (key, dtype, group) in [
        (parameter.to_owned(), DType::BF16, StateGroup::Model),
        (format!("adam.m.{parameter}"), DType::F32, StateGroup::Optimizer),
        (format!("adam.v.{parameter}"), DType::F32, StateGroup::Optimizer),
    ] {
        let tensor = dict.get(&key).unwrap();
        assert_eq!((tensor.dtype(), tensor.group()), (dtype, group), "{key}");
        assert_eq!(
            (tensor.global_shape().as_slice(), tensor.local_shape().as_slice()),
            (&[24, 4][..], &[6, 4][..])
        );
        let places =
            tensor.placements().iter().map(|placed| (placed.region.clone(), placed.local_offset / 4));
        assert_eq!(
            places.collect::<Vec<_>>(),
            expected.iter().cloned().zip([0, 4, 5]).collect::<Vec<_>>(),
            "{key}"
        );
    }
    let steps = dict.get("adam.t").unwrap();
    assert_eq!((steps.dtype(), steps.global_shape().len(), steps.placements().len()), (DType::I64, 0, 1));
}

#[test]
fn merging_a_key_twice_is_refused_by_its_name() {
    let dict = || {
        let mut dict = ShardedStateDict::new();
        dict.insert("layer.0.weight", ShardedTensor::builder(DType::F32, [2]).build("l").unwrap()).unwrap();
        dict
    };
    let error = dict().merge(dict()).unwrap_err();
    assert!(
        matches!(error, ShardError::DuplicateKey { .. }) && error.to_string().contains("`layer.0.weight`"),
        "{error}"
    );
}

#[test]
fn a_linear_layer_is_saved_and_loaded() {
    let mut run = run("linear", ModelConfig::default(), sizes(1, 1));
    let mut dict = ShardedStateDict::new();
    dict.insert("weight", ShardedTensor::builder(DType::F32, [3, 2]).build("weight").unwrap()).unwrap();
    let bytes: Vec<u8> = [0.42f32; 6].iter().flat_map(|value| value.to_le_bytes()).collect();
    let state = run.trainer_state(42, 100);
    let request = SaveRequest::new(Iteration(42), &dict, BTreeMap::from([("weight", &bytes[..])]), &state);
    run.save_checkpoint(&Single, request).unwrap();
    let resumed = run.resume_from_checkpoint(&Single, ResumeRequest::new(&dict)).unwrap().unwrap();
    assert_eq!(resumed.tensors["weight"].as_ref(), bytes);
    assert_eq!(
        (resumed.iteration, resumed.state.global_step, resumed.state.consumed_train_samples),
        (Iteration(42), 42, 100)
    );
}

fn large() -> ModelConfig {
    ModelConfig {
        n_layer: Some(24),
        n_head: Some(16),
        n_kv_head: Some(8),
        n_embd: Some(1024),
        original_vocab_size: Some(128_000),
        padded_vocab_size: Some(128_256),
        ..ModelConfig::default()
    }
}

/// Saves a state with `samples` at TP = 2, and resumes it as a run of other sizes.
fn resumed(name: &str, samples: u64, running: ParallelSizes) -> Resumed {
    let mut saver = run(name, large(), sizes(2, 1));
    let dict = ShardedStateDict::new();
    let state = saver.trainer_state(99, samples);
    saver.save_checkpoint(&Single, SaveRequest::new(Iteration(99), &dict, BTreeMap::new(), &state)).unwrap();
    let request = ResumeRequest::new(&dict);
    run(name, large(), running).resume_from_checkpoint(&Single, request).unwrap().unwrap()
}

#[test]
fn the_trainer_state_comes_back_with_the_running_sizes() {
    let resumed = resumed("state", 5000, sizes(1, 4));
    assert_eq!((resumed.state.global_step, resumed.state.consumed_train_samples), (99, 5000));
    assert_eq!(resumed.state.model, large());
    assert_eq!((resumed.state.ran_with, resumed.saved_sizes), (sizes(1, 4), sizes(2, 1)));
    // The format layer alone gives it as it was saved.
    let storage = open("memory://infinitrain-native-state", &OpenOptions::new()).unwrap();
    let loaded = Checkpoint::new(storage, Options::default())
        .load(&Single, LoadRequest::new(&ShardedStateDict::new()))
        .unwrap();
    assert_eq!(loaded.trainer_state.unwrap().ran_with, sizes(2, 1));
}

#[test]
fn consumed_samples_become_batches_to_skip() {
    let two = resumed("skip-2", 400, sizes(1, 2));
    assert_eq!((two.batches_to_skip(4).unwrap(), two.batches_to_skip(8).unwrap()), (50, 25));
    let four = resumed("skip-4", 400, sizes(1, 4));
    let error = four.batches_to_skip(6).unwrap_err();
    assert!(matches!(error, CheckpointError::BatchMisaligned { .. }), "{error}");
    assert!(error.to_string().contains("400") && error.to_string().contains("24"), "{error}");
}
