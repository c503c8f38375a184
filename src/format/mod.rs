//! What lies on storage: names, `commit.json`, `metadata.json`, `trainer_state.json`, data files, checksums,
//! versions. Pure: it turns values into bytes and back, and does no I/O.

mod blocks;
mod saved;

pub use blocks::{BlockLayout, BlockLayoutError};
pub use saved::{Chunk, ChunkTable, SavedFile, SavedLayout, SavedObject, SavedTensor};
