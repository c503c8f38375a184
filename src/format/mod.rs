//! What lies on storage: names, `commit.json`, `metadata.json`, `trainer_state.json`, data files, checksums,
//! versions. Pure: it turns values into bytes and back, and does no I/O. docs/format.md specifies every byte.

mod blocks;
mod commit;
mod data_file;
mod digest;
mod error;
mod metadata;
mod names;
mod pairs;
mod saved;
mod trainer_state;
mod version;

pub use blocks::{BlockLayout, BlockLayoutError};
pub use commit::{Commit, CommitFault, CommittedCheckpoint, DeletedCheckpoint};
pub use data_file::{
    BlockFault, BlockHasher, BlockTable, BlockTableBuilder, DEFAULT_BLOCK_BYTES, DataFileEntry,
    DataFileHeader, DataFileLayout, Entry, EntryFault, EntryName, EntrySlice, FileHeader, FilePart,
    HeaderFault, Limits, MAX_DEFAULT_BLOCKS, MAX_HEADER_BYTES, PlacedEntry, RUN_ALIGNMENT, SafetensorsEntry,
    SafetensorsHeader, crc32c, lay_out,
};
pub use digest::{DigestFault, NotSha256, ObjectDigest, Sha256};
pub use error::{FormatError, FormatErrorKind};
pub use metadata::{
    FileFault, ManifestFault, Metadata, MetadataFault, ObjectFault, PlaceFault, TensorFault, WriterManifest,
    WrittenFile, merge,
};
pub use names::{
    AttemptId, COMMIT_FILE, DataFileName, FORMAT, Iteration, METADATA_FILE, TRAINER_STATE_FILE, VERSION,
};
pub(crate) use pairs::Pairs;
pub use saved::{Chunk, ChunkTable, SavedFile, SavedLayout, SavedObject, SavedTensor};
pub use trainer_state::{Difference, ModelConfig, ParallelSizes, TrainerState, compare_architecture};
