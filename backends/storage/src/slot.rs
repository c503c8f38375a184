//! Where reads put their bytes: owned by the operation while it runs, so that nothing can write into it afterwards.

use crate::{At, Result, StorageError};
use std::any::Any;
use std::ops::Range;

/// Takes the bytes of a read, in order from the first on: memory that keeps them, or a pipe that works on them while
/// they are in the processor's cache and the next ones are on their way.
///
/// A store that has bytes in memory of its own (from a socket) hands them over with [`take`](Self::take); one that needs
/// memory to read into (a file) asks for [`room`](Self::room) and says what it [`filled`](Self::filled). A read that
/// is repeated begins again at byte 0. What counts is the end of the read: bytes that were taken before an error
/// mean nothing.
///
/// `Any` lets the owner downcast a [`Slot`] back to its own type.
pub trait ReadBuffer: Any + Send {
    /// Most bytes that it takes.
    fn capacity(&self) -> usize;

    /// Memory for the bytes from `at` on, at most `want` of them and, unless `at` is its capacity, at least one. Asked
    /// again before they are filled, it is the same memory.
    fn room(&mut self, at: usize, want: usize) -> &mut [u8];

    /// The bytes of `piece` lie at the start of the room that was last asked for, at `piece.start`.
    fn filled(&mut self, piece: Range<usize>);

    /// Takes `bytes`, which are those from `at` on.
    fn take(&mut self, at: usize, bytes: &[u8]) {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            let room = self.room(at + taken, rest.len());
            let count = room.len().min(rest.len());
            let (Some(into), Some(from)) = (room.get_mut(..count), rest.get(..count)) else { return };
            if into.is_empty() {
                return; // it is full
            }
            into.copy_from_slice(from);
            self.filled(at + taken..at + taken + count);
            taken += count;
        }
    }

    /// What it keeps of the bytes, from byte 0 on; nothing where it passes them on.
    fn bytes(&self) -> &[u8];
}

impl ReadBuffer for Vec<u8> {
    fn capacity(&self) -> usize {
        self.len()
    }

    fn room(&mut self, at: usize, want: usize) -> &mut [u8] {
        let end = self.len().min(at.saturating_add(want));
        self.get_mut(at..end).unwrap_or_default()
    }

    fn filled(&mut self, _piece: Range<usize>) {}

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// An owned [`ReadBuffer`], handed to a read and handed back by it.
pub type Slot = Box<dyn ReadBuffer>;

/// For implementers of [`StorageBackend::read`](crate::StorageBackend::read): the length of `range`, which `slot` can
/// take.
///
/// # Errors
/// `InvalidInput` when the range is reversed or longer than the slot.
pub fn admit_read(slot: &Slot, range: &Range<u64>, at: impl FnOnce() -> At) -> Result<usize> {
    let capacity = slot.capacity();
    range
        .end
        .checked_sub(range.start)
        .and_then(|len| usize::try_from(len).ok())
        .filter(|&len| len <= capacity)
        .ok_or_else(|| StorageError::InvalidInput {
            at: at(),
            detail: format!("the range is reversed or longer than the slot of {capacity} bytes"),
        })
}
