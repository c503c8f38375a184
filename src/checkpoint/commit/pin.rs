use super::{FoundCommit, cannot_remove, commit_path, read_commit};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::error::LOOK;
use crate::format::{Commit, Iteration};
use crate::transfer::TransferError;
use bytes::Bytes;
use reshard_storage::{Expect, Outcome, StorageBackend, conditional_put};
use std::time::Duration;

/// How long the outcome of the update is looked for.
const WITHIN: Duration = Duration::from_secs(60);

/// Adds or takes away a pin of a committed iteration. A pin and a removal cannot cross: both move the same commit.
pub(crate) async fn set_pin(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    name: &str,
    pinned: bool,
) -> Result<(), CheckpointError> {
    if !storage.capabilities().conditional_update {
        return Err(cannot_remove(storage));
    }
    let place = format!("{iteration} in {storage}");
    let Some(FoundCommit { commit, version }) = read_commit(storage, iteration).await? else {
        let hint = LOOK.to_owned();
        return Err(CheckpointError::NoCheckpoint { place, hint });
    };
    let checkpoint = commit.committed(&place)?;
    let mut pins = checkpoint.pins().clone();
    let changed = if pinned { pins.insert(name.to_owned()) } else { pins.remove(name) };
    if !changed {
        return Ok(());
    }
    let bytes = Bytes::from(Commit::Committed(checkpoint.with_pins(pins)?).to_bytes());
    let path = commit_path(iteration).map_err(TransferError::from)?;
    match conditional_put(storage, &path, bytes, &Expect::Version(version), WITHIN).await? {
        Outcome::Written(_) => Ok(()),
        Outcome::Lost { .. } => Err(CheckpointError::Lost { iteration: iteration.0 }),
        Outcome::Unknown { cause } => Err(cause.into()),
    }
}
