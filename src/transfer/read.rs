//! Reads what a load plan asks for, each rank its own ranges.

use super::intake::Intake;
use super::scatter::name;
use super::{Phase, Progress, Staging, TransferError};
use crate::format::{BlockLayout, BlockTable, SavedFile, SavedLayout};
use crate::plan::{LoadPlan, Request};
use reshard_device::DestinationHandle;
use reshard_storage::{Slot, StorageBackend, StoragePath};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

/// What a read does with the bytes that it has fetched and verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMode {
    /// Writes them to the destinations.
    Fill,
    /// Compares them with what the destinations hold (tied weights that were saved apart).
    Compare,
}

/// Everything that a read needs, owned, so that it can run on the library's threads.
pub struct ReadJob {
    /// The store.
    pub storage: Arc<dyn StorageBackend>,
    /// The directory that the layout's file names are relative to; `None` = the store's root.
    pub directory: Option<StoragePath>,
    /// Where things lie.
    pub saved: Arc<SavedLayout>,
    /// What to read.
    pub plan: Arc<LoadPlan>,
    /// One for each tensor of the plan, in its order.
    pub destinations: Vec<DestinationHandle>,
    /// Fill or compare.
    pub mode: ReadMode,
    /// Where bytes wait.
    pub staging: Staging,
    /// Most requests at once. More staging slots than this keep the connections busy while bytes are verified and
    /// copied; fewer are a limit of their own.
    pub concurrency: usize,
    /// Told of every request that is done.
    pub progress: Arc<dyn Progress>,
}

/// What a read did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ReadStats {
    /// Bytes of data fetched.
    pub bytes_fetched: u64,
    /// Bytes of block tables fetched.
    pub table_bytes: u64,
    /// Requests for data and for block tables.
    pub requests: u64,
    /// Blocks whose checksum was compared.
    pub blocks_verified: u64,
    /// Values that became infinite in a conversion.
    pub overflowed: u64,
    /// Time from the first request to the last byte.
    pub elapsed: Duration,
}

impl ReadStats {
    /// Adds a read that came after this one.
    pub fn add(&mut self, later: &ReadStats) {
        self.bytes_fetched += later.bytes_fetched;
        self.table_bytes += later.table_bytes;
        self.requests += later.requests;
        self.blocks_verified += later.blocks_verified;
        self.overflowed += later.overflowed;
        self.elapsed += later.elapsed;
    }
}

#[derive(Default)]
struct Counters {
    bytes_fetched: AtomicU64,
    table_bytes: AtomicU64,
    requests: AtomicU64,
    blocks_verified: AtomicU64,
    overflowed: AtomicU64,
}

/// The job and what its tasks share.
pub(super) struct Shared {
    job: ReadJob,
    tables: HashMap<u32, OnceCell<Arc<BlockTable>>>,
    /// Held while a request is on its way, and not while its bytes are verified and copied.
    connections: Semaphore,
    counters: Counters,
}

/// Carries the plan out. All requests run concurrently within the limits; the first error ends the read.
///
/// # Errors
/// [`TransferError`] naming key, file and range.
pub async fn read(job: ReadJob) -> Result<ReadStats, TransferError> {
    let start = Instant::now();
    for fill in &job.plan.zeros {
        if let Some(destination) = job.destinations.get(fill.tensor as usize) {
            fill_zeros(destination, fill.pattern.offset, &fill.pattern.axes, fill.pattern.row_bytes)?;
        }
    }
    let tables = job.plan.tables.iter().map(|&file| (file, OnceCell::new())).collect();
    let connections = Semaphore::new(job.concurrency.clamp(1, Semaphore::MAX_PERMITS));
    let shared = Arc::new(Shared { job, tables, connections, counters: Counters::default() });
    let mut tasks: JoinSet<Result<(), TransferError>> = JoinSet::new();
    for index in 0..shared.job.plan.requests.len() {
        // Waiting for a slot here keeps the number of tasks bounded by memory; a failure meanwhile ends the wait.
        let slot = loop {
            tokio::select! {
                biased;
                done = tasks.join_next(), if !tasks.is_empty() => finished(done)?,
                slot = shared.job.staging.pool().acquire() => break slot?,
            }
        };
        let shared = Arc::clone(&shared);
        tasks.spawn(async move { shared.one(index, slot).await });
    }
    while let Some(done) = tasks.join_next().await {
        finished(Some(done))?;
    }
    let counters = &shared.counters;
    let stats = ReadStats {
        bytes_fetched: counters.bytes_fetched.load(Ordering::Relaxed),
        table_bytes: counters.table_bytes.load(Ordering::Relaxed),
        requests: counters.requests.load(Ordering::Relaxed),
        blocks_verified: counters.blocks_verified.load(Ordering::Relaxed),
        overflowed: counters.overflowed.load(Ordering::Relaxed),
        elapsed: start.elapsed(),
    };
    tracing::debug!(?stats, "read");
    Ok(stats)
}

fn finished(
    done: Option<Result<Result<(), TransferError>, tokio::task::JoinError>>,
) -> Result<(), TransferError> {
    match done {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(_)) => Err(TransferError::Lost),
    }
}

fn fill_zeros(
    destination: &DestinationHandle,
    offset: u64,
    axes: &[(u64, u64)],
    row_bytes: u64,
) -> Result<(), TransferError> {
    match axes.split_first() {
        None => Ok(destination.zero(offset as usize..(offset + row_bytes) as usize)?),
        Some((&(count, stride), inner)) => {
            (0..count).try_for_each(|step| fill_zeros(destination, offset + step * stride, inner, row_bytes))
        }
    }
}

impl Shared {
    /// One request, from the store to the destinations.
    async fn one(self: &Arc<Self>, index: usize, memory: reshard_device::Slot) -> Result<(), TransferError> {
        let (plan, request) = self.request(index).ok_or(TransferError::Lost)?;
        let file = self.file(request)?;
        let length = request.range.end - request.range.start;
        let path = self.path(file)?;
        let intake = Box::new(Intake::new(Arc::clone(self), index, memory)?);
        // The table is fetched beside the data, so that verifying costs no round trip.
        let (intake, table) =
            tokio::join!(self.fetch(&path, request, intake), self.table(request.file, file, &path));
        let (mut intake, table) = (intake?, table?);
        let consumed = match intake.finish(table.as_deref()) {
            Err(first @ TransferError::Corrupt { .. }) => {
                // Bytes may be damaged on the way; only what is stored can be damaged twice in the same place.
                tracing::warn!(%path, ?request.range, error = %first, "checksum mismatch, reading once more");
                intake = self.fetch(&path, request, intake).await?;
                intake.finish(table.as_deref())?
            }
            other => other?,
        };
        self.counters.overflowed.fetch_add(consumed.overflowed, Ordering::Relaxed);
        self.counters.blocks_verified.fetch_add(consumed.blocks_verified, Ordering::Relaxed);
        let done = self.counters.bytes_fetched.fetch_add(length, Ordering::Relaxed) + length;
        self.job.progress.advance(Phase::Read, done, plan.cost.bytes_to_fetch);
        Ok(())
    }

    async fn fetch(
        &self,
        path: &StoragePath,
        request: &Request,
        intake: Box<Intake>,
    ) -> Result<Box<Intake>, TransferError> {
        let _connection = self.connections.acquire().await.map_err(|_| TransferError::Lost)?;
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let (slot, result) = self.job.storage.read(path, request.range.clone(), intake).await;
        result?;
        Intake::returned(slot).ok_or(TransferError::Lost)
    }

    /// The plan and one of its requests.
    pub(super) fn request(&self, index: usize) -> Option<(&LoadPlan, &Request)> {
        Some((&*self.job.plan, self.job.plan.requests.get(index)?))
    }

    /// The file that a request reads.
    pub(super) fn file(&self, request: &Request) -> Result<&SavedFile, TransferError> {
        self.job.saved.files.get(request.file as usize).ok_or(TransferError::Lost)
    }

    pub(super) fn destinations(&self) -> &[DestinationHandle] {
        &self.job.destinations
    }

    pub(super) fn mode(&self) -> ReadMode {
        self.job.mode
    }

    /// The blocks of the request's file, where they are verified.
    pub(super) fn blocks(&self, index: usize) -> Option<&BlockLayout> {
        let (_, request) = self.request(index)?;
        let file = self.file(request).ok().filter(|_| self.tables.contains_key(&request.file))?;
        file.blocks.as_ref()
    }

    fn path(&self, file: &SavedFile) -> Result<StoragePath, TransferError> {
        Ok(match &self.job.directory {
            Some(directory) => directory.join(&file.path)?,
            None => StoragePath::parse(file.path.as_str())?,
        })
    }

    /// The file's block table, fetched by the first request that wants it.
    async fn table(
        &self,
        index: u32,
        file: &SavedFile,
        path: &StoragePath,
    ) -> Result<Option<Arc<BlockTable>>, TransferError> {
        let (Some(cell), Some(blocks)) = (self.tables.get(&index), &file.blocks) else { return Ok(None) };
        let table = cell
            .get_or_try_init(|| async {
                let range = blocks.table();
                let length = range.end - range.start;
                self.counters.requests.fetch_add(1, Ordering::Relaxed);
                self.counters.table_bytes.fetch_add(length, Ordering::Relaxed);
                let slot: Slot = Box::new(vec![0u8; length as usize]);
                let (slot, result) = self.job.storage.read(path, range, slot).await;
                result?;
                let table = BlockTable::decode(&file.path, blocks, slot.bytes());
                Ok::<_, TransferError>(Arc::new(table.map_err(|source| TransferError::Corrupt {
                    key: "the block table".to_owned(),
                    source,
                })?))
            })
            .await?;
        Ok(Some(Arc::clone(table)))
    }

    /// A tensor of this rank that takes bytes from `range` of the file, for an error.
    pub(super) fn key_at(&self, request: &Request, range: &Range<u64>) -> String {
        let plan = &self.job.plan;
        let copies = request.copies.iter().filter_map(|&index| plan.copies.get(index as usize));
        let mut touching =
            copies.filter(|copy| copy.file_offset < range.end && copy.file_end() > range.start);
        let tensor = touching.next().and_then(|copy| plan.tensors.get(copy.tensor as usize));
        tensor.map_or_else(|| "bytes read beside the wanted ones".to_owned(), name)
    }
}
