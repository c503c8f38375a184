//! A vocabulary that is padded to other sizes than it was saved with.

use crate::harness::{dict, errors, load, memory, save_with};
use proptest::prelude::*;
use reshard::shard::{DType, ShardedStateDict, ShardedTensor, ShardedTensorBuilder, Split, StateGroup};
use reshard::storage::StorageBackend;
use reshard_oracle::{cut, first_difference, full_tensor, resized};
use std::sync::Arc;

const COLUMNS: u64 = 3;
const KEYS: [&str; 3] = ["wte", "adam.m.wte", "adam.v.wte"];

/// The rows of `rank` of `ranks`, `torch.chunk` style; past the end a rank has none.
fn rows(rows: u64, rank: u64, ranks: u64) -> (u64, u64) {
    let piece = rows.div_ceil(ranks);
    let start = (rank * piece).min(rows);
    (start, piece.min(rows - start))
}

/// The embedding and its moments with `padded` rows, of which `words` are words, where that is known.
fn embedding(padded: u64, words: Option<u64>, ranks: u64) -> Vec<ShardedStateDict> {
    let build = |key: &str, rank: u64| -> ShardedTensorBuilder {
        let (start, count) = rows(padded, rank, ranks);
        let builder = ShardedTensor::builder(DType::F32, [padded, COLUMNS]).split(Split::axis(0)).padded(0);
        let builder = match words {
            Some(words) => builder.logical_shape([words, COLUMNS]),
            None => builder,
        };
        let builder = match key {
            "wte" => builder,
            _ => builder.group(StateGroup::Optimizer).parameter("wte"),
        };
        builder.region([start, 0], [count, COLUMNS]).unwrap()
    };
    (0..ranks).map(|rank| dict(KEYS.map(|key| (key, build(key, rank))))).collect()
}

/// A tensor of `padded` rows whose rows past `words` are zero.
fn truth(key: &str, words: u64, padded: u64) -> Vec<u8> {
    resized(&full_tensor(key, DType::F32, &[words, COLUMNS]), &[words, COLUMNS], &[padded, COLUMNS], 4)
}

fn save(words: u64, padded: u64, known: bool, ranks: u64) -> Arc<dyn StorageBackend> {
    let storage = memory();
    let dicts = embedding(padded, known.then_some(words), ranks);
    let local = |rank: usize, key: &str| cut(&truth(key, words, padded), dicts[rank].get(key).unwrap());
    save_with(&storage, 1, &dicts, local).into_iter().for_each(|report| drop(report.unwrap()));
    storage
}

fn check(storage: &Arc<dyn StorageBackend>, words: u64, padded: u64, known: bool, ranks: u64) {
    let dicts = embedding(padded, known.then_some(words), ranks);
    for (rank, loaded) in load(storage, &dicts, |_| {}).into_iter().enumerate() {
        let loaded = loaded.unwrap();
        for key in KEYS {
            let expected = cut(&truth(key, words, padded), dicts[rank].get(key).unwrap());
            assert_eq!(
                first_difference(loaded.tensors[key].as_ref(), &expected),
                None,
                "{key} of rank {rank}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Grown or shrunk, the words stay and the rest is zero, moments included.
    #[test]
    fn padding_treated_as_data(
        words in 1u64..20, saved in 0u64..12, wanted in 0u64..12, ranks in 1u64..5, new_ranks in 1u64..6,
        saver_knows: bool,
    ) {
        let storage = save(words, words + saved, saver_knows, ranks);
        check(&storage, words, words + wanted, true, new_ranks);
    }
}

#[test]
fn shard_that_is_only_padding() {
    let storage = save(5, 5, true, 1);
    // Ranks 2 and 3 hold nothing but padding, and read nothing.
    let dicts = embedding(16, Some(5), 4);
    let loaded: Vec<_> = load(&storage, &dicts, |_| {}).into_iter().map(Result::unwrap).collect();
    for rank in [2, 3] {
        assert!(KEYS.iter().all(|key| loaded[rank].tensors[*key].as_ref() == vec![0; 4 * 3 * 4]));
        assert_eq!((loaded[rank].report.own.requests, loaded[rank].report.own.bytes_fetched), (0, 0));
    }
    // They save it again, and it loads without.
    let storage = save(5, 16, true, 4);
    check(&storage, 5, 5, true, 2);
}

#[test]
fn words_are_never_dropped() {
    let storage = save(6, 8, true, 2);
    check(&storage, 6, 6, false, 3);
    for (padded, known) in [(5, false), (7, true)] {
        // Fewer rows than words; a caller that takes padding for words.
        let words = if known { Some(7) } else { None };
        for error in errors(load(&storage, &embedding(padded, words, 3), |_| {})) {
            assert!(error.contains("adam.m.wte") && error.contains('6'), "{error}");
        }
    }
    // Nobody knows which rows are words: growing is safe, shrinking is not.
    let storage = save(8, 8, false, 2);
    check(&storage, 8, 10, false, 2);
    for error in errors(load(&storage, &embedding(7, None, 2), |_| {})) {
        assert!(error.contains("state the logical shape"), "{error}");
    }
}

/// Rank 0 has no part in the tensor that does not fit, and gets the error like the others.
#[test]
fn other_tensors_and_other_axes_are_never_padded() {
    let storage = memory();
    let matrix = |rows: u64, columns: u64| ShardedTensor::builder(DType::F32, [rows, columns]);
    let saved = dict([("w", matrix(4, 4)), ("v", matrix(4, 4).padded(0))]);
    save_with(&storage, 1, &[saved], |_, _| vec![1; 64]).pop().unwrap().unwrap();
    for (key, wanted, words) in [
        ("w", matrix(5, 4), "axis 0 may not be padded"),
        ("v", matrix(4, 5).padded(0), "axis 1 may not be padded"),
        ("v", ShardedTensor::builder(DType::F32, [4]), "the number of axes differs"),
    ] {
        let other = if key == "w" { ("v", matrix(4, 4).padded(0)) } else { ("w", matrix(4, 4)) };
        let dicts = [dict([other]), dict([(key, wanted)])];
        let errors = errors(load(&storage, &dicts, |_| {}));
        assert!(errors[0].contains("rank 1 failed") && errors[0].contains(words), "{errors:?}");
        assert!(errors[1].contains(&format!("`{key}`")) && errors[1].contains(words), "{errors:?}");
    }
}
