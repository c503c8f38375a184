//! The layout that a verb asks about: a topology and the rules that shard the checkpoint's tensors over it.

use super::exit::{Exit, Failure};
use super::inspect::checkpoint_name;
use super::text::brief;
use crate::checkpoint::Inspection;
use crate::format::SavedLayout;
use clap::{Args, ValueEnum};
use reshard_shard::{
    BoundRules, Family, INFINITRAIN_ORDER, MEGATRON_ORDER, Naming, ParallelSizes, Preset, Rules, ShardError,
    Topology, UnshardedTensor,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The topology to load onto.
#[derive(Args)]
#[command(next_help_heading = "New topology")]
pub(super) struct Target {
    /// Tensor parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: u64,
    /// Pipeline parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    pp: u64,
    /// Data parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    dp: u64,
    /// Context parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    cp: u64,
    /// Expert parallel ranks, out of the others
    #[arg(long, value_name = "N", default_value_t = 1)]
    ep: u64,
    /// Model chunks of each pipeline rank
    #[arg(long, value_name = "N", default_value_t = 1)]
    vpp: u64,
    /// How ranks are numbered: the axes, the fastest first
    #[arg(long, value_enum, default_value_t = Order::Megatron)]
    order: Order,
    /// A TOML table that says how keys are sharded (docs/sharding.md); found out from keys and shapes where not given
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// ZeRO stage of the optimizer state: 0 as its parameters, 1 dealt over data parallel ranks
    #[arg(long, value_name = "STAGE")]
    zero: Option<u8>,
}

/// More than any cluster has, and few enough for memory.
const MOST_RANKS: u64 = 1 << 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Order {
    /// tp cp ep dp pp
    Megatron,
    /// tp dp pp
    Infinitrain,
}

/// A topology with the checkpoint's tensors sharded over it.
pub(super) struct Sharded {
    pub(super) bound: BoundRules,
    /// Where the rules are from.
    pub(super) rules: String,
}

impl Target {
    /// Applies the rules to the tensors of a checkpoint.
    pub(super) fn bind(&self, inspection: &Inspection) -> Result<Sharded, Failure> {
        let topology = self.topology()?;
        let tensors: Vec<UnshardedTensor> = inspection
            .layout
            .tensors
            .iter()
            .map(|(key, tensor)| UnshardedTensor::from((key.as_str(), tensor.dtype, &tensor.global_shape)))
            .collect();
        let (mut rules, source) = match &self.rules {
            Some(path) => (read(path)?, path.display().to_string()),
            None => {
                let preset = detect(inspection, &tensors)?;
                (preset.rules(), name(&preset))
            }
        };
        if let Some(zero) = self.zero {
            rules.optimizer.zero = zero;
        }
        let bound = rules.bind(tensors, &topology).map_err(|error| {
            let exit = Failure::from(error.clone()).exit;
            let hint = match &self.rules {
                Some(_) => format!("the rules are those in {source}; docs/sharding.md has all that they can say"),
                None => format!(
                    "the rules are those of the {source}; --rules FILE takes a table of your own (docs/sharding.md)"
                ),
            };
            Failure::new(exit, format!("{error}\n{hint}"))
        })?;
        if self.zero.is_some_and(|zero| zero > 0) && bound.dealt_states() == 0 {
            return Err(Failure::usage(format!(
                "--zero: the rules ({source}) find no optimizer state in this checkpoint that could be dealt; leave it out"
            )));
        }
        Ok(Sharded { bound, rules: source })
    }

    fn topology(&self) -> Result<Topology, Failure> {
        let &Self { tp, cp, dp, pp, ep, vpp, .. } = self;
        self.check_sizes()?;
        let sizes = ParallelSizes { tp, cp, dp, pp, ep, vpp, etp: None };
        match self.order {
            Order::Megatron => Ok(sizes.in_order(&MEGATRON_ORDER)?),
            Order::Infinitrain => Ok(sizes.in_order(&INFINITRAIN_ORDER)?),
        }
    }

    /// Refuses sizes that no cluster has: what is planned takes memory for each rank and each model chunk.
    fn check_sizes(&self) -> Result<(), Failure> {
        let &Self { tp, cp, dp, pp, ep, vpp, .. } = self;
        for (what, sizes) in [
            ("ranks", &[("--tp", tp), ("--pp", pp), ("--dp", dp), ("--cp", cp)][..]),
            ("expert parallel ranks", &[("--ep", ep)]),
            ("model chunks", &[("--pp", pp), ("--vpp", vpp)]),
        ] {
            let total = sizes.iter().try_fold(1, |total: u64, &(_, size)| total.checked_mul(size));
            if total.is_none_or(|total| total > MOST_RANKS) {
                let given = sizes.iter().filter(|&&(_, size)| size > 1);
                let given: Vec<String> = given.map(|(name, size)| format!("{name} {size}")).collect();
                return Err(Failure::usage(format!(
                    "{} make more than {MOST_RANKS} {what}; correct the sizes",
                    given.join(" ")
                )));
            }
        }
        Ok(())
    }
}

fn read(path: &PathBuf) -> Result<Rules, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("can't read the rules in {}: {error}; correct --rules", path.display()))
    })?;
    Rules::from_toml(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The preset whose names and shapes the tensors have, with what shapes alone do not tell taken from the checkpoint.
fn detect(inspection: &Inspection, tensors: &[UnshardedTensor]) -> Result<Preset, Failure> {
    let Some(mut preset) = Preset::detect(tensors) else {
        let keys: Vec<String> =
            tensors.iter().take(3).map(|tensor| format!("`{}`", brief(&tensor.key))).collect();
        return Err(Failure::usage(format!(
            "no known model has tensors like {} of {}; say how they are sharded in a TOML file and pass it with \
             --rules FILE (docs/sharding.md has all of it). This one keeps everything whole on every rank but \
             weights named *.up.weight, which it cuts along axis 0 over tp:\n\n\
             [[rule]]\nkeys = [\"*.up.weight\"]\ncut = [{{ axis = 0, over = \"tp\" }}]\n\n\
             [[rule]]\nkeys = [\"*\"]\nreplicated = true",
            keys.join(", "),
            checkpoint_name(inspection),
        )));
    };
    let (config, state) = (&mut preset.config, inspection.trainer_state.as_ref());
    let stated = state.map(|state| state.model.clone()).unwrap_or_default();
    if let Some(heads) = stated.n_head.filter(|&heads| heads > 0) {
        let (q, kv) = (config.n_head * config.head_dim, config.n_kv_head * config.head_dim);
        if let Some(head_dim) = q.checked_div(heads).filter(|&head_dim| head_dim > 0) {
            config.head_dim = head_dim;
            config.n_head = heads;
            config.n_kv_head = kv / head_dim;
        }
    }
    let vocabulary =
        stated.original_vocab_size.or(logical_rows(&inspection.layout, config.padded_vocab_size));
    if let Some(rows) = vocabulary.filter(|&rows| rows <= config.padded_vocab_size) {
        config.original_vocab_size = rows;
    }
    Ok(preset)
}

/// Rows without padding of a tensor with so many rows with it.
fn logical_rows(layout: &SavedLayout, padded: u64) -> Option<u64> {
    layout.tensors.values().find_map(|tensor| {
        let logical = tensor.logical_shape.as_ref()?;
        (tensor.global_shape.first() == Some(&padded)).then(|| logical.first().copied()).flatten()
    })
}

fn name(preset: &Preset) -> String {
    let family = match preset.config.family {
        Family::Gpt2 => "GPT-2",
        Family::Llama3 => "LLaMA-3",
    };
    let naming = match preset.naming {
        Naming::InfiniTrain => "InfiniTrain",
        Naming::HuggingFace => "Hugging Face",
    };
    format!("preset {family} in the names of {naming}")
}

/// The axes and their sizes; those of expert layers only where there are expert parallel ranks.
pub(super) fn axes(topology: &Topology) -> impl Iterator<Item = (&str, u64)> {
    let experts = topology.size("ep").is_ok_and(|size| size > 1);
    topology.axes().filter(move |(axis, _)| experts || !matches!(*axis, "ep" | "etp" | "edp"))
}

/// A rank's place along each axis that has more than one.
pub(super) fn coordinates(topology: &Topology, rank: u64) -> BTreeMap<String, u64> {
    let axes = axes(topology).filter(|&(_, size)| size > 1);
    axes.filter_map(|(axis, _)| Some((axis.to_owned(), topology.coordinate(rank, axis).ok()?))).collect()
}

/// Refuses a rank that the topology does not have.
pub(super) fn check_rank(topology: &Topology, rank: u64) -> Result<(), Failure> {
    if rank < topology.world_size() {
        return Ok(());
    }
    let error = ShardError::Rank { rank, world_size: topology.world_size() };
    Err(Failure::new(Exit::Usage, format!("{error}; correct --rank or the sizes")))
}
