//! What lies on storage: names, `commit.json`, `metadata.json`, `trainer_state.json`, data files, checksums,
//! versions. Pure: it turns values into bytes and back, and does no I/O. docs/format.md specifies every byte.

mod blocks;
mod data_file;
mod error;
mod names;
mod saved;

pub use blocks::{BlockLayout, BlockLayoutError};
pub use data_file::{
    BlockHasher, BlockTable, BlockTableBuilder, DEFAULT_BLOCK_BYTES, DataFileEntry, DataFileHeader,
    DataFileLayout, Entry, EntryName, EntrySlice, FileHeader, FilePart, Limits, MAX_DEFAULT_BLOCKS,
    MAX_HEADER_BYTES, PlacedEntry, RUN_ALIGNMENT, SafetensorsEntry, SafetensorsHeader, crc32c, lay_out,
};
pub use error::{BlockFault, EntryFault, FormatError, FormatErrorKind, HeaderFault};
pub use names::{
    AttemptId, COMMIT_FILE, DataFileName, FORMAT, Iteration, METADATA_FILE, TRAINER_STATE_FILE, VERSION,
};
pub use saved::{Chunk, ChunkTable, SavedFile, SavedLayout, SavedObject, SavedTensor};
