//! What can be wrong with a data file.

use reshard_shard::{DType, Dims};

/// Why an entry can't be laid out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EntryFault {
    /// The size does not follow from dtype and shape, or is not a whole number of bytes.
    #[error("{bytes} bytes are not the size of {dtype} {shape:?}")]
    Size {
        /// Element type.
        dtype: DType,
        /// Sizes in elements.
        shape: Dims,
        /// The bytes named.
        bytes: u64,
    },
    /// A chunk has the shape of its region; an object is `u8` with one axis.
    #[error("its dtype and shape are not those of its slice")]
    Slice,
    /// Two entries of one rank have this name.
    #[error("a rank writes it twice")]
    Twice,
    /// Its place in the file does not fit in 63 bits.
    #[error("the file grows past 2^63 bytes")]
    Overflow,
    /// No header can hold it.
    #[error("its name and shape alone are longer than a header of {header_bytes} bytes")]
    NameTooLong {
        /// The bound.
        header_bytes: u64,
    },
}

/// What is wrong with the header of a safetensors file. Offsets are from the start of the file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderFault {
    /// Not even the whole header is there.
    #[error("the header is cut off after {bytes} bytes")]
    Short {
        /// The bytes there are.
        bytes: u64,
    },
    /// Longer than safetensors allows.
    #[error("a header of {header} bytes is longer than the format allows")]
    TooLong {
        /// Its length.
        header: u64,
    },
    /// Longer than the file.
    #[error("a header of {header} bytes does not fit a file of {file_length} bytes")]
    PastEnd {
        /// Its length.
        header: u64,
        /// The file's length.
        file_length: u64,
    },
    /// Not JSON, or not of the right form.
    #[error("the header is not valid: {0}")]
    Json(String),
    /// A name stands twice.
    #[error("`{name}` stands twice in the header")]
    Twice {
        /// The name.
        name: String,
    },
    /// A dtype that this version does not know.
    #[error("entry `{name}`: unknown dtype `{dtype}`")]
    UnknownDType {
        /// The entry.
        name: String,
        /// Its dtype.
        dtype: String,
    },
    /// An entry ends before it starts, or past 64 bits.
    #[error("entry `{name}`: bad offsets {start}..{end}")]
    Offsets {
        /// The entry.
        name: String,
        /// Start, from the end of the header.
        start: u64,
        /// End, from the end of the header.
        end: u64,
    },
    /// The number of elements or bits does not fit in 64 bits.
    #[error("entry `{name}`: the size of {shape:?} overflows 64 bits")]
    Overflow {
        /// The entry.
        name: String,
        /// Its shape.
        shape: Dims,
    },
    /// Packed elements that end within a byte.
    #[error("entry `{name}`: {bits} bits are not whole bytes")]
    PartByte {
        /// The entry.
        name: String,
        /// Its size in bits.
        bits: u64,
    },
    /// The offsets do not fit dtype and shape.
    #[error("entry `{name}`: {bytes} bytes are not the size of {dtype} {shape:?}")]
    Size {
        /// The entry.
        name: String,
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Dims,
        /// Its bytes.
        bytes: u64,
    },
    /// Two entries share bytes.
    #[error("entry `{name}` begins at {offset}, before the end {end_before} of the entry before it")]
    Overlap {
        /// The later entry.
        name: String,
        /// Its offset.
        offset: u64,
        /// Where the one before it ends.
        end_before: u64,
    },
    /// Bytes belong to no entry.
    #[error("entry `{name}` begins at {offset}: the bytes from {end_before} belong to nothing")]
    Hole {
        /// The entry after the hole.
        name: String,
        /// Its offset.
        offset: u64,
        /// Where the one before it ends.
        end_before: u64,
    },
    /// The file is cut off, or goes on after its last entry.
    #[error("the header describes a file of {expected} bytes, but it has {found}")]
    FileLength {
        /// Where the last entry ends.
        expected: u64,
        /// The file's length.
        found: u64,
    },
    /// A valid safetensors file, but of another tool.
    #[error("a safetensors file that reshard did not write")]
    NotOurs,
    /// A field of the header's own metadata is missing or is not as this format writes it.
    #[error("header field `{field}`: {}", match .value { None => "missing".to_owned(), Some(value) => format!("bad value `{value}`") })]
    Field {
        /// The field.
        field: &'static str,
        /// Its value, where there is one.
        value: Option<String>,
    },
    /// A field of the header's own metadata that this version does not know.
    #[error("unknown header field `{field}`")]
    UnknownField {
        /// The field.
        field: String,
    },
    /// An entry that is no chunk, object, padding or table.
    #[error("`{name}` is not the name of an entry")]
    UnknownName {
        /// The name.
        name: String,
    },
    /// Dtype or shape of an entry are not what its name says.
    #[error("entry `{name}`: {dtype} {shape:?} is not what its name says")]
    Shape {
        /// The name.
        name: String,
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Dims,
    },
    /// Data or an entry begin at an odd place.
    #[error("entry `{name}` at {offset} is not aligned")]
    Unaligned {
        /// The entry.
        name: String,
        /// Its offset.
        offset: u64,
    },
    /// The last entry, and no other, is the block table.
    #[error("the last entry is not the only block table")]
    NoBlockTable,
}

/// What is wrong with the data of a file or its checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockFault {
    /// The table has the wrong length.
    #[error("the block table has {found} bytes, not {expected}")]
    TableLength {
        /// 4 bytes a block.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// The table itself is damaged.
    #[error("the block table is damaged: CRC32C {found:08x}, not {expected:08x}")]
    Table {
        /// As metadata.json says.
        expected: u32,
        /// Of the bytes.
        found: u32,
    },
    /// A block is damaged.
    #[error("block {block} is damaged: CRC32C {found:08x}, not {expected:08x}")]
    Mismatch {
        /// Its index.
        block: u64,
        /// As the table says.
        expected: u32,
        /// Of the bytes.
        found: u32,
    },
    /// The table has fewer blocks.
    #[error("no block {block}: the table has {blocks}")]
    NoSuchBlock {
        /// The index asked for.
        block: u64,
        /// How many there are.
        blocks: u64,
    },
    /// A writer gave more data than it had laid out.
    #[error("{bytes} more bytes of data, where {left} are left of the layout")]
    PastEnd {
        /// Bytes given.
        bytes: u64,
        /// Bytes expected.
        left: u64,
    },
    /// A writer gave less data than it had laid out.
    #[error("{left} bytes of data are missing")]
    Unfinished {
        /// Bytes expected.
        left: u64,
    },
}
