//! The state that is moved: a GPT-like model of 2.1 GB (bf16 weights, f32 Adam moments), and ranks as threads.

use reshard::checkpoint::{Checkpoint, LoadReport, LoadRequest, Options, SaveReport, SaveRequest};
use reshard::collective::{Collective, Deadline, ThreadRank, Threads};
use reshard::format::{self, Iteration, TrainerState};
use reshard::shard::{BoundRules, DType, ModelConfig, Naming, ParallelSizes, Preset};
use reshard::storage::OpenOptions;
use std::num::NonZeroU32;
use std::time::Duration;

pub const ITERATION: Iteration = Iteration(100);

pub fn shardings(tp: u64) -> BoundRules {
    let config = ModelConfig {
        n_layer: 24,
        n_head: 24,
        n_kv_head: 24,
        head_dim: 32,
        mask_buffer: false,
        tied: false,
        ..ModelConfig::GPT2_124M
    };
    let topology = ParallelSizes { tp, ..ParallelSizes::default() }.topology().unwrap();
    Preset::new(Naming::InfiniTrain, config).bind_with_adam(DType::BF16, &topology).unwrap()
}

pub fn targets(tp: u64) -> Vec<reshard::shard::ShardedStateDict> {
    let shardings = shardings(tp);
    (0..tp).map(|rank| shardings.rank(rank).unwrap()).collect()
}

pub fn on_ranks<T: Send>(ranks: usize, work: impl Fn(&ThreadRank) -> T + Sync) -> Vec<T> {
    let handles = Threads::new(ranks).unwrap();
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = handles.into_iter().map(|handle| scope.spawn(move || work(&handle))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn trainer_state() -> TrainerState {
    let one = NonZeroU32::MIN;
    TrainerState {
        global_step: ITERATION.0,
        consumed_train_samples: 0,
        model: format::ModelConfig::default(),
        ran_with: format::ParallelSizes { tp: one, pp: one, dp: one, sp: one, vpp: one },
        lr_scheduler: serde_json::Value::Null,
        user: serde_json::Value::Null,
    }
}

/// Has a virtual machine's host give it the pages that a write will fill: how long that takes says nothing about either
/// side, and differs from run to run.
pub fn fetch_pages() {
    drop(std::hint::black_box(vec![1u8; 6 << 30]));
}

fn barrier(rank: &ThreadRank) {
    rank.barrier(Deadline::after(Duration::from_secs(600))).unwrap();
}

/// Saves from `tp` ranks; the seconds of the slowest rank, and the reports.
pub fn save(uri: &str, storage: &OpenOptions, tp: u64, connections: usize) -> (f64, Vec<SaveReport>) {
    let shardings = shardings(tp);
    let state = trainer_state();
    let results = on_ranks(tp as usize, |rank| {
        let dict = shardings.rank(rank.rank() as u64).unwrap();
        let buffers: Vec<(String, Vec<u8>)> = dict
            .iter()
            .map(|(key, shard)| (key.to_owned(), vec![rank.rank() as u8 + 1; shard.local_bytes() as usize]))
            .collect();
        let data = buffers.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
        let options = Options { concurrency: (connections / tp as usize).max(1), ..Options::default() };
        let checkpoint = Checkpoint::open(uri, storage.clone(), options).unwrap();
        let mut request = SaveRequest::new(ITERATION, &dict, data, &state);
        request.replace = true;
        barrier(rank);
        let start = std::time::Instant::now();
        let report = checkpoint.save(rank, request).unwrap();
        (start.elapsed().as_secs_f64(), report)
    });
    let seconds = results.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    (seconds, results.into_iter().map(|(_, report)| report).collect())
}

/// Loads onto `tp` ranks; the seconds of the slowest rank, and the reports.
pub fn load(
    uri: &str,
    storage: &OpenOptions,
    tp: u64,
    connections: usize,
    verify: bool,
) -> (f64, Vec<LoadReport>) {
    let targets = targets(tp);
    let results = on_ranks(tp as usize, |rank| {
        let dict = &targets[rank.rank()];
        let options = Options { concurrency: (connections / tp as usize).max(1), ..Options::default() };
        let checkpoint = Checkpoint::open(uri, storage.clone(), options).unwrap();
        // The tensors exist, as a training engine's do: the load is timed, not the kernel's zeroing of fresh pages.
        let mut own: Vec<(String, Vec<u8>)> =
            dict.iter().map(|(key, shard)| (key.to_owned(), vec![1; shard.local_bytes() as usize])).collect();
        let mut request = LoadRequest::new(dict);
        request.iteration = Some(ITERATION);
        request.rules.verify = verify;
        request.mode = reshard::checkpoint::CommitMode::InPlace(
            own.iter_mut().map(|(key, bytes)| (key.as_str(), bytes.as_mut_slice())).collect(),
        );
        barrier(rank);
        let start = std::time::Instant::now();
        let report = checkpoint.load(rank, request).unwrap().report;
        (start.elapsed().as_secs_f64(), report)
    });
    let seconds = results.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    (seconds, results.into_iter().map(|(_, report)| report).collect())
}
