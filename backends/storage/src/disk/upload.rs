//! An upload on disk: parts are written at their offsets of one temporary, in any order.

use super::DiskBackend;
use super::temporary::Temporary;
use crate::backend::at;
use crate::{Durable, Operation, Payload, Result, StoragePath, UploadSession};
use async_trait::async_trait;
use std::sync::Arc;
use tokio::sync::Mutex;

#[derive(Debug)]
pub(super) struct DiskUpload {
    disk: DiskBackend,
    path: StoragePath,
    len: u64,
    temporary: Arc<Temporary>,
    /// Held by the part that is being written. A file system takes the writes of one file one by one anyway; threads
    /// that wait inside it spin and keep the others from their work.
    writing: Mutex<()>,
}

impl DiskUpload {
    pub(super) fn new(disk: DiskBackend, path: StoragePath, len: u64, temporary: Temporary) -> Self {
        Self { disk, path, len, temporary: Arc::new(temporary), writing: Mutex::default() }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        operation: Operation,
        work: impl FnOnce(&Temporary) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (temporary, path) = (Arc::clone(&self.temporary), self.path.clone());
        let here = at(&self.disk, operation, &self.path);
        self.disk
            .blocking(here, move |disk| {
                work(&temporary).map_err(|error| disk.write_error(operation, &path, error))
            })
            .await
    }
}

#[async_trait]
impl UploadSession for DiskUpload {
    async fn put_part(&self, _index: u64, offset: u64, payload: Payload) -> Result<()> {
        let _turn = self.writing.lock().await;
        self.blocking(Operation::PutPart, move |temporary| {
            temporary.write_at(offset, &payload)?;
            temporary.begin_sync(offset, payload.len());
            Ok(())
        })
        .await
    }

    async fn complete(&self) -> Result<Durable> {
        self.blocking(Operation::CompleteUpload, |temporary| {
            temporary.sync()?;
            temporary.rename()?;
            temporary.sync_name()
        })
        .await?;
        Ok(Durable::assert(self.path.clone(), self.len))
    }

    async fn abort(&self) -> Result<()> {
        self.blocking(Operation::AbortUpload, |temporary| {
            temporary.remove();
            Ok(())
        })
        .await
    }
}
