use super::{FoundCommit, commit_path, iteration_path, read_commit};
use crate::checkpoint::CheckpointError;
use crate::format::{AttemptId, Commit, DeletedCheckpoint, Iteration};
use crate::transfer::TransferError;
use bytes::Bytes;
use reshard_storage::{Depth, Expect, Outcome, StorageBackend, StoragePath, conditional_put};
use std::time::Duration;

/// How long the outcome of marking one commit is looked for.
const MARK_WITHIN: Duration = Duration::from_secs(60);

/// What became of an iteration that was to be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Removal {
    /// Its commit says `deleted` and none of its attempts' objects are left.
    Gone {
        /// Objects that this call deleted.
        objects: u64,
    },
    /// It is pinned, so it stays.
    Pinned,
    /// It has no commit: whatever lies there may be a save under way, which only gc judges.
    Uncommitted,
    /// Another writer changed its commit meanwhile; nothing was deleted.
    Changed,
}

/// Removes an iteration, or finishes a removal that was interrupted: marks its commit as deleted, then deletes the
/// attempts that were listed before.
///
/// An attempt lists only after it has read the commit that its own is conditional on. So once the mark is written, no
/// attempt of the listing can be committed any more, and one that begins after the mark is not in the listing. Whatever
/// moment this is interrupted at, there is a whole checkpoint or a commit that says `deleted`.
pub(crate) async fn remove(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<Removal, CheckpointError> {
    let Some(FoundCommit { commit, version }) = read_commit(storage, iteration).await? else {
        return Ok(Removal::Uncommitted);
    };
    let live = match &commit {
        Commit::Committed(checkpoint) if !checkpoint.pins().is_empty() => return Ok(Removal::Pinned),
        Commit::Committed(_) => true,
        Commit::Deleted(_) => false,
    };
    let attempts = attempts(storage, iteration).await?;
    if !live && attempts.is_empty() {
        return Ok(Removal::Gone { objects: 0 });
    }
    if !storage.capabilities().conditional_update {
        return Err(cannot_remove(storage));
    }
    let mark = Bytes::from(Commit::Deleted(DeletedCheckpoint::new()?).to_bytes());
    let path = commit_path(iteration).map_err(TransferError::from)?;
    match conditional_put(storage, &path, mark, &Expect::Version(version), MARK_WITHIN).await? {
        Outcome::Written(_) => {}
        Outcome::Lost { .. } => return Ok(Removal::Changed),
        Outcome::Unknown { cause } => return Err(cause.into()),
    }
    let mut objects = 0;
    for attempt in attempts {
        objects += storage.delete_prefix(&attempt).await?;
    }
    Ok(Removal::Gone { objects })
}

/// What a store without conditional updates answers to everything that removes.
pub(crate) fn cannot_remove(storage: &dyn StorageBackend) -> CheckpointError {
    CheckpointError::Unsupported {
        store: storage.to_string(),
        what: "update an object on a condition, which replacing, removing and pinning checkpoints need",
    }
}

/// The attempts' directories. What has another name is not ours and stays.
async fn attempts(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<Vec<StoragePath>, CheckpointError> {
    let directory = iteration_path(iteration).map_err(TransferError::from)?;
    let listing = storage.list(Some(&directory), Depth::Children).await?;
    let ours = |path: &StoragePath| AttemptId::from_directory(path.name()).is_ok();
    Ok(listing.prefixes.into_iter().filter(ours).collect())
}
