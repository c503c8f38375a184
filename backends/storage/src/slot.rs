//! Memory that reads fill: owned by the operation while it runs, so that nothing can write into it
//! afterwards.

use crate::{At, Result, StorageError};
use std::any::Any;
use std::ops::Range;

/// Memory that a read fills. A staging pool implements it for its pieces; what `Drop` does is the pool's
/// business.
///
/// `Any` lets the owner downcast a [`Slot`] back to its own type.
pub trait ReadBuffer: Any + Send {
    /// The memory; its length is the slot's capacity and never changes.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// The same memory to look at.
    fn bytes(&self) -> &[u8];

    /// Told by the read, on the thread that filled them, which bytes have just come: pieces in order from the first
    /// byte of the slot on. Their owner can work on them while they are in the processor's cache and the next ones are
    /// on their way. A read that is repeated begins again at the first byte; a store need not tell at all, so what
    /// counts is the end of the read. Must be quick.
    fn filled(&mut self, piece: Range<usize>) {
        let _ = piece;
    }
}

impl ReadBuffer for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// An owned [`ReadBuffer`], handed to a read and handed back by it.
pub type Slot = Box<dyn ReadBuffer>;

/// The first `range.end - range.start` bytes of `slot`, which a read of `range` has to fill.
///
/// # Errors
/// `InvalidInput` when the range is reversed or longer than the slot.
pub fn target<'a>(slot: &'a mut Slot, range: &Range<u64>, at: impl FnOnce() -> At) -> Result<&'a mut [u8]> {
    let capacity = slot.bytes().len();
    range
        .end
        .checked_sub(range.start)
        .and_then(|len| usize::try_from(len).ok())
        .and_then(|len| slot.bytes_mut().get_mut(..len))
        .ok_or_else(|| StorageError::InvalidInput {
            at: at(),
            detail: format!("the range is reversed or longer than the slot of {capacity} bytes"),
        })
}
