//! What happens to the bytes of one request as they come: blocks are verified, and verified bytes go to their
//! destinations while they are in the processor's cache.

use super::TransferError;
use super::read::Shared;
use super::scatter::scatter;
use crate::format::BlockTable;
use std::sync::Arc;

/// The work on one request. An error is kept until the read has ended.
pub(super) struct Consumer {
    shared: Arc<Shared>,
    request: usize,
    /// The file's block table, where its blocks are verified and as soon as it is there.
    table: Option<Arc<BlockTable>>,
    verifies: bool,
    /// Bytes from the start of the request that are done.
    done: usize,
    blocks_verified: u64,
    overflowed: u64,
    failed: Option<TransferError>,
}

/// What has been done once a request is complete.
pub(super) struct Consumed {
    pub(super) blocks_verified: u64,
    pub(super) overflowed: u64,
}

/// Bytes that are worth a pass over the request's copies.
const STEP: usize = 128 << 10;

impl Consumer {
    pub(super) fn new(shared: Arc<Shared>, request: usize) -> Self {
        let verifies = shared.verifies(request);
        let table = None;
        Self { shared, request, table, verifies, done: 0, blocks_verified: 0, overflowed: 0, failed: None }
    }

    /// The read begins again at the first byte.
    pub(super) fn begin(&mut self) {
        (self.done, self.blocks_verified, self.overflowed, self.failed) = (0, 0, 0, None);
    }

    /// Gives the block table, which is fetched beside the data.
    pub(super) fn set_table(&mut self, table: Arc<BlockTable>) {
        self.table = Some(table);
    }

    /// `bytes` are those of the request up to now; `all` says that no more will come.
    pub(super) fn advance(&mut self, bytes: &[u8], all: bool) {
        if self.failed.is_some() || !all && bytes.len() < self.done + STEP {
            return;
        }
        if self.verifies && self.table.is_none() {
            self.table = self.shared.table_if_there(self.request);
            if self.table.is_none() {
                return; // later, then
            }
        }
        if let Err(error) = self.take(bytes, all) {
            self.failed = Some(error);
        }
    }

    fn take(&mut self, bytes: &[u8], all: bool) -> Result<(), TransferError> {
        let Some((plan, request)) = self.shared.request(self.request) else {
            return Err(TransferError::Lost);
        };
        let end = match &self.table {
            Some(table) => {
                let (end, blocks) = self.shared.verify(self.request, table, self.done, bytes)?;
                self.blocks_verified += blocks;
                end
            }
            None if all || !self.shared.converts() => bytes.len(),
            // Without blocks there is no border that is sure not to cut an element.
            None => return Ok(()),
        };
        let fresh = bytes.get(self.done..end).unwrap_or_default();
        let start = request.range.start + self.done as u64;
        let (destinations, mode) = self.shared.destinations();
        self.overflowed += scatter(plan, &request.copies, start, fresh, destinations, mode)?;
        self.done = end;
        Ok(())
    }

    /// The result of the request, once the read and [`Consumer::advance`] with `all` are done.
    pub(super) fn result(&mut self) -> Result<Consumed, TransferError> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => Ok(Consumed { blocks_verified: self.blocks_verified, overflowed: self.overflowed }),
        }
    }
}
