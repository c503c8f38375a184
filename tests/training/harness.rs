//! A small model on any number of ranks, whose bytes depend on the iteration.

use reshard::checkpoint::{
    Checkpoint, CheckpointError, MeetingRules, Options, SaveError, SaveReport, SaveRequest,
};
use reshard::collective::{Collective, ThreadRank, Threads};
use reshard::format::{Iteration, ModelConfig, ParallelSizes};
use reshard::plan::ObjectChoice;
use reshard::shard::{DType, Region, Replica, ShardedStateDict, ShardedTensor, Split, StateGroup};
use reshard::storage::{Depth, MemoryBackend, StorageBackend, StoragePath};
use reshard::training::{ResumeRequest, Resumed, Retention, TrainingRun};
use reshard_oracle::{cut, first_difference, full_tensor};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

pub type Store = Arc<dyn StorageBackend>;

/// Runs `work` on every rank of a group of threads; results in the order of ranks.
pub fn on_ranks<T: Send>(ranks: usize, work: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
    let handles = Threads::new(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = handles.into_iter().map(|handle| scope.spawn(|| work(handle))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn memory() -> Store {
    Arc::new(MemoryBackend::anonymous())
}

pub fn model() -> ModelConfig {
    ModelConfig { n_layer: Some(2), padded_vocab_size: Some(64), ..ModelConfig::default() }
}

pub fn sizes(dp: usize) -> ParallelSizes {
    let one = NonZeroU32::MIN;
    ParallelSizes { tp: one, pp: one, dp: NonZeroU32::new(dp as u32).unwrap(), sp: one, vpp: one }
}

pub fn newest(keep: usize, every: u64) -> Retention {
    Retention::Newest { keep: NonZeroUsize::new(keep).unwrap(), keep_every: NonZeroU64::new(every) }
}

/// Meetings that end soon where a rank does not come.
pub fn meetings() -> MeetingRules {
    let (deadline, round) = (Duration::from_secs(60), Duration::from_millis(20));
    MeetingRules { deadline, round, interrupt: None }
}

pub fn checkpoint(storage: &Store, meetings: MeetingRules) -> Checkpoint {
    Checkpoint::new(Arc::clone(storage), Options { staging_bytes: 4 << 20, meetings, ..Options::default() })
}

pub fn run(storage: &Store, rank: &ThreadRank, retention: Retention) -> TrainingRun {
    TrainingRun::new(checkpoint(storage, meetings()), model(), sizes(rank.size()), retention).unwrap()
}

const ROWS: u64 = 8400;

/// A rank's part: rows of a matrix and of its moment, and a norm that all ranks hold.
pub fn dict(rank: usize, ranks: usize) -> ShardedStateDict {
    let (rank, ranks) = (rank as u64, ranks as u64);
    let mut dict = ShardedStateDict::new();
    let (start, end) = (ROWS * rank / ranks, ROWS * (rank + 1) / ranks);
    for (key, group) in [("h.0.w", StateGroup::Model), ("adam.m.h.0.w", StateGroup::Optimizer)] {
        let region = Region::new([start, 0], [end - start, 16]).unwrap();
        let tensor = ShardedTensor::builder(DType::F32, [ROWS, 16]).split(Split::axis(0)).group(group);
        dict.insert(key, tensor.regions([region]).build(key).unwrap()).unwrap();
    }
    let holders: Vec<u64> = (0..ranks).collect();
    let norm = ShardedTensor::builder(DType::BF16, [96]).replica(Replica::among(rank, &holders).unwrap());
    dict.insert("norm", norm.regions(Region::whole(&[96]).unwrap()).build("norm").unwrap()).unwrap();
    dict
}

/// The bytes of a rank's part at an iteration, cut from whole tensors.
pub fn buffers(dict: &ShardedStateDict, iteration: u64) -> BTreeMap<String, Vec<u8>> {
    let full = |key: &str, tensor: &ShardedTensor| {
        full_tensor(&format!("{key} at {iteration}"), tensor.dtype(), tensor.global_shape())
    };
    dict.iter().map(|(key, tensor)| (key.to_owned(), cut(&full(key, tensor), tensor))).collect()
}

/// A rank's own object at an iteration; ranks of odd numbers have another one besides, `odd`.
pub fn loader_state(rank: usize, content: u64) -> Vec<u8> {
    vec![rank as u8; content as usize % 100]
}

pub fn save(run: &mut TrainingRun, rank: &ThreadRank, step: u64) -> Result<SaveReport, SaveError> {
    save_with(run, rank, step, step, |_| {})
}

/// Saves the bytes of `content` as iteration `step`.
pub fn save_with(
    run: &mut TrainingRun,
    rank: &ThreadRank,
    step: u64,
    content: u64,
    adjust: impl FnOnce(&mut SaveRequest<'_>),
) -> Result<SaveReport, SaveError> {
    let dict = dict(rank.rank(), rank.size());
    let buffers = buffers(&dict, content);
    let data = buffers.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    let state = run.trainer_state(step, step * 8);
    let loader = loader_state(rank.rank(), content);
    let mut request = SaveRequest::new(Iteration(step), &dict, data, &state);
    request.objects.insert("loader".to_owned(), &loader);
    if rank.rank() % 2 == 1 {
        request.objects.insert("odd".to_owned(), &[0xab]);
    }
    adjust(&mut request);
    run.save_checkpoint(rank, request)
}

pub fn resume(run: &mut TrainingRun, rank: &ThreadRank) -> Result<Option<Resumed>, CheckpointError> {
    resume_with(run, rank, |_| {})
}

pub fn resume_with(
    run: &mut TrainingRun,
    rank: &ThreadRank,
    adjust: impl FnOnce(&mut ResumeRequest<'_>),
) -> Result<Option<Resumed>, CheckpointError> {
    let dict = dict(rank.rank(), rank.size());
    let mut request = ResumeRequest::new(&dict);
    request.load.objects = ObjectChoice::Fresh;
    adjust(&mut request);
    run.resume_from_checkpoint(rank, request)
}

/// Resumes and compares every byte with those of `content`; gives the iteration.
pub fn resume_and_check(run: &mut TrainingRun, rank: &ThreadRank, content: u64) -> Resumed {
    let resumed = resume(run, rank).unwrap().expect("there is a checkpoint");
    check(&resumed, rank, content);
    resumed
}

pub fn check(resumed: &Resumed, rank: &ThreadRank, content: u64) {
    for (key, expected) in buffers(&dict(rank.rank(), rank.size()), content) {
        assert_eq!(first_difference(resumed.tensors[&key].as_ref(), &expected), None, "{key}");
    }
}

/// Saves these iterations with nothing pruned, from two ranks.
pub fn saved(storage: &Store, iterations: &[u64]) {
    on_ranks(2, |rank| {
        let mut run = run(storage, &rank, Retention::All);
        for &iteration in iterations {
            save(&mut run, &rank, iteration).unwrap();
        }
    });
}

/// Waits for a storage call from a test's thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Paths of everything that lies below `prefix`.
pub fn paths(storage: &Store, prefix: &str) -> Vec<String> {
    let prefix = (!prefix.is_empty()).then(|| StoragePath::parse(prefix).unwrap());
    let listing = wait(storage.list(prefix.as_ref(), Depth::All)).unwrap();
    listing.objects.into_iter().map(|object| object.path.to_string()).collect()
}

/// The iterations that can be resumed from, newest first.
pub fn committed(storage: &Store) -> Vec<u64> {
    use reshard::format::Commit;
    let checkpoint = checkpoint(storage, meetings());
    let live = |iteration: &Iteration| {
        let path = StoragePath::parse(format!("{iteration}/commit.json")).unwrap();
        match wait(storage.read_all(&path, 1 << 20)) {
            Ok((bytes, _)) => matches!(Commit::parse("c", &bytes).unwrap(), Commit::Committed(_)),
            Err(error) => {
                assert!(error.is_not_found(), "{error}");
                false
            }
        }
    };
    checkpoint.iterations().unwrap().into_iter().filter(live).map(|iteration| iteration.0).collect()
}
