use crate::format::FormatError;
use reshard_shard::{CoverageFault, DType, Dims, RegionError, StateGroup};
use reshard_storage::{InvalidPath, StorageError};

/// What the user can do about a [`ForeignError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignErrorKind {
    /// Nothing that can be read lies there: name another place.
    NotFound,
    /// The files are damaged, incomplete or not of one checkpoint: copy them again or load another.
    Corrupt,
    /// A version or a kind of file that is not read here.
    Unsupported,
    /// The caller has to say more.
    Invalid,
    /// The store failed; see the [`StorageError`].
    Storage,
}

/// Why another tool's checkpoint can't be read.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// The store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The header of a safetensors file.
    #[error(transparent)]
    Header(Box<FormatError>),
    /// A checkpoint, or what is left of one, that is not read here.
    #[error("{place} holds no checkpoint that can be read: {hint}")]
    Unrecognised {
        /// The place.
        place: String,
        /// What lies there instead and what to do.
        hint: String,
    },
    /// Nothing there looks like a checkpoint of any kind.
    #[error("{place} holds no checkpoint that can be read: {hint}")]
    Nothing {
        /// The place.
        place: String,
        /// What lies there instead.
        hint: String,
    },
    /// More than one file could be meant.
    #[error("{place} holds several checkpoints ({}); name one of them", candidates.join(", "))]
    Ambiguous {
        /// The place.
        place: String,
        /// The files, the first few.
        candidates: Vec<String>,
    },
    /// A file names one that is not there.
    #[error("{named_by} names the file `{file}`, which is missing; copy the whole checkpoint")]
    MissingFile {
        /// The file that names it.
        named_by: String,
        /// The missing file, relative to the checkpoint's directory.
        file: String,
    },
    /// A file names a path that is not inside the checkpoint's directory.
    #[error("{named_by}: {source}")]
    Path {
        /// The file that names it.
        named_by: String,
        /// What is wrong with the path.
        source: InvalidPath,
    },
    /// A part of a file is longer than memory.
    #[error("{file}: a part of {bytes} bytes does not fit in memory")]
    TooLong {
        /// The file.
        file: String,
        /// Its length.
        bytes: u64,
    },
    /// A small file is not what it should be.
    #[error("{file}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// An index and the headers of its files do not fit together.
    #[error("{index}: {fault}")]
    Index {
        /// The index.
        index: String,
        /// What does not fit.
        fault: IndexFault,
    },
    /// A version that is not read here.
    #[error("{file}: version {found} of an InfiniTrain sharded checkpoint; only version {supported} is read")]
    Version {
        /// The file.
        file: String,
        /// Its version, as it stands there.
        found: String,
        /// The version that is read.
        supported: u64,
    },
    /// An entry of a metadata.json.
    #[error("{file}: tensor `{key}` of {writer}: {fault}")]
    Shard {
        /// The metadata.
        file: String,
        /// The tensor.
        key: String,
        /// The data file, or where the entry stands if it names none.
        writer: String,
        /// What is wrong.
        fault: Box<ShardFault>,
    },
    /// The shards of a tensor do not tile it.
    #[error("{file}: the shards of tensor `{key}` do not cover it exactly once: {fault}")]
    Coverage {
        /// The metadata.
        file: String,
        /// The tensor.
        key: String,
        /// Where the fault is.
        fault: CoverageFault,
    },
}

impl ForeignError {
    /// What the user can do about it.
    pub fn kind(&self) -> ForeignErrorKind {
        match self {
            Self::Unrecognised { .. } | Self::Nothing { .. } => ForeignErrorKind::NotFound,
            Self::Ambiguous { .. } => ForeignErrorKind::Invalid,
            Self::Version { .. } => ForeignErrorKind::Unsupported,
            Self::Storage(error) if error.is_not_found() => ForeignErrorKind::NotFound,
            Self::Storage(_) => ForeignErrorKind::Storage,
            Self::Header(_)
            | Self::MissingFile { .. }
            | Self::Path { .. }
            | Self::TooLong { .. }
            | Self::Malformed { .. }
            | Self::Index { .. }
            | Self::Shard { .. }
            | Self::Coverage { .. } => ForeignErrorKind::Corrupt,
        }
    }
}

impl From<FormatError> for ForeignError {
    fn from(error: FormatError) -> Self {
        Self::Header(Box::new(error))
    }
}

/// How an index and the files it names differ.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexFault {
    /// The index has the key twice.
    #[error("`{key}` stands twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// Two files hold the key.
    #[error("`{key}` is in `{first}` and in `{second}`; the files are not of one checkpoint")]
    InTwoFiles {
        /// The key.
        key: String,
        /// A file.
        first: String,
        /// Another.
        second: String,
    },
    /// The file that should hold the key does not.
    #[error("`{key}` is not in `{file}`; the files are not of one checkpoint")]
    NotInFile {
        /// The key.
        key: String,
        /// The file.
        file: String,
    },
    /// A file holds a key that the index does not name.
    #[error("`{file}` holds `{key}`, which the index does not name; the files are not of one checkpoint")]
    NotInIndex {
        /// The key.
        key: String,
        /// The file.
        file: String,
    },
}

/// What is wrong with one shard of an InfiniTrain metadata.json.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShardFault {
    /// A field is missing.
    #[error("field `{0}` is missing")]
    Missing(&'static str),
    /// A number is negative where none may be.
    #[error("field `{field}` has the negative number {value}")]
    Negative {
        /// The field.
        field: &'static str,
        /// The number.
        value: i64,
    },
    /// A dtype that InfiniTrain does not have.
    #[error("unknown dtype `{0}`")]
    DType(String),
    /// An array has a number of items that does not fit the others.
    #[error("field `{field}` has {found} items, not {expected}")]
    Items {
        /// The field.
        field: &'static str,
        /// Its items.
        found: usize,
        /// As many as it should have.
        expected: usize,
    },
    /// A size or a count is 0.
    #[error("field `{0}` has a 0")]
    Zero(&'static str),
    /// Coordinates that are no region of the tensor.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Segments that do not tile the local shape, or that can't be placed.
    #[error("segments: {0}")]
    Segments(&'static str),
    /// The size does not follow from dtype and local shape.
    #[error("{found} bytes are not the size of {dtype} {local_shape:?}")]
    ByteSize {
        /// The field `byte_size`.
        found: u64,
        /// Element type.
        dtype: DType,
        /// The local shape.
        local_shape: Dims,
    },
    /// The file ends before the data does.
    #[error("its data ends at byte {end}, and the file has {length}: it is cut off")]
    CutOff {
        /// Where the data would end.
        end: u64,
        /// The file's length.
        length: u64,
    },
    /// The bytes belong to two shards.
    #[error("its data at byte {offset} overlaps that of `{other}`")]
    SharedBytes {
        /// Where the data begins.
        offset: u64,
        /// The other tensor.
        other: String,
    },
    /// Two writers say different things of one tensor.
    #[error("{what} is {found} here and {expected} in `{other}`")]
    Disagreement {
        /// Which property.
        what: &'static str,
        /// Here.
        found: String,
        /// Elsewhere.
        expected: String,
        /// The file of the other shard.
        other: String,
    },
    /// One rank stored the same region twice.
    #[error("rank {0} stored it twice")]
    Twice(u32),
    /// Cut along more axes than any layout needs.
    #[error("cut along {0} axes")]
    TooManyCuts(usize),
}

/// Prints the group in words, for [`ShardFault::Disagreement`].
pub(super) fn group_name(group: StateGroup) -> &'static str {
    match group {
        StateGroup::Model => "model",
        StateGroup::Optimizer => "optimizer",
    }
}
