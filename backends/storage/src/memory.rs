//! [`MemoryBackend`]: objects in the memory of this process, for tests, examples and ranks that are threads.

use crate::backend::at;
use crate::{
    Capabilities, Deletion, Depth, Durable, Expect, Listing, ObjectInfo, Operation, Page, PageToken, Payload,
    PutOutcome, Result, Slot, StorageBackend, StorageError, StoragePath, Upload, UploadSession, UploadShape,
    Version, admit_read,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display};
use std::ops::{Bound, Range};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A named store in memory. All backends of one name in a process see the same objects, which live as long as
/// the process does; [`MemoryBackend::anonymous`] lives as long as its clones.
#[derive(Clone)]
pub struct MemoryBackend {
    name: Arc<str>,
    objects: Arc<Mutex<Objects>>,
    capabilities: Capabilities,
}

#[derive(Debug, Default)]
struct Objects {
    by_path: BTreeMap<StoragePath, Object>,
    /// Never repeats, so that a version never returns.
    writes: u64,
}

#[derive(Debug)]
struct Object {
    bytes: Bytes,
    modified: SystemTime,
    generation: u64,
}

static NAMED: LazyLock<Mutex<HashMap<String, Arc<Mutex<Objects>>>>> = LazyLock::new(Mutex::default);

impl MemoryBackend {
    /// The store of that name in this process.
    pub fn named(name: &str) -> Self {
        let objects = Arc::clone(lock(&NAMED).entry(name.to_owned()).or_default());
        Self { name: name.into(), objects, capabilities: Capabilities::unlimited(true) }
    }

    /// A fresh store that only its clones can reach.
    pub fn anonymous() -> Self {
        Self { name: "".into(), objects: Arc::default(), capabilities: Capabilities::unlimited(true) }
    }

    fn object(&self, path: &StoragePath, operation: Operation) -> Result<(Bytes, SystemTime, Version)> {
        lock(&self.objects)
            .by_path
            .get(path)
            .map(|object| (object.bytes.clone(), object.modified, version(object.generation)))
            .ok_or_else(|| StorageError::NotFound { at: at(self, operation, path) })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is one insert or remove, so the data is whole even after a panic of another holder.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy: a payload is often the caller's staging memory, which must go back to it.
fn owned(payload: &Payload) -> Bytes {
    payload.pieces().concat().into()
}

fn version(generation: u64) -> Version {
    Version::new(None, Some(generation.to_string()))
}

impl Objects {
    fn write(&mut self, path: &StoragePath, bytes: Bytes) -> Version {
        self.writes += 1;
        let generation = self.writes;
        self.by_path.insert(path.clone(), Object { bytes, modified: SystemTime::now(), generation });
        version(generation)
    }
}

#[async_trait]
impl StorageBackend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, mut slot: Slot) -> (Slot, Result<()>) {
        let here = || at(self, Operation::Read, path).range(range.clone());
        let result = (|| {
            let len = admit_read(&slot, &range, here)?;
            if len == 0 {
                return Ok(());
            }
            let (bytes, ..) = self.object(path, Operation::Read)?;
            let source = usize::try_from(range.start).ok().and_then(|start| bytes.get(start..));
            let source = source.and_then(|rest| rest.get(..len)).ok_or_else(|| StorageError::Corrupt {
                at: here(),
                detail: format!("the object has {} bytes", bytes.len()),
            })?;
            slot.take(0, source);
            Ok(())
        })();
        (slot, result)
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        let (bytes, _, version) = self.object(path, Operation::ReadAll)?;
        if bytes.len() as u64 > max_len {
            let detail = format!("the object has {} bytes, at most {max_len} were expected", bytes.len());
            return Err(StorageError::Corrupt { at: at(self, Operation::ReadAll, path), detail });
        }
        Ok((bytes, version))
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        let (bytes, modified, _) = self.object(path, Operation::Head)?;
        Ok(ObjectInfo { path: path.clone(), len: bytes.len() as u64, modified })
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        lock(&self.objects).write(path, owned(&payload));
        Ok(Durable::assert(path.clone(), payload.len()))
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        let mut objects = lock(&self.objects);
        let current = objects.by_path.get(path).map(|object| version(object.generation));
        let holds = match expect {
            Expect::Absent => current.is_none(),
            Expect::Version(expected) => current.as_ref() == Some(expected),
        };
        Ok(if holds { PutOutcome::Written(objects.write(path, owned(&payload))) } else { PutOutcome::Lost })
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let session = MemoryUpload { store: self.clone(), path: path.clone(), parts: Mutex::default() };
        Upload::new(Arc::new(session), self, path, shape)
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        _after: Option<&PageToken>,
    ) -> Result<Page> {
        let objects = lock(&self.objects);
        let mut listing = Listing::default();
        let from = prefix.map_or(Bound::Unbounded, Bound::Excluded);
        for (path, object) in objects.by_path.range((from, Bound::Unbounded)) {
            let below = match prefix {
                None => Some(path.as_str()),
                Some(prefix) if !path.as_str().starts_with(prefix.as_str()) => break,
                Some(prefix) => path.strip_prefix(prefix),
            };
            let Some(below) = below else { continue };
            match below.split_once('/') {
                Some((segment, _)) if depth == Depth::Children => {
                    let child = &path.as_str()[..path.as_str().len() - below.len() + segment.len()];
                    if listing.prefixes.last().is_none_or(|last| last.as_str() != child) {
                        listing.prefixes.extend(StoragePath::parse(child));
                    }
                }
                _ => listing.objects.push(ObjectInfo {
                    path: path.clone(),
                    len: object.bytes.len() as u64,
                    modified: object.modified,
                }),
            }
        }
        Ok(Page { listing, next: None })
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        let mut objects = lock(&self.objects);
        Ok(paths
            .iter()
            .map(|path| match objects.by_path.remove(path) {
                Some(_) => Deletion::Deleted,
                None => Deletion::Absent,
            })
            .collect())
    }
}

#[derive(Debug)]
struct MemoryUpload {
    store: MemoryBackend,
    path: StoragePath,
    parts: Mutex<BTreeMap<u64, Bytes>>,
}

#[async_trait]
impl UploadSession for MemoryUpload {
    async fn put_part(&self, index: u64, _offset: u64, payload: Payload) -> Result<()> {
        lock(&self.parts).insert(index, owned(&payload));
        Ok(())
    }

    async fn complete(&self) -> Result<Durable> {
        let whole: Payload = lock(&self.parts).values().cloned().collect();
        self.store.put(&self.path, whole).await
    }

    async fn abort(&self) -> Result<()> {
        lock(&self.parts).clear();
        Ok(())
    }
}

impl Display for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory://{}", self.name)
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBackend({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that a caller lends for a request.
    struct Lent(Arc<[u8]>);

    impl AsRef<[u8]> for Lent {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    /// A store that keeps it would starve an upload of more parts than there are staging slots.
    #[tokio::test]
    async fn a_payload_is_given_back_when_the_request_has_ended() {
        let store = MemoryBackend::anonymous();
        let path = StoragePath::parse("object").unwrap();
        let lent: Arc<[u8]> = Arc::from(*b"staging");
        let payload = || Payload::from(Bytes::from_owner(Lent(Arc::clone(&lent))));
        store.put(&path, payload()).await.unwrap();
        store.put_if(&StoragePath::parse("new").unwrap(), payload(), &Expect::Absent).await.unwrap();
        let upload = store.start_multipart(&path, UploadShape::new(14, 7)).await.unwrap();
        upload.put_part(0, payload()).await.unwrap();
        upload.put_part(1, payload()).await.unwrap();
        assert_eq!(Arc::strong_count(&lent), 1);
        upload.complete().await.unwrap();
        assert_eq!(store.read_all(&path, 100).await.unwrap().0, b"stagingstaging"[..]);
    }
}
