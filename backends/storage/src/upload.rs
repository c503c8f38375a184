//! Uploads in parts: their shape, the session that a backend implements, and the owner that aborts on drop.

use crate::{At, Capabilities, Durable, Operation, Payload, Result, StorageError, StoragePath};
use async_trait::async_trait;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::Handle;

/// Length of an object and of its parts: every part has `part_len` bytes but the last, which has the rest.
///
/// The total is given at the start because a planned file knows it, equal parts because some stores (R2)
/// insist on them; so each part's offset follows from its index and parts may be sent in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadShape {
    len: u64,
    part_len: u64,
}

impl UploadShape {
    /// `len` bytes in parts of `part_len` bytes (a `part_len` of 0 counts as 1).
    pub fn new(len: u64, part_len: u64) -> Self {
        Self { len, part_len: part_len.max(1) }
    }

    /// `len` bytes in parts as near to `preferred` bytes as the store's limits allow; longer ones where
    /// otherwise there would be too many, in steps of 1 MiB.
    pub fn fit(len: u64, preferred: u64, capabilities: &Capabilities) -> Self {
        const STEP: u64 = 1 << 20;
        let least = capabilities.min_part_len.max(len.div_ceil(capabilities.max_parts.max(1)));
        let part_len = if least > preferred { least.div_ceil(STEP).saturating_mul(STEP) } else { preferred };
        Self::new(len, part_len.min(capabilities.max_part_len))
    }

    /// Bytes of the object.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the object has no bytes (and so the upload no parts).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of each part but the last.
    pub fn part_len(&self) -> u64 {
        self.part_len
    }

    /// Number of parts.
    pub fn parts(&self) -> u64 {
        self.len.div_ceil(self.part_len)
    }

    /// Bytes of the object that part `index` (from 0) covers; `None` when there is no such part.
    pub fn part(&self, index: u64) -> Option<std::ops::Range<u64>> {
        let start = index.checked_mul(self.part_len).filter(|start| *start < self.len)?;
        Some(start..start.saturating_add(self.part_len).min(self.len))
    }
}

/// What a backend implements for an upload; callers hold an [`Upload`].
///
/// [`Upload`] has checked index and length of each part, and calls `complete` only when every part has
/// succeeded.
#[async_trait]
pub trait UploadSession: Debug + Send + Sync + 'static {
    /// Sends part `index`, which begins at byte `offset`; sending it again replaces it.
    async fn put_part(&self, index: u64, offset: u64, payload: Payload) -> Result<()>;

    /// Makes the object visible and durable. Calling again after an error is allowed and settles it.
    async fn complete(&self) -> Result<Durable>;

    /// Gives up and frees what was sent; harmless after `complete`.
    async fn abort(&self) -> Result<()>;
}

/// A running upload. Parts may be sent concurrently and in any order; dropping it aborts it in the
/// background.
pub struct Upload {
    path: StoragePath,
    shape: UploadShape,
    session: Arc<dyn UploadSession>,
    sent: Mutex<Vec<bool>>,
    store: String,
    /// Where the abort of a dropped upload runs: a drop may happen on a thread outside the runtime.
    runtime: Handle,
    finished: bool,
}

impl Upload {
    /// For implementers: takes charge of `session`, which has been started for `path`.
    ///
    /// # Errors
    /// `InvalidInput` when there are more parts than memory can track.
    pub fn new(
        session: Arc<dyn UploadSession>,
        store: &(impl fmt::Display + ?Sized),
        path: &StoragePath,
        shape: UploadShape,
    ) -> Result<Self> {
        let at = || At::new(Operation::StartUpload, store).path(path);
        let parts = usize::try_from(shape.parts()).ok().filter(|parts| *parts <= MAX_TRACKED_PARTS);
        let parts = parts.ok_or_else(|| StorageError::InvalidInput {
            at: at(),
            detail: format!("{} parts; take longer ones", shape.parts()),
        })?;
        let runtime = Handle::try_current()
            .map_err(|error| StorageError::Internal { at: at(), detail: error.to_string() })?;
        Ok(Self {
            path: path.clone(),
            shape,
            session,
            sent: Mutex::new(vec![false; parts]),
            store: store.to_string(),
            runtime,
            finished: false,
        })
    }

    /// Puts a decorator around the session.
    pub fn map_session(
        mut self,
        wrap: impl FnOnce(Arc<dyn UploadSession>) -> Arc<dyn UploadSession>,
    ) -> Self {
        self.session = wrap(Arc::clone(&self.session));
        self
    }

    /// The object being written.
    pub fn path(&self) -> &StoragePath {
        &self.path
    }

    /// Its length and parts.
    pub fn shape(&self) -> UploadShape {
        self.shape
    }

    /// Sends part `index`, counted from 0.
    ///
    /// # Errors
    /// `InvalidInput` when there is no such part or `payload` isn't as long as the part.
    pub async fn put_part(&self, index: u64, payload: Payload) -> Result<()> {
        let at = || At::new(Operation::PutPart, &self.store).path(&self.path);
        let part = self.shape.part(index).ok_or_else(|| StorageError::InvalidInput {
            at: at(),
            detail: format!("part {index} of {}", self.shape.parts()),
        })?;
        if payload.len() != part.end - part.start {
            return Err(StorageError::InvalidInput {
                at: at().range(part.clone()),
                detail: format!(
                    "part {index} has {} bytes instead of {}",
                    payload.len(),
                    part.end - part.start
                ),
            });
        }
        self.session.put_part(index, part.start, payload).await?;
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sent) = usize::try_from(index).ok().and_then(|index| sent.get_mut(index)) {
            *sent = true;
        }
        Ok(())
    }

    /// Makes the object visible. On an error the upload is aborted in the background.
    ///
    /// # Errors
    /// `InvalidInput` when a part is missing.
    pub async fn complete(mut self) -> Result<Durable> {
        let missing = self.sent.lock().unwrap_or_else(PoisonError::into_inner).iter().position(|sent| !sent);
        if let Some(index) = missing {
            return Err(StorageError::InvalidInput {
                at: At::new(Operation::CompleteUpload, &self.store).path(&self.path),
                detail: format!("part {index} of {} was not sent", self.shape.parts()),
            });
        }
        let durable = self.session.complete().await?;
        self.finished = true;
        Ok(durable)
    }

    /// Gives up; when it returns `Ok`, the parts are gone.
    pub async fn abort(mut self) -> Result<()> {
        self.session.abort().await?;
        self.finished = true;
        Ok(())
    }
}

/// The map of sent parts stays below 64 MiB: far beyond any store's limit, and a bound for a mistaken part
/// length.
const MAX_TRACKED_PARTS: usize = 64 << 20;

impl Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("path", &self.path).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (session, path) = (Arc::clone(&self.session), self.path.clone());
        self.runtime.spawn(async move {
            if let Err(error) = session.abort().await {
                tracing::warn!(%path, %error, "a dropped upload could not be aborted; its parts stay until they expire");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The parts tile the object in order, whatever the lengths.
        #[test]
        fn parts_tile(len in 0u64..10_000, part_len in 0u64..3_000) {
            let shape = UploadShape::new(len, part_len);
            let mut end = 0;
            for index in 0..shape.parts() {
                let part = shape.part(index).unwrap();
                prop_assert_eq!(part.start, end);
                prop_assert!(part.end > part.start);
                end = part.end;
            }
            prop_assert_eq!(end, len);
            prop_assert_eq!(shape.part(shape.parts()), None);
        }

        /// `fit` keeps every limit whenever the limits allow the object at all.
        #[test]
        fn fit_keeps_limits(len in 0u64..=(5 << 40), preferred in 1u64..=(64 << 20)) {
            let limits = Capabilities {
                min_part_len: 5 << 20, max_part_len: 5 << 30, max_parts: 10_000, max_object_len: 5 << 40,
                ..Capabilities::unlimited(false)
            };
            let shape = UploadShape::fit(len, preferred, &limits);
            prop_assert!(limits.admit(shape, || At::new(Operation::StartUpload, "test")).is_ok(), "{:?}", shape);
            if preferred >= 5 << 20 && len.div_ceil(preferred) <= 10_000 {
                prop_assert_eq!(shape.part_len(), preferred);
            }
        }
    }
}
