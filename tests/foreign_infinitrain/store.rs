//! The oracle's checkpoint in a store.

use reshard::storage::{MemoryBackend, StorageBackend, StoragePath};
pub use reshard_oracle::infinitrain::{DIRECTORY, ROWS, Run, WORDS, Whole, scheduler};
use std::collections::BTreeMap;

pub struct Written {
    pub storage: MemoryBackend,
    pub metadata: String,
    pub tensors: BTreeMap<String, Whole>,
}

pub fn put(storage: &MemoryBackend, path: &str, bytes: impl Into<Vec<u8>>) {
    let path = StoragePath::parse(path).unwrap();
    let bytes: Vec<u8> = bytes.into();
    super::block_on(storage.put(&path, bytes.into())).unwrap();
}

pub fn write(run: Run) -> Written {
    let storage = MemoryBackend::anonymous();
    let written = reshard_oracle::infinitrain::write(run);
    for (path, bytes) in written.files {
        put(&storage, &path, bytes);
    }
    Written { storage, metadata: written.metadata, tensors: written.tensors }
}
