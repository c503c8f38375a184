use super::{cannot_remove, commit_path, iteration_path, read_commit};
use crate::checkpoint::CheckpointError;
use crate::format::{AttemptId, Commit, CommittedCheckpoint, Iteration};
use crate::transfer::TransferError;
use bytes::Bytes;
use reshard_storage::{Expect, Outcome, StorageBackend, StoragePath, Version, conditional_put};
use std::time::Duration;

/// What an attempt saw before its first upload. Its commit is conditional on exactly that, which keeps late writers
/// out: whoever deletes an attempt's objects moves commit.json past this first.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Opening {
    pub(crate) iteration: Iteration,
    pub(crate) attempt: AttemptId,
    expect: Expect,
}

impl Opening {
    /// The attempt's directory, relative to the run.
    pub(crate) fn directory(&self) -> Result<StoragePath, TransferError> {
        Ok(iteration_path(self.iteration)?.join(&self.attempt.directory())?)
    }
}

/// Draws an attempt and reads the state of commit.json that it starts from.
///
/// # Errors
/// [`CheckpointError::Exists`] for a live commit, unless `replace`; [`CheckpointError::Pinned`] for a pinned one even then;
/// [`CheckpointError::Unsupported`] for a store without the conditional put that the commit will need.
pub(crate) async fn open_attempt(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    replace: bool,
) -> Result<Opening, CheckpointError> {
    let capabilities = storage.capabilities();
    if !capabilities.conditional_create {
        let what = "create an object only where none is, which a commit needs";
        return Err(CheckpointError::Unsupported { store: storage.to_string(), what });
    }
    // A configured replacement is refused at once, not on the day when there is something to replace.
    if replace && !capabilities.conditional_update {
        return Err(cannot_remove(storage));
    }
    let expect = match read_commit(storage, iteration).await? {
        None => Expect::Absent,
        Some(found) => {
            match &found.commit {
                Commit::Committed(_) if !replace => {
                    return Err(CheckpointError::Exists { iteration: iteration.0 });
                }
                Commit::Committed(checkpoint) if !checkpoint.pins().is_empty() => {
                    return Err(CheckpointError::Pinned { iterations: vec![iteration.0] });
                }
                _ => {}
            }
            if !capabilities.conditional_update {
                return Err(cannot_remove(storage));
            }
            Expect::Version(found.version)
        }
    };
    Ok(Opening { iteration, attempt: AttemptId::draw()?, expect })
}

/// Publishes the attempt: the one conditional put that makes it a checkpoint.
///
/// # Errors
/// [`CheckpointError::Lost`] where another writer was faster, [`CheckpointError::Unknown`] where no answer came within
/// `within`; others where nothing was written.
pub(crate) async fn publish(
    storage: &dyn StorageBackend,
    opening: &Opening,
    checkpoint: CommittedCheckpoint,
    within: Duration,
) -> Result<Version, CheckpointError> {
    let path = commit_path(opening.iteration).map_err(TransferError::from)?;
    let bytes = Bytes::from(Commit::Committed(checkpoint).to_bytes());
    match conditional_put(storage, &path, bytes, &opening.expect, within).await? {
        Outcome::Written(version) => Ok(version),
        Outcome::Lost { .. } => Err(CheckpointError::Lost { iteration: opening.iteration.0 }),
        Outcome::Unknown { cause } => {
            Err(CheckpointError::Unknown { iteration: opening.iteration.0, cause: cause.to_string() })
        }
    }
}

/// Deletes what an attempt has written. Only for rank 0 of the attempt itself, once it has decided never to publish.
pub(crate) async fn delete_attempt(
    storage: &dyn StorageBackend,
    opening: &Opening,
) -> Result<u64, CheckpointError> {
    Ok(storage.delete_prefix(&opening.directory()?).await?)
}
