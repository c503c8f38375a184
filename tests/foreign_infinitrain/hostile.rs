//! Metadata that is damaged, inconsistent or malicious.

use super::store::{DIRECTORY, Run, Written, put, write};
use super::{TWO_BY_TWO, open};
use proptest::prelude::*;
use reshard::foreign::{ForeignError, ForeignErrorKind};
use serde_json::{Value, json};
use std::sync::LazyLock;

static WRITTEN: LazyLock<Written> = LazyLock::new(|| write(TWO_BY_TWO));

fn metadata() -> Value {
    serde_json::from_str(&WRITTEN.metadata).unwrap()
}

/// Opens the same checkpoint with another metadata.json, in a store of its own.
fn open_with(metadata: &str) -> Result<reshard::foreign::infinitrain::Checkpoint, ForeignError> {
    let written = write(TWO_BY_TWO);
    put(&written.storage, &format!("{DIRECTORY}/metadata.json"), metadata);
    open(&written.storage)
}

/// The first entry of this key.
fn entry<'a>(metadata: &'a mut Value, key: &str) -> &'a mut Value {
    let tensors = metadata["tensors"].as_array_mut().unwrap();
    tensors.iter_mut().find(|entry| entry["key"] == key).unwrap()
}

const COLUMN: &str = "transformer.h.1.mlp.c_fc.weight";
const PACKED: &str = "transformer.h.1.attn.c_attn.weight";
const NORM: &str = "transformer.h.1.ln_1.weight";

#[test]
fn another_version_or_format_is_refused_by_its_number() {
    for (version, shown) in
        [(json!(2), "2"), (json!(4), "4"), (json!("3"), "\"3\""), (json!(3.0), "3.0"), (json!(null), "null")]
    {
        // Another version may have any other fields.
        let error = open_with(&json!({"version": version, "new": 1}).to_string()).unwrap_err();
        assert_eq!(error.kind(), ForeignErrorKind::Unsupported);
        assert!(error.to_string().contains(&format!("version {shown} of")), "{error}");
        assert!(error.to_string().contains("only version 3"), "{error}");
    }
    for (from, to, words) in [
        ("infinitrain_sharded", "other", "format `other`"),
        ("\"version\": 3,", "", "missing field `version`"),
        ("\"version\": 3,", "\"version\": 3, \"version\": 3,", "duplicate field `version`"),
        ("\"version\": 3,", "\"version\": 3, \"iteration\": 3,", "unknown field `iteration`"),
    ] {
        let error = open_with(&WRITTEN.metadata.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains("metadata.json: ") && error.contains(words), "{error}");
    }
}

#[test]
fn arrays_with_an_empty_item_or_a_trailing_comma_are_refused() {
    for (from, to) in [
        ("\"global_shape\": [8]", "\"global_shape\": [8,]"),
        ("\"global_shape\": [8]", "\"global_shape\": [,8]"),
        ("\"global_shape\": [6, 8]", "\"global_shape\": [6,,8]"),
        ("\"global_shape\": [8]", "\"global_shape\": [8"),
        ("\"global_shape\": [8]", "\"global_shape\": [8.5]"),
        ("\"global_shape\": [8]", "\"global_shape\": [99999999999999999999]"),
    ] {
        assert!(WRITTEN.metadata.contains(from), "{from}");
        let error = open_with(&WRITTEN.metadata.replacen(from, to, 1)).unwrap_err();
        assert!(matches!(error, ForeignError::Malformed { .. }), "{to}: {error}");
    }
}

#[test]
fn what_is_wrong_with_an_entry_is_named() {
    for (key, field, value, words) in [
        (COLUMN, "dtype", json!("fp31"), "unknown dtype `fp31`"),
        (COLUMN, "dtype", json!("fp32"), "not the size of f32"),
        (COLUMN, "offset", json!(0), "`offset` has a 0"),
        (COLUMN, "offset", json!(null), "`offset` is missing"),
        (COLUMN, "offset", json!(-5), "negative number -5"),
        (COLUMN, "offset", json!(i64::MAX), "it is cut off"),
        (COLUMN, "byte_size", json!(1), "1 bytes are not the size of bf16 [16, 8]"),
        (COLUMN, "local_shape", json!([0, 8]), "`local_shape` has a 0"),
        (COLUMN, "local_shape", json!([16]), "`local_shape` has 1 items, not 2"),
        (COLUMN, "local_shape", json!([1i64 << 40, 1i64 << 40]), "overflow"),
        (COLUMN, "global_shape", json!([15, 8]), "reaches past the global shape"),
        (COLUMN, "global_shape", json!([33, 8]), "is [32, 8] here and [33, 8] in `rank_000000/model.ckpt`"),
        (COLUMN, "global_offset", json!([17, 0]), "reaches past the global shape"),
        (COLUMN, "global_offset", json!([i64::MAX, 0]), "past"),
        (COLUMN, "global_offset", json!([-1, 0]), "negative number -1"),
        (COLUMN, "global_offset", json!([1, 0]), "nothing covers the element at [0, 0]"),
        (COLUMN, "global_offset", json!([16, 0]), "nothing covers the element at [0, 0]"),
        (COLUMN, "axis_fragmentations", json!([0, 1]), "`axis_fragmentations` has a 0"),
        (COLUMN, "axis_fragmentations", json!([2]), "`axis_fragmentations` has 1 items, not 2"),
        (COLUMN, "file", json!("rank_000009/model.ckpt"), "`rank_000009/model.ckpt`, which is missing"),
        (COLUMN, "file", json!("../iter_0000041/rank_000000/model.ckpt"), "segment"),
        (COLUMN, "file", json!("/etc/passwd"), "leading"),
        (COLUMN, "file", json!("rank_000000/optimizer.ckpt"), "overlaps"),
        (COLUMN, "stored_on_ranks", json!([0, 1]), "`stored_on_ranks` has 2 items, not 1"),
        (COLUMN, "stored_on_ranks", json!([-1]), "negative"),
        (COLUMN, "key", json!(null), "`key` is missing"),
        (COLUMN, "key", json!(NORM), "is bf16 [32, 8]"),
        (PACKED, "segment_lengths", json!([4, 2]), "`segment_lengths` has 2 items, not 3"),
        (PACKED, "segment_lengths", json!([4, 2, 0]), "`segment_lengths` has a 0"),
        (PACKED, "segment_lengths", json!([4, 2, 1]), "do not add up"),
        (PACKED, "segment_lengths", json!([4, 2, 3]), "do not add up"),
        (PACKED, "segment_lengths", json!([4, 2, i64::MAX]), "add up"),
        (PACKED, "segment_local_offsets", json!([0, 5, 6]), "gap or an overlap"),
        (PACKED, "segment_local_offsets", json!([0, 3, 6]), "gap or an overlap"),
        (PACKED, "segment_global_offsets", json!([0, 8, 15]), "reaches past the global shape"),
        (PACKED, "segment_global_offsets", json!([0, 8, 13]), "nothing covers the element at [12, 0]"),
        (PACKED, "global_offset", json!([1, 0]), "global_offset on axis 0 must be 0"),
        ("adam.t", "segment_global_offsets", json!([0]), "`segment_local_offsets` has 0 items, not 1"),
        (NORM, "dtype", json!("fp16"), "dtype is bf16 here and f16 in `rank_000000/model.ckpt`"),
    ] {
        let mut metadata = metadata();
        entry(&mut metadata, key)[field] = value.clone();
        let error = open_with(&metadata.to_string()).unwrap_err();
        let text = error.to_string();
        if key == COLUMN && field == "key" && value == NORM {
            assert!(text.contains(NORM) && text.contains("global_shape"), "{text}");
            continue;
        }
        assert!(text.contains("metadata.json") && text.contains(words), "{field} {value}: {text}");
        assert_eq!(error.kind(), ForeignErrorKind::Corrupt);
        if matches!(error, ForeignError::Shard { .. } | ForeignError::Coverage { .. }) && field != "key" {
            let names_it = text.contains(key) || text.contains("overlaps");
            assert!(names_it, "{text}");
        }
    }
}

#[test]
fn a_missing_field_is_named_with_its_tensor() {
    let fields: Vec<String> = metadata()["tensors"][0].as_object().unwrap().keys().cloned().collect();
    for field in fields.iter().filter(|field| *field != "pp_rank") {
        let mut metadata = metadata();
        entry(&mut metadata, PACKED).as_object_mut().unwrap().remove(field);
        let error = open_with(&metadata.to_string()).unwrap_err().to_string();
        assert!(error.contains(&format!("field `{field}` is missing")), "{error}");
        assert!(error.contains(PACKED) || field == "key", "{error}");
    }
}

#[test]
fn a_lost_or_doubled_shard_is_an_error() {
    // All of one rank's entries of a sharded tensor; the other half is a hole.
    let mut lost = metadata();
    let tensors = lost["tensors"].as_array_mut().unwrap();
    let at = tensors.iter().position(|entry| entry["key"] == COLUMN).unwrap();
    tensors.remove(at);
    let error = open_with(&lost.to_string()).unwrap_err();
    assert!(matches!(&error, ForeignError::Coverage { key, .. } if key == COLUMN), "{error}");
    // A copy of a replicated tensor may be lost.
    let mut lost = metadata();
    let tensors = lost["tensors"].as_array_mut().unwrap();
    let at = tensors.iter().position(|entry| entry["key"] == NORM).unwrap();
    tensors.remove(at);
    let opened = open_with(&lost.to_string()).unwrap();
    let chunk = opened.layout.tensors[NORM].chunks.get(0).unwrap();
    assert_eq!(opened.layout.files[chunk.file as usize].path, "rank_000001/model.ckpt");
    // One rank stores a tensor twice.
    let mut doubled = metadata();
    let again = entry(&mut doubled, NORM).clone();
    doubled["tensors"].as_array_mut().unwrap().push(again);
    let error = open_with(&doubled.to_string()).unwrap_err().to_string();
    assert!(error.contains(NORM) && error.contains("rank 0 stored it twice"), "{error}");
    // Two ranks' shards overlap without being copies.
    let mut overlapping = metadata();
    let bytes = entry(&mut overlapping, COLUMN)["byte_size"].as_u64().unwrap();
    let shard = entry(&mut overlapping, COLUMN);
    (shard["local_shape"], shard["byte_size"]) = (json!([16 - 1, 8]), json!(bytes - 16));
    (shard["global_offset"], shard["global_shape"]) = (json!([2, 0]), json!([32, 8]));
    let error = open_with(&overlapping.to_string()).unwrap_err().to_string();
    assert!(error.contains(COLUMN) && error.contains("at [0, 0]"), "{error}");
}

#[test]
fn a_cut_off_file_is_an_error() {
    let written = write(Run { tp: 1, pp: 1, ..TWO_BY_TWO });
    put(&written.storage, &format!("{DIRECTORY}/rank_000000/model.ckpt"), vec![0; 4000]);
    let error = open(&written.storage).unwrap_err().to_string();
    assert!(
        error.contains("`rank_000000/model.ckpt`") && error.contains("the file has 4000: it is cut off"),
        "{error}"
    );
}

/// A tensor cut along many axes would make the proof of coverage cost 2^axes for every shard.
#[test]
fn shards_cut_along_many_axes_are_refused() {
    let ones = |count: usize| vec![1; count];
    let metadata = json!({"version": 3, "format": "infinitrain_sharded", "tensors": [{
        "key": "k", "dtype": "fp32", "global_shape": vec![2; 16], "local_shape": ones(16),
        "global_offset": vec![0; 16], "axis_fragmentations": ones(16), "segment_global_offsets": [],
        "segment_local_offsets": [], "segment_lengths": [], "file": "rank_000000/model.ckpt", "offset": 12,
        "byte_size": 4, "pp_rank": 0, "stored_on_ranks": [0],
    }]});
    let error = open_with(&metadata.to_string()).unwrap_err().to_string();
    assert!(error.contains("cut along 16 axes"), "{error}");
}

#[test]
fn a_damaged_scheduler_is_an_error() {
    let written = write(TWO_BY_TWO);
    let whole = super::store::scheduler();
    let with = |bytes: Vec<u8>| {
        put(&written.storage, &format!("{DIRECTORY}/lr_scheduler.ckpt"), bytes);
        open(&written.storage)
    };
    for length in 0..whole.len() {
        let error = with(whole[..length].to_vec()).unwrap_err().to_string();
        assert!(error.contains("lr_scheduler.ckpt: ") && error.contains("cut off"), "{length}: {error}");
    }
    let patched = |at: usize, bytes: &[u8]| {
        let mut patched = whole.clone();
        patched[at..at + bytes.len()].copy_from_slice(bytes);
        with(patched).unwrap_err().to_string()
    };
    assert!(patched(0, b"X").contains("not 0x53524c53"));
    assert!(patched(4, &[2]).contains("version 2; only version 1"));
    assert!(patched(8, &[1]).contains("follow the last item"));
    assert!(patched(16, &[0xff]).contains("not UTF-8"));
    assert!(patched(25, &[9]).contains("item `last_step`: unknown type 9"));
    // recover_lr: behind last_step's 8 bytes, 4 of length, 10 of name, 1 of type.
    assert!(patched(25 + 9 + 15, &f32::NAN.to_le_bytes()).contains("item `recover_lr`: NaN"));
    let rates = whole.len() - 16;
    assert!(patched(rates, &u64::MAX.to_le_bytes()).contains("item `base_lrs`: it is cut off"));
}

fn odd_values() -> Vec<Value> {
    let numbers = [0, 1, 2, 7, 8, 16, 1000, -1, i64::MAX, i64::MIN, 1 << 32, 1 << 62];
    let mut odd: Vec<Value> = numbers.iter().map(|&number| json!(number)).collect();
    odd.extend(numbers.iter().map(|&number| json!([number])));
    odd.extend(numbers.iter().flat_map(|&a| numbers.map(|b| json!([a, b]))));
    odd.extend([
        json!([]),
        json!(null),
        json!("fp32"),
        json!("x"),
        json!("a//b"),
        json!(1.5),
        json!(u64::MAX),
        json!({}),
    ]);
    odd
}

fn check_sane(result: Result<reshard::foreign::infinitrain::Checkpoint, ForeignError>) {
    match result {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(opened) => {
            for (key, tensor) in &opened.layout.tensors {
                let mut elements = 0;
                for chunk in tensor.chunks.iter() {
                    let bytes = chunk.region.volume() * tensor.dtype.element_bytes().unwrap();
                    assert!(chunk.offset + bytes <= opened.layout.files[chunk.file as usize].length, "{key}");
                    elements += chunk.region.volume();
                }
                assert_eq!(elements, tensor.global_shape.iter().product::<u64>(), "{key}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn odd_fields_give_an_error_or_a_sound_layout(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..4)
    ) {
        let odd = odd_values();
        let mut metadata = metadata();
        let tensors = metadata["tensors"].as_array_mut().unwrap();
        for (entry, field, value) in changes {
            let count = tensors.len();
            let object = tensors[entry.index(count)].as_object_mut().unwrap();
            let name = object.keys().nth(field.index(object.len())).unwrap().clone();
            object.insert(name, odd[value.index(odd.len())].clone());
        }
        check_sane(open_with(&metadata.to_string()));
    }

    #[test]
    fn odd_bytes_give_an_error_or_a_sound_layout(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in proptest::option::of(any::<prop::sample::Index>())
    ) {
        let mut bytes = WRITTEN.metadata.clone().into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let written = write(TWO_BY_TWO);
        put(&written.storage, &format!("{DIRECTORY}/metadata.json"), bytes);
        check_sane(open(&written.storage));
    }
}
