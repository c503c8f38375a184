//! A published model: loaded in place, saved from two ranks, resumed on other numbers of ranks, bit for bit.

use crate::fetch::model;
use crate::harness::{errors, load, memory, on_ranks, save_with};
use reshard::checkpoint::{
    Checkpoint, CheckpointError, ErrorKind, LoadRequest, Loaded, Options, Verification,
};
use reshard::collective::{Collective, Single};
use reshard::format::Iteration;
use reshard::shard::{DType, ParallelSizes, Rules, ShardedStateDict, UnshardedTensor};
use reshard::storage::{OpenOptions, open};
use reshard::training::{ResumeRequest, Retention, TrainingRun};
use reshard_oracle::{cut, first_difference};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Heads of 32 stay together. 30,522 words and 512 positions are no multiple of 4 and of 3: the last rank has less.
const RULES: &str = r#"
[[rule]]
keys = ["*.attention.self.{query,key,value}.{weight,bias}"]
cut = [{ axis = 0, over = "tp", unit = 32 }]
[[rule]]
keys = ["*.attention.output.dense.weight"]
cut = [{ axis = 1, over = "tp", unit = 32 }]
[[rule]]
keys = ["*.intermediate.dense.{weight,bias}", "pooler.dense.weight"]
cut = [{ axis = 0, over = "tp" }]
[[rule]]
keys = ["*.output.dense.weight"]
cut = [{ axis = 1, over = "tp" }]
[[rule]]
keys = ["embeddings.{word,position}_embeddings.weight"]
cut = [{ axis = 0, over = "tp", pieces = "chunk" }]
[[rule]]
keys = ["*LayerNorm*", "*.dense.bias", "embeddings.position_ids", "embeddings.token_type_embeddings.weight"]
replicated = true
"#;

struct Whole {
    dtype: DType,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

fn published() -> BTreeMap<String, Whole> {
    let bytes = std::fs::read(model().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().map(|(key, view)| {
        let name = view.dtype().to_string();
        let dtype = *DType::ALL.iter().find(|dtype| dtype.safetensors_name() == name).unwrap();
        let shape = view.shape().iter().map(|&size| size as u64).collect();
        (key, Whole { dtype, shape, bytes: view.data().to_vec() })
    });
    tensors.collect()
}

fn dicts(tensors: &BTreeMap<String, Whole>, tp: u64, rules: &str) -> Vec<ShardedStateDict> {
    let topology = ParallelSizes { tp, ..ParallelSizes::default() }.topology().unwrap();
    let unsharded =
        tensors.iter().map(|(key, whole)| UnshardedTensor::from((key.clone(), whole.dtype, &*whole.shape)));
    let bound = Rules::from_toml(rules).unwrap().bind(unsharded.collect::<Vec<_>>(), &topology).unwrap();
    (0..tp).map(|rank| bound.rank(rank).unwrap()).collect()
}

fn check(
    tensors: &BTreeMap<String, Whole>,
    dicts: &[ShardedStateDict],
    results: Vec<Result<Loaded, CheckpointError>>,
) -> Vec<Loaded> {
    let loaded: Vec<Loaded> = results.into_iter().map(Result::unwrap).collect();
    for (rank, (dict, loaded)) in dicts.iter().zip(&loaded).enumerate() {
        assert_eq!(loaded.tensors.len(), tensors.len());
        for (key, shard) in dict.iter() {
            let expected = cut(&tensors[key].bytes, shard);
            assert_eq!(
                first_difference(loaded.tensors[key].as_ref(), &expected),
                None,
                "{key} of rank {rank}"
            );
        }
    }
    loaded
}

#[test]
fn a_published_model_moves_between_numbers_of_ranks() {
    let tensors = published();
    let storage = open(model().to_str().unwrap(), &OpenOptions::new()).unwrap();
    let two = dicts(&tensors, 2, RULES);
    let loaded = check(&tensors, &two, load(&storage, &two, |_| {}));
    for loaded in &loaded {
        assert_eq!((loaded.iteration, loaded.trainer_state.as_ref()), (None, None));
        assert_eq!(loaded.report.verification, Verification::Unverified);
        assert!(loaded.report.to_string().starts_with("loaded safetensors files"), "{}", loaded.report);
    }
    let run = memory();
    let local = |rank: usize, key: &str| loaded[rank].tensors[key].as_ref().to_vec();
    save_with(&run, 7, &two, local).into_iter().for_each(|report| drop(report.unwrap()));
    // Three of 12 heads each, then 5, 5 and 2.
    let uneven = RULES.replace("unit = 32", "sizes = [160, 160, 64]");
    for (ranks, rules) in [(1, RULES), (3, RULES), (3, &uneven), (4, RULES)] {
        let target = dicts(&tensors, ranks, rules);
        for loaded in check(&tensors, &target, load(&run, &target, |_| {})) {
            assert_eq!(
                (loaded.iteration, loaded.report.verification),
                (Some(Iteration(7)), Verification::Verified)
            );
        }
    }
}

#[test]
fn a_uri_may_name_the_file_itself() {
    let tensors = published();
    let uri = model().join("model.safetensors").to_str().unwrap().to_owned();
    let dicts = dicts(&tensors, 2, RULES);
    let open = || Checkpoint::open(&uri, OpenOptions::new(), Options::default()).unwrap();
    let results = on_ranks(2, |rank| open().load(&rank, LoadRequest::new(&dicts[rank.rank()])));
    check(&tensors, &dicts, results);
    // It has no iterations, and nothing is saved to it.
    let mut request = LoadRequest::new(&dicts[0]);
    request.iteration = Some(Iteration(7));
    let error = open().load(&Single, request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let state = crate::harness::trainer_state(1);
    let nothing = ShardedStateDict::new();
    let request = reshard::checkpoint::SaveRequest::new(Iteration(1), &nothing, BTreeMap::new(), &state);
    let error = open().save(&Single, request).unwrap_err().to_string();
    assert!(error.contains("`model.safetensors` is one file"), "{error}");
}

#[test]
fn what_no_rank_wants_of_a_file_is_unexpected_there_too() {
    let mut tensors = published();
    let storage = open(model().to_str().unwrap(), &OpenOptions::new()).unwrap();
    tensors.retain(|key, _| !key.starts_with("pooler."));
    let dicts = dicts(&tensors, 2, RULES);
    for error in errors(load(&Arc::clone(&storage), &dicts, |_| {})) {
        assert!(error.contains("`pooler.dense.bias`, `pooler.dense.weight`"), "{error}");
    }
    check(&tensors, &dicts, load(&storage, &dicts, |request| request.allow_unexpected = true));
}

#[test]
fn a_training_run_does_not_resume_from_files_without_its_state() {
    let storage = open(model().to_str().unwrap(), &OpenOptions::new()).unwrap();
    let checkpoint = Checkpoint::new(storage, Options::default());
    let one = std::num::NonZeroU32::MIN;
    let sizes = reshard::format::ParallelSizes { tp: one, pp: one, dp: one, sp: one, vpp: one };
    let mut run = TrainingRun::new(checkpoint, Default::default(), sizes, Retention::All).unwrap();
    let dict = dicts(&published(), 1, RULES).pop().unwrap();
    let error = run.resume_from_checkpoint(&Single, ResumeRequest::new(&dict)).unwrap_err();
    assert!(matches!(error, CheckpointError::NoTrainerState), "{error}");
}
