//! InfiniTrain's checkpoints, read as saved layouts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod hostile;
mod store;

use reshard::foreign::infinitrain::{self, Checkpoint};
use reshard::foreign::{Detected, Directory, ForeignError, detect};
use reshard::format::{ParallelSizes, SavedLayout};
use reshard::plan::{LoadPlanner, LoadRules};
use reshard::storage::{MemoryBackend, StorageBackend, StoragePath};
use reshard_oracle::{cut, first_difference};
use reshard_shard::{DType, Region, ShardedStateDict, ShardedTensor, Split, StateGroup};
use serde_json::json;
use std::num::NonZeroU32;
use store::{DIRECTORY, ROWS, Run, WORDS, Written, put, write};

const TWO_BY_TWO: Run = Run { tp: 2, pp: 2, dp: 2, legacy_names: false, reversed: false, tied: false };

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

pub(crate) fn directory(path: &str) -> Directory {
    Directory::new(Some(StoragePath::parse(path).unwrap()))
}

pub(crate) fn open(storage: &MemoryBackend) -> Result<Checkpoint, ForeignError> {
    block_on(infinitrain::open(storage, &directory(DIRECTORY)))
}

/// Every chunk read back is the naive cut of the whole tensor, and every element is in exactly one chunk.
fn check_layout(written: &Written, layout: &SavedLayout) {
    assert_eq!(layout.tensors.keys().collect::<Vec<_>>(), written.tensors.keys().collect::<Vec<_>>());
    for (key, tensor) in &layout.tensors {
        let whole = &written.tensors[key];
        assert_eq!(
            (tensor.dtype, tensor.global_shape.as_slice()),
            (whole.dtype, whole.shape.as_slice()),
            "{key}"
        );
        let group = if key.starts_with("adam.") { StateGroup::Optimizer } else { StateGroup::Model };
        assert_eq!(tensor.group, group, "{key}");
        let mut elements = 0;
        for chunk in tensor.chunks.iter() {
            let region = &chunk.region;
            elements += region.volume();
            let shard = ShardedTensor::builder(tensor.dtype, &tensor.global_shape)
                .region(region.offset(), region.shape())
                .unwrap()
                .build(key)
                .unwrap();
            let expected = cut(&whole.bytes, &shard);
            let file = &layout.files[chunk.file as usize];
            assert!(file.blocks.is_none(), "other tools' files have no checksums");
            let path = directory(DIRECTORY).file(&file.path).unwrap();
            let range = chunk.offset..chunk.offset + expected.len() as u64;
            let slot = Box::new(vec![0u8; expected.len()]);
            let (slot, result) = block_on(written.storage.read(&path, range, slot));
            result.unwrap();
            assert_eq!(first_difference(slot.bytes(), &expected), None, "{key} {region}");
        }
        // With the proof of coverage this makes it exactly once.
        assert_eq!(elements, whole.shape.iter().product::<u64>(), "{key}");
    }
}

#[test]
fn every_chunk_is_the_naive_cut_on_every_topology() {
    for (tp, pp, dp) in [(1, 1, 1), (2, 1, 1), (1, 2, 3), (2, 2, 2), (4, 4, 1)] {
        let written = write(Run { tp, pp, dp, legacy_names: false, reversed: false, tied: false });
        let opened = open(&written.storage).unwrap();
        check_layout(&written, &opened.layout);
        // Two files of each of the writers, which are the first data-parallel ranks.
        let expected: Vec<String> = (0..pp)
            .flat_map(|stage| (0..tp).map(move |rank| rank + stage * tp * dp))
            .flat_map(|rank| ["model", "optimizer"].map(|name| format!("rank_{rank:06}/{name}.ckpt")))
            .collect();
        let mut used: Vec<&str> = opened.layout.files.iter().map(|file| file.path.as_str()).collect();
        used.sort_unstable();
        assert_eq!(used, expected);
    }
}

#[test]
fn segments_become_chunks_and_copies_of_replicated_tensors_are_dropped() {
    let written = write(TWO_BY_TWO);
    let layout = open(&written.storage).unwrap().layout;
    let chunks = |key: &str| {
        let table = &layout.tensors[key].chunks;
        table
            .iter()
            .map(|chunk| (chunk.region.to_string(), layout.files[chunk.file as usize].path.clone()))
            .collect::<Vec<_>>()
    };
    // Layer 3 is on the second stage: global ranks 4 and 5.
    let expected: Vec<_> =
        ["[0:4, 0:8]", "[4:8, 0:8]", "[8:10, 0:8]", "[10:12, 0:8]", "[12:14, 0:8]", "[14:16, 0:8]"]
            .iter()
            .zip(["4", "5"].iter().cycle())
            .map(|(region, rank)| ((*region).to_owned(), format!("rank_00000{rank}/optimizer.ckpt")))
            .collect();
    assert_eq!(chunks("adam.v.transformer.h.3.attn.c_attn.weight"), expected);
    // Stored by ranks 4 and 5; by all four: the lowest one's is taken.
    assert_eq!(chunks("transformer.ln_f.bias"), [("[0:8]".to_owned(), "rank_000004/model.ckpt".to_owned())]);
    assert_eq!(chunks("adam.t"), [("[]".to_owned(), "rank_000000/optimizer.ckpt".to_owned())]);
    let split = |key: &str| layout.tensors[key].split.clone();
    assert_eq!(split("transformer.h.0.attn.c_attn.bias"), Some(Split::segmented(0, [8, 4, 4])));
    assert_eq!(split("transformer.h.0.attn.c_proj.weight"), Some(Split::axis(1)));
    assert_eq!(split("transformer.h.0.ln_1.weight"), None);
}

#[test]
fn the_order_of_entries_and_old_names_of_dtypes_change_nothing() {
    let one = write(TWO_BY_TWO);
    let other = write(Run { reversed: true, legacy_names: true, ..TWO_BY_TWO });
    assert_ne!(one.metadata, other.metadata);
    assert!(other.metadata.contains("bfloat16") && other.metadata.contains("float32"));
    assert_eq!(open(&one.storage).unwrap(), open(&other.storage).unwrap());
}

/// Neither side has to know the other's segments: what is common is a matter of regions.
#[test]
fn a_target_with_other_segments_or_none_is_planned_alike() {
    let written = write(TWO_BY_TWO);
    let layout = open(&written.storage).unwrap().layout;
    let key = "transformer.h.2.attn.c_attn.weight";
    let plan = |target: ShardedTensor| {
        let mut dict = ShardedStateDict::new();
        dict.insert(key, target).unwrap();
        LoadPlanner::new(&layout, &LoadRules::default()).plan(&dict).unwrap()
    };
    let builder = || ShardedTensor::builder(DType::BF16, [16, 8]);
    let whole = plan(builder().build(key).unwrap());
    assert_eq!((whole.copies.len(), whole.cost.bytes_needed), (6, 16 * 8 * 2));
    // A quarter of Q, K and V each, as the first of four ranks holds them: from the file of rank 4 alone.
    let quarter = [([0, 0], [2, 8]), ([8, 0], [1, 8]), ([12, 0], [1, 8])]
        .map(|(offset, shape)| Region::new(offset, shape).unwrap());
    let quarter = plan(builder().split(Split::segmented(0, [8, 4, 4])).regions(quarter).build(key).unwrap());
    assert_eq!((quarter.copies.len(), quarter.cost.files, quarter.cost.bytes_needed), (3, 1, 4 * 8 * 2));
    // Columns, which the writer never cut.
    let columns = plan(builder().region([0, 6], [16, 2]).unwrap().build(key).unwrap());
    assert_eq!((columns.copies.len(), columns.cost.bytes_needed), (6, 16 * 2 * 2));
}

#[test]
fn the_trainer_state_and_the_scheduler_come_along() {
    let written = write(TWO_BY_TWO);
    let state = open(&written.storage).unwrap().trainer_state.unwrap();
    assert_eq!((state.global_step, state.consumed_train_samples), (42, 5000));
    assert_eq!((state.model.n_kv_head, state.model.original_vocab_size), (Some(4), Some(WORDS)));
    assert_eq!(state.model.padded_vocab_size, Some(ROWS));
    let two = NonZeroU32::new(2).unwrap();
    let one = NonZeroU32::MIN;
    assert_eq!(state.ran_with, ParallelSizes { tp: two, pp: two, dp: two, sp: one, vpp: one });
    let expected = json!({
        "last_step": 42, "recover_lr": f64::from(0.1f32), "scheduler_0.gamma": 0.1, "kind": "cosine",
        "base_lrs": [0.5, 0.25],
    });
    assert_eq!(state.lr_scheduler, expected);
    assert_eq!(state.user, json!(null));
}

#[test]
fn fields_of_the_trainer_state_may_be_missing_or_old() {
    let written = write(TWO_BY_TWO);
    let state = |text: &str| {
        put(&written.storage, &format!("{DIRECTORY}/trainer_state.json"), text);
        open(&written.storage).map(|opened| opened.trainer_state.unwrap())
    };
    let old =
        state(r#"{"vocab_size": 24, "original_vocab_size": 0, "n_layer": 4, "last_lr": 0.5, "dp_size": 3}"#);
    let old = old.unwrap();
    assert_eq!((old.model.padded_vocab_size, old.model.original_vocab_size), (Some(24), None));
    assert_eq!((old.global_step, old.ran_with.dp.get(), old.ran_with.tp.get()), (0, 3, 1));
    assert_eq!(old.user, json!({"last_lr": 0.5}));
    for (text, words) in [
        (r#"{"ddp_size": 2, "dp_size": 3}"#, "ddp_size is 2 and dp_size is 3"),
        (r#"{"tp_size": 0}"#, "nonzero"),
        (r#"{"global_step": -1}"#, "-1"),
        (r#"{"global_step": 1, "global_step": 2}"#, "duplicate"),
        ("{\"vocab_size\": 1\n\"global_step\": 2}", "expected `,`"),
    ] {
        let error = state(text).unwrap_err().to_string();
        assert!(error.contains("trainer_state.json: ") && error.contains(words), "{error}");
    }
    block_on(written.storage.delete(&directory(DIRECTORY).file("trainer_state.json").unwrap())).unwrap();
    assert_eq!(open(&written.storage).unwrap().trainer_state, None);
}

#[test]
fn rows_of_the_vocabulary_are_known_from_those_of_its_padding() {
    let written = write(TWO_BY_TWO);
    let layout = open(&written.storage).unwrap().layout;
    for (key, tensor) in &layout.tensors {
        let vocabulary = key.ends_with("wte.weight") || key.ends_with("lm_head.weight");
        let expected = vocabulary.then_some([WORDS, 8]);
        assert_eq!(tensor.logical_shape.as_deref(), expected.as_ref().map(|shape| &shape[..]), "{key}");
    }
}

#[test]
fn the_newest_iteration_is_the_one_that_the_run_names() {
    let written = write(TWO_BY_TWO);
    let latest = || block_on(infinitrain::latest(&written.storage, &directory("run")));
    assert_eq!(latest().unwrap(), Some(directory(DIRECTORY)));
    assert_eq!(block_on(infinitrain::latest(&written.storage, &directory(DIRECTORY))).unwrap(), None);
    put(&written.storage, "run/latest_checkpointed_iteration.txt", "12345678\n");
    assert_eq!(latest().unwrap(), Some(directory("run/iter_12345678")));
    let missing = block_on(infinitrain::open(&written.storage, &latest().unwrap().unwrap())).unwrap_err();
    assert!(missing.to_string().contains("run/iter_12345678/metadata.json"), "{missing}");
    for text in ["", "latest", "-1", "+1", "42/../..", "99999999999999999999", "\u{661}"] {
        put(&written.storage, "run/latest_checkpointed_iteration.txt", text);
        let error = latest().unwrap_err().to_string();
        assert!(error.contains("number of an iteration"), "{error}");
    }
}

#[test]
fn a_run_an_iteration_and_the_root_are_detected() {
    let written = write(TWO_BY_TWO);
    let found = |place: Option<&str>| {
        let place = place.map(|place| StoragePath::parse(place).unwrap());
        block_on(detect(&written.storage, place.as_ref()))
    };
    assert_eq!(found(Some("run")).unwrap(), Detected::InfiniTrain(directory(DIRECTORY)));
    assert_eq!(found(Some(DIRECTORY)).unwrap(), Detected::InfiniTrain(directory(DIRECTORY)));
    let error = found(Some("run/iter_0000042/rank_000000")).unwrap_err().to_string();
    assert!(error.contains("metadata.json") && error.contains("model.ckpt"), "{error}");
    block_on(written.storage.delete(&StoragePath::parse("run/latest_checkpointed_iteration.txt").unwrap()))
        .unwrap();
    let error = found(Some("run")).unwrap_err().to_string();
    assert!(error.contains("name an iteration, such as iter_0000042"), "{error}");
    let error = found(None).unwrap_err().to_string();
    assert!(error.contains("the root") && error.contains("found: run"), "{error}");
}
