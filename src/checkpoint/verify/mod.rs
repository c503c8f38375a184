//! Reads a whole checkpoint and says everything that is not as it was saved.

mod documents;
mod fault;
mod file;
mod owners;

pub use fault::{Held, VerifyFault, VerifyFaultKind};

use super::commit::{iteration_path, list_iterations};
use super::{Checkpoint, CheckpointError};
use crate::format::{AttemptId, Iteration, SavedLayout};
use crate::transfer::{Job, Phase, Progress};
use file::DataFile;
use reshard_storage::{StorageBackend, StorageError, StoragePath};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Data files that are read at once.
const FILES_AT_ONCE: usize = 8;

/// What was read and what is wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifyReport {
    /// The iteration.
    pub iteration: Iteration,
    /// The attempt that its commit names; `None` where the commit itself is damaged.
    pub attempt: Option<AttemptId>,
    /// Data files that were read.
    pub files: u64,
    /// Blocks whose checksum was compared.
    pub blocks: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Everything that is wrong, by file and place.
    pub faults: Vec<VerifyFault>,
    /// Objects of other attempts below the iteration, and their bytes: what a save that failed has left, or one that is
    /// running writes. They are no fault.
    pub leftovers: (u64, u64),
}

impl Checkpoint {
    /// Reads every byte of an iteration, or of the newest committed one, and compares it with its checksums: commit,
    /// metadata, trainer state, the list of objects, and of each data file length, header (origin and entries), block
    /// table and blocks. Memory is bounded by [`Options::staging_bytes`](super::Options::staging_bytes), besides the
    /// metadata, and of eight files at once the header and the block table. Not collective.
    ///
    /// # Errors
    /// Only where nothing can be said: [`CheckpointError::NoCheckpoint`], a deleted commit, a newer format, and a store
    /// that does not answer. Damage is in the report.
    pub fn verify(&self, iteration: Option<Iteration>) -> Result<VerifyReport, CheckpointError> {
        let storage = Arc::clone(&self.storage);
        let options = self.options.clone();
        Job::start(async move {
            let iteration = match iteration {
                Some(iteration) => iteration,
                None => newest(&*storage).await?,
            };
            let readers = options.concurrency.clamp(1, Semaphore::MAX_PERMITS);
            let memory = (options.staging_bytes / file::UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
            let (readers, units) = (Semaphore::new(readers), u32::try_from(memory).unwrap_or(u32::MAX));
            let limits = file::Limits { readers, units, memory: Semaphore::new(memory) };
            verify(storage, iteration, limits, options.progress).await
        })?
        .finish()?
    }
}

/// The newest iteration that is committed, or whose commit is damaged: that is what should be looked at.
async fn newest(storage: &dyn StorageBackend) -> Result<Iteration, CheckpointError> {
    for iteration in list_iterations(storage).await? {
        if documents::is_worth_a_look(storage, iteration).await? {
            return Ok(iteration);
        }
    }
    Err(documents::nothing(storage.to_string()))
}

/// What all files of one checkpoint share.
struct Shared {
    storage: Arc<dyn StorageBackend>,
    iteration: Iteration,
    attempt: AttemptId,
    directory: StoragePath,
    layout: SavedLayout,
    limits: file::Limits,
    progress: Arc<dyn Progress>,
    total: u64,
    done: AtomicU64,
}

impl Shared {
    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.progress.advance(Phase::Read, done, self.total);
    }
}

async fn verify(
    storage: Arc<dyn StorageBackend>,
    iteration: Iteration,
    limits: file::Limits,
    progress: Arc<dyn Progress>,
) -> Result<VerifyReport, CheckpointError> {
    let mut report = VerifyReport::empty(iteration);
    let Some(documents) = documents::read(&*storage, iteration, &mut report).await? else {
        return Ok(report);
    };
    let lengths = documents::list(&*storage, iteration, &documents, &mut report).await?;
    let layout = documents.layout;
    let shared = Arc::new(Shared {
        total: layout.files.iter().map(|file| file.length).sum(),
        storage,
        iteration,
        attempt: documents.attempt,
        directory: documents.directory,
        limits,
        progress,
        done: AtomicU64::new(0),
        layout,
    });
    read_files(&shared, &lengths, &mut report).await?;
    report.faults.sort_by_key(|fault| (fault.file.clone(), fault.bytes.as_ref().map(|bytes| bytes.start)));
    Ok(report)
}

/// Reads the data files whose length is right; the others are faults already.
async fn read_files(
    shared: &Arc<Shared>,
    lengths: &HashMap<String, u64>,
    report: &mut VerifyReport,
) -> Result<(), CheckpointError> {
    let mut owners = owners::by_file(&shared.layout);
    let mut tasks: JoinSet<Result<file::FileReport, CheckpointError>> = JoinSet::new();
    for (index, file) in shared.layout.files.iter().enumerate() {
        let owners = owners.remove(&(index as u32)).unwrap_or_default();
        let path = shared.directory.join(&file.path).map_err(crate::transfer::TransferError::from)?;
        match lengths.get(&file.path) {
            Some(&found) if found == file.length => {}
            found => {
                report.faults.push(fault::wrong_length(
                    &path,
                    file.length,
                    found.copied(),
                    &owners,
                    &shared.layout,
                ));
                shared.advance(file.length);
                continue;
            }
        }
        while tasks.len() >= FILES_AT_ONCE {
            report.add(tasks.join_next().await)?;
        }
        let data_file = DataFile { shared: Arc::clone(shared), index, path, owners };
        tasks.spawn(data_file.verify());
    }
    while let Some(done) = tasks.join_next().await {
        report.add(Some(done))?;
    }
    Ok(())
}

impl VerifyReport {
    fn empty(iteration: Iteration) -> Self {
        Self {
            iteration,
            attempt: None,
            files: 0,
            blocks: 0,
            bytes: 0,
            faults: Vec::new(),
            leftovers: (0, 0),
        }
    }

    /// Of an iteration that may not be read, among others that may: the refusal is its fault.
    ///
    /// # Errors
    /// Any other error, as it is.
    pub(crate) fn refused(iteration: Iteration, error: CheckpointError) -> Result<Self, CheckpointError> {
        let CheckpointError::Storage(StorageError::AccessDenied { .. }) = error else { return Err(error) };
        let path = iteration_path(iteration).map_err(crate::transfer::TransferError::from)?;
        let mut report = Self::empty(iteration);
        report.faults.push(VerifyFault::of(VerifyFaultKind::Unreadable, &path, error.to_string()));
        Ok(report)
    }

    /// Whether nothing is wrong.
    pub fn is_whole(&self) -> bool {
        self.faults.is_empty()
    }

    fn add(
        &mut self,
        done: Option<Result<Result<file::FileReport, CheckpointError>, tokio::task::JoinError>>,
    ) -> Result<(), CheckpointError> {
        let Some(done) = done else { return Ok(()) };
        let file = done.map_err(|_| crate::transfer::TransferError::Lost)??;
        self.files += 1;
        self.blocks += file.blocks;
        self.bytes += file.bytes;
        self.faults.extend(file.faults);
        Ok(())
    }
}
