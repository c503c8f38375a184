//! [`Metered`]: counts the requests that reach a store, and on demand records each of them.

use crate::{
    Capabilities, Deletion, Depth, Durable, Expect, ObjectInfo, Operation, Page, PageToken, Payload,
    PutOutcome, Result, Slot, StorageBackend, StoragePath, Upload, UploadSession, UploadShape, Version,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what a [`Metered`] backend did; shared by everyone who looks at it.
#[derive(Debug, Default)]
pub struct Meter {
    requests: AtomicU64,
    failures: AtomicU64,
    retries: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    records: Option<Mutex<Vec<Record>>>,
}

/// One request and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What was asked.
    pub operation: Operation,
    /// Of which object; for a listing its prefix, for a batch of deletes the first.
    pub path: Option<StoragePath>,
    /// Which bytes of the object: of a read, and of a part.
    pub range: Option<Range<u64>>,
    /// Payload bytes that went over, in either direction; 0 when it failed.
    pub bytes: u64,
    /// Whether it succeeded.
    pub ok: bool,
}

/// The counts of a [`Meter`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests sent, repeated ones included.
    pub requests: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Requests that repeated a failed one.
    pub retries: u64,
    /// Object bytes received by requests that succeeded.
    pub bytes_read: u64,
    /// Object bytes sent by requests that succeeded.
    pub bytes_written: u64,
}

impl Meter {
    /// Counts only.
    pub fn counting() -> Arc<Self> {
        Arc::default()
    }

    /// Counts, and keeps a [`Record`] of every request until [`Meter::take_records`].
    pub fn recording() -> Arc<Self> {
        Arc::new(Self { records: Some(Mutex::default()), ..Self::default() })
    }

    /// The counts so far.
    pub fn totals(&self) -> Totals {
        Totals {
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            retries: self.retries.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// The records since the last call, in the order in which the requests ended; empty unless recording.
    pub fn take_records(&self) -> Vec<Record> {
        let records =
            self.records.as_ref().map(|records| records.lock().unwrap_or_else(PoisonError::into_inner));
        records.map(|mut records| std::mem::take(&mut *records)).unwrap_or_default()
    }

    pub(super) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self, record: Record) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !record.ok {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = match record.operation {
            Operation::Read | Operation::ReadAll => &self.bytes_read,
            _ => &self.bytes_written,
        };
        bytes.fetch_add(record.bytes, Ordering::Relaxed);
        if let Some(records) = &self.records {
            records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }

    fn note<T>(
        &self,
        operation: Operation,
        path: Option<&StoragePath>,
        range: Option<Range<u64>>,
        bytes: u64,
        result: Result<T>,
    ) -> Result<T> {
        let ok = result.is_ok();
        self.count(Record { operation, path: path.cloned(), range, bytes: if ok { bytes } else { 0 }, ok });
        result
    }
}

/// Counts and records every request to the backend inside on a [`Meter`].
pub struct Metered {
    inner: Arc<dyn StorageBackend>,
    meter: Arc<Meter>,
}

impl Metered {
    /// Meters `inner` on `meter`.
    pub fn new(inner: Arc<dyn StorageBackend>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl StorageBackend for Metered {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, slot: Slot) -> (Slot, Result<()>) {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            // No request is made for it.
            return self.inner.read(path, range, slot).await;
        }
        let (slot, result) = self.inner.read(path, range.clone(), slot).await;
        (slot, self.meter.note(Operation::Read, Some(path), Some(range), len, result))
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        let result = self.inner.read_all(path, max_len).await;
        let len = result.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64);
        self.meter.note(Operation::ReadAll, Some(path), None, len, result)
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        let result = self.inner.head(path).await;
        self.meter.note(Operation::Head, Some(path), None, 0, result)
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        let len = payload.len();
        let result = self.inner.put(path, payload).await;
        self.meter.note(Operation::Put, Some(path), None, len, result)
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        let len = payload.len();
        let result = self.inner.put_if(path, payload, expect).await;
        let len = if matches!(result, Ok(PutOutcome::Written(_))) { len } else { 0 };
        self.meter.note(Operation::PutIf, Some(path), None, len, result)
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let result = self.inner.start_multipart(path, shape).await;
        let upload = self.meter.note(Operation::StartUpload, Some(path), None, 0, result)?;
        let (meter, path) = (Arc::clone(&self.meter), path.clone());
        Ok(upload.map_session(|inner| Arc::new(MeteredUpload { inner, meter, path })))
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        let result = self.inner.list_page(prefix, depth, after).await;
        self.meter.note(Operation::List, prefix, None, 0, result)
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        let result = self.inner.delete_many(paths).await;
        self.meter.note(Operation::Delete, paths.first(), None, 0, result)
    }
}

#[derive(Debug)]
struct MeteredUpload {
    inner: Arc<dyn UploadSession>,
    meter: Arc<Meter>,
    path: StoragePath,
}

#[async_trait]
impl UploadSession for MeteredUpload {
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()> {
        let len = payload.len();
        let result = self.inner.put_part(index, offset, payload).await;
        self.meter.note(Operation::PutPart, Some(&self.path), Some(offset..offset + len), len, result)
    }

    async fn complete(&self) -> Result<Durable> {
        let result = self.inner.complete().await;
        self.meter.note(Operation::CompleteUpload, Some(&self.path), None, 0, result)
    }

    async fn abort(&self) -> Result<()> {
        let result = self.inner.abort().await;
        self.meter.note(Operation::AbortUpload, Some(&self.path), None, 0, result)
    }
}

shown_as_inner!(Metered);
