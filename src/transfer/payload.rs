//! The bytes of one part of a file: lent by the local buffers where they can be, else gathered in staging.

use super::TransferError;
use super::stream::FileStream;
use bytes::Bytes;
use reshard_device::{Slot, StagingPool};
use reshard_storage::Payload;
use std::ops::Range;

/// The next `bytes` of the stream. Staging slots go back to the pool when the payload is dropped.
pub(super) async fn next_payload(
    pool: &StagingPool,
    stream: &mut FileStream<'_>,
    bytes: u64,
) -> Result<Payload, TransferError> {
    let mut pieces = Pieces::default();
    let mut left = bytes;
    while left > 0 {
        if let Some(lent) = stream.lend(left)? {
            left -= lent.len() as u64;
            pieces.list.push(Piece::Ready(lent));
            continue;
        }
        let (mut slot, used) = match pieces.slot.take() {
            Some(filling) => filling,
            None => (pool.acquire().await?, 0),
        };
        let end = used.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)).min(slot.len());
        let count = stream.fill(slot.get_mut(used..end).unwrap_or_default())?;
        left -= count as u64;
        pieces.list.push(Piece::Gathered(used..used + count));
        let is_full = used + count == slot.len();
        pieces.slot = Some((slot, used + count));
        if is_full {
            pieces.freeze()?;
        }
    }
    pieces.freeze()?;
    let ready = pieces.list.into_iter().filter_map(|piece| match piece {
        Piece::Ready(bytes) => Some(bytes),
        Piece::Gathered(_) => None, // none is left
    });
    Ok(ready.collect())
}

/// The pieces of a part, in their order.
#[derive(Default)]
struct Pieces {
    list: Vec<Piece>,
    /// The slot that is being filled, and how much of it is.
    slot: Option<(Slot, usize)>,
}

enum Piece {
    Ready(Bytes),
    /// Bytes of the slot that is being filled.
    Gathered(Range<usize>),
}

impl Pieces {
    /// Ends the slot, so that what was gathered in it is ready.
    fn freeze(&mut self) -> Result<(), TransferError> {
        let Some((slot, used)) = self.slot.take() else { return Ok(()) };
        let bytes = slot.freeze(used)?;
        for piece in &mut self.list {
            if let Piece::Gathered(range) = piece {
                *piece = Piece::Ready(bytes.slice(range.clone()));
            }
        }
        Ok(())
    }
}
