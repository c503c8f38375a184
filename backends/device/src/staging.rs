//! The bounded pool of staging memory.
//!
//! All host memory that a transfer uses beside the tensors comes from here, so back-pressure needs nothing
//! else: who wants a slot waits until one is free.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::checked_range;
use crate::{Device, DeviceError, StagingMemory};

/// Slots are multiples of a page.
const PAGE: usize = 4096;
/// Below this a slot costs more in requests than it saves in memory.
const SMALLEST_SLOT: usize = 64 << 10;
/// One slot fills while another is emptied.
const FEWEST_SLOTS: usize = 2;

/// A pool of staging slots of one size, together never larger than a budget.
///
/// Slots are allocated when they are first needed and reused from then on, so a small job touches little
/// memory. Clones are the same pool.
#[derive(Clone)]
pub struct StagingPool {
    shared: Arc<Shared>,
}

struct Shared {
    device: Arc<dyn Device>,
    slot_bytes: usize,
    slots: usize,
    /// Slots that may still be handed out.
    available: Arc<Semaphore>,
    /// Memory of slots that came back; what was never handed out is not here yet.
    returned: Mutex<Vec<Box<dyn StagingMemory>>>,
    in_use: AtomicUsize,
    peak: AtomicUsize,
}

impl StagingPool {
    /// A pool of `budget_bytes` in slots of `max_slot_bytes`, or of smaller ones where the budget holds
    /// fewer than two of these. A slot is a multiple of 4 KiB and at least 64 KiB.
    ///
    /// # Errors
    /// [`DeviceError::BudgetTooSmall`] where the budget doesn't hold two slots of 64 KiB.
    pub fn new(
        device: Arc<dyn Device>,
        budget_bytes: usize,
        max_slot_bytes: usize,
    ) -> Result<Self, DeviceError> {
        let minimum = FEWEST_SLOTS * SMALLEST_SLOT;
        if budget_bytes < minimum {
            return Err(DeviceError::BudgetTooSmall { budget: budget_bytes, minimum });
        }
        let slot_bytes = max_slot_bytes.clamp(SMALLEST_SLOT, budget_bytes / FEWEST_SLOTS) / PAGE * PAGE;
        let slots = (budget_bytes / slot_bytes).min(Semaphore::MAX_PERMITS);
        Ok(Self {
            shared: Arc::new(Shared {
                device,
                slot_bytes,
                slots,
                available: Arc::new(Semaphore::new(slots)),
                returned: Mutex::default(),
                in_use: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
            }),
        })
    }

    /// The size of every slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.shared.slot_bytes
    }

    /// How many slots can be in use at once.
    pub fn slots(&self) -> usize {
        self.shared.slots
    }

    /// The most bytes that were in use at once until now.
    pub fn peak_bytes(&self) -> usize {
        self.shared.peak.load(Ordering::Relaxed) * self.shared.slot_bytes
    }

    /// Waits for a slot; who waits longest gets the next. Who holds slots while it waits for more can wait
    /// forever.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where a slot that was never used before cannot be allocated.
    pub async fn acquire(&self) -> Result<Slot, DeviceError> {
        let available = Arc::clone(&self.shared.available);
        let permit = available.acquire_owned().await.map_err(|_| DeviceError::PoolClosed)?;
        self.slot(permit)
    }

    /// A slot if one is free and nobody waits for it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<Slot>, DeviceError> {
        let available = Arc::clone(&self.shared.available);
        available.try_acquire_owned().ok().map(|permit| self.slot(permit)).transpose()
    }

    fn slot(&self, permit: OwnedSemaphorePermit) -> Result<Slot, DeviceError> {
        let returned = self.shared.returned().pop();
        let memory = match returned {
            Some(memory) => memory,
            None => self.shared.device.allocate_staging(self.shared.slot_bytes)?,
        };
        let in_use = self.shared.in_use.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.peak.fetch_max(in_use, Ordering::Relaxed);
        Ok(Slot { memory: Some(memory), shared: Arc::clone(&self.shared), _permit: permit })
    }
}

impl Shared {
    fn returned(&self) -> MutexGuard<'_, Vec<Box<dyn StagingMemory>>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingPool")
            .field("device", &self.shared.device)
            .field("slot_bytes", &self.shared.slot_bytes)
            .field("slots", &self.shared.slots)
            .field("in_use", &self.shared.in_use.load(Ordering::Relaxed))
            .finish()
    }
}

/// A piece of staging memory, which goes back to its pool when it is dropped.
///
/// It starts with whatever the last use left in it.
pub struct Slot {
    /// `None` only while it is being dropped.
    memory: Option<Box<dyn StagingMemory>>,
    shared: Arc<Shared>,
    /// Given back after the memory, since fields are dropped after `drop` has run: a woken waiter finds it.
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    /// The first `length` bytes, shared and immutable: the body of an upload, say. The slot goes back to its
    /// pool when the last clone and the last part of it is dropped.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where the slot is shorter.
    pub fn freeze(self, length: usize) -> Result<Bytes, DeviceError> {
        let used = checked_range(0, length, self.len())?;
        Ok(Bytes::from_owner(self).slice(used))
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.as_ref().as_ref())
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |memory| memory.as_mut().as_mut())
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Slot {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("bytes", &self.len()).finish()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Counted down first: the next holder of this memory must not be counted beside this one.
        self.shared.in_use.fetch_sub(1, Ordering::Relaxed);
        self.shared.returned().extend(self.memory.take());
    }
}
