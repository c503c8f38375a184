//! [`CloudBackend`]: object stores over HTTP, through the `object_store` crate.
//!
//! That crate speaks the protocols; it retries nothing here (its `max_retries` is 0), because
//! [`Retrying`](crate::Retrying) does. What went wrong is read from the HTTP answer itself, see [`http`].

#[cfg(feature = "azure")]
pub(crate) mod azure;
mod classify;
mod config;
#[cfg(feature = "gcs")]
pub(crate) mod gcs;
mod http;
#[cfg(feature = "s3")]
pub(crate) mod s3;
mod upload;

use crate::backend::at;
use crate::{
    At, Capabilities, Deadline, Deletion, Depth, Durable, Expect, Listing, ObjectInfo, Operation, Outage,
    Page, PageToken, Payload, PutOutcome, Result, Slot, StorageBackend, StorageError, StoragePath, Upload,
    UploadShape, Version, admit_read,
};
use async_trait::async_trait;
use bytes::Bytes;
use classify::{classify, outcome_of_failed_put};
use futures::{StreamExt, TryStreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::fmt::{self, Debug, Display};
use std::ops::Range;
use std::sync::Arc;

/// A bucket or container, or what lies below a prefix of one.
#[derive(Clone)]
pub(crate) struct CloudBackend {
    client: Arc<Client>,
}

struct Client {
    objects: Arc<dyn ObjectStore>,
    parts: Arc<dyn MultipartStore>,
    pages: Arc<dyn PaginatedListStore>,
    uri: String,
    /// Empty, or segments without a slash at either end.
    prefix: String,
    capabilities: Capabilities,
    /// Uploads can carry metadata, by which a completed one is recognised.
    stamps_uploads: bool,
    deadline: Deadline,
}

impl CloudBackend {
    fn open<S: ObjectStore + MultipartStore + PaginatedListStore>(
        store: S,
        uri: &str,
        prefix: &str,
        capabilities: Capabilities,
        stamps_uploads: bool,
        deadline: Deadline,
    ) -> Result<Arc<dyn StorageBackend>> {
        if !prefix.is_empty() {
            StoragePath::parse(prefix).map_err(|error| StorageError::InvalidInput {
                at: At::new(Operation::Open, uri),
                detail: error.to_string(),
            })?;
        }
        let store = Arc::new(store);
        let client = Client {
            objects: Arc::clone(&store) as _,
            parts: Arc::clone(&store) as _,
            pages: store,
            uri: uri.trim_end_matches('/').to_owned(),
            prefix: prefix.to_owned(),
            capabilities,
            stamps_uploads,
            deadline,
        };
        Ok(Arc::new(Self { client: Arc::new(client) }))
    }

    /// The object's key in the bucket.
    fn location(&self, at: &At, path: &StoragePath) -> Result<Path> {
        let key = match self.client.prefix.as_str() {
            "" => path.as_str().to_owned(),
            prefix => format!("{prefix}/{path}"),
        };
        let detail = match Path::parse(&key) {
            Ok(_) if key.len() > crate::MAX_KEY_BYTES => {
                "the key with its prefix is longer than 1024 bytes".to_owned()
            }
            Ok(location) => return Ok(location),
            Err(error) => error.to_string(),
        };
        Err(StorageError::InvalidInput { at: at.clone(), detail })
    }

    /// The path of a key in the bucket, if it lies below the prefix that was opened.
    fn path_of(&self, location: &Path) -> Option<StoragePath> {
        let key = location.as_ref();
        let relative = match self.client.prefix.as_str() {
            "" => key,
            prefix => key.strip_prefix(prefix)?.strip_prefix('/')?,
        };
        StoragePath::parse(relative).ok()
    }

    /// Runs one request of `bytes` object bytes within its deadline.
    async fn timed<T>(
        &self,
        at: &At,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T> {
        let deadline = self.client.deadline.of(bytes);
        match tokio::time::timeout(deadline, request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(classify(at.clone(), &error)),
            Err(_) => Err(StorageError::Unavailable {
                at: at.clone(),
                outage: Outage::Timeout,
                detail: format!("no complete answer within {deadline:?}"),
            }),
        }
    }

    /// Streams a range into `slot`, which takes `len` bytes; nothing but the pieces as they come from the socket lies
    /// in between.
    async fn fill(
        &self,
        location: &Path,
        range: Range<u64>,
        slot: &mut Slot,
        len: usize,
    ) -> object_store::Result<usize> {
        let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
        let mut stream = self.client.objects.get_opts(location, options).await?.into_stream();
        let mut filled = 0;
        while let Some(piece) = stream.try_next().await? {
            // A body longer than the range is counted, so that it is reported, but not kept.
            let kept = piece.len().min(len.saturating_sub(filled));
            slot.take(filled, piece.get(..kept).unwrap_or_default());
            filled += piece.len();
        }
        Ok(filled)
    }
}

fn to_put_payload(payload: Payload) -> PutPayload {
    payload.pieces().iter().cloned().collect()
}

fn info(path: StoragePath, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo { path, len: meta.size, modified: meta.last_modified.into() }
}

#[async_trait]
impl StorageBackend for CloudBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.client.capabilities
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, mut slot: Slot) -> (Slot, Result<()>) {
        let here = at(self, Operation::Read, path).range(range.clone());
        let result = async {
            let len = admit_read(&slot, &range, || here.clone())?;
            if len == 0 {
                return Ok(());
            }
            let location = self.location(&here, path)?;
            // Dropping the request ends it: everything that writes into the slot runs inside this future.
            let filled =
                self.timed(&here, len as u64, self.fill(&location, range.clone(), &mut slot, len)).await?;
            if filled != len {
                let detail = format!("{filled} bytes came instead of {len}");
                return Err(StorageError::Corrupt { at: here.clone(), detail });
            }
            Ok(())
        }
        .await;
        (slot, result)
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        let here = at(self, Operation::ReadAll, path);
        let location = self.location(&here, path)?;
        let read = async {
            let answer = self.client.objects.get(&location).await?;
            let version = Version::new(answer.meta.e_tag.clone(), answer.meta.version.clone());
            let len = answer.meta.size;
            let bytes = if len > max_len { Bytes::new() } else { answer.bytes().await? };
            Ok((bytes, version, len))
        };
        let (bytes, version, len) = self.timed(&here, max_len, read).await?;
        if len > max_len || bytes.len() as u64 != len {
            let detail =
                format!("the object has {len} bytes, at most {max_len} were expected, {} came", bytes.len());
            return Err(StorageError::Corrupt { at: here, detail });
        }
        Ok((bytes, version))
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        let here = at(self, Operation::Head, path);
        let location = self.location(&here, path)?;
        let meta = self.timed(&here, 0, self.client.objects.head(&location)).await?;
        Ok(info(path.clone(), &meta))
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        let here = at(self, Operation::Put, path);
        self.client.capabilities.admit_put(payload.len(), || here.clone())?;
        let location = self.location(&here, path)?;
        let len = payload.len();
        self.timed(&here, len, self.client.objects.put(&location, to_put_payload(payload))).await?;
        Ok(Durable::assert(path.clone(), len))
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        let here = at(self, Operation::PutIf, path);
        self.client.capabilities.admit_put(payload.len(), || here.clone())?;
        let location = self.location(&here, path)?;
        let mode = match expect {
            Expect::Absent => PutMode::Create,
            Expect::Version(version) => PutMode::Update(UpdateVersion {
                e_tag: version.e_tag().map(str::to_owned),
                version: version.generation().map(str::to_owned),
            }),
        };
        let len = payload.len();
        let request =
            self.client.objects.put_opts(&location, to_put_payload(payload), PutOptions::from(mode));
        match tokio::time::timeout(self.client.deadline.of(len), request).await {
            Ok(Ok(put)) => Ok(PutOutcome::Written(Version::new(put.e_tag, put.version))),
            Ok(Err(error)) => outcome_of_failed_put(here, &error),
            Err(_) => Ok(PutOutcome::Unknown {
                cause: StorageError::Unavailable {
                    at: here,
                    outage: Outage::Timeout,
                    detail: "no answer within the request's deadline".to_owned(),
                },
            }),
        }
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let here = at(self, Operation::StartUpload, path);
        self.client.capabilities.admit(shape, || here.clone())?;
        let location = self.location(&here, path)?;
        let session = upload::CloudUpload::start(self.clone(), path.clone(), location, shape, here).await?;
        Upload::new(Arc::new(session), self, path, shape)
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page> {
        let mut here = At::new(Operation::List, self);
        let mut key = self.client.prefix.clone();
        if let Some(prefix) = prefix {
            here = here.path(prefix);
            key = self.location(&here, prefix)?.as_ref().to_owned();
        }
        // The slash keeps `iter_10` out of `iter_1`.
        let key = if key.is_empty() { None } else { Some(format!("{key}/")) };
        let options = PaginatedListOptions {
            delimiter: (depth == Depth::Children).then_some("/".into()),
            page_token: after.map(|token| token.0.clone()),
            ..PaginatedListOptions::default()
        };
        let page = self.timed(&here, 0, self.client.pages.list_paginated(key.as_deref(), options)).await?;
        let below = |path: &StoragePath| prefix.is_none_or(|prefix| path.strip_prefix(prefix).is_some());
        let objects = page.result.objects.iter();
        let objects = objects.filter_map(|meta| Some(info(self.path_of(&meta.location)?, meta)));
        let prefixes = page.result.common_prefixes.iter().filter_map(|location| self.path_of(location));
        let listing = Listing {
            objects: objects.filter(|object| below(&object.path)).collect(),
            prefixes: prefixes.filter(below).collect(),
        };
        Ok(Page { listing, next: page.page_token.map(PageToken) })
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        let here = match paths {
            [only] => at(self, Operation::Delete, only),
            _ => At::new(Operation::Delete, self),
        };
        let locations = paths.iter().map(|path| self.location(&here, path)).collect::<Result<Vec<_>>>()?;
        let deleting = async {
            let locations = futures::stream::iter(locations.into_iter().map(Ok)).boxed();
            let answers = self.client.objects.delete_stream(locations).map(|answer| match answer {
                // S3 says the same whether the object was there or not; so does this for every store.
                Ok(_) => Ok(Deletion::Unknown),
                Err(error) if classify::is_absent(&error) => Ok(Deletion::Absent),
                Err(error) => Err(error),
            });
            answers.try_collect::<Vec<_>>().await
        };
        self.timed(&here, 0, deleting).await
    }
}

impl Display for CloudBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.client.uri)
    }
}

impl Debug for CloudBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloudBackend({self})")
    }
}
