use super::{FoundCommit, iteration_path, read_commit};
use crate::checkpoint::CheckpointError;
use crate::format::{AttemptId, Commit, CommittedCheckpoint, Iteration, METADATA_FILE, Metadata};
use crate::transfer::TransferError;
use reshard_storage::{Depth, StorageBackend, StoragePath};
use std::collections::BTreeMap;

/// The attempt that an iteration's commit names now, if it is committed.
pub(crate) async fn named_attempt(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<Option<AttemptId>, CheckpointError> {
    Ok(match read_commit(storage, iteration).await? {
        Some(FoundCommit { commit: Commit::Committed(checkpoint), .. }) => Some(checkpoint.attempt().clone()),
        _ => None,
    })
}

/// Whether every file of a committed checkpoint is listed with its length. `attempt` is the one that its commit must
/// name.
///
/// # Errors
/// [`CheckpointError::AttemptChanged`] that names the first file at fault; [`CheckpointError::Lost`] where the commit
/// names another attempt or none.
pub(crate) async fn check_whole(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    attempt: &AttemptId,
) -> Result<(), CheckpointError> {
    let committed = match read_commit(storage, iteration).await? {
        Some(FoundCommit { commit: Commit::Committed(checkpoint), .. })
            if checkpoint.attempt() == attempt =>
        {
            checkpoint
        }
        _ => return Err(CheckpointError::Lost { iteration: iteration.0 }),
    };
    let directory = iteration_path(iteration).map_err(TransferError::from)?;
    let metadata = read_metadata(storage, &directory, &committed).await?;
    let files = metadata.layout.files.iter().map(|file| (file.path.as_str(), file.length));
    let documents = [
        (METADATA_FILE, committed.metadata().length),
        (metadata.trainer_state.path.as_str(), metadata.trainer_state.length),
    ];
    let directory = directory.join(&attempt.directory()).map_err(TransferError::from)?;
    check_listing(storage, &directory, attempt, files.chain(documents)).await
}

async fn read_metadata(
    storage: &dyn StorageBackend,
    directory: &StoragePath,
    committed: &CommittedCheckpoint,
) -> Result<Metadata, CheckpointError> {
    let digest = committed.metadata();
    let path = directory.join(&digest.path).map_err(TransferError::from)?;
    let (bytes, _) = storage.read_all(&path, digest.length).await?;
    digest.check(&bytes)?;
    Ok(Metadata::parse(path.as_str(), &bytes)?)
}

/// Lists an attempt once and compares the lengths of the `wanted` files, whose paths are relative to it.
pub(crate) async fn check_listing(
    storage: &dyn StorageBackend,
    directory: &StoragePath,
    attempt: &AttemptId,
    wanted: impl Iterator<Item = (&str, u64)>,
) -> Result<(), CheckpointError> {
    let listing = storage.list(Some(directory), Depth::All).await?;
    let found: BTreeMap<&str, u64> = listing
        .objects
        .iter()
        .filter_map(|object| Some((object.path.strip_prefix(directory)?, object.len)))
        .collect();
    for (file, length) in wanted {
        let detail = match found.get(file) {
            Some(&there) if there == length => continue,
            Some(there) => format!("has {there} bytes instead of {length}"),
            None => "is missing".to_owned(),
        };
        let attempt = attempt.to_string();
        return Err(CheckpointError::AttemptChanged { attempt, file: file.to_owned(), detail });
    }
    Ok(())
}
