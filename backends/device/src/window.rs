//! Exclusive access to a part of a destination.

#![allow(unsafe_code, reason = "lent memory is reached through pointers; see `scope` for the rule")]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use crate::DeviceError;
use crate::destination::Destination;
use crate::scope::Entry;

/// Bytes of a lent tensor, for a reader that fills them in place, without staging.
///
/// While it lives, no write and no other window reaches these bytes, and
/// [`with_destinations`](crate::with_destinations) does not return. It starts with what the tensor held.
pub struct Window {
    destination: Arc<Destination>,
    range: Range<usize>,
    /// Given back after the claim, since fields are dropped after `drop` has run.
    _entry: Entry,
}

impl Window {
    /// Claims `range`, which lies within the destination that `entry` belongs to.
    pub(crate) fn claim(
        destination: Arc<Destination>,
        range: Range<usize>,
        entry: Entry,
    ) -> Result<Self, DeviceError> {
        destination.stripes.claim(&range)?;
        Ok(Self { destination, range, _entry: entry })
    }
}

impl Deref for Window {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `range` lies within the destination, an entry lives as long as the window that the slice
        // borrows. `range` is claimed, so no other slice overlaps it but those of this window; of these, the
        // ones that live together with this one borrow the window as shared, and are only read.
        unsafe { self.destination.bytes(self.range.clone()) }
    }
}

impl DerefMut for Window {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; this slice borrows the window as exclusive, so there is no other.
        unsafe { self.destination.bytes_mut(self.range.clone()) }
    }
}

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Window {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("range", &self.range).finish()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.destination.stripes.release(&self.range);
    }
}
