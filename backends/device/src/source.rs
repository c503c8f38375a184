//! Tensors that a caller lends for a transfer to read.

#![allow(unsafe_code, reason = "lent memory is reached through pointers; see `scope` for the rule")]

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::error::{check_range, checked_range};
use crate::scope::{Entry, Scope, lend};
use crate::{DeviceError, StridedCopy};

/// Lends `sources` to `f`, as one handle for each, in their order.
///
/// As with [`with_destinations`](crate::with_destinations), handles may be kept: when `f` has ended, every
/// operation on them is refused, and this function returns once those under way have ended and all
/// [`SourceWindow`]s are gone.
pub fn with_sources<R>(sources: Vec<&[u8]>, f: impl FnOnce(Vec<SourceHandle>) -> R) -> R {
    lend(|scope| f(sources.into_iter().map(|memory| SourceHandle::new(memory, scope)).collect()))
}

/// Access to a lent tensor, for as long as [`with_sources`] runs. Clones are the same tensor.
#[derive(Clone)]
pub struct SourceHandle(Arc<Source>);

struct Source {
    memory: *const u8,
    size: usize,
    scope: Arc<Scope>,
}

// SAFETY: `memory` is the only part that isn't `Send` by itself. It comes from a `&[u8]`, which is, and is
// only read.
unsafe impl Send for Source {}

// SAFETY: as above; any number of threads may read it.
unsafe impl Sync for Source {}

impl SourceHandle {
    fn new(memory: &[u8], scope: &Arc<Scope>) -> Self {
        Self(Arc::new(Source { memory: memory.as_ptr(), size: memory.len(), scope: Arc::clone(scope) }))
    }

    /// The tensor's size in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Revoked`].
    pub fn read_into(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceError> {
        let range = checked_range(offset, into.len(), self.0.size)?;
        self.0.read(|memory| into.copy_from_slice(&memory[range]))
    }

    /// The bytes of `range` themselves, for a writer that sends them without a copy.
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into).
    pub fn window(&self, range: Range<usize>) -> Result<SourceWindow, DeviceError> {
        let range = check_range(range, self.0.size)?;
        let entry = self.0.scope.enter()?;
        Ok(SourceWindow { source: Arc::clone(&self.0), range, _entry: entry })
    }

    /// Fills what belongs to `copy` of `stream`, the bytes of the stream at `stream_start`; returns how many
    /// bytes that was.
    ///
    /// # Errors
    /// As [`StridedCopy::gather`]; [`DeviceError::Revoked`].
    pub fn gather(
        &self,
        copy: &StridedCopy,
        stream_start: u64,
        stream: &mut [u8],
    ) -> Result<usize, DeviceError> {
        self.0.read(|memory| copy.gather(memory, stream_start, stream))?
    }
}

impl fmt::Debug for SourceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceHandle").field("size", &self.0.size).finish()
    }
}

impl Source {
    fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R, DeviceError> {
        let entry = self.scope.enter()?;
        // SAFETY: `entry` lives while `f` has the slice, and `f` cannot keep it for longer.
        let result = f(unsafe { self.bytes() });
        drop(entry);
        Ok(result)
    }

    /// All bytes.
    ///
    /// # Safety
    /// An entry to the scope lives for all of `'a`.
    unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: `memory` comes from a `&[u8]` of `size` bytes. That borrow is in force: `with_sources` keeps it
        // until `lend` returns, which waits for the entry that the caller vouches for.
        unsafe { std::slice::from_raw_parts(self.memory, self.size) }
    }
}

/// Bytes of a lent tensor, to read. While it lives, [`with_sources`] does not return.
pub struct SourceWindow {
    source: Arc<Source>,
    range: Range<usize>,
    _entry: Entry,
}

impl Deref for SourceWindow {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the window has an entry to the scope, and the slice borrows the window.
        let bytes = unsafe { self.source.bytes() };
        // The range was checked when the window was made.
        bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for SourceWindow {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SourceWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceWindow").field("range", &self.range).finish()
    }
}
