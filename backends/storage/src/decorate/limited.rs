//! [`Limited`]: bounds how many requests, and how many of their bytes, are under way at once.

use crate::{
    At, Capabilities, Deletion, Depth, Durable, Expect, ObjectInfo, Operation, Page, PageToken, Payload,
    PutOutcome, Result, Slot, StorageBackend, StorageError, StoragePath, Upload, UploadSession, UploadShape,
    Version,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How much may be under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests.
    pub requests: usize,
    /// Object bytes that these requests read or write; a single larger request runs alone.
    pub bytes: u64,
}

impl Default for Limits {
    /// 64 requests and 512 MiB: saturates a 25 Gbit/s network with 8 MiB requests of 100 ms.
    fn default() -> Self {
        Self { requests: 64, bytes: 512 << 20 }
    }
}

/// Waits before a request to the backend inside until it fits in the [`Limits`].
pub struct Limited {
    inner: Arc<dyn StorageBackend>,
    gate: Arc<Gate>,
}

impl Limited {
    /// Bounds `inner` by `limits`; a limit of 0 counts as 1.
    pub fn new(inner: Arc<dyn StorageBackend>, limits: Limits) -> Self {
        let units = u32::try_from(limits.bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1);
        let requests = Semaphore::new(limits.requests.clamp(1, Semaphore::MAX_PERMITS));
        let store = inner.to_string();
        let gate = Gate { requests, bytes: Semaphore::new(units as usize), units, store };
        Self { inner, gate: Arc::new(gate) }
    }
}

/// Bytes that one permit of the byte semaphore stands for, so that 32 bits of permits reach 16 TiB.
const UNIT: u64 = 4096;

#[derive(Debug)]
struct Gate {
    requests: Semaphore,
    bytes: Semaphore,
    units: u32,
    store: String,
}

impl Gate {
    async fn enter(&self, operation: Operation, bytes: u64) -> Result<[SemaphorePermit<'_>; 2]> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.units);
        // Bytes first: a large request that waits for them doesn't keep a request's place from small ones.
        let permits = async { Ok([self.bytes.acquire_many(units).await?, self.requests.acquire().await?]) };
        permits.await.map_err(|closed: tokio::sync::AcquireError| StorageError::Internal {
            at: At::new(operation, &self.store),
            detail: closed.to_string(),
        })
    }
}

#[async_trait]
impl StorageBackend for Limited {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, slot: Slot) -> (Slot, Result<()>) {
        match self.gate.enter(Operation::Read, range.end.saturating_sub(range.start)).await {
            Ok(_permits) => self.inner.read(path, range, slot).await,
            Err(error) => (slot, Err(error)),
        }
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        // Small by contract and of unknown length: it counts as a request only.
        let _permits = self.gate.enter(Operation::ReadAll, 0).await?;
        self.inner.read_all(path, max_len).await
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        let _permits = self.gate.enter(Operation::Head, 0).await?;
        self.inner.head(path).await
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        let _permits = self.gate.enter(Operation::Put, payload.len()).await?;
        self.inner.put(path, payload).await
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        let _permits = self.gate.enter(Operation::PutIf, payload.len()).await?;
        self.inner.put_if(path, payload, expect).await
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let _permits = self.gate.enter(Operation::StartUpload, 0).await?;
        let upload = self.inner.start_multipart(path, shape).await?;
        let gate = Arc::clone(&self.gate);
        Ok(upload.map_session(|inner| Arc::new(LimitedUpload { inner, gate })))
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        let _permits = self.gate.enter(Operation::List, 0).await?;
        self.inner.list_page(prefix, depth, after).await
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        let _permits = self.gate.enter(Operation::Delete, 0).await?;
        self.inner.delete_many(paths).await
    }
}

#[derive(Debug)]
struct LimitedUpload {
    inner: Arc<dyn UploadSession>,
    gate: Arc<Gate>,
}

#[async_trait]
impl UploadSession for LimitedUpload {
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()> {
        let _permits = self.gate.enter(Operation::PutPart, payload.len()).await?;
        self.inner.put_part(index, offset, payload).await
    }

    async fn complete(&self) -> Result<Durable> {
        let _permits = self.gate.enter(Operation::CompleteUpload, 0).await?;
        self.inner.complete().await
    }

    async fn abort(&self) -> Result<()> {
        // Never behind uploads that are under way: it is what frees a store that is too busy.
        self.inner.abort().await
    }
}

shown_as_inner!(Limited);
