//! What every engine for collectives does.

use bytes::Bytes;

use crate::{CollectiveError, Deadline};

/// How [`Collective::all_reduce`] combines words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum modulo 2^64, as every engine computes it.
    Sum,
}

impl Reduce {
    /// Combines two words.
    pub fn apply(self, a: u64, b: u64) -> u64 {
        match self {
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::Sum => a.wrapping_add(b),
        }
    }
}

/// One rank's handle on a group of ranks that meet in collective calls.
///
/// All ranks of a group make the same calls in the same order, with equal roots, reductions and word
/// counts; lengths of byte messages may differ from rank to rank and may be zero. Every call is synchronous
/// and returns by its deadline. It asks for neither `Send` nor `Sync`: engines such as MPI and NCCL are
/// confined to one thread, so callers use a handle only on the thread that gave it to them.
///
/// Messages are [`Bytes`], so that an engine within one process shares one memory between ranks instead of
/// copying it; `Vec<u8>` turns into it without a copy.
///
/// # Errors
///
/// A call that cannot complete fails as [`CollectiveError`] says. A failure is final for the group: its later
/// calls fail with the same error. Groups made by [`split`](Self::split) fail apart from each other and from
/// the group they came from. An engine that cannot tell a mismatch or a departure apart from lateness reports
/// [`CollectiveError::Deadline`].
pub trait Collective {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// Ranks in the group, at least 1.
    fn size(&self) -> usize;

    /// How many ranks are threads of this process, this one included: they divide its memory budgets among them.
    /// One where each rank is a process of its own.
    fn ranks_in_process(&self) -> usize {
        1
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// See [`Collective`].
    fn barrier(&self, deadline: Deadline) -> Result<(), CollectiveError>;

    /// Returns the root's `bytes` on every rank; those of the others are ignored.
    ///
    /// # Errors
    /// See [`Collective`]; [`CollectiveError::NoSuchRoot`] where `root >= size`.
    fn broadcast(&self, root: usize, bytes: Bytes, deadline: Deadline) -> Result<Bytes, CollectiveError>;

    /// Returns every rank's `bytes`, in the order of ranks, on the root, and `None` on the others.
    ///
    /// # Errors
    /// See [`Collective`]; [`CollectiveError::NoSuchRoot`] where `root >= size`.
    fn gather(
        &self,
        root: usize,
        bytes: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Vec<Bytes>>, CollectiveError>;

    /// Returns every rank's `bytes`, in the order of ranks, on every rank.
    ///
    /// # Errors
    /// See [`Collective`].
    fn all_gather(&self, bytes: Bytes, deadline: Deadline) -> Result<Vec<Bytes>, CollectiveError>;

    /// Combines the ranks' words place by place; every rank receives the result. All bring equally many.
    ///
    /// # Errors
    /// See [`Collective`].
    fn all_reduce(
        &self,
        words: &[u64],
        reduce: Reduce,
        deadline: Deadline,
    ) -> Result<Vec<u64>, CollectiveError>;

    /// Sends `messages[r]` to rank `r` and returns what each rank sent here, in the order of ranks.
    ///
    /// # Errors
    /// See [`Collective`]; [`CollectiveError::WrongMessageCount`] where `messages.len() != size`.
    fn all_to_all(&self, messages: Vec<Bytes>, deadline: Deadline) -> Result<Vec<Bytes>, CollectiveError>;

    /// Splits the group: ranks of equal `color` become a group of their own, numbered by `key`, then by
    /// their rank here. The new groups and this one are used independently.
    ///
    /// # Errors
    /// See [`Collective`].
    fn split(&self, color: u64, key: u64, deadline: Deadline)
    -> Result<Box<dyn Collective>, CollectiveError>;
}
