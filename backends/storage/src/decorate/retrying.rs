//! [`Retrying`]: repeats requests that failed for a passing reason. The only place that retries.

use super::Meter;
use crate::backoff::Backoff;
use crate::{
    Capabilities, Deletion, Depth, Durable, Expect, ObjectInfo, Page, PageToken, Payload, PutOutcome, Result,
    Slot, StorageBackend, StorageError, StoragePath, Upload, UploadSession, UploadShape, Version,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long and how often a failed request is repeated. Waits grow exponentially with full jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// No retry begins later than this after the request's first try.
    pub budget: Duration,
    /// Most tries of a request, the first included.
    pub tries: u32,
    /// Most tries while no connection comes about: a wrong host name should fail soon, a restarting server be
    /// found.
    pub tries_unreachable: u32,
    /// Longest first wait.
    pub first_wait: Duration,
    /// Longest wait.
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    /// Ten tries within three minutes, waits from 100 ms up to 15 s; four tries of an unreachable host.
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(180),
            tries: 10,
            tries_unreachable: 4,
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(15),
        }
    }
}

/// Repeats requests to the backend inside while they fail with a transient error (5xx, 429, timeouts, broken
/// connections) and the [`RetryPolicy`] allows.
///
/// Conditional puts pass through untouched: a repeated one could find its own first write and call it lost.
pub struct Retrying {
    inner: Arc<dyn StorageBackend>,
    retrier: Retrier,
}

impl Retrying {
    /// Repeats failed requests to `inner` and counts them on `meter`.
    pub fn new(inner: Arc<dyn StorageBackend>, policy: RetryPolicy, meter: Arc<Meter>) -> Self {
        Self { inner, retrier: Retrier { policy, meter } }
    }
}

#[derive(Debug, Clone)]
struct Retrier {
    policy: RetryPolicy,
    meter: Arc<Meter>,
}

/// The tries of one request.
struct Tries<'a> {
    retrier: &'a Retrier,
    began: Instant,
    made: u32,
    backoff: Backoff,
}

impl Retrier {
    fn begin(&self) -> Tries<'_> {
        let backoff = Backoff::new(self.policy.first_wait, self.policy.longest_wait);
        Tries { retrier: self, began: Instant::now(), made: 0, backoff }
    }

    async fn run<T, F: Future<Output = Result<T>>>(&self, mut request: impl FnMut() -> F) -> Result<T> {
        let mut tries = self.begin();
        loop {
            let error = match request().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if !tries.wait_after(&error).await {
                return Err(error);
            }
        }
    }
}

impl Tries<'_> {
    /// Waits and says that the request should be tried again, or that `error` is final.
    async fn wait_after(&mut self, error: &StorageError) -> bool {
        self.made += 1;
        let policy = &self.retrier.policy;
        let most = match error {
            StorageError::Unreachable { .. } => policy.tries_unreachable.min(policy.tries),
            StorageError::Unavailable { .. } => policy.tries,
            _ => return false,
        };
        let delay = self.backoff.next_delay();
        if self.made >= most || self.began.elapsed() + delay > policy.budget {
            return false;
        }
        tracing::info!(%error, tries = self.made, ?delay, "retrying");
        sleep(delay).await;
        self.retrier.meter.count_retry();
        true
    }
}

#[async_trait]
impl StorageBackend for Retrying {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, mut slot: Slot) -> (Slot, Result<()>) {
        let mut tries = self.retrier.begin();
        loop {
            let (returned, result) = self.inner.read(path, range.clone(), slot).await;
            slot = returned;
            match result {
                Err(error) if tries.wait_after(&error).await => {}
                result => return (slot, result),
            }
        }
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        self.retrier.run(|| self.inner.read_all(path, max_len)).await
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        self.retrier.run(|| self.inner.head(path)).await
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        self.retrier.run(|| self.inner.put(path, payload.clone())).await
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        self.inner.put_if(path, payload, expect).await
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let upload = self.retrier.run(|| self.inner.start_multipart(path, shape)).await?;
        let retrier = self.retrier.clone();
        Ok(upload.map_session(|inner| Arc::new(RetryingUpload { inner, retrier })))
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        self.retrier.run(|| self.inner.list_page(prefix, depth, after)).await
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        self.retrier.run(|| self.inner.delete_many(paths)).await
    }
}

#[derive(Debug)]
struct RetryingUpload {
    inner: Arc<dyn UploadSession>,
    retrier: Retrier,
}

#[async_trait]
impl UploadSession for RetryingUpload {
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()> {
        self.retrier.run(|| self.inner.put_part(index, offset, payload.clone())).await
    }

    async fn complete(&self) -> Result<Durable> {
        self.retrier.run(|| self.inner.complete()).await
    }

    async fn abort(&self) -> Result<()> {
        self.retrier.run(|| self.inner.abort()).await
    }
}

shown_as_inner!(Retrying);
