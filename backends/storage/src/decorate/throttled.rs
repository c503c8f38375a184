//! [`Throttled`]: makes a fast store as slow as a far one, for benchmarks.

use crate::{
    Capabilities, Deletion, Depth, Durable, Expect, ObjectInfo, Page, PageToken, Payload, PutOutcome, Result,
    Slot, StorageBackend, StoragePath, Upload, UploadSession, UploadShape, Version,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How slow a request is: each has a connection of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Time before the first byte.
    pub first_byte: Duration,
    /// Bytes per second of one connection.
    pub bytes_per_second: u64,
}

impl Pace {
    /// When a request of `bytes` bytes that begins now ends at the earliest.
    fn end(&self, bytes: u64) -> Instant {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        Instant::now() + self.first_byte + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Lets every request to the backend inside take at least as long as the [`Pace`] says.
pub struct Throttled {
    inner: Arc<dyn StorageBackend>,
    pace: Pace,
}

impl Throttled {
    /// Slows `inner` down to `pace`.
    pub fn new(inner: Arc<dyn StorageBackend>, pace: Pace) -> Self {
        Self { inner, pace }
    }
}

#[async_trait]
impl StorageBackend for Throttled {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, slot: Slot) -> (Slot, Result<()>) {
        let end = self.pace.end(range.end.saturating_sub(range.start));
        let answer = self.inner.read(path, range, slot).await;
        sleep_until(end).await;
        answer
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        let begin = self.pace.end(0);
        let answer = self.inner.read_all(path, max_len).await;
        sleep_until(begin).await;
        answer
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        sleep_until(self.pace.end(0)).await;
        self.inner.head(path).await
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        sleep_until(self.pace.end(payload.len())).await;
        self.inner.put(path, payload).await
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        sleep_until(self.pace.end(payload.len())).await;
        self.inner.put_if(path, payload, expect).await
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        sleep_until(self.pace.end(0)).await;
        let upload = self.inner.start_multipart(path, shape).await?;
        let pace = self.pace;
        Ok(upload.map_session(|inner| Arc::new(ThrottledUpload { inner, pace })))
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        sleep_until(self.pace.end(0)).await;
        self.inner.list_page(prefix, depth, after).await
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        sleep_until(self.pace.end(0)).await;
        self.inner.delete_many(paths).await
    }
}

#[derive(Debug)]
struct ThrottledUpload {
    inner: Arc<dyn UploadSession>,
    pace: Pace,
}

#[async_trait]
impl UploadSession for ThrottledUpload {
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()> {
        sleep_until(self.pace.end(payload.len())).await;
        self.inner.put_part(index, offset, payload).await
    }

    async fn complete(&self) -> Result<Durable> {
        sleep_until(self.pace.end(0)).await;
        self.inner.complete().await
    }

    async fn abort(&self) -> Result<()> {
        sleep_until(self.pace.end(0)).await;
        self.inner.abort().await
    }
}

shown_as_inner!(Throttled);
