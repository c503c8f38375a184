//! What can go wrong with memory and with access to it.

use std::ops::Range;

/// Why memory could not be had, read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Unavailable: the device has no memory left.
    #[error("{device} has no {bytes} bytes of memory left; use more ranks, or a smaller staging budget")]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// Invalid input: a staging budget that doesn't hold the fewest and smallest slots.
    #[error("a staging budget of {budget} bytes is too small; it takes at least {minimum}")]
    BudgetTooSmall {
        /// The budget in bytes.
        budget: usize,
        /// The smallest that works, in bytes.
        minimum: usize,
    },
    /// Invalid input: bytes outside the memory that was meant.
    #[error("{length} bytes at {offset} do not lie within {size} bytes")]
    OutOfRange {
        /// The first byte that was asked for.
        offset: usize,
        /// How many bytes were asked for.
        length: usize,
        /// The size of the memory in bytes.
        size: usize,
    },
    /// Invalid input: offsets and strides of a copy that no memory can have.
    #[error("a strided copy reaches past the end of the address space")]
    TooFar,
    /// Invalid input: the stream side of a copy does not run forward.
    #[error(
        "axis {axis} of a strided copy has a stream stride of {stride} bytes, less than the {span} bytes that \
         its inner axes span; the stream side must run forward without overlap"
    )]
    StreamOverlaps {
        /// The axis, counted from the outermost one.
        axis: usize,
        /// Its stride in bytes.
        stride: u64,
        /// What one step along it spans, in bytes.
        span: u64,
    },
    /// Invalid input: a copy would write the same byte of a tensor more than once.
    #[error("the tensor side of a strided copy overlaps itself, so it can be read but not written")]
    TensorOverlaps,
    /// Conflict: two writers for the same bytes of a destination.
    #[error("bytes {asked:?} of a destination overlap bytes {taken:?}, which another reader fills right now")]
    Busy {
        /// The range in bytes that was asked for.
        asked: Range<usize>,
        /// The range in bytes of the live window.
        taken: Range<usize>,
    },
    /// Internal: a handle was used after the closure that lent it had ended.
    #[error("the memory behind this handle went back to its owner when the transfer ended")]
    Revoked,
    /// Internal: the staging pool's semaphore was closed, which nothing does.
    #[error("the staging pool is closed")]
    PoolClosed,
}

/// The range of `length` bytes at `offset`, if it lies within `size` bytes.
pub(crate) fn checked_range(offset: usize, length: usize, size: usize) -> Result<Range<usize>, DeviceError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(DeviceError::OutOfRange { offset, length, size }),
    }
}

/// `range`, if it lies within `size` bytes and does not run backward.
pub(crate) fn check_range(range: Range<usize>, size: usize) -> Result<Range<usize>, DeviceError> {
    match range.end.checked_sub(range.start) {
        Some(length) => checked_range(range.start, length, size),
        None => Err(DeviceError::OutOfRange { offset: range.start, length: 0, size }),
    }
}
