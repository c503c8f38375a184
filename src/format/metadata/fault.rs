use crate::format::BlockLayoutError;
use reshard_shard::{CoverageFault, DType, Dims, Region, RegionError, Split};

/// What is wrong with a metadata.json, or with what ranks wrote.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum MetadataFault {
    /// Not JSON, or a field is missing, unknown, doubled or of the wrong type.
    #[error("not valid: {0}")]
    Json(String),
    /// JSON of something else.
    #[error("format `{0}` is not {format}", format = super::FORMAT)]
    NotOurs(String),
    /// The trainer state lies outside the attempt.
    #[error("trainer state `{path}` is not a plain relative path")]
    TrainerStatePath {
        /// Its path.
        path: String,
    },
    /// A data file.
    #[error("file `{path}`: {fault}")]
    File {
        /// Its path.
        path: String,
        /// What is wrong.
        fault: FileFault,
    },
    /// A tensor.
    #[error("tensor `{key}`: {fault}")]
    Tensor {
        /// Its key.
        key: String,
        /// What is wrong.
        fault: Box<TensorFault>,
    },
    /// An object.
    #[error("object `{name}`{}: {fault}", match .rank { Some(rank) => format!(" of rank {rank}"), None => String::new() })]
    Object {
        /// Its name.
        name: String,
        /// The rank, where it is about one.
        rank: Option<u32>,
        /// What is wrong.
        fault: ObjectFault,
    },
    /// Two chunks or objects share bytes.
    #[error("file `{path}`: bytes {start}..{end} belong to both `{first}` and `{second}`")]
    BytesOverlap {
        /// The file.
        path: String,
        /// First shared byte.
        start: u64,
        /// One past the last shared byte.
        end: u64,
        /// One owner.
        first: String,
        /// The other.
        second: String,
    },
}

/// What is wrong with a data file's description.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileFault {
    /// The path leaves the attempt, or is not one plain relative path.
    #[error("not a plain relative path (no `..`, no empty segment, no leading `/`)")]
    Path,
    /// The path stands twice.
    #[error("named twice")]
    Twice,
    /// The blocks.
    #[error("blocks: {0}")]
    Blocks(#[from] BlockLayoutError),
    /// A file of this format ends with its block table.
    #[error("length {length}, but its block table ends at {table_end}")]
    Length {
        /// As it says.
        length: u64,
        /// As follows from the blocks.
        table_end: u64,
    },
    /// Another tool's file has no checksums and can't be part of a checkpoint of this format.
    #[error("no checksums")]
    NoBlocks,
    /// A data file's name says which rank wrote it.
    #[error("rank {rank} does not write it")]
    OtherRank {
        /// The rank that says it wrote it.
        rank: u32,
    },
    /// More files than 32 bits count.
    #[error("more than 2^32 files")]
    TooMany,
}

/// What is wrong with the place of a chunk or object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceFault {
    /// There is no such file.
    #[error("file number {file} of {files}")]
    NoSuchFile {
        /// Index.
        file: u64,
        /// Number of files.
        files: usize,
    },
    /// The bytes are not all in the checksummed part of the file.
    #[error("{bytes} bytes at {offset} are not inside the data of `{path}`")]
    Outside {
        /// The file.
        path: String,
        /// Where they begin.
        offset: u64,
        /// How many there are.
        bytes: u64,
    },
}

/// What is wrong with a tensor.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum TensorFault {
    /// The key stands twice.
    #[error("named twice")]
    Twice,
    /// A dtype that this version does not know.
    #[error("unknown dtype `{0}`")]
    UnknownDType(String),
    /// The global shape has too many axes or overflows.
    #[error("global shape {shape:?}: {source}")]
    GlobalShape {
        /// The shape.
        shape: Dims,
        /// What is wrong.
        source: RegionError,
    },
    /// The logical shape is not inside the global shape.
    #[error("logical shape {logical:?} is not inside the global shape {global:?}")]
    LogicalShape {
        /// Without padding.
        logical: Dims,
        /// With padding.
        global: Dims,
    },
    /// The declared split does not fit.
    #[error("split {split:?} does not fit the global shape {global:?}")]
    Split {
        /// The split.
        split: Split,
        /// The global shape.
        global: Dims,
    },
    /// The chunks' numbers are not whole chunks, or form no region.
    #[error("chunks: {0}")]
    Chunks(RegionError),
    /// A chunk reaches past the global shape.
    #[error("{0}")]
    ChunkOutside(RegionError),
    /// A chunk's bytes are not where they could be.
    #[error("chunk {region}: {fault}")]
    Place {
        /// The chunk.
        region: Region,
        /// What is wrong.
        fault: PlaceFault,
    },
    /// The chunks do not tile the tensor.
    #[error("{fault}{}", if .files.is_empty() { String::new() } else { format!(" (in files {files:?})") })]
    Tiling {
        /// Where and what.
        fault: CoverageFault,
        /// The files that hold the point.
        files: Vec<String>,
    },
    /// A packed dtype is one whole chunk of whole bytes.
    #[error("dtype {0} is packed and stored whole, in whole bytes")]
    Packed(DType),
    /// The tensor it shares storage with does not exist.
    #[error("alias of `{0}`, which does not exist")]
    AliasMissing(String),
    /// The tensor it shares storage with is an alias itself.
    #[error("alias of `{0}`, which is an alias itself")]
    AliasOfAlias(String),
    /// The tensor it shares storage with has another dtype or shape.
    #[error("alias of `{0}`, which has another dtype or global shape")]
    AliasDiffers(String),
    /// An alias stores nothing.
    #[error("an alias that has chunks of its own")]
    AliasWithChunks,
}

/// What is wrong with an object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectFault {
    /// The name, or the rank under it, stands twice.
    #[error("named twice")]
    Twice,
    /// The numbers are not groups of rank, file, offset and length.
    #[error("{0} numbers are not groups of rank, file, offset and length")]
    Words(usize),
    /// A rank that does not fit in 32 bits.
    #[error("rank {0}")]
    Rank(u64),
    /// Its bytes are not where they could be.
    #[error("{0}")]
    Place(PlaceFault),
}
