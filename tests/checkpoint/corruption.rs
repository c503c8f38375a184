//! Damaged, incomplete and deleted checkpoints: each its own error, on all ranks.

use crate::harness::{Mode, errors, load, load_and_check, memory, save_all};
use proptest::prelude::*;
use reshard::checkpoint::{CheckpointError, CommitMode, ErrorKind, LoadRequest, Loaded};
use reshard::format::{Commit, DeletedCheckpoint, Metadata};
use reshard::plan::ObjectChoice;
use reshard::shard::{DType, ShardedStateDict, StateGroup};
use reshard::storage::{Depth, StorageBackend, StoragePath};
use reshard_oracle::{Random, layouts};
use std::sync::{Arc, LazyLock};
use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
});

struct Run {
    storage: Arc<dyn StorageBackend>,
    tensors: Vec<layouts::Tensor>,
    dicts: Vec<ShardedStateDict>,
}

impl Run {
    /// A run of two ranks with a few tensors.
    fn saved() -> Self {
        let random = &mut Random::new(11);
        let tensor = |key: &str, shape: &[u64]| layouts::Tensor {
            key: key.to_owned(),
            dtype: DType::F32,
            shape: shape.to_vec(),
            segments: Vec::new(),
            group: StateGroup::Model,
        };
        let tensors = vec![tensor("a", &[24, 10]), tensor("b", &[7]), tensor("c", &[64, 64])];
        let dicts = layouts::shard(random, &tensors, 2);
        let storage = memory();
        save_all(&storage, 5, &tensors, &dicts).into_iter().for_each(|report| drop(report.unwrap()));
        Self { storage, tensors, dicts }
    }

    /// The object of that name, which ends in `name`.
    fn path(&self, name: &str) -> StoragePath {
        let objects = RUNTIME.block_on(self.storage.list(None, Depth::All)).unwrap().objects;
        objects.into_iter().map(|object| object.path).find(|path| path.as_str().ends_with(name)).unwrap()
    }

    fn data_files(&self) -> Vec<StoragePath> {
        let objects = RUNTIME.block_on(self.storage.list(None, Depth::All)).unwrap().objects;
        objects
            .into_iter()
            .map(|object| object.path)
            .filter(|path| path.as_str().ends_with(".safetensors"))
            .collect()
    }

    fn read(&self, path: &StoragePath) -> Vec<u8> {
        RUNTIME.block_on(self.storage.read_all(path, 1 << 30)).unwrap().0.to_vec()
    }

    fn put(&self, path: &StoragePath, bytes: Vec<u8>) {
        RUNTIME.block_on(self.storage.put(path, bytes.into())).unwrap();
    }

    fn delete(&self, path: &StoragePath) {
        RUNTIME.block_on(self.storage.delete(path)).unwrap();
    }

    fn load(&self, adjust: impl Fn(&mut LoadRequest<'_>) + Sync) -> Vec<Result<Loaded, CheckpointError>> {
        load(&self.storage, &self.dicts, adjust)
    }

    /// Every rank fails, with an error of this kind that has all the words.
    fn refused(&self, kind: ErrorKind, words: &[&str]) {
        for result in self.load(|request| request.objects = ObjectChoice::Own) {
            let error = result.unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text} has not all of {words:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// One flipped bit in any block of any data file is refused, naming file and tensor; without verification it isn't
    /// noticed, which shows that the bit was one that matters.
    #[test]
    fn corrupt_replica(file: prop::sample::Index, at: prop::sample::Index, bit in 0u32..8) {
        let run = Run::saved();
        let layout = Metadata::parse("m", &run.read(&run.path("metadata.json"))).unwrap().layout;
        let files = run.data_files();
        let path = file.get(&files);
        let saved = layout.files.iter().find(|file| path.as_str().ends_with(&file.path)).unwrap();
        let blocks = saved.blocks.as_ref().unwrap();
        let data = blocks.runs()[0]..blocks.end();
        let at = data.start + at.index((data.end - data.start) as usize) as u64;
        let mut bytes = run.read(path);
        bytes[at as usize] ^= 1 << bit;
        run.put(path, bytes);
        let (_, block) = blocks.block_at(at).unwrap();
        let within = |offset: u64, length: u64| offset < block.end && offset + length > block.start;
        let index = layout.files.iter().position(|file| path.as_str().ends_with(&file.path)).unwrap() as u32;
        let mut holders: Vec<String> = layout.tensors.iter().filter(|(_, tensor)| tensor.chunks.iter().any(|chunk| {
            chunk.file == index && within(chunk.offset, chunk.region.volume() * 4)
        })).map(|(key, _)| format!("`{key}`")).collect();
        holders.extend(layout.objects.iter().flat_map(|(name, ranks)| ranks.iter().filter(|(_, object)| {
            object.file == index && within(object.offset, object.length)
        }).map(move |(rank, _)| format!("`{name} (rank {rank})`"))));
        for result in run.load(|request| request.objects = ObjectChoice::Own) {
            let error = result.unwrap_err();
            let text = error.to_string();
            prop_assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", &text);
            prop_assert!(text.contains(path.name()) && holders.iter().any(|key| text.contains(key)), "{} {:?}", text, holders);
        }
        for result in run.load(|request| (request.rules.verify, request.objects) = (false, ObjectChoice::Own)) {
            prop_assert!(result.is_ok());
        }
    }
}

#[test]
fn a_flipped_byte_of_a_block_table_or_a_short_file() {
    let run = Run::saved();
    let path = run.data_files().remove(0);
    let whole = run.read(&path);
    let mut bytes = whole.clone();
    *bytes.last_mut().unwrap() ^= 1;
    run.put(&path, bytes);
    run.refused(ErrorKind::Corrupt, &[path.name(), "block table"]);
    run.put(&path, whole[..whole.len() - 1].to_vec());
    run.refused(ErrorKind::Corrupt, &[path.name()]);
    run.put(&path, whole);
    run.load(|_| {}).into_iter().for_each(|loaded| drop(loaded.unwrap()));
}

#[test]
fn documents_that_are_not_what_the_commit_names() {
    let run = Run::saved();
    for name in ["metadata.json", "trainer_state.json"] {
        let path = run.path(name);
        let whole = run.read(&path);
        let mut bytes = whole.clone();
        bytes.push(b' ');
        run.put(&path, bytes);
        run.refused(ErrorKind::Corrupt, &[name]);
        let mut bytes = whole.clone();
        *bytes.last_mut().unwrap() = b' ';
        run.put(&path, bytes);
        run.refused(ErrorKind::Corrupt, &[name, "SHA-256"]);
        run.delete(&path);
        run.refused(ErrorKind::Corrupt, &[name, "is missing"]);
        run.put(&path, whole);
    }
    let path = run.path("commit.json");
    let whole = run.read(&path);
    run.put(&path, whole[..whole.len() / 2].to_vec());
    run.refused(ErrorKind::Corrupt, &["commit.json"]);
    let mut bytes = whole;
    let digit = bytes.iter().rposition(u8::is_ascii_digit).unwrap();
    bytes[digit] ^= 1;
    run.put(&path, bytes);
    run.refused(ErrorKind::Corrupt, &["commit.json", "damaged"]);
}

/// A directory with data but without its commit is no checkpoint.
/// A directory that was copied to another iteration's name is no checkpoint of that iteration.
#[test]
fn a_commit_in_another_iterations_directory() {
    let run = Run::saved();
    for object in RUNTIME.block_on(run.storage.list(None, Depth::All)).unwrap().objects {
        let copy = object.path.as_str().replace("iter_0000005", "iter_0000500");
        run.put(&StoragePath::parse(copy).unwrap(), run.read(&object.path));
    }
    run.refused(ErrorKind::Corrupt, &["iter_0000500/commit.json", "iter_0000005", "keep the name"]);
    let asked = run.load(|request| request.iteration = Some(reshard::format::Iteration(5)));
    asked.into_iter().for_each(|loaded| drop(loaded.unwrap()));
}

#[test]
fn partial_directory_accepted() {
    let run = Run::saved();
    run.delete(&run.path("commit.json"));
    run.refused(ErrorKind::NotFound, &["no committed checkpoint"]);
    for result in run.load(|request| request.iteration = Some(reshard::format::Iteration(5))) {
        let error = result.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotFound) && error.to_string().contains("iter_0000005"),
            "{error}"
        );
    }
}

#[test]
fn a_deleted_commit_is_told_from_none() {
    let run = Run::saved();
    let path = run.path("commit.json");
    run.put(&path, Commit::Deleted(DeletedCheckpoint::new().unwrap()).to_bytes());
    run.refused(ErrorKind::NotFound, &["no committed checkpoint"]);
    for result in run.load(|request| request.iteration = Some(reshard::format::Iteration(5))) {
        let error = result.unwrap_err();
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("deleted"), "{error}");
    }
}

#[test]
fn a_lost_data_file_is_named_and_in_place_it_is_found_before_the_first_byte() {
    let run = Run::saved();
    let path = run.data_files().remove(0);
    run.delete(&path);
    run.refused(ErrorKind::NotFound, &[path.name()]);
    let results = load_and_check(&run.storage, Mode::InPlace, &run.tensors, &run.dicts, |request| {
        assert!(matches!(request.mode, CommitMode::InPlace(_)));
    });
    for error in errors(results) {
        assert!(
            error.contains(path.name()) && error.contains("is missing") && !error.contains("undefined"),
            "{error}"
        );
    }
}

/// The whole run copied elsewhere is as good; one that was copied in part is refused by name.
#[test]
fn marker_lost_on_copy() {
    let run = Run::saved();
    let copy = memory();
    for object in RUNTIME.block_on(run.storage.list(None, Depth::All)).unwrap().objects {
        RUNTIME.block_on(copy.put(&object.path, run.read(&object.path).into())).unwrap();
    }
    let run = Run { storage: copy, ..run };
    load_and_check(&run.storage, Mode::Allocate, &run.tensors, &run.dicts, |_| {})
        .into_iter()
        .for_each(|loaded| drop(loaded.unwrap()));
    let path = run.data_files().pop().unwrap();
    run.delete(&path);
    run.refused(ErrorKind::NotFound, &[path.name()]);
}
