//! Everything that writes or deletes a commit. No other module does.

mod find;
mod publish;

pub(crate) use find::{FoundCommit, list_iterations, newest, read_commit};
pub(crate) use publish::{Opening, delete_attempt, open_attempt, publish};

use crate::format::{COMMIT_FILE, Iteration};
use reshard_storage::{InvalidPath, StoragePath};

/// Longest commit.json that is read: about 1 KB, and room for pins.
pub(crate) const MAX_COMMIT_BYTES: u64 = 1 << 20;

/// The directory of an iteration, relative to the run.
pub(crate) fn iteration_path(iteration: Iteration) -> Result<StoragePath, InvalidPath> {
    StoragePath::parse(iteration.to_string())
}

pub(crate) fn commit_path(iteration: Iteration) -> Result<StoragePath, InvalidPath> {
    iteration_path(iteration)?.join(COMMIT_FILE)
}
