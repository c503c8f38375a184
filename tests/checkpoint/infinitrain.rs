//! InfiniTrain's checkpoints, resumed in place on other topologies.

use crate::harness::{Mode, errors, handle, load, memory, on_ranks};
use reshard::checkpoint::{
    CheckpointError, CommitMode, ErrorKind, LoadRequest, Loaded, SaveRequest, Verification,
};
use reshard::collective::{Collective, Single};
use reshard::format::Iteration;
use reshard::plan::ObjectChoice;
use reshard::shard::{
    DType, INFINITRAIN_ORDER, ModelConfig, Naming, ParallelSizes, Preset, ShardedStateDict, Topology,
};
use reshard::storage::{Meter, Metered, OpenOptions, Operation, StorageBackend, StoragePath, open};
use reshard::training::{ResumeRequest, Retention, TrainingRun};
use reshard_oracle::first_difference;
use reshard_oracle::infinitrain::{self as oracle, Run};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

const RUN: Run = Run { tp: 2, pp: 2, dp: 2, legacy_names: false, reversed: false, tied: false };

/// The run, so that `run/` is the store's root.
fn put(storage: &Arc<dyn StorageBackend>, run: Run) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (path, bytes) in oracle::write(run).files {
        let path = StoragePath::parse(path.strip_prefix("run/").unwrap()).unwrap();
        runtime.block_on(storage.put(&path, bytes.into())).unwrap();
    }
}

fn topology(run: Run) -> Topology {
    let sizes = ParallelSizes { tp: run.tp, pp: run.pp, dp: run.dp, ..ParallelSizes::default() };
    sizes.in_order(&INFINITRAIN_ORDER).unwrap()
}

/// What each rank of `run` wants.
fn dicts(run: Run) -> Vec<ShardedStateDict> {
    let config = ModelConfig {
        n_layer: oracle::LAYERS,
        n_head: oracle::QUERIES,
        n_kv_head: oracle::KEYS,
        n_embd: oracle::WIDTH,
        original_vocab_size: oracle::WORDS,
        padded_vocab_size: oracle::ROWS,
        hidden: 4 * oracle::WIDTH,
        block_size: oracle::BLOCK,
        head_dim: 1,
        tied: run.tied,
        ..ModelConfig::GPT2_124M
    };
    let topology = topology(run);
    let bound = Preset::new(Naming::InfiniTrain, config).bind_with_adam(DType::BF16, &topology).unwrap();
    (0..topology.world_size()).map(|rank| bound.rank(rank).unwrap()).collect()
}

/// Compares what a rank got with what InfiniTrain itself would hold there; keys in `except` are left out.
fn check(run: Run, rank: usize, found: &BTreeMap<String, &[u8]>, except: &[&str]) {
    let topology = topology(run);
    let at = |axis| topology.coordinate(rank as u64, axis).unwrap();
    let mut expected = oracle::held(run, at("tp"), at("pp"));
    expected.retain(|key, _| !except.contains(&key.as_str()));
    assert_eq!(found.keys().collect::<BTreeSet<_>>(), expected.keys().collect::<BTreeSet<_>>());
    for (key, expected) in &expected {
        assert_eq!(first_difference(found[key], expected), None, "{key} of rank {rank} of {run:?}");
    }
}

fn tensors(loaded: &Loaded) -> BTreeMap<String, &[u8]> {
    loaded.tensors.iter().map(|(key, buffer)| (key.clone(), buffer.as_ref())).collect()
}

fn resume(storage: &Arc<dyn StorageBackend>, run: Run, mode: Mode) {
    let dicts = dicts(run);
    on_ranks(dicts.len(), |rank| {
        let dict = &dicts[rank.rank()];
        let buffers =
            dict.iter().map(|(key, tensor)| (key.to_owned(), vec![0xee; tensor.local_bytes() as usize]));
        let mut own: BTreeMap<String, Vec<u8>> = buffers.collect();
        let mut request = LoadRequest::new(dict);
        let lent = own.iter_mut().map(|(key, bytes)| (key.as_str(), bytes.as_mut_slice())).collect();
        request.mode = match mode {
            Mode::Allocate => CommitMode::Allocate,
            Mode::InPlace => CommitMode::InPlace(lent),
            Mode::Staged => CommitMode::Staged(lent),
        };
        let loaded = handle(storage).load(&rank, request).unwrap();
        match mode {
            Mode::Allocate => check(run, rank.rank(), &tensors(&loaded), &[]),
            _ => {
                let own = own.iter().map(|(key, bytes)| (key.clone(), bytes.as_slice())).collect();
                check(run, rank.rank(), &own, &[]);
            }
        }
        assert_eq!((loaded.iteration, loaded.report.iteration), (Some(Iteration(42)), Some(42)));
        assert_eq!(loaded.report.verification, Verification::Unverified);
        assert!(loaded.report.to_string().contains("unverified"), "{}", loaded.report);
        let state = loaded.trainer_state.unwrap();
        assert_eq!((state.global_step, state.consumed_train_samples), (42, 5000));
        assert_eq!((state.ran_with.tp.get(), state.ran_with.pp.get()), (2, 2));
        assert_eq!(state.lr_scheduler["last_step"], 42);
        assert_eq!(state.lr_scheduler["base_lrs"], serde_json::json!([0.5, 0.25]));
    });
}

#[test]
fn a_run_of_two_by_two_resumes_on_any_topology() {
    let storage = memory();
    put(&storage, RUN);
    let sizes = [(4, 1, 1), (1, 1, 1), (2, 4, 1), (1, 2, 2), (2, 2, 2)];
    for (mode, (tp, pp, dp)) in [Mode::Allocate, Mode::InPlace, Mode::Staged].into_iter().cycle().zip(sizes) {
        resume(&storage, Run { tp, pp, dp, ..RUN }, mode);
    }
}

#[test]
fn a_run_on_disk_resumes_from_its_root_and_from_an_iteration() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap().to_owned();
    put(&open(&root, &OpenOptions::new()).unwrap(), RUN);
    for place in [root.clone(), format!("{root}/iter_0000042")] {
        resume(
            &open(&place, &OpenOptions::new()).unwrap(),
            Run { tp: 4, pp: 1, dp: 1, ..RUN },
            Mode::Allocate,
        );
    }
}

#[test]
fn an_iteration_can_be_named_and_another_is_not_found() {
    let storage = memory();
    put(&storage, RUN);
    let target = dicts(Run { tp: 1, pp: 2, dp: 1, ..RUN });
    for loaded in load(&storage, &target, |request| request.iteration = Some(Iteration(42))) {
        assert_eq!(loaded.unwrap().iteration, Some(Iteration(42)));
    }
    for result in load(&storage, &target, |request| request.iteration = Some(Iteration(41))) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("iter_0000041"), "{error}");
    }
}

/// However many ranks there are, the small files are read once, and every rank reads just its own data.
#[test]
fn rank_0_alone_reads_the_small_files() {
    let storage = memory();
    put(&storage, RUN);
    let meter = Meter::recording();
    let metered: Arc<dyn StorageBackend> = Arc::new(Metered::new(storage, Arc::clone(&meter)));
    let target = dicts(Run { tp: 4, pp: 2, dp: 1, ..RUN });
    let loaded: Vec<Loaded> =
        load(&metered, &target, |request| request.rules.cost = reshard::plan::CostModel::exact())
            .into_iter()
            .map(Result::unwrap)
            .collect();
    let mut small = BTreeMap::new();
    let mut data = 0;
    for record in meter.take_records() {
        match (record.operation, record.path) {
            (Operation::ReadAll, Some(path)) if record.ok => {
                *small.entry(path.name().to_owned()).or_insert(0) += 1
            }
            (Operation::Read, _) => data += 1,
            _ => {}
        }
    }
    let expected =
        ["latest_checkpointed_iteration.txt", "lr_scheduler.ckpt", "metadata.json", "trainer_state.json"];
    assert_eq!(small, expected.map(|name| (name.to_owned(), 1)).into());
    let report = &loaded[0].report;
    assert_eq!((report.total.requests, report.total.bytes_fetched), (data, report.total.bytes_needed));
}

fn training(storage: &Arc<dyn StorageBackend>, n_head: u64) -> TrainingRun {
    let known = |value: u64| Some(value);
    let model = reshard::format::ModelConfig {
        n_layer: known(oracle::LAYERS),
        n_head: known(n_head),
        n_kv_head: known(oracle::KEYS),
        n_embd: known(oracle::WIDTH),
        original_vocab_size: known(oracle::WORDS),
        padded_vocab_size: known(32),
        ..Default::default()
    };
    let one = NonZeroU32::MIN;
    let sizes = reshard::format::ParallelSizes { tp: one, pp: one, dp: one, sp: one, vpp: one };
    TrainingRun::new(handle(storage), model, sizes, Retention::All).unwrap()
}

/// A run goes on with this library: its next iterations lie beside InfiniTrain's, and are resumed from then on.
#[test]
fn a_run_goes_on_here() {
    let storage = memory();
    put(&storage, RUN);
    let dict = dicts(Run { tp: 1, pp: 1, dp: 1, ..RUN }).pop().unwrap();
    let mut run = training(&storage, oracle::QUERIES);
    let resumed = run.resume_from_checkpoint(&Single, ResumeRequest::new(&dict)).unwrap().unwrap();
    assert_eq!((resumed.iteration, resumed.state.global_step), (Iteration(42), 42));
    assert_eq!((resumed.saved_sizes.tp.get(), resumed.state.ran_with.tp.get()), (2, 1));
    assert_eq!(resumed.batches_to_skip(8).unwrap(), 625);
    let mut state = resumed.state;
    state.global_step = 43;
    let data = resumed.tensors.iter().map(|(key, buffer)| (key.as_str(), buffer.as_ref())).collect();
    run.save_checkpoint(&Single, SaveRequest::new(Iteration(43), &dict, data, &state)).unwrap();
    let again = run.resume_from_checkpoint(&Single, ResumeRequest::new(&dict)).unwrap().unwrap();
    assert_eq!((again.iteration, again.report.verification), (Iteration(43), Verification::Verified));
    assert_eq!(again.state.lr_scheduler["last_step"], 42);
    for (key, buffer) in &again.tensors {
        assert_eq!(buffer.as_ref(), resumed.tensors[key].as_ref(), "{key}");
    }
}

#[test]
fn another_architecture_is_refused_with_both_values() {
    let storage = memory();
    put(&storage, RUN);
    let dict = dicts(Run { tp: 1, pp: 1, dp: 1, ..RUN }).pop().unwrap();
    let error =
        training(&storage, 16).resume_from_checkpoint(&Single, ResumeRequest::new(&dict)).unwrap_err();
    assert!(matches!(error, CheckpointError::Architecture { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("n_head") && text.contains('8') && text.contains("16"), "{text}");
}

/// At PP = 1 a tied run stores both names, and the moments of one.
#[test]
fn a_tied_run_resumes_untied_where_the_caller_says_that_it_was_tied() {
    let storage = memory();
    put(&storage, Run { pp: 1, tied: true, ..RUN });
    let target = Run { tp: 2, pp: 2, dp: 1, ..RUN };
    let dicts = dicts(target);
    for error in errors(load(&storage, &dicts, |_| {})) {
        assert!(
            error.contains("`adam.m.transformer.wte.weight`, `adam.v.transformer.wte.weight`"),
            "{error}"
        );
    }
    let tied = |request: &mut LoadRequest<'_>| {
        request.rules.saved_ties =
            [("transformer.wte.weight".to_owned(), "lm_head.weight".to_owned())].into();
    };
    for (rank, loaded) in load(&storage, &dicts, tied).into_iter().enumerate() {
        let mut loaded = loaded.unwrap();
        // What InfiniTrain would hold, had it copied the shared tensor and its moments to both names.
        let of = |name: &str| ["", "adam.m.", "adam.v."].map(|state| format!("{state}{name}.weight"));
        let head = oracle::held(Run { pp: 1, ..target }, rank as u64 % 2, 0);
        let mut seen = 0;
        for (key, source) in of("transformer.wte").into_iter().zip(of("lm_head")) {
            if let Some(found) = loaded.tensors.remove(&key) {
                assert_eq!(first_difference(found.as_ref(), &head[&source]), None, "{key}");
                seen += 1;
            }
        }
        assert_eq!(seen, if rank < 2 { 3 } else { 0 }, "the embedding is on the first stage");
        let names = of("transformer.wte");
        check(target, rank, &tensors(&loaded), &names.each_ref().map(String::as_str));
    }
}

#[test]
fn a_tied_run_resumes_tied() {
    let storage = memory();
    put(&storage, Run { pp: 1, tied: true, ..RUN });
    let target = Run { tp: 4, pp: 1, dp: 1, tied: true, ..RUN };
    for (rank, loaded) in load(&storage, &dicts(target), |_| {}).into_iter().enumerate() {
        check(target, rank, &tensors(&loaded.unwrap()), &["transformer.wte.weight"]);
    }
}

/// Two stages train embedding and head apart. One stage has one tensor for both: its caller says which one it is.
#[test]
fn stages_that_trained_apart_are_tied_only_with_a_winner() {
    let storage = memory();
    put(&storage, RUN);
    let target = Run { tp: 2, pp: 1, dp: 1, tied: true, ..RUN };
    let dicts = dicts(target);
    for error in errors(load(&storage, &dicts, |_| {})) {
        assert!(
            error.contains("its saved copies differ") && error.contains("which saved key wins"),
            "{error}"
        );
    }
    let untied = Run { tied: false, ..target };
    for winner in ["lm_head.weight", "transformer.wte.weight"] {
        let results = load(&storage, &dicts, |request| {
            request.rules.tie_winners = [("lm_head.weight".to_owned(), winner.to_owned())].into();
        });
        for (rank, loaded) in results.into_iter().enumerate() {
            let loaded = loaded.unwrap();
            let held = oracle::held(untied, rank as u64, 0);
            for state in ["", "adam.m.", "adam.v."] {
                let found = loaded.tensors[&format!("{state}lm_head.weight")].as_ref();
                assert_eq!(
                    first_difference(found, &held[&format!("{state}{winner}")]),
                    None,
                    "{state}{winner}"
                );
            }
        }
    }
}

#[test]
fn a_tie_to_a_tensor_that_was_not_saved_is_an_error() {
    let storage = memory();
    put(&storage, RUN);
    let results = load(&storage, &dicts(Run { tp: 1, pp: 1, dp: 1, ..RUN }), |request| {
        request.rules.saved_ties = [("lm_head.weight".to_owned(), "wte".to_owned())].into();
        request.objects = ObjectChoice::Own;
    });
    assert!(errors(results)[0].contains("the checkpoint has no `wte`"));
}

#[test]
fn a_file_that_is_gone_is_named_before_any_data_is_read() {
    let storage = memory();
    put(&storage, RUN);
    let lost = StoragePath::parse("iter_0000042/rank_000004/optimizer.ckpt").unwrap();
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(storage.delete(&lost)).unwrap();
    let dicts = dicts(Run { tp: 2, pp: 2, dp: 1, ..RUN });
    for result in load(&storage, &dicts, |_| {}) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("rank_000004/optimizer.ckpt"), "{error}");
    }
}
