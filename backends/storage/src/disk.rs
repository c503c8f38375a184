//! [`DiskBackend`]: objects as files of a local or shared file system.
//!
//! Bytes are read with `pread` straight into the caller's slot. A write goes to a locked temporary beside its
//! target, is fsynced, moved to its final name in one step, and made durable up to the root, so nothing half
//! written ever has a final name and nothing reported as durable is lost with the power.

mod conditional;
mod durable;
mod errors;
mod temporary;
mod upload;
mod walk;

use crate::backend::at;
use crate::{
    At, Capabilities, Deletion, Depth, Durable, Expect, Listing, ObjectInfo, Operation, Page, PageToken,
    Payload, PutOutcome, Result, Slot, StorageBackend, StorageError, StoragePath, Upload, UploadShape,
    Version, admit_read,
};
use async_trait::async_trait;
use bytes::Bytes;
use errors::{OnDisk, object_error};
use std::fmt::{self, Debug, Display};
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use temporary::Temporary;

/// Name of the file at the root whose lock serialises conditional updates; no object can have it.
const LOCK_FILE: &str = ".lock";

/// Objects below a directory, which is created by the first write. Two names are reserved: `.lock` at the
/// root, and names that begin with `.reshard-tmp-` (writes in progress; listings hide them).
#[derive(Clone)]
pub struct DiskBackend {
    root: Arc<Path>,
    capabilities: Capabilities,
}

impl DiskBackend {
    /// Objects below `root`, which need not exist yet.
    ///
    /// # Errors
    /// `InvalidInput` when a relative `root` can't be made absolute.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        let root = std::path::absolute(&root)
            .map_err(|error| object_error(At::new(Operation::Open, &root.display()), error))?;
        Ok(Self { root: root.into(), capabilities: Capabilities::unlimited(true) })
    }

    /// The directory that holds the objects.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file of an object.
    fn file_of(&self, path: &StoragePath, operation: Operation) -> Result<PathBuf> {
        let reserved = path.as_str() == LOCK_FILE
            || path.segments().any(|segment| temporary::is_temporary(segment.as_ref()));
        if reserved {
            return Err(StorageError::InvalidInput {
                at: at(self, operation, path),
                detail: "this name is reserved on disk; choose another".to_owned(),
            });
        }
        Ok(self.root.join(path.as_str()))
    }

    /// A fsynced temporary for `path` that holds `payload`.
    fn staged(&self, path: &StoragePath, payload: &Payload, operation: Operation) -> Result<Temporary> {
        let temporary = Temporary::create(&self.root, self.file_of(path, operation)?)
            .map_err(|error| self.write_error(operation, path, error))?;
        let written = temporary.write_at(0, payload).and_then(|()| temporary.sync());
        written.map_err(|error| self.write_error(operation, path, error))?;
        Ok(temporary)
    }

    fn write_error(&self, operation: Operation, path: &StoragePath, error: std::io::Error) -> StorageError {
        errors::write_error(at(self, operation, path), error)
    }

    /// Runs file system calls where blocking is allowed.
    async fn blocking<T: Send + 'static>(
        &self,
        at: At,
        work: impl FnOnce(Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let this = self.clone();
        let joined = tokio::task::spawn_blocking(move || work(this)).await;
        joined.map_err(|error| StorageError::Internal { at, detail: error.to_string() })?
    }
}

#[async_trait]
impl StorageBackend for DiskBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, path: &StoragePath, range: Range<u64>, mut slot: Slot) -> (Slot, Result<()>) {
        let here = at(self, Operation::Read, path).range(range.clone());
        let (len, file) = match admit_read(&slot, &range, || here.clone())
            .and_then(|len| Ok((len, self.file_of(path, Operation::Read)?)))
        {
            Ok((0, _)) => return (slot, Ok(())),
            Ok(found) => found,
            Err(error) => return (slot, Err(error)),
        };
        // The slot travels with the system call, so it can't be reused while the kernel writes into it.
        let task_here = here.clone();
        let joined = tokio::task::spawn_blocking(move || {
            let result = read_range(&file, range.start, len, &mut slot, task_here);
            (slot, result)
        });
        joined.await.unwrap_or_else(|error| {
            (Box::new(Vec::new()), Err(StorageError::Internal { at: here, detail: error.to_string() }))
        })
    }

    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)> {
        let here = at(self, Operation::ReadAll, path);
        let file = self.file_of(path, Operation::ReadAll)?;
        self.blocking(here.clone(), move |_| {
            let bytes = read_small(&file, max_len, here)?;
            let version = conditional::version_of(&bytes);
            Ok((bytes.into(), version))
        })
        .await
    }

    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo> {
        let here = at(self, Operation::Head, path);
        let (file, path) = (self.file_of(path, Operation::Head)?, path.clone());
        self.blocking(here.clone(), move |_| {
            let metadata = fs::metadata(&file).on_disk(&here)?;
            if metadata.is_dir() {
                return Err(StorageError::NotFound { at: here });
            }
            Ok(ObjectInfo { path, len: metadata.len(), modified: modified(&metadata) })
        })
        .await
    }

    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable> {
        let here = at(self, Operation::Put, path);
        let path = path.clone();
        self.blocking(here, move |this| {
            let temporary = this.staged(&path, &payload, Operation::Put)?;
            let named = temporary.rename().and_then(|()| temporary.sync_name());
            named.map_err(|error| this.write_error(Operation::Put, &path, error))?;
            Ok(Durable::assert(path, payload.len()))
        })
        .await
    }

    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome> {
        let here = at(self, Operation::PutIf, path);
        let (path, expect) = (path.clone(), expect.clone());
        self.blocking(here, move |this| match expect {
            Expect::Absent => conditional::create(&this, &path, &payload),
            Expect::Version(version) => conditional::update(&this, &path, &payload, &version),
        })
        .await
    }

    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload> {
        let here = at(self, Operation::StartUpload, path);
        let task_path = path.clone();
        let session = self
            .blocking(here, move |this| {
                let file = this.file_of(&task_path, Operation::StartUpload)?;
                let temporary = Temporary::create(&this.root, file)
                    .map_err(|error| this.write_error(Operation::StartUpload, &task_path, error))?;
                Ok(upload::DiskUpload::new(this, task_path, shape.len(), temporary))
            })
            .await?;
        Upload::new(Arc::new(session), self, path, shape)
    }

    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        _after: Option<&PageToken>,
    ) -> Result<Page> {
        let mut here = At::new(Operation::List, self);
        if let Some(prefix) = prefix {
            here = here.path(prefix);
        }
        let prefix = prefix.cloned();
        self.blocking(here.clone(), move |this| {
            let mut listing = Listing::default();
            walk::list(&this.root, prefix.as_ref(), depth, &mut listing).on_disk(&here)?;
            Ok(Page { listing, next: None })
        })
        .await
    }

    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>> {
        let paths = paths.to_vec();
        self.blocking(At::new(Operation::Delete, self), move |this| {
            let files = paths.iter().map(|path| this.file_of(path, Operation::Delete));
            let files = files.collect::<Result<Vec<_>>>()?;
            let deletions = paths.iter().zip(&files).map(|(path, file)| {
                walk::remove(file).map_err(|error| object_error(at(&this, Operation::Delete, path), error))
            });
            let deletions = deletions.collect::<Result<Vec<_>>>()?;
            walk::prune_directories(&this.root, &files);
            Ok(deletions)
        })
        .await
    }
}

fn read_range(path: &Path, start: u64, len: usize, slot: &mut Slot, here: At) -> Result<()> {
    let file = open(path, &here)?;
    let mut at = 0;
    while at < len {
        let room = slot.room(at, len - at);
        if room.is_empty() {
            let detail = format!("the slot has no room at byte {at} of {len}");
            return Err(StorageError::Internal { at: here, detail });
        }
        let count = match file.read_at(room, start + at as u64) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            count => count.on_disk(&here)?,
        };
        if count == 0 {
            let len =
                file.metadata().map_or_else(|_| "fewer".to_owned(), |metadata| metadata.len().to_string());
            return Err(StorageError::Corrupt { at: here, detail: format!("the object has {len} bytes") });
        }
        slot.filled(at..at + count);
        at += count;
    }
    Ok(())
}

/// Opens the file of an object. A pipe, a socket or a device is none: to open or read one may wait without end.
fn open(path: &Path, here: &At) -> Result<File> {
    let kind = fs::metadata(path).on_disk(here)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        let detail = "it is no regular file".to_owned();
        return Err(StorageError::Corrupt { at: here.clone(), detail });
    }
    File::open(path).on_disk(here)
}

fn read_small(file: &Path, max_len: u64, here: At) -> Result<Vec<u8>> {
    let file = open(file, &here)?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too long, without trusting the length that stat
    // reports.
    file.take(max_len.saturating_add(1)).read_to_end(&mut bytes).on_disk(&here)?;
    if bytes.len() as u64 > max_len {
        let detail = format!("the object has more than the {max_len} bytes that were expected");
        return Err(StorageError::Corrupt { at: here, detail });
    }
    Ok(bytes)
}

fn modified(metadata: &fs::Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

impl Display for DiskBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.root.display(), f)
    }
}

impl Debug for DiskBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskBackend({self})")
    }
}
