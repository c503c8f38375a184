//! A store that lets a test do something before a request, and that states other capabilities.

use async_trait::async_trait;
use bytes::Bytes;
use reshard::storage::{
    Capabilities, Deletion, Depth, Durable, Expect, ObjectInfo, Operation, Page, PageToken, Payload,
    PutOutcome, Result, Slot, StorageBackend, StoragePath, Upload, UploadShape, Version,
};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;
type Before = dyn Fn(Operation, &StoragePath) -> Step + Send + Sync;

pub struct Hooked {
    inner: Arc<dyn StorageBackend>,
    capabilities: Capabilities,
    before: Box<Before>,
}

impl Hooked {
    /// A store that does `before` ahead of every read and put.
    pub fn before(
        inner: &Arc<dyn StorageBackend>,
        before: impl Fn(Operation, &StoragePath) -> Step + Send + Sync + 'static,
    ) -> Arc<dyn StorageBackend> {
        let capabilities = inner.capabilities().clone();
        Arc::new(Self { inner: Arc::clone(inner), capabilities, before: Box::new(before) })
    }

    /// A store that can create on a condition and not update.
    pub fn without_updates(inner: &Arc<dyn StorageBackend>) -> Arc<dyn StorageBackend> {
        let capabilities = Capabilities { conditional_update: false, ..inner.capabilities().clone() };
        let before = Box::new(|_: Operation, _: &StoragePath| Box::pin(async {}) as Step);
        Arc::new(Self { inner: Arc::clone(inner), capabilities, before })
    }
}

#[async_trait]
impl StorageBackend for Hooked {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, slot: Slot) -> (Slot, Result<()>) {
        (self.before)(Operation::Read, path).await;
        self.inner.read(path, range, slot).await
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        (self.before)(Operation::ReadAll, path).await;
        self.inner.read_all(path, max_len).await
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        self.inner.head(path).await
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        (self.before)(Operation::Put, path).await;
        self.inner.put(path, payload).await
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        (self.before)(Operation::PutIf, path).await;
        self.inner.put_if(path, payload, expect).await
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        self.inner.start_multipart(path, shape).await
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        self.inner.list_page(prefix, depth, after).await
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        self.inner.delete_many(paths).await
    }
}

impl fmt::Display for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hooked").field(&self.inner).finish()
    }
}
