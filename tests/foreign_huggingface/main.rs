//! Safetensors files and their indices, read as saved layouts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod fetch;
mod real_model;

use proptest::prelude::*;
use reshard::foreign::huggingface::{self, Source};
use reshard::foreign::{Detected, ForeignError, ForeignErrorKind, detect};
use reshard::format::SavedLayout;
use reshard::storage::{MemoryBackend, StorageBackend, StoragePath};
use reshard_shard::{DType, StateGroup};
use serde_json::{Value, json};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn path(path: &str) -> StoragePath {
    StoragePath::parse(path).unwrap()
}

fn put(storage: &MemoryBackend, at: &str, bytes: Vec<u8>) {
    block_on(storage.put(&path(at), bytes.into())).unwrap();
}

fn open(storage: &MemoryBackend, at: &str) -> Result<SavedLayout, ForeignError> {
    block_on(huggingface::open(storage, &Source::from_path(&path(at)).unwrap()))
}

/// A file by hand: `(key, dtype, shape, bytes)`, the data of tensor number i is filled with i.
fn file(tensors: &[(&str, &str, &[u64], usize)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for (number, (key, dtype, shape, bytes)) in tensors.iter().enumerate() {
        let start = data.len();
        data.extend(std::iter::repeat_n(number as u8, *bytes));
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert((*key).to_owned(), entry);
    }
    framed(&Value::Object(header).to_string(), &data)
}

fn framed(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn index(pairs: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<String, Value> =
        pairs.iter().map(|(key, file)| ((*key).to_owned(), json!(file))).collect();
    json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string().into_bytes()
}

const INDEX: &str = "m/model.safetensors.index.json";
const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";

/// Two files; `two` may be changed by the caller.
fn sharded() -> MemoryBackend {
    let storage = MemoryBackend::anonymous();
    put(&storage, INDEX, index(&[("a", ONE), ("b", ONE), ("c", TWO)]));
    put(&storage, &format!("m/{ONE}"), file(&[("a", "BF16", &[2, 3], 12), ("b", "F8_E4M3", &[4], 4)]));
    put(&storage, &format!("m/{TWO}"), file(&[("c", "I64", &[], 8)]));
    storage
}

#[test]
fn every_tensor_of_a_file_is_one_chunk() {
    let storage = MemoryBackend::anonymous();
    let bytes = file(&[
        ("scalar", "F64", &[], 8),
        ("none", "F32", &[3, 0], 0),
        ("half", "F16", &[2, 2], 8),
        ("fp8", "F8_E5M2", &[5], 5),
        ("packed", "F4", &[2, 4], 4),
        ("scale", "F8_E8M0", &[2], 2),
        ("mask", "BOOL", &[1, 3], 3),
    ]);
    put(&storage, "model.safetensors", bytes.clone());
    let layout = open(&storage, "model.safetensors").unwrap();
    assert_eq!(layout.tensors.len(), 7);
    let dtypes = ["scalar", "fp8", "packed", "scale", "mask"].map(|key| layout.tensors[key].dtype);
    assert_eq!(dtypes, [DType::F64, DType::F8E5M2, DType::F4, DType::F8E8M0, DType::Bool]);
    assert!(layout.tensors["packed"].dtype.is_opaque());
    // Without elements there is nothing to read, and the tensor is there all the same.
    assert!(layout.tensors["none"].chunks.is_empty());
    assert_eq!(layout.tensors["none"].global_shape.as_slice(), [3, 0]);
    for (key, fill, length) in [("scalar", 0, 8), ("half", 2, 8), ("packed", 4, 4), ("mask", 6, 3)] {
        let tensor = &layout.tensors[key];
        assert_eq!((tensor.chunks.len(), tensor.group), (1, StateGroup::Model));
        let chunk = tensor.chunks.get(0).unwrap();
        assert_eq!(chunk.region.shape(), tensor.global_shape.as_slice());
        let at = chunk.offset as usize;
        assert_eq!(bytes[at..at + length], vec![fill; length], "{key}");
    }
    let saved = &layout.files[0];
    assert_eq!(
        (saved.path.as_str(), saved.length, &saved.blocks),
        ("model.safetensors", bytes.len() as u64, &None)
    );
}

#[test]
fn an_index_names_files_beside_it() {
    let layout = open(&sharded(), INDEX).unwrap();
    let place = |key: &str| {
        let chunk = layout.tensors[key].chunks.get(0).unwrap();
        layout.files[chunk.file as usize].path.as_str()
    };
    assert_eq!([place("a"), place("b"), place("c")], [ONE, ONE, TWO]);
    // In a folder below, too.
    let storage = sharded();
    put(&storage, INDEX, index(&[("d", "below/x.safetensors")]));
    put(&storage, "m/below/x.safetensors", file(&[("d", "U8", &[1], 1)]));
    assert_eq!(open(&storage, INDEX).unwrap().files[0].path, "below/x.safetensors");
}

#[test]
fn an_index_that_does_not_fit_its_files_is_an_error_that_names_both() {
    let with = |changed: &str, bytes: Vec<u8>| {
        let storage = sharded();
        put(&storage, changed, bytes);
        let error = open(&storage, INDEX).unwrap_err();
        assert_eq!(error.kind(), ForeignErrorKind::Corrupt, "{error}");
        error.to_string()
    };
    let two = format!("m/{TWO}");
    assert!(with(&two, file(&[("d", "I64", &[], 8)])).contains(&format!("`c` is not in `{TWO}`")));
    let both = with(&two, file(&[("a", "I64", &[], 8), ("c", "I64", &[], 8)]));
    assert!(both.contains(&format!("`a` is in `{ONE}` and in `{TWO}`")), "{both}");
    let more = with(&two, file(&[("c", "I64", &[], 8), ("d", "I64", &[], 8)]));
    assert!(more.contains(&format!("`{TWO}` holds `d`, which the index does not name")), "{more}");
    let missing = with(INDEX, index(&[("a", ONE), ("b", ONE), ("c", "gone.safetensors")]));
    assert!(missing.contains("`gone.safetensors`, which is missing"), "{missing}");
    let wrong = with(INDEX, index(&[("a", TWO), ("b", ONE), ("c", TWO)]));
    assert!(wrong.contains(&format!("`a` is not in `{TWO}`")), "{wrong}");
    let twice = with(INDEX, br#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#.to_vec());
    assert!(twice.contains("`a` stands twice"), "{twice}");
    let no_map = with(INDEX, b"{}".to_vec());
    assert!(no_map.contains("missing field `weight_map`"), "{no_map}");
    for outside in ["../x.safetensors", "/x.safetensors", "a/../../x.safetensors", "", "a//x", "a\0"] {
        let error = with(INDEX, index(&[("a", outside)]));
        assert!(error.contains(INDEX) && error.contains("is no storage path"), "{error}");
    }
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() {
    let whole = file(&[("a", "F32", &[2], 8)]);
    let with = |bytes: Vec<u8>| {
        let storage = MemoryBackend::anonymous();
        put(&storage, "x/y.safetensors", bytes);
        open(&storage, "x/y.safetensors").unwrap_err().to_string()
    };
    // Each length of a cut-off file, down to none at all.
    for length in 0..whole.len() {
        let error = with(whole[..length].to_vec());
        assert!(error.starts_with("x/y.safetensors: "), "{error}");
    }
    let huge = u64::MAX.to_le_bytes();
    assert!(with(huge.to_vec()).contains("longer than the format allows"));
    let entry = |entry: &str| with(framed(&format!("{{\"a\":{entry}}}"), &[0; 8]));
    assert!(
        entry(r#"{"dtype":"F31","shape":[2],"data_offsets":[0,8]}"#).contains("`a`: unknown dtype `F31`")
    );
    assert!(
        entry(r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#)
            .contains("8 bytes are not the size of f32 [3]")
    );
    let axes = format!("{{\"dtype\":\"U64\",\"shape\":{:?},\"data_offsets\":[0,8]}}", [1; 17]);
    assert!(entry(&axes).contains("tensor `a`: 17 axes"), "{}", entry(&axes));
}

#[test]
fn what_lies_at_a_place_is_detected() {
    let storage = sharded();
    let found = |at: &str| block_on(detect(&storage, Some(&path(at))));
    let index_source = Detected::HuggingFace(Source::Index(path(INDEX)));
    assert_eq!(found("m").unwrap(), index_source);
    assert_eq!(found(INDEX).unwrap(), index_source);
    let one = format!("m/{ONE}");
    assert_eq!(found(&one).unwrap(), Detected::HuggingFace(Source::File(path(&one))));
    put(&storage, "single/adapter.safetensors", file(&[]));
    put(&storage, "single/config.json", b"{}".to_vec());
    let single = Source::File(path("single/adapter.safetensors"));
    assert_eq!(found("single").unwrap(), Detected::HuggingFace(single.clone()));
    assert_eq!(block_on(huggingface::open(&storage, &single)).unwrap().tensors.len(), 0);
    put(&storage, "single/other.safetensors", file(&[]));
    let error = found("single").unwrap_err();
    assert_eq!(error.kind(), ForeignErrorKind::Invalid);
    assert!(error.to_string().contains("`adapter.safetensors`, `other.safetensors`"), "{error}");
    // The usual name goes first.
    put(&storage, "single/model.safetensors", file(&[]));
    assert_eq!(
        found("single").unwrap(),
        Detected::HuggingFace(Source::File(path("single/model.safetensors")))
    );
}

#[test]
fn runs_of_this_library_are_native_and_what_is_unknown_gets_a_hint() {
    let attempt = "attempt-0123456789abcdef0123456789abcdef";
    let storage = MemoryBackend::anonymous();
    put(&storage, "run/iter_0000100/commit.json", b"{}".to_vec());
    put(&storage, &format!("run/iter_0000200/{attempt}/metadata.json"), b"{}".to_vec());
    put(&storage, &format!("run/iter_0000200/{attempt}/model-00000-of-00001.safetensors"), file(&[]));
    put(&storage, "dcp/.metadata", b"".to_vec());
    put(&storage, "dcp/__0_0.distcp", b"".to_vec());
    put(&storage, "old/pytorch_model.bin", b"".to_vec());
    put(&storage, "odd/readme.txt", b"".to_vec());
    let found = |at: &str| block_on(detect(&storage, Some(&path(at))));
    for place in ["run", "run/iter_0000100", "run/iter_0000200"] {
        assert_eq!(found(place).unwrap(), Detected::Native, "{place}");
    }
    for (place, words) in [
        (format!("run/iter_0000200/{attempt}").as_str(), "one attempt of a save"),
        ("dcp", "torch.distributed.checkpoint"),
        ("old", "convert them to safetensors"),
        ("odd", "known are runs of this library"),
        ("nothing/here", "check the path"),
        ("nothing.safetensors", "check the path"),
    ] {
        let error = found(place).unwrap_err();
        assert_eq!(error.kind(), ForeignErrorKind::NotFound);
        let text = error.to_string();
        assert!(text.contains(&format!("`{place}`")) && text.contains(words), "{text}");
    }
}

proptest! {
    /// Whatever the header says, the answer is an error or chunks that lie inside the file.
    #[test]
    fn odd_headers_give_an_error_or_a_sound_layout(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5)
    ) {
        let mut bytes = file(&[("a", "BF16", &[2, 3], 12), ("b", "F4", &[4], 2), ("c", "F32", &[0], 0), ("d", "U8", &[], 1)]);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let storage = MemoryBackend::anonymous();
        let length = bytes.len() as u64;
        put(&storage, "f.safetensors", bytes);
        if let Ok(layout) = open(&storage, "f.safetensors") {
            for tensor in layout.tensors.values() {
                for chunk in tensor.chunks.iter() {
                    prop_assert!(chunk.offset + chunk.region.volume() * tensor.dtype.bits() / 8 <= length);
                }
            }
        }
    }
}
