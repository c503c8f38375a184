//! Sharding rules: a small table that turns unsharded shapes and a topology into any rank's state dict.
//!
//! A framework that knows its own shards needs none of this. Rules are for everything that has no framework at
//! hand: the command line, plans for a topology that does not run yet, tests and benchmarks.

mod bind;
mod pattern;
mod sharding;
mod stage;
mod state;
mod table;
mod zero;

pub use bind::BoundRules;
pub use table::{
    CutRule, ExpertRule, OptimizerRules, PaddingRule, PieceKind, PipelineRules, Rule, Rules, StateRule,
};

use crate::{DType, Dims, ShardError, ShardedStateDict, Topology};

/// A tensor as it is before any sharding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnshardedTensor {
    /// Its key.
    pub key: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, in elements.
    pub global_shape: Dims,
}

impl<K: Into<String>, S: AsRef<[u64]>> From<(K, DType, S)> for UnshardedTensor {
    fn from((key, dtype, shape): (K, DType, S)) -> Self {
        Self { key: key.into(), dtype, global_shape: Dims::from_slice(shape.as_ref()) }
    }
}

impl Rules {
    /// Reads a table.
    ///
    /// # Errors
    /// [`ShardError::Rules`] with the line and what is wrong there; an unknown field is an error.
    pub fn from_toml(text: &str) -> Result<Self, ShardError> {
        toml::from_str(text).map_err(|error| ShardError::Rules { why: error.to_string() })
    }

    /// The state dict of `rank`: of these tensors those that its pipeline stage holds, and of its experts.
    ///
    /// For many ranks, [`Rules::bind`] once and ask [`BoundRules::rank`].
    ///
    /// # Errors
    /// As [`Rules::bind`] and [`BoundRules::rank`].
    pub fn apply<T: Into<UnshardedTensor>>(
        &self,
        tensors: impl IntoIterator<Item = T>,
        topology: &Topology,
        rank: u64,
    ) -> Result<ShardedStateDict, ShardError> {
        self.bind(tensors, topology)?.rank(rank)
    }
}
