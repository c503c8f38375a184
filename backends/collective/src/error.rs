//! What can go wrong in a meeting of ranks.

use std::fmt;

use crate::Reduce;

/// A collective call, with what must be equal on all ranks that meet in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// [`Collective::barrier`](crate::Collective::barrier).
    Barrier,
    /// [`Collective::broadcast`](crate::Collective::broadcast).
    Broadcast {
        /// The rank whose bytes all receive.
        root: usize,
    },
    /// [`Collective::gather`](crate::Collective::gather).
    Gather {
        /// The rank that receives.
        root: usize,
    },
    /// [`Collective::all_gather`](crate::Collective::all_gather).
    AllGather,
    /// [`Collective::all_reduce`](crate::Collective::all_reduce).
    AllReduce {
        /// How words are combined.
        reduce: Reduce,
        /// How many words each rank brings.
        words: usize,
    },
    /// [`Collective::all_to_all`](crate::Collective::all_to_all).
    AllToAll,
    /// [`Collective::split`](crate::Collective::split).
    Split,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barrier => write!(f, "barrier"),
            Self::Broadcast { root } => write!(f, "broadcast from rank {root}"),
            Self::Gather { root } => write!(f, "gather to rank {root}"),
            Self::AllGather => write!(f, "all_gather"),
            Self::AllReduce { reduce, words } => write!(f, "all_reduce {reduce:?} of {words} words"),
            Self::AllToAll => write!(f, "all_to_all"),
            Self::Split => write!(f, "split"),
        }
    }
}

/// How a rank left its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// Its handle was dropped.
    Dropped,
    /// Its thread panicked.
    Panicked,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dropped => "its handle was dropped",
            Self::Panicked => "its thread panicked",
        })
    }
}

/// Why a meeting failed.
///
/// After any of these the group stays failed: every later call on it, by any of its ranks, returns the
/// same error. Ranks are numbers in the first group, the one that no split made, so an error from a
/// subgroup means the same to everyone; only the roots in [`Operation`] are as the caller gave them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Unavailable: some ranks did not come in time.
    #[error(
        "{operation}: rank {rank} waited until its deadline for ranks {missing:?}; look at what those ranks \
         were doing, or allow more time"
    )]
    Deadline {
        /// The call that was waiting.
        operation: Operation,
        /// The rank whose deadline passed first.
        rank: usize,
        /// The ranks that had not come by then, ascending.
        missing: Vec<usize>,
    },
    /// Unavailable: a rank left the group, so no meeting can be complete any more.
    #[error("rank {rank} is gone ({cause}); its own error says why")]
    PeerGone {
        /// The rank that left.
        rank: usize,
        /// How it left.
        cause: Departure,
    },
    /// Conflict: ranks of one meeting called different things, so their programs ran apart.
    #[error(
        "ranks ran apart: rank {rank} called {called} where rank {other_rank} called {other_called}; all ranks \
         must make the same calls in the same order"
    )]
    Mismatch {
        /// The rank that came later.
        rank: usize,
        /// What it called.
        called: Operation,
        /// A rank that was there before.
        other_rank: usize,
        /// What that rank called.
        other_called: Operation,
    },
    /// Invalid input: a root outside the group.
    #[error("rank {rank} called {operation} in a group of {size} ranks; roots count from 0")]
    NoSuchRoot {
        /// The rank that called.
        rank: usize,
        /// What it called.
        operation: Operation,
        /// Ranks in the group.
        size: usize,
    },
    /// Invalid input: not one message for each rank.
    #[error(
        "rank {rank} brought {messages} messages to all_to_all in a group of {size} ranks; bring one for each"
    )]
    WrongMessageCount {
        /// The rank that called.
        rank: usize,
        /// Messages that it brought.
        messages: usize,
        /// Ranks in the group.
        size: usize,
    },
    /// Invalid input: a group without ranks.
    #[error("a group needs at least one rank")]
    EmptyGroup,
}
