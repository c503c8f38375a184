//! What a shard is.
//!
//! A tensor has a *global shape*. What one rank holds of it, a *shard*, is a list of [`Region`]s, n-d boxes in
//! global coordinates, each with a place in the rank's local buffer. Column, row and vocabulary parallelism are
//! one region; packed QKV is one per segment; expert parallelism, FSDP2 and a slice of a ZeRO bucket are regions
//! too. There is no second mechanism.
//!
//! This crate does no I/O and depends on no other crate of the project, so that a training framework's layer code
//! can depend on it alone.

mod coverage;
mod cut;
mod dtype;
mod error;
mod flat;
mod overlap;
mod placement;
mod presets;
mod region;
mod replica;
mod rules;
mod split;
mod state_dict;
mod tensor;
mod topology;

pub use coverage::{CoverageFault, FaultKind, prove_tiling};
pub use cut::{CutError, Cuts, Pieces, Spans};
pub use dtype::DType;
pub use error::ShardError;
pub use flat::{FlatBuffer, FlatPart};
pub use placement::Placement;
pub use presets::{Family, ModelConfig, Naming, Preset, llama_hidden};
pub use region::{Dims, MAX_AXES, Region, RegionError, volume_of};
pub use replica::{GroupId, Replica};
pub use rules::{
    BoundRules, CutRule, ExpertRule, OptimizerRules, PaddingRule, PieceKind, PipelineRules, Rule, Rules,
    StateRule, UnshardedTensor,
};
pub use split::Split;
pub use state_dict::ShardedStateDict;
pub use tensor::{ShardedTensor, ShardedTensorBuilder, StateGroup};
pub use topology::{INFINITRAIN_ORDER, LayerStages, MEGATRON_ORDER, ParallelSizes, Topology};

/// The page's examples are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/sharding.md")]
struct Sharding;
