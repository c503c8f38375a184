//! Tensors that a caller lends for a transfer to read.

#![allow(unsafe_code, reason = "lent memory is reached through pointers; see `scope` for the rule")]

use std::fmt;
use std::sync::Arc;

use crate::error::checked_range;
use crate::scope::{Scope, lend};
use crate::{DeviceError, StridedCopy};

/// Lends `sources` to `f`, as one handle for each, in their order.
///
/// As with [`with_destinations`](crate::with_destinations), handles may be kept: when `f` has ended, every
/// operation on them is refused, and this function returns once those under way have ended.
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
        // SAFETY: `memory` comes from a `&[u8]` of `size` bytes. That borrow is in force: `with_sources` keeps
        // it until `lend` returns, which waits for `entry`, and `f` cannot keep the slice for longer.
        let memory = unsafe { std::slice::from_raw_parts(self.memory, self.size) };
        let result = f(memory);
        drop(entry);
        Ok(result)
    }
}
