//! [`StorageBackend`]: what a store has to do, and the words that its methods speak.

use crate::{At, Operation, Payload, Result, Slot, StorageError, StoragePath, Upload, UploadShape};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt::{Debug, Display};
use std::ops::Range;
use std::time::SystemTime;

/// A store of objects below one root: a directory, a bucket, a prefix of a bucket.
///
/// Object safe and implementable outside this crate; the [`conformance`](crate::conformance) suite says
/// whether an implementation is right. Every method may be called concurrently and has to be polled inside a
/// tokio runtime. Keys are relative to the root. Errors name operation, store, path and range and never hold
/// a secret.
#[async_trait]
pub trait StorageBackend: Debug + Display + Send + Sync + 'static {
    /// What this store can do and its limits; known without asking the store.
    fn capabilities(&self) -> &Capabilities;

    /// Fills the first `range.end - range.start` bytes of `slot` with exactly that range of the object.
    ///
    /// The slot comes back when the operation has really ended. If the caller drops the future instead, the
    /// slot is dropped, and that too only after nothing writes into it any more. An empty range succeeds
    /// without a request.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` when the object ends before the range does; `InvalidInput` when the slot is too
    /// short.
    async fn read(&self, path: &StoragePath, range: Range<u64>, slot: Slot) -> (Slot, Result<()>);

    /// The whole object and its version, for small objects: one longer than `max_len` bytes is `Corrupt`.
    async fn read_all(&self, path: &StoragePath, max_len: u64) -> Result<(Bytes, Version)>;

    /// Length and time of an object.
    async fn head(&self, path: &StoragePath) -> Result<ObjectInfo>;

    /// Writes the object, whatever is there; readers see the old bytes or the new ones, never a mixture.
    /// Durable when it returns.
    async fn put(&self, path: &StoragePath, payload: Payload) -> Result<Durable>;

    /// Writes the object only if it is as `expect` says, atomically against every other conditional put.
    /// Sent at most once. Durable when `Written` returns.
    ///
    /// Callers want [`conditional_put`](crate::conditional_put), which also settles `Unknown`.
    ///
    /// # Errors
    /// An error says that nothing was written; doubt is [`PutOutcome::Unknown`].
    async fn put_if(&self, path: &StoragePath, payload: Payload, expect: &Expect) -> Result<PutOutcome>;

    /// Starts an upload in parts. Nothing is visible at `path` before [`Upload::complete`]; a dropped upload
    /// is aborted.
    ///
    /// # Errors
    /// `InvalidInput` when `shape` breaks the [`Capabilities`].
    async fn start_multipart(&self, path: &StoragePath, shape: UploadShape) -> Result<Upload>;

    /// One page of what lies below `prefix` (`None`: the whole root), compared by whole segments. Pages may
    /// come in any order; a later page continues after `after`. An object named exactly `prefix` is not below
    /// it.
    async fn list_page(
        &self,
        prefix: Option<&StoragePath>,
        depth: Depth,
        after: Option<&PageToken>,
    ) -> Result<Page>;

    /// Deletes these objects, at most [`DELETE_BATCH`] of them, and says of each whether it was there. An
    /// absent one is no error.
    async fn delete_many(&self, paths: &[StoragePath]) -> Result<Vec<Deletion>>;

    /// Everything below `prefix`, all pages, sorted by path.
    async fn list(&self, prefix: Option<&StoragePath>, depth: Depth) -> Result<Listing> {
        let mut listing = Listing::default();
        let mut after = None;
        loop {
            let page = self.list_page(prefix, depth, after.as_ref()).await?;
            listing.objects.extend(page.listing.objects);
            listing.prefixes.extend(page.listing.prefixes);
            match page.next {
                Some(token) => after = Some(token),
                None => break,
            }
        }
        listing.objects.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        listing.prefixes.sort_unstable();
        listing.prefixes.dedup();
        Ok(listing)
    }

    /// Deletes one object; an absent one is no error.
    async fn delete(&self, path: &StoragePath) -> Result<Deletion> {
        let deletions = self.delete_many(std::slice::from_ref(path)).await?;
        Ok(deletions.first().copied().unwrap_or(Deletion::Unknown))
    }

    /// Deletes every object below `prefix` that is listed now, and says how many. A sibling whose name merely
    /// begins alike (`iter_10` beside `iter_1`) is not below it.
    async fn delete_prefix(&self, prefix: &StoragePath) -> Result<u64> {
        let paths: Vec<_> = self
            .list(Some(prefix), Depth::All)
            .await?
            .objects
            .into_iter()
            .map(|object| object.path)
            .collect();
        for batch in paths.chunks(DELETE_BATCH) {
            self.delete_many(batch).await?;
        }
        Ok(paths.len() as u64)
    }
}

/// Most paths that one [`StorageBackend::delete_many`] takes: the limit of S3's DeleteObjects.
pub const DELETE_BATCH: usize = 1000;

/// What a store can do, and its limits in bytes and counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// `put_if` with [`Expect::Absent`] works.
    pub conditional_create: bool,
    /// `put_if` with [`Expect::Version`] works.
    pub conditional_update: bool,
    /// The bytes lie on this machine: requests cost little, and reads don't need to be few.
    pub local: bool,
    /// Longest object that one `put` takes.
    pub max_put_len: u64,
    /// Shortest part but the last.
    pub min_part_len: u64,
    /// Longest part.
    pub max_part_len: u64,
    /// Most parts of one upload.
    pub max_parts: u64,
    /// Longest object.
    pub max_object_len: u64,
}

/// An opaque mark of an object's content at one moment, for conditional puts. Stores name it by entity tag,
/// by generation, or by both; both are kept because each store accepts only its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// Entity tag as the store spells it (quotes included), or a hash of the content.
    pub(crate) e_tag: Option<String>,
    /// Generation or version id.
    pub(crate) generation: Option<String>,
}

impl Version {
    /// For implementers: what the store said about the object.
    pub fn new(e_tag: Option<String>, generation: Option<String>) -> Self {
        Self { e_tag, generation }
    }

    /// The entity tag, if the store has them.
    pub fn e_tag(&self) -> Option<&str> {
        self.e_tag.as_deref()
    }

    /// The generation, if the store has them.
    pub fn generation(&self) -> Option<&str> {
        self.generation.as_deref()
    }

    /// Whether both mark the same content: by generation where both have one, else by entity tag. Stores
    /// don't give both marks with every answer.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.generation, &other.generation) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => self.e_tag.is_some() && self.e_tag == other.e_tag,
        }
    }
}

/// The condition of a conditional put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// No object lies at the path.
    Absent,
    /// The object is still this version.
    Version(Version),
}

/// What became of a conditional put that was sent once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written and durable, with this version.
    Written(Version),
    /// Not written: the object was not as expected.
    Lost,
    /// The answer got lost; the object may be written now, later, or never.
    Unknown {
        /// What happened instead of an answer.
        cause: StorageError,
    },
}

/// Proof that an object is complete and survives a crash of the machine (disk: file and every directory above
/// it are fsynced; object stores: the server confirmed it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durable {
    path: StoragePath,
    len: u64,
}

impl Durable {
    /// For implementers: asserts that `len` bytes at `path` are durable.
    pub fn assert(path: StoragePath, len: u64) -> Self {
        Self { path, len }
    }

    /// The object.
    pub fn path(&self) -> &StoragePath {
        &self.path
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// How far a listing goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Every object below the prefix.
    All,
    /// Objects right below the prefix, and the next segments of all others as `prefixes`.
    Children,
}

/// What is known about an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its key.
    pub path: StoragePath,
    /// Length in bytes.
    pub len: u64,
    /// When it was last written, by the store's clock.
    pub modified: SystemTime,
}

/// What lies below a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Objects.
    pub objects: Vec<ObjectInfo>,
    /// With [`Depth::Children`], the paths one segment down that have objects below them.
    pub prefixes: Vec<StoragePath>,
}

/// Where the next page begins; only the store that made it understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken(pub String);

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// This page's part.
    pub listing: Listing,
    /// Where the next page begins; `None` on the last.
    pub next: Option<PageToken>,
}

/// What a delete found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// The object was there and is gone.
    Deleted,
    /// There was none.
    Absent,
    /// It is gone; the store doesn't say whether it was there.
    Unknown,
}

impl Capabilities {
    /// No limits and everything supported: memory and disk start from here.
    pub(crate) fn unlimited(local: bool) -> Self {
        Self {
            conditional_create: true,
            conditional_update: true,
            local,
            max_put_len: u64::MAX,
            min_part_len: 1,
            max_part_len: u64::MAX,
            max_parts: u64::MAX,
            max_object_len: u64::MAX,
        }
    }

    /// For implementers of [`StorageBackend::put`] and [`StorageBackend::put_if`]: refuses an object that the
    /// store doesn't take in one request.
    ///
    /// # Errors
    /// `InvalidInput` that names the limit.
    pub fn admit_put(&self, len: u64, at: impl FnOnce() -> At) -> Result<()> {
        if len <= self.max_put_len {
            return Ok(());
        }
        let detail = format!("{len} bytes in one request; this store takes at most {}", self.max_put_len);
        Err(StorageError::InvalidInput { at: at(), detail })
    }

    /// For implementers of [`StorageBackend::start_multipart`]: refuses an upload that the store would refuse
    /// only after the bytes were sent.
    ///
    /// # Errors
    /// `InvalidInput` that names the limit.
    pub fn admit(&self, shape: UploadShape, at: impl FnOnce() -> At) -> Result<()> {
        let short = shape.parts() > 1 && shape.part_len() < self.min_part_len;
        let detail = if shape.len() > self.max_object_len {
            format!("{} bytes are more than the {} that an object may have", shape.len(), self.max_object_len)
        } else if short || shape.part_len() > self.max_part_len {
            format!(
                "parts of {} bytes; this store takes {} to {}",
                shape.part_len(),
                self.min_part_len,
                self.max_part_len
            )
        } else if shape.parts() > self.max_parts {
            format!("{} parts; this store takes at most {}", shape.parts(), self.max_parts)
        } else {
            return Ok(());
        };
        Err(StorageError::InvalidInput { at: at(), detail })
    }
}

/// Shorthand for the errors of a backend: `at(self, Operation::Read, path)`.
pub(crate) fn at(store: &(impl Display + ?Sized), operation: Operation, path: &StoragePath) -> At {
    At::new(operation, store).path(path)
}
