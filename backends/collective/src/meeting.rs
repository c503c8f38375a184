//! The meeting place of threads: one lock, one condition, one meeting at a time.
//!
//! Ranks deposit what they bring. The one that completes the meeting hands every rank a share of the
//! outcome and opens the next meeting in the same critical section, so a meeting either happened for all or
//! failed for all. A fast rank may already wait in the next meeting while a slow one has not yet taken its
//! outcome: that meeting cannot complete before the slow rank comes, and it comes only after it has taken it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::{CollectiveError, Deadline, Departure, Operation};

/// What one rank brings to a meeting; parts that its operation doesn't use stay empty.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub messages: Vec<Bytes>,
    pub words: Vec<u64>,
}

/// A meeting that all ranks came to.
#[derive(Debug)]
pub(crate) struct Met {
    /// What each rank said, in the order of ranks.
    pub said: Vec<Said>,
    /// Places of the groups that a split makes, by color; the first member that asks makes its group's.
    groups: Mutex<BTreeMap<u64, Arc<Place>>>,
}

impl Met {
    /// The place where the members of `color` will meet; `first_ranks` are their numbers in the first group.
    pub(crate) fn group(&self, color: u64, first_ranks: Vec<usize>) -> Arc<Place> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(groups.entry(color).or_insert_with(|| Arc::new(Place::new(first_ranks))))
    }
}

/// Where the ranks of one group meet.
#[derive(Debug)]
pub(crate) struct Place {
    /// Each rank's number in the first group, for errors and for splits of splits.
    first_ranks: Vec<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Set once, by the first failure; the group is of no more use then.
    failure: Option<CollectiveError>,
    /// Who has come to the present meeting, and with what.
    arrived: Vec<Option<(Operation, Said)>>,
    /// Outcomes of the last meeting, not yet taken.
    outcomes: Vec<Option<Arc<Met>>>,
}

impl Place {
    pub(crate) fn new(first_ranks: Vec<usize>) -> Self {
        let size = first_ranks.len();
        let state = State {
            failure: None,
            arrived: std::iter::repeat_with(|| None).take(size).collect(),
            outcomes: vec![None; size],
        };
        Self { first_ranks, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn size(&self) -> usize {
        self.first_ranks.len()
    }

    /// The number in the first group of this group's `rank`.
    pub(crate) fn first_rank(&self, rank: usize) -> usize {
        self.first_ranks.get(rank).copied().unwrap_or(rank)
    }

    /// Brings `said` to the present meeting and waits for the others.
    pub(crate) fn meet(
        &self,
        rank: usize,
        operation: Operation,
        said: Said,
        deadline: Deadline,
    ) -> Result<Arc<Met>, CollectiveError> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let differs = state.present().find(|(_, called)| *called != operation);
        if let Some((other, other_called)) = differs {
            let failure = CollectiveError::Mismatch {
                rank: self.first_rank(rank),
                called: operation,
                other_rank: self.first_rank(other),
                other_called,
            };
            return Err(self.fail(state, failure));
        }
        if let Some(place) = state.arrived.get_mut(rank) {
            *place = Some((operation, said));
        }
        if state.complete() {
            self.changed.notify_all();
        }
        loop {
            // An outcome counts before a failure: the meeting happened, whatever came after it.
            if let Some(met) = state.outcomes.get_mut(rank).and_then(Option::take) {
                return Ok(met);
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                let missing = state.absent().map(|rank| self.first_rank(rank)).collect();
                let rank = self.first_rank(rank);
                return Err(self.fail(state, CollectiveError::Deadline { operation, rank, missing }));
            }
            state = self.changed.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Fails the group because of a call that its own rank can see is wrong.
    pub(crate) fn refuse(&self, failure: CollectiveError) -> CollectiveError {
        self.fail(self.lock(), failure)
    }

    /// Fails the group because `rank` is not coming any more.
    pub(crate) fn leave(&self, rank: usize, cause: Departure) {
        let rank = self.first_rank(rank);
        self.fail(self.lock(), CollectiveError::PeerGone { rank, cause });
    }

    /// Records `failure` unless an earlier one stands; wakes all; returns the one that stands.
    fn fail(&self, mut state: MutexGuard<'_, State>, failure: CollectiveError) -> CollectiveError {
        let stands = state.failure.get_or_insert(failure).clone();
        // What the ranks brought to a meeting that will never be is freed here, not with the last handle.
        state.arrived.fill_with(|| None);
        self.changed.notify_all();
        stands
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn present(&self) -> impl Iterator<Item = (usize, Operation)> + '_ {
        let arrived = self.arrived.iter().enumerate();
        arrived.filter_map(|(rank, place)| place.as_ref().map(|(operation, _)| (rank, *operation)))
    }

    fn absent(&self) -> impl Iterator<Item = usize> + '_ {
        self.arrived.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(rank, _)| rank)
    }

    /// Hands out the outcome and opens the next meeting if everyone is here; says whether it did.
    fn complete(&mut self) -> bool {
        if self.absent().next().is_some() {
            return false;
        }
        let said = self.arrived.iter_mut().filter_map(Option::take).map(|(_, said)| said).collect();
        let met = Arc::new(Met { said, groups: Mutex::default() });
        self.outcomes.fill(Some(met));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_deadline_names_only_those_who_had_not_come_and_ends_the_wait_of_those_who_had() {
        let place = Place::new(vec![4, 5, 6, 7]);
        let operation = Operation::Barrier;
        let wait = Deadline::after(Duration::from_secs(120));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| place.meet(2, operation, Said::default(), wait).map(drop));
            while place.lock().present().next().is_none() {
                std::thread::yield_now();
            }
            let now = Deadline::after(Duration::ZERO);
            let error = place.meet(1, operation, Said::default(), now).unwrap_err();
            assert_eq!(error, CollectiveError::Deadline { operation, rank: 5, missing: vec![4, 7] });
            assert_eq!(waits.join().unwrap().unwrap_err(), error);
        });
    }
}
