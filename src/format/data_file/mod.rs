//! Data files: valid safetensors files, written in one streaming pass, with a checksum for every block.

mod block_table;
mod entry_name;
mod fault;
mod header;
mod header_text;
mod layout;
mod safetensors;

pub use block_table::{BlockHasher, BlockTable, BlockTableBuilder, crc32c};
pub use entry_name::{EntryName, EntrySlice};
pub use fault::{BlockFault, EntryFault, HeaderFault};
pub use header::{DataFileEntry, DataFileHeader};
pub use layout::{
    DEFAULT_BLOCK_BYTES, DataFileLayout, Entry, FileHeader, FilePart, Limits, MAX_DEFAULT_BLOCKS,
    MAX_HEADER_BYTES, PlacedEntry, RUN_ALIGNMENT, lay_out,
};
pub use safetensors::{SafetensorsEntry, SafetensorsHeader};
