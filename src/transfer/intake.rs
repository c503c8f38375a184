//! Where the bytes of one request go as they come.
//!
//! Bytes that are wanted as they are saved go *straight* to their tensors: a store that reads from a file gets the
//! tensor's own memory where a long row of it comes next, and what comes in a store's memory is copied once. Their
//! checksums are made on the way and compared at the end; nobody looks at a destination before all ranks have agreed.
//! Bytes that are converted or compared are *kept* in staging until the request is whole and verified.

use super::checksums::Checksums;
use super::read::Shared;
use super::scatter::{scatter, strided};
use super::{ReadMode, TransferError};
use crate::format::{BlockTable, SavedFile};
use crate::plan::{Copy, LoadPlan, Request};
use reshard_device::{StridedCopy, Window};
use reshard_storage::{ReadBuffer, Slot};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of one request on their way. Its staging goes back to the pool when it is dropped, which a store does only
/// after the read has really ended.
pub(super) struct Intake {
    memory: reshard_device::Slot,
    /// The part of a tensor that a store reads into now.
    window: Option<Window>,
    work: Work,
}

/// What is done with the bytes.
struct Work {
    shared: Arc<Shared>,
    request: usize,
    /// Where in the file the request begins.
    start: u64,
    /// The copies in the order in which they begin in the file, where bytes go straight to the tensors.
    straight: Option<Vec<Straight>>,
    /// How many of these, from the first on, have all their bytes.
    past: usize,
    /// How many bytes have come.
    at: usize,
    /// Of files whose blocks are verified.
    checksums: Option<Checksums>,
    /// The first error, kept until the read has ended.
    failed: Option<TransferError>,
}

/// A copy whose bytes are not changed on the way.
struct Straight {
    tensor: u32,
    pattern: StridedCopy,
}

/// What has been done with a request.
pub(super) struct Consumed {
    pub(super) blocks_verified: u64,
    pub(super) overflowed: u64,
}

/// Bytes that are read at once where work is done on them while they are in the processor's cache.
const PIECE_BYTES: usize = 256 << 10;
/// Bytes that are copied and then checksummed while they are in the nearest caches.
const CACHED_BYTES: usize = 64 << 10;
/// A row of a tensor is read into in place from this length on: shorter reads cost more than a copy.
const SHORTEST_WINDOW: usize = 64 << 10;

impl Intake {
    pub(super) fn new(
        shared: Arc<Shared>,
        request: usize,
        memory: reshard_device::Slot,
    ) -> Result<Self, TransferError> {
        let (plan, wanted) = shared.request(request).ok_or(TransferError::Lost)?;
        let straight = match shared.mode() {
            ReadMode::Fill => unchanged(plan, wanted)?,
            ReadMode::Compare => None,
        };
        let start = wanted.range.start;
        let work = Work { shared, request, start, straight, past: 0, at: 0, checksums: None, failed: None };
        Ok(Self { memory, window: None, work })
    }

    /// The buffer that a store gives back; `None` where the store lost it and gave another one.
    pub(super) fn returned(slot: Slot) -> Option<Box<Self>> {
        let slot: Box<dyn Any> = slot;
        slot.downcast().ok()
    }

    /// Ends the request once the store has reported success: verifies it against the block table of its file, and
    /// hands kept bytes on.
    ///
    /// # Errors
    /// The first [`TransferError`] of the request.
    pub(super) fn finish(&mut self, table: Option<&BlockTable>) -> Result<Consumed, TransferError> {
        let work = &mut self.work;
        if let Some(error) = work.failed.take() {
            return Err(error);
        }
        let shared = &work.shared;
        let (plan, request) = shared.request(work.request).ok_or(TransferError::Lost)?;
        let file = shared.file(request)?;
        let length = (request.range.end - request.range.start) as usize;
        if work.at != length {
            return Err(contract(file, format!("{} of {length} bytes came", work.at)));
        }
        let blocks_verified = match (&work.checksums, table) {
            (Some(checksums), Some(table)) => checksums.compare(&file.path, table).map_err(|damage| {
                let key = shared.key_at(request, &damage.block);
                TransferError::Corrupt { key, source: damage.error }
            })?,
            _ => 0,
        };
        let overflowed = match &work.straight {
            Some(_) => 0,
            None => {
                let bytes = self.memory.get(..length).unwrap_or_default();
                scatter(plan, &request.copies, work.start, bytes, shared.destinations(), shared.mode())?
            }
        };
        Ok(Consumed { blocks_verified, overflowed })
    }
}

/// The copies of a request, where none of them changes what it copies.
fn unchanged(plan: &LoadPlan, request: &Request) -> Result<Option<Vec<Straight>>, TransferError> {
    let copies = request.copies.iter().filter_map(|&index| plan.copies.get(index as usize));
    let changes = |copy: &Copy| {
        plan.tensors.get(copy.tensor as usize).is_none_or(|tensor| tensor.saved_dtype != tensor.dtype)
    };
    if copies.clone().any(changes) {
        return Ok(None);
    }
    copies
        .map(|copy| Ok(Straight { tensor: copy.tensor, pattern: strided(copy)? }))
        .collect::<Result<_, _>>()
        .map(Some)
}

fn contract(file: &SavedFile, detail: String) -> TransferError {
    TransferError::Contract { file: file.path.clone(), detail }
}

impl Work {
    /// Whether the bytes at `at` are those that come next. The first byte begins the request, maybe once more.
    fn comes_next(&mut self, at: usize) -> bool {
        if at == 0 {
            (self.past, self.at, self.failed) = (0, 0, None);
            self.checksums =
                self.shared.blocks(self.request).map(|blocks| Checksums::new(blocks, self.start));
        } else if at != self.at && self.failed.is_none() {
            self.fail(format!("bytes at {at} came where those at {} were due", self.at));
        }
        self.failed.is_none()
    }

    fn fail(&mut self, detail: String) {
        let request = self.shared.request(self.request);
        self.failed = Some(match request.map(|(_, request)| self.shared.file(request)) {
            Some(Ok(file)) => contract(file, detail),
            _ => TransferError::Lost,
        });
    }

    /// The part of a tensor that the next bytes of the file belong to, and nothing else wants; at most `want` bytes.
    fn window(&self, want: usize) -> Option<Window> {
        // Bytes that nobody works on need not come in pieces.
        let mut want = if self.checksums.is_some() { want.min(PIECE_BYTES) } else { want };
        let at = self.next_byte();
        let mut owner = None;
        for copy in self.straight.as_ref()?.get(self.past..)? {
            let range = copy.pattern.stream_range();
            if range.start > at {
                want = want.min(usize::try_from(range.start - at).unwrap_or(usize::MAX));
                break; // the others begin later still
            }
            if range.end > at && owner.replace(copy).is_some() {
                return None;
            }
        }
        let owner = owner?;
        let row = owner.pattern.row_at(at)?;
        let place = row.start..row.end.min(row.start.saturating_add(want));
        if place.len() < SHORTEST_WINDOW {
            return None;
        }
        // Where it is refused, the copy that comes instead says why.
        self.shared.destinations().get(owner.tensor as usize)?.window(place).ok()
    }

    /// Where in the file the next byte lies.
    fn next_byte(&self) -> u64 {
        self.start + self.at as u64
    }

    /// `bytes` have come.
    fn advance(&mut self, bytes: &[u8]) {
        if let (Some(checksums), Some(blocks)) = (&mut self.checksums, self.shared.blocks(self.request)) {
            checksums.update(blocks, bytes);
        }
        self.at += bytes.len();
        let end = self.next_byte();
        let copies = self.straight.as_deref().unwrap_or_default();
        while copies.get(self.past).is_some_and(|copy| copy.pattern.stream_range().end <= end) {
            self.past += 1;
        }
    }

    /// Copies the bytes that come next to the tensors that want them.
    fn copy(&self, bytes: &[u8]) -> Result<(), TransferError> {
        let start = self.next_byte();
        let end = start + bytes.len() as u64;
        let copies = self.straight.as_deref().unwrap_or_default();
        for copy in copies.get(self.past..).unwrap_or_default() {
            let range = copy.pattern.stream_range();
            if range.start >= end {
                break;
            }
            if range.end > start {
                let destination = self.shared.destinations().get(copy.tensor as usize);
                destination.ok_or(TransferError::Lost)?.scatter(&copy.pattern, start, bytes)?;
            }
        }
        Ok(())
    }

    /// Copies the bytes that come next and moves on, in parts that stay in the nearest caches.
    fn pass_on(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(CACHED_BYTES) {
            match self.copy(part) {
                Ok(()) => self.advance(part),
                Err(error) => {
                    self.failed = Some(error);
                    return;
                }
            }
        }
    }
}

impl ReadBuffer for Intake {
    fn capacity(&self) -> usize {
        self.memory.len()
    }

    fn room(&mut self, at: usize, want: usize) -> &mut [u8] {
        let again = self.window.is_some() && at == self.work.at;
        if !again {
            self.window = if self.work.comes_next(at) { self.work.window(want) } else { None };
        }
        let memory = match &mut self.window {
            Some(window) => &mut window[..],
            None => {
                let start = if self.work.straight.is_some() { 0 } else { at };
                let end = self.memory.len().min(start.saturating_add(PIECE_BYTES));
                self.memory.get_mut(start..end).unwrap_or_default()
            }
        };
        let count = memory.len().min(want);
        memory.get_mut(..count).unwrap_or_default()
    }

    fn filled(&mut self, piece: Range<usize>) {
        let work = &mut self.work;
        if work.failed.is_some() {
            return;
        }
        match (self.window.take(), &work.straight) {
            (Some(window), _) => work.advance(window.get(..piece.len()).unwrap_or_default()),
            (None, Some(_)) => work.pass_on(self.memory.get(..piece.len()).unwrap_or_default()),
            (None, None) => work.advance(self.memory.get(piece).unwrap_or_default()),
        }
    }

    fn take(&mut self, at: usize, bytes: &[u8]) {
        let work = &mut self.work;
        if !work.comes_next(at) {
            return;
        }
        if work.straight.is_some() {
            return work.pass_on(bytes);
        }
        match self.memory.get_mut(at..at.saturating_add(bytes.len())) {
            Some(room) => {
                room.copy_from_slice(bytes);
                work.advance(bytes);
            }
            None => work.fail(format!("{} bytes came at {at}, past the end of the request", bytes.len())),
        }
    }

    fn bytes(&self) -> &[u8] {
        &[]
    }
}
