//! What lies in a run: its iterations, and the objects of one of them.

use super::commit::{iteration_path, list_iterations, read_commit};
use super::inspect::world_size;
use super::locate::{Located, Origin};
use super::{Checkpoint, CheckpointError, ErrorKind};
use crate::format::{
    COMMIT_FILE, Commit, CommittedCheckpoint, Iteration, METADATA_FILE, ParallelSizes, TRAINER_STATE_FILE,
};
use crate::transfer::{Job, TransferError};
use futures::{StreamExt, TryStreamExt};
use reshard_storage::{Depth, StorageBackend, StorageError};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Iterations that are looked at at once; each may hold one metadata.json in memory.
const AT_ONCE: usize = 8;

/// An iteration of a run.
#[derive(Clone, Debug)]
pub struct IterationEntry {
    /// The iteration.
    pub iteration: Iteration,
    /// When its commit was last written, by the store's clock; `None` without one.
    pub committed_at: Option<SystemTime>,
    /// Whether there is a checkpoint, and what it holds.
    pub state: IterationState,
}

/// Whether an iteration is a checkpoint.
#[derive(Clone, Debug)]
pub enum IterationState {
    /// It is.
    Committed(Contents),
    /// It is, of another tool: without a commit, without checksums.
    Foreign(Contents),
    /// It was one, or an attempt was collected.
    Deleted,
    /// No attempt was published, or not yet.
    Uncommitted,
    /// Its commit, metadata or trainer state are missing or not what they were.
    Damaged(CheckpointError),
    /// It may not be read.
    Unreadable(CheckpointError),
}

/// The contents of a checkpoint in numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Contents {
    /// Who wants it kept.
    pub pins: BTreeSet<String>,
    /// Bytes of its data files.
    pub bytes: u64,
    /// Number of its data files.
    pub files: usize,
    /// Number of tensors, aliases included.
    pub tensors: usize,
    /// Number of ranks that saved it.
    pub world_size: Option<u32>,
    /// The sizes of parallelism that it ran with; `None` where another tool's files don't say.
    pub ran_with: Option<ParallelSizes>,
}

/// What an object of an iteration is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectRole {
    /// commit.json.
    Commit,
    /// metadata.json of the committed attempt.
    Metadata,
    /// trainer_state.json of the committed attempt.
    TrainerState,
    /// A data file of the committed attempt.
    Data,
    /// An object that the commit does not name: of another attempt, or one that does not belong here.
    Leftover,
}

/// An object below an iteration's directory.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredObject {
    /// Its path, relative to the run.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// When it was last written, by the store's clock.
    pub modified: SystemTime,
    /// What it is for.
    pub role: ObjectRole,
}

impl Checkpoint {
    /// The `newest` newest iterations (all by default), newest first, whatever their state. Not collective.
    ///
    /// # Errors
    /// [`CheckpointError::Storage`] where the store does not answer. Damage is a state, not an error.
    pub fn survey(&self, newest: Option<usize>) -> Result<Vec<IterationEntry>, CheckpointError> {
        let storage = Arc::clone(&self.storage);
        Job::start(async move {
            let mut iterations = list_iterations(&*storage).await?;
            iterations.truncate(newest.unwrap_or(usize::MAX));
            let entries = iterations.into_iter().map(|iteration| entry(Arc::clone(&storage), iteration));
            futures::stream::iter(entries).buffered(AT_ONCE).try_collect().await
        })?
        .finish()?
    }

    /// Every object below an iteration's directory, sorted by path; none where there is no such iteration. Not
    /// collective.
    ///
    /// # Errors
    /// As [`Checkpoint::inspect`], but not for an iteration without a commit, or with a deleted one.
    pub fn objects(&self, iteration: Iteration) -> Result<Vec<StoredObject>, CheckpointError> {
        let storage = Arc::clone(&self.storage);
        Job::start(async move { objects(&*storage, iteration).await })?.finish()?
    }
}

async fn entry(
    storage: Arc<dyn StorageBackend>,
    iteration: Iteration,
) -> Result<IterationEntry, CheckpointError> {
    let directory = iteration_path(iteration).map_err(TransferError::from)?;
    let listing = match storage.list(Some(&directory), Depth::Children).await {
        // One iteration that may not be read says nothing about the others.
        Err(error @ StorageError::AccessDenied { .. }) => {
            let state = IterationState::Unreadable(error.into());
            return Ok(IterationEntry { iteration, committed_at: None, state });
        }
        listing => listing?,
    };
    let commit = listing.objects.iter().find(|object| object.path.name() == COMMIT_FILE);
    let committed_at = commit.map(|object| object.modified);
    let state = match (state(&*storage, iteration).await, commit) {
        (Err(CheckpointError::NoCheckpoint { .. }), None) => IterationState::Uncommitted,
        (Err(error), _) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
            IterationState::Damaged(error)
        }
        (Err(error @ CheckpointError::Storage(StorageError::AccessDenied { .. })), _) => {
            IterationState::Unreadable(error)
        }
        (state, _) => state?,
    };
    Ok(IterationEntry { iteration, committed_at, state })
}

async fn state(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<IterationState, CheckpointError> {
    let pins = match read_commit(storage, iteration).await?.map(|found| found.commit) {
        Some(Commit::Deleted(_)) => return Ok(IterationState::Deleted),
        Some(Commit::Committed(checkpoint)) => checkpoint.pins().clone(),
        None => BTreeSet::new(),
    };
    let (Located { origin, layout, trainer_state, .. }, _) =
        Located::find(storage, None, Some(iteration)).await?;
    let contents = Contents {
        pins,
        bytes: layout.files.iter().map(|file| file.length).sum(),
        files: layout.files.len(),
        tensors: layout.tensors.len(),
        world_size: world_size(&layout),
        ran_with: trainer_state.map(|state| state.ran_with),
    };
    Ok(match origin {
        Origin::Native => IterationState::Committed(contents),
        Origin::Foreign => IterationState::Foreign(contents),
    })
}

async fn objects(
    storage: &dyn StorageBackend,
    iteration: Iteration,
) -> Result<Vec<StoredObject>, CheckpointError> {
    let directory = iteration_path(iteration).map_err(TransferError::from)?;
    let listing = storage.list(Some(&directory), Depth::All).await?;
    let committed = match read_commit(storage, iteration).await?.map(|found| found.commit) {
        Some(Commit::Committed(checkpoint)) => Some(checkpoint),
        _ => None,
    };
    let data = match &committed {
        None => BTreeSet::new(),
        Some(_) => {
            let (located, _) = Located::find(storage, None, Some(iteration)).await?;
            located.layout.files.into_iter().map(|file| file.path).collect()
        }
    };
    let role = |path: &str| role(committed.as_ref(), &data, path);
    Ok(listing
        .objects
        .into_iter()
        .map(|object| StoredObject {
            role: object.path.strip_prefix(&directory).map_or(ObjectRole::Leftover, role),
            path: object.path.as_str().to_owned(),
            bytes: object.len,
            modified: object.modified,
        })
        .collect())
}

/// What the object at `path`, relative to the iteration's directory, is for.
fn role(committed: Option<&CommittedCheckpoint>, data: &BTreeSet<String>, path: &str) -> ObjectRole {
    if path == COMMIT_FILE {
        return ObjectRole::Commit;
    }
    let in_attempt = committed
        .and_then(|checkpoint| path.strip_prefix(&checkpoint.attempt().directory())?.strip_prefix('/'));
    match in_attempt {
        Some(METADATA_FILE) => ObjectRole::Metadata,
        Some(TRAINER_STATE_FILE) => ObjectRole::TrainerState,
        Some(file) if data.contains(file) => ObjectRole::Data,
        _ => ObjectRole::Leftover,
    }
}
