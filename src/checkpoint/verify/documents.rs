//! The small objects, and the list of all objects.

use super::{VerifyFault, VerifyFaultKind, VerifyReport};
use crate::checkpoint::commit::{commit_path, iteration_path, read_commit};
use crate::checkpoint::error::LOOK;
use crate::checkpoint::{CheckpointError, ErrorKind};
use crate::format::{
    AttemptId, Commit, Iteration, METADATA_FILE, Metadata, ObjectDigest, SavedLayout, TrainerState,
};
use crate::transfer::TransferError;
use bytes::Bytes;
use reshard_storage::{Depth, StorageBackend, StoragePath};
use std::collections::{HashMap, HashSet};

/// What the data files are judged by.
pub(super) struct Documents {
    pub(super) attempt: AttemptId,
    /// The attempt's directory, relative to the run.
    pub(super) directory: StoragePath,
    pub(super) layout: SavedLayout,
    trainer_state: String,
}

/// Whether an iteration is committed or its commit is damaged.
pub(super) async fn is_worth_a_look(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<bool, CheckpointError> {
    match read_commit(storage, iteration).await {
        Ok(found) => Ok(found.is_some_and(|found| matches!(found.commit, Commit::Committed(_)))),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(true),
        Err(error) => Err(error),
    }
}

/// The error where there is nothing to verify.
pub(super) fn nothing(place: String) -> CheckpointError {
    let hint = format!("{LOOK}; what other tools wrote has no checksums to compare");
    CheckpointError::NoCheckpoint { place, hint }
}

/// Reads commit, metadata and trainer state. `None` where the data files can't be judged; the report says why.
pub(super) async fn read(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    report: &mut VerifyReport,
) -> Result<Option<Documents>, CheckpointError> {
    let place = || format!("{iteration} in {storage}");
    let checkpoint = match read_commit(storage, iteration).await {
        Ok(None) => return Err(nothing(place())),
        Ok(Some(found)) => found.commit.committed(&place())?,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let path = commit_path(iteration).map_err(TransferError::from)?;
            report.faults.push(VerifyFault::of(VerifyFaultKind::Commit, &path, error.to_string()));
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    report.attempt = Some(checkpoint.attempt().clone());
    let iteration_directory = iteration_path(iteration).map_err(TransferError::from)?;
    let directory =
        iteration_directory.join(&checkpoint.attempt().directory()).map_err(TransferError::from)?;
    let metadata = ObjectDigest { path: METADATA_FILE.to_owned(), ..checkpoint.metadata().clone() };
    let parse = |path: &StoragePath, bytes: &Bytes| Metadata::parse(path.as_str(), bytes);
    let metadata = document(storage, &directory, &metadata, VerifyFaultKind::Metadata, parse, report).await?;
    let Some(Metadata { layout, trainer_state }) = metadata else { return Ok(None) };
    let parse = |path: &StoragePath, bytes: &Bytes| TrainerState::parse(path.as_str(), bytes);
    document(storage, &directory, &trainer_state, VerifyFaultKind::TrainerState, parse, report).await?;
    let attempt = checkpoint.attempt().clone();
    Ok(Some(Documents { attempt, directory, layout, trainer_state: trainer_state.path }))
}

/// Reads and judges one small object of the attempt; what is wrong with it is a fault and gives `None`.
async fn document<T>(
    storage: &dyn StorageBackend,
    directory: &StoragePath,
    digest: &ObjectDigest,
    kind: VerifyFaultKind,
    parse: impl FnOnce(&StoragePath, &Bytes) -> Result<T, crate::format::FormatError>,
    report: &mut VerifyReport,
) -> Result<Option<T>, CheckpointError> {
    let path = directory.join(&digest.path).map_err(TransferError::from)?;
    let read = async {
        let (bytes, _) = storage.read_all(&path, digest.length).await?;
        digest.check(&bytes)?;
        report.bytes += bytes.len() as u64;
        Ok::<_, CheckpointError>(parse(&path, &bytes)?)
    };
    match read.await {
        Ok(parsed) => Ok(Some(parsed)),
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
            report.faults.push(VerifyFault::of(kind, &path, error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Lists the iteration once. Gives the lengths of the attempt's files, by path relative to the attempt.
pub(super) async fn list(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    documents: &Documents,
    report: &mut VerifyReport,
) -> Result<HashMap<String, u64>, CheckpointError> {
    let iteration_directory = iteration_path(iteration).map_err(TransferError::from)?;
    let commit = commit_path(iteration).map_err(TransferError::from)?;
    let listing = storage.list(Some(&iteration_directory), Depth::All).await?;
    let named: HashSet<&str> = documents
        .layout
        .files
        .iter()
        .map(|file| file.path.as_str())
        .chain([METADATA_FILE, documents.trainer_state.as_str()])
        .collect();
    let mut lengths = HashMap::with_capacity(listing.objects.len());
    for object in &listing.objects {
        match object.path.strip_prefix(&documents.directory) {
            Some(file) if named.contains(file) => {
                lengths.insert(file.to_owned(), object.len);
            }
            Some(_) => {
                let detail = "the metadata does not name this file; something else put it there";
                report.faults.push(VerifyFault::of(VerifyFaultKind::Unreferenced, &object.path, detail));
            }
            None if object.path == commit => {}
            None => report.leftovers = (report.leftovers.0 + 1, report.leftovers.1 + object.len),
        }
    }
    Ok(lengths)
}
