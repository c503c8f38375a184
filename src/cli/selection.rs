//! What of a checkpoint a planned load would want.

use super::exit::Failure;
use crate::plan::{LoadRules, Select};
use clap::Args;
use reshard_shard::StateGroup;

/// What is loaded, and how.
#[derive(Args)]
#[command(next_help_heading = "Load")]
pub(super) struct Selection {
    /// `model`, `optimizer`, or a glob of keys; repeat it for more globs
    #[arg(long, value_name = "WHAT")]
    select: Vec<String>,
    /// As a load that compares no checksums: blocks need not be read whole
    #[arg(long)]
    no_verify: bool,
}

impl Selection {
    /// The rules of such a load.
    pub(super) fn rules(&self) -> Result<LoadRules, Failure> {
        let has = |group: &str| self.select.iter().any(|what| what == group);
        let select = match (has("model"), has("optimizer")) {
            (true, false) => Select::group(StateGroup::Model),
            (false, true) => Select::group(StateGroup::Optimizer),
            _ => Select::all(),
        };
        let globs: Vec<&str> = self
            .select
            .iter()
            .map(String::as_str)
            .filter(|&what| what != "model" && what != "optimizer")
            .collect();
        let select = if globs.is_empty() { select } else { select.keys(globs)? };
        Ok(LoadRules { select, verify: self.verifies(), ..LoadRules::default() })
    }

    /// Whether checksums are compared.
    pub(super) fn verifies(&self) -> bool {
        !self.no_verify
    }
}
