//! Writes what a save plan lays out: one pass over the local buffers, through staging, to the store.

use super::payload::next_payload;
use super::stream::{FileStream, Sources};
use super::{Phase, Progress, Staging, TransferError};
use crate::plan::{PlannedFile, SavePlan};
use reshard_storage::{Durable, Payload, StorageBackend, StoragePath, Upload, UploadShape};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Everything that a write needs, owned.
pub struct WriteJob {
    /// The store.
    pub storage: Arc<dyn StorageBackend>,
    /// The attempt's directory.
    pub directory: StoragePath,
    /// What to write.
    pub plan: Arc<SavePlan>,
    /// The local buffers by what they are.
    pub sources: Sources,
    /// Where gathered bytes wait.
    pub staging: Staging,
    /// Most requests with data at once.
    pub concurrency: usize,
    /// Told of every part that is done.
    pub progress: Arc<dyn Progress>,
    /// Held by every request under way, also after the write was given up: once its receiver is disconnected, nothing
    /// of this write comes to the store any more.
    pub under_way: Sender<()>,
}

/// A data file that is complete and durable.
#[derive(Clone, PartialEq, Debug)]
pub struct WrittenFile {
    /// CRC32C of its block table, for the metadata.
    pub table_crc32c: u32,
    /// The store's word.
    pub durable: Durable,
    /// Requests that it took.
    pub requests: u64,
}

/// How far the write is, for those who watch.
#[derive(Clone)]
struct Meter {
    progress: Arc<dyn Progress>,
    sent: Arc<AtomicU64>,
    total: u64,
}

impl Meter {
    fn add(&self, bytes: u64) {
        let sent = self.sent.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.progress.advance(Phase::Write, sent, self.total);
    }
}

/// Writes all files of the plan and returns once each is durable, in the order of the plan.
///
/// Files are produced one after another, so that no two of them wait for each other's staging slots, while the parts
/// of all are sent concurrently.
///
/// # Errors
/// [`TransferError`] naming file and part. Unfinished uploads are aborted; finished files stay, since only rank 0 may
/// delete an attempt.
pub async fn write(job: WriteJob) -> Result<Vec<WrittenFile>, TransferError> {
    let total = job.plan.files.iter().map(|file| file.layout.length()).sum();
    let connections = Arc::new(Semaphore::new(job.concurrency.clamp(1, Semaphore::MAX_PERMITS)));
    let meter = Meter { progress: Arc::clone(&job.progress), sent: Arc::default(), total };
    let mut finishing: JoinSet<Result<(usize, WrittenFile), TransferError>> = JoinSet::new();
    let mut written: Vec<(usize, WrittenFile)> = Vec::with_capacity(job.plan.files.len());
    for (index, file) in job.plan.files.iter().enumerate() {
        let sending = Sending::produce(&job, file, &connections, &meter).await?;
        let under_way = job.under_way.clone();
        finishing.spawn(async move {
            let done = sending.finish().await?;
            drop(under_way);
            Ok((index, done))
        });
        while let Some(done) = finishing.try_join_next() {
            written.push(done.map_err(|_| TransferError::Lost)??);
        }
    }
    while let Some(done) = finishing.join_next().await {
        written.push(done.map_err(|_| TransferError::Lost)??);
    }
    written.sort_by_key(|&(index, _)| index);
    Ok(written.into_iter().map(|(_, file)| file).collect())
}

/// A file whose bytes have all been produced and are on their way.
struct Sending {
    table_crc32c: u32,
    requests: u64,
    how: How,
}

enum How {
    /// One put of a small file.
    Whole(JoinSet<Result<Durable, TransferError>>),
    /// The parts of an upload.
    Parts { upload: Arc<Upload>, parts: JoinSet<Result<(), TransferError>> },
}

impl Sending {
    async fn produce(
        job: &WriteJob,
        file: &PlannedFile,
        connections: &Arc<Semaphore>,
        meter: &Meter,
    ) -> Result<Self, TransferError> {
        let path = job.directory.join(&file.name.to_string())?;
        let length = file.layout.length();
        let capabilities = job.storage.capabilities();
        let slot_bytes = job.staging.request_bytes();
        let mut stream = FileStream::new(file, &job.sources);
        if length <= slot_bytes.min(capabilities.max_put_len) {
            let (connection, payload) = admitted(job, connections, &mut stream, length).await?;
            let (storage, meter, under_way) =
                (Arc::clone(&job.storage), meter.clone(), job.under_way.clone());
            let mut put = JoinSet::new();
            put.spawn(async move {
                let durable = storage.put(&path, payload).await?;
                drop((under_way, connection));
                meter.add(length);
                Ok(durable)
            });
            return Ok(Self { table_crc32c: stream.table_crc32c(), requests: 1, how: How::Whole(put) });
        }
        let shape = UploadShape::fit(length, slot_bytes, capabilities);
        let budget = slot_bytes * job.staging.pool().slots() as u64;
        if shape.part_len() > budget {
            let part_bytes = shape.part_len();
            return Err(TransferError::BudgetTooSmall { file: file.name.to_string(), part_bytes, budget });
        }
        let upload = Arc::new(job.storage.start_multipart(&path, shape).await?);
        let mut parts: JoinSet<Result<(), TransferError>> = JoinSet::new();
        for index in 0..shape.parts() {
            let bytes = shape.part(index).map_or(0, |part| part.end - part.start);
            // A part that fails while the next one waits ends the write.
            let (connection, payload) = {
                let next = admitted(job, connections, &mut stream, bytes);
                tokio::pin!(next);
                loop {
                    tokio::select! {
                        biased;
                        Some(done) = parts.join_next() => done.map_err(|_| TransferError::Lost)??,
                        payload = &mut next => break payload?,
                    }
                }
            };
            let (upload, meter, under_way) = (Arc::clone(&upload), meter.clone(), job.under_way.clone());
            parts.spawn(async move {
                upload.put_part(index, payload).await?;
                drop((under_way, connection));
                meter.add(bytes);
                Ok(())
            });
        }
        // Start, parts and completion.
        let requests = shape.parts() + 2;
        Ok(Self { table_crc32c: stream.table_crc32c(), requests, how: How::Parts { upload, parts } })
    }

    async fn finish(self) -> Result<WrittenFile, TransferError> {
        let durable = match self.how {
            How::Whole(mut put) => match put.join_next().await {
                Some(Ok(durable)) => durable?,
                _ => return Err(TransferError::Lost),
            },
            How::Parts { upload, mut parts } => {
                while let Some(done) = parts.join_next().await {
                    done.map_err(|_| TransferError::Lost)??;
                }
                // The parts' tasks have ended, so this is the last owner.
                Arc::try_unwrap(upload).map_err(|_| TransferError::Lost)?.complete().await?
            }
        };
        Ok(WrittenFile { table_crc32c: self.table_crc32c, durable, requests: self.requests })
    }
}

/// The next `bytes` of the stream, and the right to send them.
async fn admitted(
    job: &WriteJob,
    connections: &Arc<Semaphore>,
    stream: &mut FileStream<'_>,
    bytes: u64,
) -> Result<(OwnedSemaphorePermit, Payload), TransferError> {
    let connection = Arc::clone(connections).acquire_owned().await.map_err(|_| TransferError::Lost)?;
    Ok((connection, next_payload(job.staging.pool(), stream, bytes).await?))
}
