//! Ranks as threads, and the naive truth of what each must hold.

use reshard::checkpoint::{
    Checkpoint, CheckpointError, CommitMode, LoadRequest, Loaded, Options, SaveError, SaveReport, SaveRequest,
};
use reshard::collective::{Collective, ThreadRank, Threads};
use reshard::format::{Iteration, ModelConfig, ParallelSizes, TrainerState};
use reshard::plan::ObjectChoice;
use reshard::shard::{ShardedStateDict, ShardedTensorBuilder};
use reshard::storage::{OpenOptions, StorageBackend};
use reshard_oracle::layouts::Tensor;
use reshard_oracle::{cut, first_difference, full_tensor};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Runs `work` on every rank of a group of threads; results in the order of ranks.
pub fn on_ranks<T: Send>(ranks: usize, work: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
    let handles = Threads::new(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = handles.into_iter().map(|handle| scope.spawn(|| work(handle))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A store in memory of its own.
pub fn memory() -> Arc<dyn StorageBackend> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("memory://checkpoint-tests-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    reshard::storage::open(&name, &OpenOptions::new().without_environment()).unwrap()
}

/// A handle on the run, with little staging memory so that slots are reused.
pub fn handle(storage: &Arc<dyn StorageBackend>) -> Checkpoint {
    let options = Options { staging_bytes: 8 << 20, ..Options::default() };
    Checkpoint::new(Arc::clone(storage), options)
}

pub fn trainer_state(step: u64) -> TrainerState {
    let one = NonZeroU32::MIN;
    TrainerState {
        global_step: step,
        consumed_train_samples: step * 8,
        model: ModelConfig { n_layer: Some(2), ..ModelConfig::default() },
        ran_with: ParallelSizes { tp: one, pp: one, dp: one, sp: one, vpp: one },
        lr_scheduler: serde_json::Value::Null,
        user: serde_json::json!({ "note": "é" }),
    }
}

/// The local buffers of a rank, cut naively from whole tensors.
pub fn local_buffers(tensors: &[Tensor], dict: &ShardedStateDict) -> BTreeMap<String, Vec<u8>> {
    dict.iter()
        .map(|(key, shard)| {
            let tensor = tensors.iter().find(|tensor| tensor.key == key).unwrap();
            (key.to_owned(), cut(&full_tensor(key, tensor.dtype, &tensor.shape), shard))
        })
        .collect()
}

/// Saves from all ranks; every rank has an object `rng` of its own.
pub fn save_all(
    storage: &Arc<dyn StorageBackend>,
    step: u64,
    tensors: &[Tensor],
    dicts: &[ShardedStateDict],
) -> Vec<Result<SaveReport, SaveError>> {
    save_with(storage, step, dicts, |rank, key| {
        let tensor = tensors.iter().find(|tensor| tensor.key == key).unwrap();
        cut(&full_tensor(key, tensor.dtype, &tensor.shape), dicts[rank].get(key).unwrap())
    })
}

/// As [`save_all`], with the local bytes that `local` gives for rank and key.
pub fn save_with(
    storage: &Arc<dyn StorageBackend>,
    step: u64,
    dicts: &[ShardedStateDict],
    local: impl Fn(usize, &str) -> Vec<u8> + Sync,
) -> Vec<Result<SaveReport, SaveError>> {
    on_ranks(dicts.len(), |rank| {
        let index = rank.rank();
        let own = dicts[index].iter().filter(|(_, tensor)| tensor.alias_of().is_none());
        let buffers: BTreeMap<&str, Vec<u8>> = own.map(|(key, _)| (key, local(index, key))).collect();
        let data = buffers.iter().map(|(&key, bytes)| (key, bytes.as_slice())).collect();
        let state = trainer_state(step);
        let mut request = SaveRequest::new(Iteration(step), &dicts[index], data, &state);
        let object = vec![index as u8; index * 7];
        request.objects.insert("rng".to_owned(), &object);
        handle(storage).save(&rank, request)
    })
}

/// Loads on all ranks into new tensors. Per-rank objects are left out.
pub fn load(
    storage: &Arc<dyn StorageBackend>,
    dicts: &[ShardedStateDict],
    adjust: impl Fn(&mut LoadRequest<'_>) + Sync,
) -> Vec<Result<Loaded, CheckpointError>> {
    on_ranks(dicts.len(), |rank| {
        let mut request = LoadRequest::new(&dicts[rank.rank()]);
        request.objects = ObjectChoice::Fresh;
        adjust(&mut request);
        handle(storage).load(&rank, request)
    })
}

/// Tensors of one rank, all of it.
pub fn dict<'a>(tensors: impl IntoIterator<Item = (&'a str, ShardedTensorBuilder)>) -> ShardedStateDict {
    let mut dict = ShardedStateDict::new();
    for (key, builder) in tensors {
        dict.insert(key, builder.build(key).unwrap()).unwrap();
    }
    dict
}

/// The error of every rank; panics where one succeeded.
pub fn errors<T: std::fmt::Debug, E: std::fmt::Display>(results: Vec<Result<T, E>>) -> Vec<String> {
    results.into_iter().map(|result| result.unwrap_err().to_string()).collect()
}

/// How a test loads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Allocate,
    InPlace,
    Staged,
}

/// Loads on all ranks and compares every byte with the oracle. Buffers of the caller start as 0xEE.
pub fn load_and_check(
    storage: &Arc<dyn StorageBackend>,
    mode: Mode,
    tensors: &[Tensor],
    dicts: &[ShardedStateDict],
    adjust: impl Fn(&mut LoadRequest<'_>) + Sync,
) -> Vec<Result<Loaded, CheckpointError>> {
    on_ranks(dicts.len(), |rank| {
        let index = rank.rank();
        let dict = &dicts[index];
        let expected = local_buffers(tensors, dict);
        let mut own: BTreeMap<String, Vec<u8>> =
            expected.iter().map(|(key, bytes)| (key.clone(), vec![0xee; bytes.len()])).collect();
        let mut request = LoadRequest::new(dict);
        let buffers = own.iter_mut().map(|(key, bytes)| (key.as_str(), bytes.as_mut_slice())).collect();
        request.mode = match mode {
            Mode::Allocate => CommitMode::Allocate,
            Mode::InPlace => CommitMode::InPlace(buffers),
            Mode::Staged => CommitMode::Staged(buffers),
        };
        adjust(&mut request);
        let loaded = handle(storage).load(&rank, request)?;
        for (key, expected) in &expected {
            // Places that no region fills stay what they were; new and staged buffers have zeros there.
            let shard = dict.get(key).unwrap();
            let full = full_tensor(key, shard.dtype(), shard.global_shape());
            let filled = cut(&vec![0xff; full.len()], shard);
            let found = match mode {
                Mode::Allocate => loaded.tensors[key].as_ref(),
                _ => &own[key],
            };
            let rest = if mode == Mode::InPlace { 0xee } else { 0 };
            let expected: Vec<u8> = expected
                .iter()
                .zip(&filled)
                .map(|(&byte, &filled)| if filled == 0 { rest } else { byte })
                .collect();
            assert_eq!(first_difference(found, &expected), None, "{key} of rank {index}, {mode:?}");
        }
        Ok(loaded)
    })
}
