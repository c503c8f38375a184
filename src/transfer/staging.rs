use super::TransferError;
use reshard_device::{Device, StagingPool};
use std::sync::Arc;

/// The staging memory of one rank and what moves through it at once.
#[derive(Clone, Debug)]
pub struct Staging {
    pool: StagingPool,
}

/// Requests and parts are at most this long where the budget allows it.
const SLOT_BYTES: usize = 8 << 20;
/// A pool should have this many slots before slots grow longer.
const WANTED_SLOTS: usize = 4;

impl Staging {
    /// A pool for one rank out of `ranks_in_process` that share `budget_bytes` evenly.
    ///
    /// # Errors
    /// [`TransferError::Device`] for a budget that is too small to work with.
    pub fn new(
        device: Arc<dyn Device>,
        budget_bytes: usize,
        ranks_in_process: usize,
    ) -> Result<Self, TransferError> {
        let share = budget_bytes / ranks_in_process.max(1);
        let slot = SLOT_BYTES.min(share / WANTED_SLOTS).max(1);
        Ok(Self { pool: StagingPool::new(device, share, slot)? })
    }

    /// The pool.
    pub fn pool(&self) -> &StagingPool {
        &self.pool
    }

    /// The longest request that one slot holds, in bytes.
    pub fn request_bytes(&self) -> u64 {
        self.pool.slot_bytes() as u64
    }
}
