use super::{
    BlockFault, BlockLayoutError, CommitFault, DigestFault, EntryFault, HeaderFault, ManifestFault,
    MetadataFault,
};

/// What the user can do about a [`FormatError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FormatErrorKind {
    /// The bytes on storage are damaged or were not written by this format: load another checkpoint.
    Corrupt,
    /// A newer release wrote them: upgrade.
    UnsupportedVersion,
    /// The checkpoint was deleted.
    Deleted,
    /// The caller's own input is wrong.
    Invalid,
    /// The machine lacks something; nothing was written.
    Unavailable,
}

/// Why bytes are not format version 1, or values can't be written as it.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A name is not one that the format writes.
    #[error("`{name}` is not {what}")]
    Name {
        /// The name.
        name: String,
        /// What it should be.
        what: &'static str,
    },
    /// The operating system gives no random numbers.
    #[error("no random numbers from the operating system: {why}")]
    Random {
        /// The system's own words.
        why: String,
    },
    /// A newer release of the format.
    #[error("{file}: format version {found}; this release reads version {}: upgrade reshard", super::VERSION)]
    UnsupportedVersion {
        /// The file.
        file: String,
        /// Its version.
        found: u64,
    },
    /// An entry can't be laid out.
    #[error("entry `{entry}`: {fault}")]
    Entry {
        /// Its name in the file: key and slice.
        entry: String,
        /// What is wrong.
        fault: EntryFault,
    },
    /// Numbers do not describe blocks.
    #[error("blocks: {fault}")]
    Blocks {
        /// What is wrong.
        fault: BlockLayoutError,
    },
    /// The header of a data file.
    #[error("{file}: {fault}")]
    Header {
        /// The file.
        file: String,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// The data of a data file.
    #[error("{file}: {fault}")]
    Block {
        /// The file.
        file: String,
        /// What is wrong.
        fault: BlockFault,
    },
    /// A small object (metadata.json, trainer_state.json) is not the one that was committed.
    #[error("{file}: {fault}; the checkpoint is incomplete or damaged: load another")]
    Digest {
        /// The file.
        file: String,
        /// What is wrong.
        fault: DigestFault,
    },
    /// A commit.json that is not one.
    #[error("{file}: {fault}")]
    Commit {
        /// The file.
        file: String,
        /// What is wrong.
        fault: CommitFault,
    },
    /// The checkpoint was deleted on purpose.
    #[error("{file}: the checkpoint was deleted; load another iteration")]
    Deleted {
        /// The file.
        file: String,
    },
    /// A metadata.json that is not one.
    #[error("{file}: {fault}")]
    Metadata {
        /// The file.
        file: String,
        /// What is wrong.
        fault: MetadataFault,
    },
    /// A trainer_state.json that is not one.
    #[error("{file}: not a trainer state: {why}")]
    TrainerState {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// What a rank told rank 0 is not a manifest.
    #[error("manifest of rank {rank}: {fault}")]
    Manifest {
        /// The rank that sent it.
        rank: u32,
        /// What is wrong.
        fault: ManifestFault,
    },
    /// What the ranks wrote does not make a checkpoint: their shards are declared wrongly.
    #[error("the ranks' shards make no checkpoint: {fault}; correct their regions or shapes")]
    Declared {
        /// What is wrong.
        fault: MetadataFault,
    },
    /// Two ranks describe one tensor differently.
    #[error(
        "tensor `{key}`: rank {first_rank} says {what} {first}, rank {rank} says {other}; declare it alike on all ranks"
    )]
    Disagreement {
        /// The tensor.
        key: String,
        /// Which property.
        what: &'static str,
        /// The lowest rank that wrote of it.
        first_rank: u32,
        /// Its value.
        first: String,
        /// A rank that says otherwise.
        rank: u32,
        /// Its value.
        other: String,
    },
}

impl FormatError {
    /// What the user can do about it.
    pub fn kind(&self) -> FormatErrorKind {
        match self {
            Self::Random { .. } => FormatErrorKind::Unavailable,
            Self::UnsupportedVersion { .. } => FormatErrorKind::UnsupportedVersion,
            Self::Deleted { .. } => FormatErrorKind::Deleted,
            // A caller's mistake, not damage.
            Self::Block { fault: BlockFault::PastEnd { .. } | BlockFault::Unfinished { .. }, .. }
            | Self::Block { fault: BlockFault::NoSuchBlock { .. }, .. }
            | Self::Name { .. }
            | Self::Entry { .. }
            | Self::Blocks { .. }
            | Self::Declared { .. }
            | Self::Disagreement { .. } => FormatErrorKind::Invalid,
            Self::Header { .. }
            | Self::Block { .. }
            | Self::Digest { .. }
            | Self::Commit { .. }
            | Self::Metadata { .. }
            | Self::TrainerState { .. }
            | Self::Manifest { .. } => FormatErrorKind::Corrupt,
        }
    }
}
