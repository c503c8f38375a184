//! Who may write where in one destination.
//!
//! The destination is cut into stripes with a lock each. A write holds the lock of the stripe that it writes
//! to, one at a time. A window, which lives longer than a lock should be held, is entered as a claim in every
//! stripe that it touches; a write or another window that meets a claim is refused. A claim is made under the
//! locks of all its stripes, so it waits for the writes that were there before it.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::DeviceError;

/// Small enough that writers of a tensor seldom meet, large enough that a lock costs nothing.
pub(crate) const STRIPE_BYTES: usize = 1 << 20;

/// The locks and claims of one destination.
#[derive(Debug)]
pub(crate) struct Stripes(Box<[Mutex<Vec<Range<usize>>>]>);

/// The lock of one stripe.
pub(crate) struct HeldStripe<'a> {
    /// The bytes of the destination that it covers.
    pub range: Range<usize>,
    claims: MutexGuard<'a, Vec<Range<usize>>>,
}

impl Stripes {
    /// Stripes for a destination of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self((0..size.div_ceil(STRIPE_BYTES)).map(|_| Mutex::default()).collect())
    }

    /// Locks the stripe that byte `at` is in; `None` past the last one.
    pub(crate) fn lock(&self, at: usize) -> Option<HeldStripe<'_>> {
        let index = at / STRIPE_BYTES;
        let claims = self.0.get(index)?.lock().unwrap_or_else(PoisonError::into_inner);
        let start = index * STRIPE_BYTES;
        Some(HeldStripe { range: start..start.saturating_add(STRIPE_BYTES), claims })
    }

    /// Claims `range`, all of it or nothing.
    pub(crate) fn claim(&self, range: &Range<usize>) -> Result<(), DeviceError> {
        // Locked in ascending order, and writers hold one lock at a time: nobody waits in a circle.
        let mut held: Vec<_> = self.touched(range).filter_map(|at| self.lock(at)).collect();
        for stripe in &held {
            stripe.check_free(range)?;
        }
        for stripe in &mut held {
            stripe.claims.push(range.clone());
        }
        Ok(())
    }

    /// Gives up a claim made before.
    pub(crate) fn release(&self, range: &Range<usize>) {
        for mut stripe in self.touched(range).filter_map(|at| self.lock(at)) {
            stripe.claims.retain(|claim| claim != range);
        }
    }

    /// A byte of each stripe that `range` touches.
    fn touched(&self, range: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
        let stripes = match range.is_empty() {
            true => 0..0,
            false => range.start / STRIPE_BYTES..range.end.div_ceil(STRIPE_BYTES),
        };
        stripes.map(|index| index * STRIPE_BYTES)
    }
}

impl HeldStripe<'_> {
    /// An error if a claim in this stripe overlaps `range`.
    pub(crate) fn check_free(&self, range: &Range<usize>) -> Result<(), DeviceError> {
        match self.claims.iter().find(|claim| claim.start < range.end && range.start < claim.end) {
            Some(taken) => Err(DeviceError::Busy { asked: range.clone(), taken: taken.clone() }),
            None => Ok(()),
        }
    }
}
