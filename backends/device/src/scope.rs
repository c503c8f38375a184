//! Lending borrowed memory to handles that know no lifetime.
//!
//! Transfers run as tasks that must be `'static`, while the tensors they fill are borrowed from the caller.
//! A [`Scope`] joins the two: handles point into the borrowed memory, but touch it only between
//! [`Scope::enter`] and the drop of the [`Entry`] that it gave. [`lend`] ends, by return or by panic, only
//! after it has closed the scope, so that nobody enters any more, and every entry is gone. This is the one
//! rule that all `unsafe` in this crate rests on.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::DeviceError;

/// The time during which lent memory may be touched.
#[derive(Debug)]
pub(crate) struct Scope {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug)]
struct State {
    open: bool,
    entries: usize,
}

/// While it lives, the scope that it came from has not ended. Leaking it keeps the scope from ever ending.
#[derive(Debug)]
pub(crate) struct Entry(Arc<Scope>);

/// Runs `f` with a new scope and returns when no entry to it is left and none will be.
pub(crate) fn lend<R>(f: impl FnOnce(&Arc<Scope>) -> R) -> R {
    let state = Mutex::new(State { open: true, entries: 0 });
    let scope = Arc::new(Scope { state, left: Condvar::new() });
    // Its drop also runs when `f` panics. Nothing else owns it, so nothing can keep it from being dropped.
    let closes = ClosesOnDrop(&scope);
    f(closes.0)
}

struct ClosesOnDrop<'a>(&'a Arc<Scope>);

impl Drop for ClosesOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.open = false;
        while state.entries > 0 {
            state = self.0.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Scope {
    /// Keeps the scope from ending for as long as the entry lives.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Entry, DeviceError> {
        let mut state = self.lock();
        if !state.open {
            return Err(DeviceError::Revoked);
        }
        state.entries += 1;
        Ok(Entry(Arc::clone(self)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.entries -= 1;
        if state.entries == 0 {
            self.0.left.notify_all();
        }
    }
}
