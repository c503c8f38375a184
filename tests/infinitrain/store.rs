//! Small checkpoints in InfiniTrain's format, written shard by shard.

use reshard::foreign::{Directory, ForeignError, infinitrain};
use reshard::format::SavedLayout;
use reshard::storage::{OpenOptions, StorageBackend, StoragePath, open};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A shard of one rank.
pub struct Shard<'a> {
    pub rank: u64,
    pub key: &'a str,
    pub dtype: &'a str,
    pub global: &'a [u64],
    pub local: &'a [u64],
    pub offset: &'a [u64],
    /// `(global offset, local offset, length)` along axis 0.
    pub segments: &'a [(u64, u64, u64)],
    pub bytes: Vec<u8>,
}

impl<'a> Shard<'a> {
    /// Rows of an fp32 tensor.
    pub fn rows(rank: u64, key: &'a str, global: &'a [u64], local: &'a [u64], offset: &'a [u64]) -> Self {
        let bytes = vec![rank as u8; local.iter().product::<u64>() as usize * 4];
        Self { rank, key, dtype: "fp32", global, local, offset, segments: &[], bytes }
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn put(storage: &Arc<dyn StorageBackend>, path: &str, bytes: Vec<u8>) {
    block_on(storage.put(&StoragePath::parse(path).unwrap(), bytes.into())).unwrap();
}

/// A checkpoint in a store of its own.
pub fn write(shards: &[Shard<'_>]) -> Arc<dyn StorageBackend> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let uri = format!("memory://infinitrain-cases-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let storage = open(&uri, &OpenOptions::new()).unwrap();
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut entries = Vec::new();
    for shard in shards {
        let path = format!("rank_{:06}/model.ckpt", shard.rank);
        let file = files.entry(path.clone()).or_insert_with(|| vec![0; 12]);
        // The record's header: its name stands for the rest, which readers take from the metadata.
        file.extend(shard.key.as_bytes());
        let whole = |axis: usize| shard.global[axis] / shard.local[axis].max(1);
        let column = |pick: fn(&(u64, u64, u64)) -> u64| shard.segments.iter().map(pick).collect::<Vec<_>>();
        entries.push(json!({
            "key": shard.key,
            "dtype": shard.dtype,
            "global_shape": shard.global,
            "local_shape": shard.local,
            "global_offset": shard.offset,
            "axis_fragmentations": (0..shard.global.len()).map(whole).collect::<Vec<_>>(),
            "segment_global_offsets": column(|segment| segment.0),
            "segment_local_offsets": column(|segment| segment.1),
            "segment_lengths": column(|segment| segment.2),
            "file": path,
            "offset": file.len(),
            "byte_size": shard.bytes.len(),
            "pp_rank": 0,
            "stored_on_ranks": [shard.rank],
        }));
        file.extend(&shard.bytes);
    }
    for (path, bytes) in files {
        put(&storage, &path, bytes);
    }
    let metadata: Value = json!({"version": 3, "format": "infinitrain_sharded", "tensors": entries});
    put(&storage, "metadata.json", metadata.to_string().into_bytes());
    storage
}

/// Reads it as a saved layout.
pub fn layout(shards: &[Shard<'_>]) -> Result<SavedLayout, ForeignError> {
    let storage = write(shards);
    Ok(block_on(infinitrain::open(&*storage, &Directory::default()))?.layout)
}
