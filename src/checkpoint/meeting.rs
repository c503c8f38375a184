//! How ranks agree. Between two meetings nothing returns early: an error is carried as a status to the next one, so
//! that no rank is left waiting.

use super::error::{CheckpointError, ErrorKind};
use crate::transfer::{Job, TransferError};
use bytes::Bytes;
use reshard_collective::{Collective, Deadline, Reduce};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How meetings are held.
#[derive(Clone, Debug)]
pub struct MeetingRules {
    /// Most time that one meeting may take before the ranks that did not come are named.
    pub deadline: Duration,
    /// A rank that is still busy joins a round at the latest after this time.
    pub round: Duration,
    /// Set by the caller (a signal handler, another thread) to end the call on all ranks.
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl Default for MeetingRules {
    /// Ten minutes, rounds of two seconds.
    fn default() -> Self {
        Self { deadline: Duration::from_secs(600), round: Duration::from_secs(2), interrupt: None }
    }
}

/// How often a waiting rank looks whether it was interrupted.
const INTERRUPT_POLL: Duration = Duration::from_millis(20);
/// Longest cause that is sent to the other ranks.
const MAX_CAUSE_BYTES: usize = 4 << 10;
/// Nobody failed.
const NO_RANK: u64 = u64::MAX;

pub(crate) struct Meeting<'a> {
    pub(super) collective: &'a dyn Collective,
    rules: &'a MeetingRules,
}

impl<'a> Meeting<'a> {
    pub(super) fn new(collective: &'a dyn Collective, rules: &'a MeetingRules) -> Self {
        Self { collective, rules }
    }

    pub(crate) fn is_lead(&self) -> bool {
        self.collective.rank() == 0
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.rules.deadline)
    }

    /// The first meeting of every call: all ranks made the same one.
    pub(crate) fn agree(&self, call: &str) -> Result<(), CheckpointError> {
        let digest = hash(call);
        let least = self.collective.all_reduce(&[digest, !digest], Reduce::Min, self.deadline())?;
        // The least and (by its complement) the greatest hash: equal on every rank or on none.
        if matches!(least[..], [low, high] if low == !high) {
            return Ok(());
        }
        let calls = self.collective.all_gather(Bytes::copy_from_slice(call.as_bytes()), self.deadline())?;
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let first = calls.first().map(text).unwrap_or_default();
        let other = calls.iter().position(|other| text(other) != first).unwrap_or(0);
        Err(CheckpointError::Disagreement {
            rank: 0,
            other_called: calls.get(other).map(text).unwrap_or_default(),
            called: first,
            other_rank: other,
        })
    }

    /// All ranks have a result or none has one: every rank's own result where all succeeded, else an error everywhere.
    pub(crate) fn settle<T>(&self, own: Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        let mut own = Some(own);
        self.rounds(|_| Ok(own.take()))
    }

    /// As [`Meeting::settle`], of work that is under way; it is given up where another rank fails.
    pub(crate) fn work<T: Send + 'static, E: Into<CheckpointError> + Send + 'static>(
        &self,
        job: Result<Job<Result<T, E>>, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        match job {
            Err(error) => self.settle(Err(error)),
            Ok(job) => self.rounds(|timeout| match job.wait(timeout) {
                Ok(None) => Ok(None),
                Ok(Some(result)) => Ok(Some(result.map_err(Into::into))),
                Err(error) => Err(error.into()),
            }),
        }
    }

    /// Work that rank 0 alone does; the others wait in rounds and get the bytes of its answer. Rank 0 gets the rest of
    /// it too.
    pub(crate) fn lead<T: Send + 'static, F>(
        &self,
        work: impl FnOnce() -> F,
    ) -> Result<(Option<T>, Bytes), CheckpointError>
    where
        F: Future<Output = Result<(T, Bytes), CheckpointError>> + Send + 'static,
    {
        let own = match self.is_lead() {
            true => self.work(Job::start(work()).map_err(CheckpointError::from)).map(Some)?,
            false => self.settle(Ok(None))?,
        };
        let (answer, bytes) = own.map_or((None, Bytes::new()), |(answer, bytes)| (Some(answer), bytes));
        let bytes = self.collective.broadcast(0, bytes, self.deadline())?;
        Ok((answer, bytes))
    }

    /// All ranks' keys together, sorted.
    pub(super) fn union(&self, own: &[String]) -> Result<Vec<String>, CheckpointError> {
        let lost = || CheckpointError::Transfer(TransferError::Lost);
        let text = serde_json::to_vec(own).map_err(|_| lost())?;
        let mut all = std::collections::BTreeSet::new();
        for keys in self.collective.all_gather(text.into(), self.deadline())? {
            all.extend(serde_json::from_slice::<Vec<String>>(&keys).map_err(|_| lost())?);
        }
        Ok(all.into_iter().collect())
    }

    /// Sums words over all ranks.
    pub(super) fn sum(&self, words: &[u64]) -> Result<Vec<u64>, CheckpointError> {
        Ok(self.collective.all_reduce(words, Reduce::Sum, self.deadline())?)
    }

    /// Rounds of a vote. `poll` waits up to the given time for this rank's result and gives it once.
    pub(crate) fn rounds<T>(
        &self,
        mut poll: impl FnMut(Duration) -> Result<Option<Result<T, CheckpointError>>, CheckpointError>,
    ) -> Result<T, CheckpointError> {
        let mut own: Option<Result<T, CheckpointError>> = None;
        loop {
            if own.is_none() {
                own = self.wait(&mut poll);
            }
            let failed = if matches!(own, Some(Err(_))) { self.collective.rank() as u64 } else { NO_RANK };
            let done = u64::from(own.is_some());
            let round = self.collective.all_reduce(&[failed, done], Reduce::Min, self.deadline())?;
            let [failing, all_done] = round[..] else {
                return Err(CheckpointError::Transfer(TransferError::Lost));
            };
            if failing != NO_RANK {
                return Err(self.learn(failing as usize, own.and_then(Result::err))?);
            }
            if all_done == 1
                && let Some(result) = own
            {
                return result;
            }
        }
    }

    /// Waits until this rank's own status changes, at most one round.
    fn wait<T>(
        &self,
        poll: &mut impl FnMut(Duration) -> Result<Option<Result<T, CheckpointError>>, CheckpointError>,
    ) -> Option<Result<T, CheckpointError>> {
        let until = Instant::now() + self.rules.round;
        loop {
            if self.rules.interrupt.as_ref().is_some_and(|interrupt| interrupt.load(Ordering::Relaxed)) {
                return Some(Err(CheckpointError::Interrupted));
            }
            let left = until.saturating_duration_since(Instant::now());
            let slice = if self.rules.interrupt.is_some() { left.min(INTERRUPT_POLL) } else { left };
            match poll(slice) {
                Ok(Some(result)) => return Some(result),
                Ok(None) if left.is_zero() => return None,
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The error that every rank returns: its own where it failed, else that of the lowest rank that did.
    fn learn(
        &self,
        failing: usize,
        own: Option<CheckpointError>,
    ) -> Result<CheckpointError, CheckpointError> {
        let mut message = Vec::new();
        if failing == self.collective.rank()
            && let Some(error) = &own
        {
            message.push(error.kind().code());
            message.extend(error.to_string().into_bytes());
            message.truncate(MAX_CAUSE_BYTES);
        }
        let message = self.collective.broadcast(failing, message.into(), self.deadline())?;
        let (code, text) = message.split_first().map_or((0, &[][..]), |(&code, text)| (code, text));
        Ok(own.unwrap_or_else(|| CheckpointError::RankFailed {
            rank: failing,
            kind: ErrorKind::from_code(code),
            cause: String::from_utf8_lossy(text).into_owned(),
        }))
    }
}

/// 64 bits of SHA-256: two different calls must not look alike.
fn hash(text: &str) -> u64 {
    use sha2::{Digest, Sha256};
    Sha256::digest(text).iter().take(8).fold(0, |word, &byte| word << 8 | u64::from(byte))
}
