//! Multipart uploads to an object store.

use super::{CloudBackend, to_put_payload};
use crate::backend::at;
use crate::{At, Durable, Operation, Payload, Result, StorageError, StoragePath, UploadSession, UploadShape};
use async_trait::async_trait;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetOptions, MultipartId, PutMultipartOptions};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Name of the metadata by which an object is recognised as the result of one upload. Lower-case letters
/// only: each store and each proxy in front of it allows something different beyond those.
const STAMP: &str = "reshardupload";

#[derive(Debug)]
pub(super) struct CloudUpload {
    backend: CloudBackend,
    path: StoragePath,
    location: Path,
    shape: UploadShape,
    /// `None` for an object without bytes: stores don't complete an upload without parts.
    id: Option<MultipartId>,
    stamp: String,
    parts: Mutex<BTreeMap<u64, PartId>>,
    /// An earlier try to complete may have succeeded without telling.
    in_doubt: AtomicBool,
}

impl CloudUpload {
    pub(super) async fn start(
        backend: CloudBackend,
        path: StoragePath,
        location: Path,
        shape: UploadShape,
        here: At,
    ) -> Result<Self> {
        let fresh = getrandom::u64()
            .map_err(|error| StorageError::Internal { at: here.clone(), detail: error.to_string() })?;
        let stamp = format!("{fresh:016x}");
        let mut options = PutMultipartOptions::default();
        if backend.client.stamps_uploads {
            options.attributes = Attributes::from_iter([(Attribute::Metadata(STAMP.into()), stamp.clone())]);
        }
        let id = if shape.is_empty() {
            None
        } else {
            let request = backend.client.parts.create_multipart_opts(&location, options);
            Some(backend.timed(&here, 0, request).await?)
        };
        let (parts, in_doubt) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { backend, path, location, shape, id, stamp, parts, in_doubt })
    }

    /// Whether the object at the path is the one that this upload made.
    async fn is_ours(&self, here: &At) -> Result<bool> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let request = self.backend.client.objects.get_opts(&self.location, options);
        let found = match self.backend.timed(here, 0, request).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        };
        let stamp = found.attributes.get(&Attribute::Metadata(STAMP.into()));
        // Azure takes no metadata here. Its lost answer is recognised by the length alone.
        let stamped =
            !self.backend.client.stamps_uploads || stamp.is_some_and(|stamp| **stamp == *self.stamp);
        Ok(stamped && found.meta.size == self.shape.len())
    }
}

#[async_trait]
impl UploadSession for CloudUpload {
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()> {
        let len = payload.len();
        let here =
            at(&self.backend, Operation::PutPart, &self.path).range(offset..offset.saturating_add(len));
        let (Some(id), Ok(number)) = (&self.id, usize::try_from(index)) else {
            return Err(StorageError::InvalidInput { at: here, detail: format!("there is no part {index}") });
        };
        let request = self.backend.client.parts.put_part(&self.location, id, number, to_put_payload(payload));
        let part = self.backend.timed(&here, len, request).await?;
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert(index, part);
        Ok(())
    }

    async fn complete(&self) -> Result<Durable> {
        let here = at(&self.backend, Operation::CompleteUpload, &self.path);
        let durable = || Durable::assert(self.path.clone(), self.shape.len());
        let client = &self.backend.client;
        let Some(id) = &self.id else {
            self.backend
                .timed(
                    &here,
                    0,
                    client.objects.put_opts(&self.location, Default::default(), Default::default()),
                )
                .await?;
            return Ok(durable());
        };
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let request = client.parts.complete_multipart(&self.location, id, parts);
        // The store may have to put a large object together; that is not bounded by this connection's speed.
        let error = match self.backend.timed(&here, self.shape.len(), request).await {
            Ok(_) => return Ok(durable()),
            Err(error) => error,
        };
        match &error {
            StorageError::Unavailable { .. } => self.in_doubt.store(true, Ordering::SeqCst),
            // The upload is gone: completed by an earlier try whose answer got lost, or it never was.
            StorageError::NotFound { .. } | StorageError::InvalidInput { .. }
                if self.in_doubt.load(Ordering::SeqCst) && self.is_ours(&here).await? =>
            {
                return Ok(durable());
            }
            _ => {}
        }
        Err(error)
    }

    async fn abort(&self) -> Result<()> {
        let here = at(&self.backend, Operation::AbortUpload, &self.path);
        let Some(id) = &self.id else { return Ok(()) };
        let request = self.backend.client.parts.abort_multipart(&self.location, id);
        match self.backend.timed(&here, 0, request).await {
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        }
    }
}
