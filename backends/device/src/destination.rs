//! Tensors that a caller lends for a transfer to fill.

#![allow(unsafe_code, reason = "lent memory is reached through pointers; see `scope` for the rule")]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{check_range, checked_range};
use crate::rows::{Rows, copy_rows};
use crate::scope::{Entry, Scope, lend};
use crate::stripes::{HeldStripe, Stripes};
use crate::{DeviceError, StridedCopy, Window};

/// Lends `destinations` to `f`, as one handle for each, in their order.
///
/// Handles can be cloned, sent to other threads and kept: when `f` has ended, by return or by panic, every
/// operation on them is refused with [`DeviceError::Revoked`]. This function returns once the operations under
/// way and all live [`Window`]s have ended. So `f` must let go of its own windows: one that it returns, or
/// leaks, is waited for forever.
///
/// ```
/// use reshard_device::with_destinations;
///
/// let (mut a, mut b) = (vec![0; 4], vec![0; 2]);
/// with_destinations(vec![&mut a, &mut b], |handles| {
///     let thread = std::thread::spawn(move || handles[0].write(1, &[7, 8]));
///     thread.join().expect("the thread does not panic")
/// })?;
/// assert_eq!(a, [0, 7, 8, 0]);
/// # Ok::<_, reshard_device::DeviceError>(())
/// ```
pub fn with_destinations<R>(destinations: Vec<&mut [u8]>, f: impl FnOnce(Vec<DestinationHandle>) -> R) -> R {
    lend(|scope| f(destinations.into_iter().map(|memory| DestinationHandle::new(memory, scope)).collect()))
}

/// Access to a lent tensor, for as long as [`with_destinations`] runs. Clones are the same tensor.
///
/// Any number of threads may write at once; writes to different places do not disturb each other. An error
/// in the middle of a write leaves its first part written.
#[derive(Clone)]
pub struct DestinationHandle(Arc<Destination>);

pub(crate) struct Destination {
    memory: *mut u8,
    size: usize,
    pub(crate) stripes: Stripes,
    scope: Arc<Scope>,
}

// SAFETY: `memory` is the only part that isn't `Send` by itself. It comes from a `&mut [u8]`, which is, and
// carries no tie to a thread.
unsafe impl Send for Destination {}

// SAFETY: through a shared `Destination`, `memory` is reached in two ways only. `Writer::bytes_mut` makes a
// slice while it holds the lock of the one stripe that the slice lies in, and outside all claims of that
// stripe. A `Window` makes a slice of exactly its claim, which no other claim and no such slice overlaps. So
// slices that live at the same time never overlap, on whatever threads they are.
unsafe impl Sync for Destination {}

impl DestinationHandle {
    fn new(memory: &mut [u8], scope: &Arc<Scope>) -> Self {
        Self(Arc::new(Destination {
            size: memory.len(),
            stripes: Stripes::new(memory.len()),
            memory: memory.as_mut_ptr(),
            scope: Arc::clone(scope),
        }))
    }

    /// The tensor's size in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Busy`] where a live window covers some of them,
    /// [`DeviceError::Revoked`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = checked_range(offset, bytes.len(), self.0.size)?;
        self.writer()?.for_each_piece(range, |piece, at| piece.copy_from_slice(&bytes[at..at + piece.len()]))
    }

    /// Writes zeros to `range`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn zero(&self, range: Range<usize>) -> Result<(), DeviceError> {
        let range = check_range(range, self.0.size)?;
        self.writer()?.for_each_piece(range, |piece, _| piece.fill(0))
    }

    /// Writes what `stream`, the bytes of the stream at `stream_start`, holds of `copy`; returns how many
    /// bytes that was.
    ///
    /// # Errors
    /// As [`StridedCopy::scatter`] and [`write`](Self::write).
    pub fn scatter(
        &self,
        copy: &StridedCopy,
        stream_start: u64,
        stream: &[u8],
    ) -> Result<usize, DeviceError> {
        copy.check_writable(self.0.size)?;
        let mut writer = self.writer()?;
        let mut copied = 0;
        copy.each_run(stream_start, stream.len(), |run| {
            copied += run.rows * run.row_bytes;
            writer.rows(run, stream)
        })?;
        Ok(copied)
    }

    /// Whether what `stream`, the bytes of the stream at `stream_start`, holds of `copy` differs from what lies
    /// in the destination.
    ///
    /// # Errors
    /// As [`scatter`](Self::scatter).
    pub fn differs(&self, copy: &StridedCopy, stream_start: u64, stream: &[u8]) -> Result<bool, DeviceError> {
        copy.check_writable(self.0.size)?;
        let mut writer = self.writer()?;
        let mut differs = false;
        copy.each_run(stream_start, stream.len(), |run| {
            for row in 0..run.rows {
                let start = run.tensor + row * run.tensor_stride;
                let expected = &stream[run.stream + row * run.stream_stride..][..run.row_bytes];
                writer.for_each_piece(start..start + run.row_bytes, |piece, at| {
                    differs |= *piece != expected[at..at + piece.len()];
                })?;
            }
            Ok(())
        })?;
        Ok(differs)
    }

    /// Exclusive access to `range`, for a reader that fills it in place.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn window(&self, range: Range<usize>) -> Result<Window, DeviceError> {
        let range = check_range(range, self.0.size)?;
        let entry = self.0.scope.enter()?;
        Window::claim(Arc::clone(&self.0), range, entry)
    }

    fn writer(&self) -> Result<Writer<'_>, DeviceError> {
        Ok(Writer { _entry: self.0.scope.enter()?, destination: &self.0, held: None })
    }
}

impl fmt::Debug for DestinationHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DestinationHandle").field("size", &self.0.size).finish()
    }
}

impl Destination {
    /// The bytes in `range`, to read.
    ///
    /// # Safety
    /// `range` lies within the destination, an entry to its scope lives for all of `'a`, and no slice of
    /// [`bytes_mut`](Self::bytes_mut) that overlaps `range` lives at any time during `'a`.
    pub(crate) unsafe fn bytes<'a>(&self, range: Range<usize>) -> &'a [u8] {
        // SAFETY: as in `bytes_mut`; slices of this function may overlap, being only read.
        unsafe { std::slice::from_raw_parts(self.memory.add(range.start), range.len()) }
    }

    /// The bytes in `range`, to write.
    ///
    /// # Safety
    /// `range` lies within the destination, an entry to its scope lives for all of `'a`, and no other slice
    /// that overlaps `range` does at any time during `'a`.
    pub(crate) unsafe fn bytes_mut<'a>(&self, range: Range<usize>) -> &'a mut [u8] {
        // SAFETY: `memory` comes from a `&mut [u8]` of `size` bytes and `range` lies within it, so the bytes
        // are initialised and in one allocation. That borrow is in force: `with_destinations` keeps it until
        // `lend` returns, which waits for the entry that the caller vouches for. In that time nobody reaches
        // the memory but through this function, and the caller vouches that no overlapping slice exists.
        unsafe { std::slice::from_raw_parts_mut(self.memory.add(range.start), range.len()) }
    }
}

/// One write under way: an entry to the scope and the lock of the stripe that it has reached.
struct Writer<'a> {
    destination: &'a Destination,
    held: Option<HeldStripe<'a>>,
    /// Dropped last.
    _entry: Entry,
}

impl Writer<'_> {
    /// The bytes from `range.start` up to `range.end` or to the end of the stripe, whichever is first.
    fn bytes_mut(&mut self, range: Range<usize>) -> Result<&mut [u8], DeviceError> {
        let Destination { size, stripes, .. } = self.destination;
        let range = check_range(range, *size)?;
        if !self.held.as_ref().is_some_and(|held| held.range.contains(&range.start)) {
            // Released before the next one is locked: a writer holds one lock at a time.
            self.held = None;
            self.held = stripes.lock(range.start);
        }
        let Some(held) = &self.held else {
            // The only byte without a stripe is the one past the end of a destination of whole stripes.
            return Ok(&mut []);
        };
        let range = range.start..range.end.min(held.range.end);
        held.check_free(&range)?;
        // SAFETY: `range` lies within the destination, as checked. `self` has an entry, and the lock of the
        // stripe in which all of `range` lies, and neither can go while the slice borrows `self`. Other writers
        // need that lock for a slice that overlaps. No claim overlaps `range`, as checked, and none can be made
        // under that lock.
        Ok(unsafe { self.destination.bytes_mut(range) })
    }

    /// Calls `f` with the bytes of `range` piece by piece, and with where in `range` the piece begins.
    fn for_each_piece(
        &mut self,
        range: Range<usize>,
        mut f: impl FnMut(&mut [u8], usize),
    ) -> Result<(), DeviceError> {
        let mut at = range.start;
        while at < range.end {
            let piece = self.bytes_mut(at..range.end)?;
            f(piece, at - range.start);
            at += piece.len();
        }
        Ok(())
    }

    /// Copies the rows of `run` from `stream`.
    fn rows(&mut self, mut run: Rows, stream: &[u8]) -> Result<(), DeviceError> {
        while run.rows > 0 {
            let done = self.some_rows(&run, stream)?;
            run.rows -= done;
            run.stream += done * run.stream_stride;
            run.tensor += done * run.tensor_stride;
        }
        Ok(())
    }

    /// Copies at least the first row of `run`, and as many as lie in one stripe that has no claim near them.
    fn some_rows(&mut self, run: &Rows, stream: &[u8]) -> Result<usize, DeviceError> {
        let span = (run.rows - 1) * run.tensor_stride + run.row_bytes;
        // Rows and the gaps between them. A claim in a gap hinders this, but not a row by itself.
        if let Ok(free) = self.bytes_mut(run.tensor..run.tensor + span)
            && free.len() >= run.row_bytes
        {
            let rows = (free.len() - run.row_bytes) / run.tensor_stride + 1;
            copy_rows(
                &Rows { rows, ..*run },
                &stream[run.stream..],
                run.stream_stride,
                free,
                run.tensor_stride,
            );
            return Ok(rows);
        }
        let row = &stream[run.stream..run.stream + run.row_bytes];
        self.for_each_piece(run.tensor..run.tensor + run.row_bytes, |piece, at| {
            piece.copy_from_slice(&row[at..at + piece.len()]);
        })?;
        Ok(1)
    }
}
