use super::{MAX_COMMIT_BYTES, commit_path};
use crate::checkpoint::CheckpointError;
use crate::format::{Commit, CommittedCheckpoint, Iteration};
use reshard_storage::{Depth, StorageBackend, Version};

/// A commit.json as it lies on storage.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FoundCommit {
    pub(crate) commit: Commit,
    pub(crate) version: Version,
}

/// The iteration's commit.json; `None` where there is none.
pub(crate) async fn read_commit(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<Option<FoundCommit>, CheckpointError> {
    let path = commit_path(iteration).map_err(crate::transfer::TransferError::from)?;
    match storage.read_all(&path, MAX_COMMIT_BYTES).await {
        Ok((bytes, version)) => {
            let commit = Commit::parse(path.as_str(), &bytes)?.in_directory_of(iteration, path.as_str())?;
            Ok(Some(FoundCommit { commit, version }))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// All iterations that have a directory, newest first, committed or not. Other names are passed over.
pub(crate) async fn list_iterations(storage: &dyn StorageBackend) -> Result<Vec<Iteration>, CheckpointError> {
    let listing = storage.list(None, Depth::Children).await?;
    let mut iterations: Vec<Iteration> =
        listing.prefixes.iter().filter_map(|prefix| prefix.name().parse().ok()).collect();
    iterations.sort_unstable_by(|a, b| b.cmp(a));
    Ok(iterations)
}

/// The newest committed iteration. Iterations without a commit, or with a deleted one, are passed over; a damaged
/// commit is an error, never a reason to fall back in silence.
pub(crate) async fn newest(
    storage: &dyn StorageBackend,
) -> Result<Option<(Iteration, CommittedCheckpoint)>, CheckpointError> {
    for iteration in list_iterations(storage).await? {
        if let Some(FoundCommit { commit: Commit::Committed(checkpoint), .. }) =
            read_commit(storage, iteration).await?
        {
            return Ok(Some((iteration, checkpoint)));
        }
    }
    Ok(None)
}

/// The committed iterations that are newer than `iteration`, newest first.
pub(crate) async fn committed_after(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<Vec<(Iteration, CommittedCheckpoint)>, CheckpointError> {
    let mut committed = Vec::new();
    for newer in list_iterations(storage).await?.into_iter().take_while(|newer| *newer > iteration) {
        if let Some(FoundCommit { commit: Commit::Committed(checkpoint), .. }) =
            read_commit(storage, newer).await?
        {
            committed.push((newer, checkpoint));
        }
    }
    Ok(committed)
}
