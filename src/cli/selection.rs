//! What of a checkpoint a planned load would want.

use super::exit::{Exit, Failure};
use super::inspect::{checkpoint_name, no_such_tensor};
use crate::checkpoint::Inspection;
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
        let globs: Vec<&str> = self.globs().collect();
        let select = if globs.is_empty() { select } else { select.keys(globs)? };
        Ok(LoadRules { select, verify: self.verifies(), ..LoadRules::default() })
    }

    fn globs(&self) -> impl Iterator<Item = &str> {
        self.select.iter().map(String::as_str).filter(|&what| what != "model" && what != "optimizer")
    }

    /// Refuses a glob that no key of the checkpoint matches, and a selection that leaves nothing: a load of nothing
    /// costs nothing, which would be taken for good news.
    pub(super) fn check(&self, inspection: &Inspection, rules: &LoadRules) -> Result<(), Failure> {
        let tensors = &inspection.layout.tensors;
        for glob in self.globs() {
            let only = Select::all().keys([glob])?;
            if !tensors.iter().any(|(key, tensor)| only.wants(key, tensor.group)) {
                return Err(no_such_tensor(inspection, glob));
            }
        }
        let wanted = tensors.iter().any(|(key, tensor)| rules.select.wants(key, tensor.group));
        if self.select.is_empty() || wanted {
            return Ok(());
        }
        let (name, selected) = (checkpoint_name(inspection), self.select.join(" --select "));
        let message = format!("{name} has no tensor that is selected by --select {selected}");
        Err(Failure::new(Exit::NotFound, message))
    }

    /// Whether checksums are compared.
    pub(super) fn verifies(&self) -> bool {
        !self.no_verify
    }
}
