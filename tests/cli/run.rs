//! A run on disk: a small GPT-2 with Adam, saved by eight ranks (TP 2 x PP 2 x DP 2) that are threads.

use reshard::checkpoint::{Checkpoint, LoadReport, LoadRequest, Options, SaveRequest};
use reshard::collective::{Collective, Single, ThreadRank, Threads};
use reshard::format::{
    Commit, Iteration, ModelConfig as StatedModel, ParallelSizes as RanWith, TrainerState,
};
use reshard::plan::{LoadRules, ObjectChoice};
use reshard::shard::{
    BoundRules, DType, ModelConfig, Naming, ParallelSizes, Preset, Rule, Rules, ShardedStateDict, Topology,
};
use reshard::storage::OpenOptions;
use reshard_oracle::{cut, full_tensor};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A run in a directory of its own.
pub struct Run {
    pub directory: TempDir,
}

pub fn model() -> ModelConfig {
    ModelConfig {
        n_layer: 4,
        n_head: 4,
        n_kv_head: 4,
        n_embd: 256,
        original_vocab_size: 1000,
        padded_vocab_size: 1024,
        hidden: 1024,
        block_size: 64,
        head_dim: 64,
        ..ModelConfig::GPT2_124M
    }
}

pub fn preset() -> Preset {
    Preset::new(Naming::InfiniTrain, model())
}

pub fn topology(tp: u64, pp: u64, dp: u64) -> Topology {
    ParallelSizes { tp, pp, dp, ..Default::default() }.topology().unwrap()
}

pub fn bound(topology: &Topology) -> BoundRules {
    preset().bind_with_adam(DType::BF16, topology).unwrap()
}

fn trainer_state(step: u64) -> TrainerState {
    let size = |size| NonZeroU32::new(size).unwrap();
    let ran_with = RanWith { tp: size(2), pp: size(2), dp: size(2), sp: size(1), vpp: size(1) };
    let model = model();
    TrainerState {
        global_step: step,
        consumed_train_samples: step * 8,
        model: StatedModel {
            n_layer: Some(model.n_layer),
            n_head: Some(model.n_head),
            n_kv_head: Some(model.n_kv_head),
            n_embd: Some(model.n_embd),
            original_vocab_size: Some(model.original_vocab_size),
            padded_vocab_size: Some(model.padded_vocab_size),
            ..StatedModel::default()
        },
        ran_with,
        lr_scheduler: serde_json::Value::Null,
        user: serde_json::Value::Null,
    }
}

/// Runs `work` on every rank of a group of threads; results in the order of ranks.
fn on_ranks<T: Send>(ranks: u64, work: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
    let handles = Threads::new(ranks as usize).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = handles.into_iter().map(|handle| scope.spawn(|| work(handle))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The bytes of a whole tensor. The output head is tied to the embedding, also where each has a stage of its own.
pub fn content(key: &str, dtype: DType, global_shape: &[u64]) -> Vec<u8> {
    full_tensor(&key.replace("lm_head.weight", "transformer.wte.weight"), dtype, global_shape)
}

impl Run {
    /// With these iterations, each saved by eight ranks.
    pub fn with(iterations: &[u64]) -> Self {
        let run = Self { directory: tempfile::tempdir().unwrap() };
        for &iteration in iterations {
            run.save(iteration);
        }
        run
    }

    pub fn uri(&self) -> &str {
        self.directory.path().to_str().unwrap()
    }

    pub fn checkpoint(&self) -> Checkpoint {
        let storage = OpenOptions::new().without_environment();
        Checkpoint::open(self.uri(), storage, Options::default()).unwrap()
    }

    fn save(&self, iteration: u64) {
        let topology = topology(2, 2, 2);
        let bound = bound(&topology);
        on_ranks(8, |rank| {
            let number = rank.rank();
            let dict = bound.rank(number as u64).unwrap();
            let buffers: BTreeMap<&str, Vec<u8>> = dict
                .iter()
                .map(|(key, shard)| (key, cut(&content(key, shard.dtype(), shard.global_shape()), shard)))
                .collect();
            let data = buffers.iter().map(|(&key, bytes)| (key, bytes.as_slice())).collect();
            let state = trainer_state(iteration);
            let mut request = SaveRequest::new(Iteration(iteration), &dict, data, &state);
            let object = [number as u8; 100];
            request.objects.insert("rng".to_owned(), &object);
            self.checkpoint().save(&rank, request).unwrap();
        });
    }

    /// Saves tensors of names that no preset knows from one rank.
    pub fn save_others(&self, iteration: u64, tensors: &[(&str, DType, &[u64])]) {
        let rules = Rules { rules: vec![Rule::replicated(["*"])], ..Rules::default() };
        let dict = rules.apply(tensors.iter().copied(), &Topology::sole(), 0).unwrap();
        let contents: Vec<_> =
            tensors.iter().map(|&(key, dtype, shape)| (key, content(key, dtype, shape))).collect();
        let data = contents.iter().map(|(key, bytes)| (*key, bytes.as_slice())).collect();
        let state = TrainerState { model: StatedModel::default(), ..trainer_state(iteration) };
        self.checkpoint().save(&Single, SaveRequest::new(Iteration(iteration), &dict, data, &state)).unwrap();
    }

    /// What each rank of a real load reports.
    pub fn load(&self, topology: &Topology, rules: &LoadRules) -> Vec<LoadReport> {
        let bound = bound(topology);
        let load = |collective: &dyn Collective, dict: ShardedStateDict| {
            let mut request = LoadRequest::new(&dict);
            request.objects = ObjectChoice::Fresh;
            request.rules = rules.clone();
            self.checkpoint().load(collective, request).unwrap().report
        };
        if topology.world_size() == 1 {
            return vec![load(&Single, bound.rank(0).unwrap())];
        }
        on_ranks(topology.world_size(), |rank| load(&rank, bound.rank(rank.rank() as u64).unwrap()))
    }

    /// The directory of an iteration.
    pub fn iteration(&self, iteration: u64) -> PathBuf {
        self.directory.path().join(Iteration(iteration).to_string())
    }

    /// The directory of an iteration's committed attempt.
    pub fn attempt(&self, iteration: u64) -> PathBuf {
        let commit = std::fs::read(self.iteration(iteration).join("commit.json")).unwrap();
        let commit = Commit::parse("commit.json", &commit).unwrap().committed("the run").unwrap();
        self.iteration(iteration).join(commit.attempt().directory())
    }

    /// A path as reports name it: relative to the run.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(self.directory.path()).unwrap().to_str().unwrap().to_owned()
    }
}
