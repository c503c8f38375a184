//! The staging pool: sizes, laziness, back-pressure.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use reshard_device::{Buffer, Device, DeviceError, Host, StagingMemory, StagingPool};

const KIB: usize = 1 << 10;

/// Host memory that ends after some allocations.
#[derive(Debug)]
struct Scarce {
    left: AtomicUsize,
}

impl Device for Scarce {
    fn name(&self) -> &str {
        "scarce"
    }

    fn allocate_staging(&self, bytes: usize) -> Result<Box<dyn StagingMemory>, DeviceError> {
        let take = |left: usize| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| DeviceError::OutOfMemory { device: self.name().into(), bytes })?;
        Host.allocate_staging(bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        Host.allocate(bytes)
    }
}

#[test]
fn slots_shrink_with_the_budget() {
    for (budget, largest, slot, slots) in [
        (256 << 20, 8 << 20, 8 << 20, 32),
        (16 << 20, 8 << 20, 8 << 20, 2),
        (10 << 20, 8 << 20, 5 << 20, 2),
        (1 << 20, 8 << 20, 512 * KIB, 2),
        (128 * KIB, 8 << 20, 64 * KIB, 2),
        (150 * KIB, 8 << 20, 72 * KIB, 2),
        (1 << 20, 1, 64 * KIB, 16),
        (1 << 20, 100 * KIB + 1, 100 * KIB, 10),
    ] {
        let pool = StagingPool::new(Arc::new(Host), budget, largest).unwrap();
        assert_eq!((pool.slot_bytes(), pool.slots()), (slot, slots), "budget {budget}");
        assert!(slot * slots <= budget);
    }
    let error = StagingPool::new(Arc::new(Host), 128 * KIB - 1, 8 << 20).unwrap_err();
    assert_eq!(error, DeviceError::BudgetTooSmall { budget: 128 * KIB - 1, minimum: 128 * KIB });
}

#[tokio::test]
async fn memory_is_allocated_when_needed_and_reused() {
    let device = Arc::new(Scarce { left: AtomicUsize::new(2) });
    let pool = StagingPool::new(device.clone(), 1 << 20, 64 * KIB).unwrap();
    assert_eq!(pool.peak_bytes(), 0);
    for _ in 0..10 {
        let mut slot = pool.acquire().await.unwrap();
        assert_eq!(slot.len(), 64 * KIB);
        assert_eq!(slot.as_ptr() as usize % 4096, 0);
        slot.as_mut().fill(1);
    }
    assert_eq!(device.left.load(Ordering::Relaxed), 1);
    assert_eq!(pool.peak_bytes(), 64 * KIB);

    let held = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
    // The device has no more: an error, and the slots that there are still go round.
    for _ in 0..20 {
        assert!(matches!(pool.acquire().await, Err(DeviceError::OutOfMemory { .. })));
    }
    assert_eq!(pool.peak_bytes(), 128 * KIB);
    drop(held);
    assert!(pool.try_acquire().unwrap().is_some());
}

#[tokio::test]
async fn who_wants_a_slot_waits_until_one_is_free() {
    let pool = StagingPool::new(Arc::new(Host), 128 * KIB, 64 * KIB).unwrap();
    let first = pool.acquire().await.unwrap();
    let _second = pool.acquire().await.unwrap();
    assert!(pool.try_acquire().unwrap().is_none());

    let context = &mut Context::from_waker(Waker::noop());
    let mut waits = pin!(pool.acquire());
    assert!(waits.as_mut().poll(context).is_pending());
    drop(first);
    // The slot is spoken for.
    assert!(pool.try_acquire().unwrap().is_none());
    assert!(matches!(waits.as_mut().poll(context), Poll::Ready(Ok(_))));
}

#[tokio::test]
async fn a_frozen_slot_goes_back_with_its_last_part() {
    let pool = StagingPool::new(Arc::new(Host), 128 * KIB, 64 * KIB).unwrap();
    let _other = pool.acquire().await.unwrap();
    let mut slot = pool.acquire().await.unwrap();
    slot[..4].copy_from_slice(b"body");
    let at = slot.as_ptr();
    let body = slot.freeze(4).unwrap();
    assert_eq!((body.as_ptr(), body.as_ref()), (at, &b"body"[..]));
    let part = body.slice(2..);
    drop(body);
    assert!(pool.try_acquire().unwrap().is_none());
    assert_eq!(part, "dy");
    drop(part);

    let slot = pool.try_acquire().unwrap().unwrap();
    let error = DeviceError::OutOfRange { offset: 0, length: 64 * KIB + 1, size: 64 * KIB };
    assert_eq!(slot.freeze(64 * KIB + 1).unwrap_err(), error);
    // Freezing nothing gives the slot back at once.
    assert!(pool.try_acquire().unwrap().unwrap().freeze(0).unwrap().is_empty());
    assert!(pool.try_acquire().unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_share_few_slots_and_never_the_same_at_once() {
    let pool = StagingPool::new(Arc::new(Host), 256 * KIB, 64 * KIB).unwrap();
    let tasks: Vec<_> = (0..200u8)
        .map(|task| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut slot = pool.acquire().await.unwrap();
                slot.fill(task);
                tokio::task::yield_now().await;
                assert!(slot.iter().all(|byte| *byte == task));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(pool.peak_bytes() <= 256 * KIB && pool.peak_bytes() >= 64 * KIB);
}
