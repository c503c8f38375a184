//! Everything that writes or deletes a commit. No other module does.

mod find;
mod pin;
mod publish;
mod remove;
mod whole;

pub(crate) use find::{FoundCommit, committed_after, list_iterations, newest, read_commit};
pub(crate) use pin::set_pin;
pub(crate) use publish::{Opening, delete_attempt, open_attempt, publish};
pub(crate) use remove::{Removal, cannot_remove, remove};
pub(crate) use whole::{check_listing, check_whole, named_attempt};

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
