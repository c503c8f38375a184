use crate::foreign::{ForeignError, ForeignErrorKind};
use crate::format::{Difference, FormatError};
use crate::plan::{DeclarationFault, PlanError};
use crate::transfer::TransferError;
use reshard_collective::CollectiveError;
use reshard_storage::{StorageError, StoragePath};

/// What a user can do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// There is no such checkpoint, file or bucket: check the URI and the iteration.
    NotFound,
    /// Another writer was there, or something is there that may not be replaced.
    Conflict,
    /// Stored bytes are damaged: load another checkpoint.
    Corrupt,
    /// The call itself is wrong: fix the arguments.
    Invalid,
    /// A store, machine or peer did not answer: try again.
    Unavailable,
    /// This store or build cannot do it.
    Unsupported,
    /// The checkpoint does not fit this model: change the model or allow the difference.
    Incompatible,
    /// The call was interrupted on purpose.
    Interrupted,
    /// A defect of the library.
    Internal,
}

impl ErrorKind {
    const ALL: [ErrorKind; 9] = [
        Self::NotFound,
        Self::Conflict,
        Self::Corrupt,
        Self::Invalid,
        Self::Unavailable,
        Self::Unsupported,
        Self::Incompatible,
        Self::Interrupted,
        Self::Internal,
    ];

    pub(super) fn code(self) -> u8 {
        Self::ALL.iter().position(|&kind| kind == self).unwrap_or(0) as u8
    }

    pub(super) fn from_code(code: u8) -> Self {
        Self::ALL.get(usize::from(code)).copied().unwrap_or(Self::Internal)
    }
}

/// What the error of a place without a checkpoint says where nothing better is known.
pub(in crate::checkpoint) const LOOK: &str = "`reshard ls` shows what is there";

/// Why a save or load failed. Every rank gets an error when one rank does.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Reading or writing failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// What lies on storage is not a checkpoint of this format, or a value cannot be written as one.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Another tool's checkpoint that cannot be read.
    #[error(transparent)]
    Foreign(#[from] ForeignError),
    /// The ranks could not meet.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The replicas of shards do not fit together.
    #[error(transparent)]
    Declarations(#[from] DeclarationFault),
    /// Another rank failed; nothing was published or made visible here either.
    #[error("rank {rank} failed: {cause}")]
    RankFailed {
        /// The lowest rank that failed.
        rank: usize,
        /// What can be done about its error.
        kind: ErrorKind,
        /// Its error.
        cause: String,
    },
    /// The ranks made calls that do not belong together.
    #[error(
        "the ranks do not agree on this call: rank {rank} called {called}, rank {other_rank} called {other_called}"
    )]
    Disagreement {
        /// A rank.
        rank: usize,
        /// What it called.
        called: String,
        /// The first rank that called something else.
        other_rank: usize,
        /// What that called.
        other_called: String,
    },
    /// There is no committed checkpoint.
    #[error("{place} has no committed checkpoint: {hint}")]
    NoCheckpoint {
        /// The run, or one iteration of it.
        place: String,
        /// What is there instead, or how to find out.
        hint: String,
    },
    /// A checkpoint of another tool that says nothing of the training loop.
    #[error(
        "the checkpoint has no state of the training loop to resume from; load its tensors with `Checkpoint::load` and begin at step 0"
    )]
    NoTrainerState,
    /// The iteration is committed already.
    #[error("iteration {iteration} is already committed; save another iteration, or ask to replace it")]
    Exists {
        /// The iteration.
        iteration: u64,
    },
    /// What would be replaced or discarded is pinned.
    #[error("iteration(s) {} cannot be replaced or discarded, since they are pinned; take their pins away first", numbers(.iterations))]
    Pinned {
        /// The iterations.
        iterations: Vec<u64>,
    },
    /// Another save of the same iteration, a prune or gc was faster.
    #[error(
        "another writer changed the commit of iteration {iteration} during this save; nothing of it was touched by this one"
    )]
    Lost {
        /// The iteration.
        iteration: u64,
    },
    /// The answer to the commit never came.
    #[error(
        "it is not known whether iteration {iteration} was committed ({cause}); the next resume decides: if it is listed it is whole"
    )]
    Unknown {
        /// The iteration.
        iteration: u64,
        /// What stood in the way.
        cause: String,
    },
    /// The attempt's files on storage are not those that were written.
    #[error("attempt {attempt}: `{file}` {detail}; something else changed the attempt's files")]
    AttemptChanged {
        /// The attempt.
        attempt: String,
        /// The file.
        file: String,
        /// What differs.
        detail: String,
    },
    /// The files of a checkpoint are not those that its metadata names.
    #[error("{place}: `{file}` {detail}; copy the whole checkpoint, or load another")]
    FilesChanged {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// What differs.
        detail: String,
    },
    /// The checkpoint was deleted or replaced while it was being read.
    #[error("iteration {iteration} was removed while loading; resume again to get the newest")]
    RemovedWhileLoading {
        /// The iteration.
        iteration: u64,
    },
    /// The iteration to be saved is older than a committed one, so that the next resume would pass it over.
    #[error(
        "iteration {iteration} was not saved, since newer ones are committed ({}) and the next resume would take those; \
         resume with discard_newer to give them up, or save into another run", numbers(.newer)
    )]
    NewerExist {
        /// The iteration.
        iteration: u64,
        /// The newer ones, newest first.
        newer: Vec<u64>,
    },
    /// The model that was saved is not the one that runs.
    #[error("iteration {iteration} is of another model: {}; resume it with the model that saved it", differing(.differences))]
    Architecture {
        /// The iteration.
        iteration: u64,
        /// What differs, with both values.
        differences: Vec<Difference>,
    },
    /// The samples consumed are no whole number of the running batches.
    #[error(
        "{samples} consumed samples are no multiple of {divisor}, the local batch of {local_batch} on {dp} data-parallel \
         rank(s); resume with sizes whose product divides them"
    )]
    BatchMisaligned {
        /// Samples consumed, over all ranks.
        samples: u64,
        /// Samples of one global batch.
        divisor: u64,
        /// Samples of one batch of one rank.
        local_batch: u64,
        /// Data-parallel ranks.
        dp: u32,
    },
    /// Wanted tensors that the checkpoint does not have, over all ranks.
    #[error("{} wanted tensor(s) are not in the checkpoint: {} (rank {rank} is the first that wants one); allow missing keys, or select fewer", .keys.len(), crate::plan::quoted(.keys))]
    Missing {
        /// The keys.
        keys: Vec<String>,
        /// The lowest rank that wants one of them.
        rank: usize,
    },
    /// Saved tensors that no rank wants.
    #[error("{} saved tensor(s) are wanted by no rank: {}; allow unexpected keys, or select what you want", .keys.len(), crate::plan::quoted(.keys))]
    Unexpected {
        /// The keys.
        keys: Vec<String>,
    },
    /// A failure after bytes had been written into the caller's tensors.
    #[error(
        "the contents of the destination tensors are undefined, since the load was in place and failed midway: {cause}"
    )]
    ContentsUndefined {
        /// What failed.
        cause: Box<CheckpointError>,
    },
    /// The caller asked the call to stop.
    #[error("interrupted")]
    Interrupted,
    /// The caller's arguments do not fit together.
    #[error("{0}")]
    Invalid(String),
    /// The store lacks what the call needs.
    #[error("{store} cannot {what}; use a store that can, or leave this out")]
    Unsupported {
        /// The store.
        store: String,
        /// What it cannot do.
        what: &'static str,
    },
}

impl CheckpointError {
    /// What can be done about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Plan(error) => plan_kind(error),
            Self::Transfer(error) => transfer_kind(error),
            Self::Storage(error) => storage_kind(error),
            Self::Format(error) => format_kind(error),
            Self::Foreign(error) => foreign_kind(error),
            Self::Collective(CollectiveError::Mismatch { .. }) | Self::Declarations(_) => ErrorKind::Invalid,
            Self::Collective(_) => ErrorKind::Unavailable,
            Self::RankFailed { kind, .. } => *kind,
            Self::Disagreement { .. } | Self::Invalid(_) => ErrorKind::Invalid,
            Self::NoCheckpoint { .. } => ErrorKind::NotFound,
            Self::Exists { .. }
            | Self::Lost { .. }
            | Self::NewerExist { .. }
            | Self::Pinned { .. }
            | Self::RemovedWhileLoading { .. } => ErrorKind::Conflict,
            Self::Unknown { .. } => ErrorKind::Unavailable,
            Self::AttemptChanged { .. } | Self::FilesChanged { .. } => ErrorKind::Corrupt,
            Self::Missing { .. }
            | Self::Unexpected { .. }
            | Self::NoTrainerState
            | Self::Architecture { .. }
            | Self::BatchMisaligned { .. } => ErrorKind::Incompatible,
            Self::ContentsUndefined { cause } => cause.kind(),
            Self::Interrupted => ErrorKind::Interrupted,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    /// The store's word that an object was not there, where that is the error.
    fn not_found(&self) -> Option<&StorageError> {
        match self {
            Self::Transfer(TransferError::Storage(error)) | Self::Storage(error) if error.is_not_found() => {
                Some(error)
            }
            _ => None,
        }
    }

    /// The object that was not there, where that is the error and it has a path.
    pub(crate) fn missing_object(&self) -> Option<&StoragePath> {
        self.not_found()?.at().object()
    }

    /// Whether an object was not there.
    pub(crate) fn is_missing_object(&self) -> bool {
        self.not_found().is_some()
    }
}

/// Iterations as text, the first few.
pub(crate) fn numbers(iterations: &[u64]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = iterations.iter().take(SHOWN).map(u64::to_string).collect();
    if iterations.len() > SHOWN {
        text.push(format!("and {} more", iterations.len() - SHOWN));
    }
    text.join(", ")
}

fn differing(differences: &[Difference]) -> String {
    let each = |Difference { field, saved, running }: &Difference| {
        format!("{field} is {saved} in the checkpoint and {running} here")
    };
    differences.iter().map(each).collect::<Vec<_>>().join("; ")
}

fn plan_kind(error: &PlanError) -> ErrorKind {
    match error {
        PlanError::DType { .. }
        | PlanError::Shape { .. }
        | PlanError::ObjectRanks { .. }
        | PlanError::TieWinner { .. }
        | PlanError::SavedTie { .. } => ErrorKind::Incompatible,
        PlanError::Coverage { .. } | PlanError::ChunkOutsideFile { .. } => ErrorKind::Corrupt,
        PlanError::Format(error) => format_kind(error),
        _ => ErrorKind::Invalid,
    }
}

fn transfer_kind(error: &TransferError) -> ErrorKind {
    match error {
        TransferError::Storage(error) => storage_kind(error),
        TransferError::Corrupt { .. } | TransferError::Path(_) => ErrorKind::Corrupt,
        TransferError::OutOfRange { .. } | TransferError::TiedDiffer { .. } => ErrorKind::Incompatible,
        TransferError::BudgetTooSmall { .. } | TransferError::Forked => ErrorKind::Invalid,
        TransferError::Device(_) | TransferError::Runtime(_) => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

fn storage_kind(error: &StorageError) -> ErrorKind {
    match error {
        StorageError::NotFound { .. } | StorageError::MissingBucket { .. } => ErrorKind::NotFound,
        StorageError::Corrupt { .. } => ErrorKind::Corrupt,
        StorageError::InvalidInput { .. }
        | StorageError::AccessDenied { .. }
        | StorageError::WrongEndpoint { .. } => ErrorKind::Invalid,
        StorageError::Unsupported { .. } => ErrorKind::Unsupported,
        StorageError::Unavailable { .. }
        | StorageError::Unreachable { .. }
        | StorageError::NoSpace { .. } => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

fn format_kind(error: &FormatError) -> ErrorKind {
    use crate::format::FormatErrorKind;
    match error.kind() {
        FormatErrorKind::Corrupt => ErrorKind::Corrupt,
        FormatErrorKind::UnsupportedVersion => ErrorKind::Unsupported,
        FormatErrorKind::Deleted => ErrorKind::NotFound,
        FormatErrorKind::Invalid => ErrorKind::Invalid,
        FormatErrorKind::Unavailable => ErrorKind::Unavailable,
    }
}

fn foreign_kind(error: &ForeignError) -> ErrorKind {
    match (error, error.kind()) {
        (ForeignError::Storage(error), _) => storage_kind(error),
        (_, ForeignErrorKind::NotFound) => ErrorKind::NotFound,
        (_, ForeignErrorKind::Corrupt) => ErrorKind::Corrupt,
        (_, ForeignErrorKind::Unsupported) => ErrorKind::Unsupported,
        (_, ForeignErrorKind::Invalid) => ErrorKind::Invalid,
        (_, ForeignErrorKind::Storage) => ErrorKind::Unavailable,
    }
}

/// Whether a failed save left a checkpoint behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitState {
    /// There is none from this save, now or later.
    NotCommitted,
    /// The checkpoint is whole and committed, although the call failed afterwards.
    Committed,
    /// The commit may have happened; the next resume decides.
    Unknown,
}

impl std::fmt::Display for CommitState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotCommitted => "not committed",
            Self::Committed => "committed",
            Self::Unknown => "it is unknown whether it was committed",
        })
    }
}

/// Why a save failed, and what that means for the checkpoint.
#[derive(Clone, Debug, thiserror::Error)]
#[error("iteration {iteration} {state}: {source}")]
pub struct SaveError {
    /// The iteration.
    pub iteration: u64,
    /// Whether it was committed.
    pub state: CommitState,
    /// What failed.
    pub source: CheckpointError,
}
