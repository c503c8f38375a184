//! Where the entries of a data file go, before the first byte is written.

use super::EntrySlice;
use super::header_text::HeaderText;
use crate::format::names::{AttemptId, DataFileName, Iteration};
use crate::format::{BlockLayout, BlockLayoutError, EntryFault, FormatError};
use reshard_shard::{DType, volume_of};
use std::collections::HashSet;

/// Start of every run and of the data, so that direct I/O and vector loads of whole runs are aligned.
pub const RUN_ALIGNMENT: u64 = 64;
/// The longest header that safetensors allows, in bytes of JSON.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// The smallest size of a block that is chosen where the caller names none.
pub const DEFAULT_BLOCK_BYTES: u64 = 64 << 10;
/// Blocks grow until a table has at most this many words.
pub const MAX_DEFAULT_BLOCKS: u64 = 1 << 16;

/// One thing that a rank writes: a chunk of a tensor or an object.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The tensor's key or the object's name; any UTF-8.
    pub key: &'a str,
    /// Which part of it.
    pub slice: EntrySlice<'a>,
    /// Element type; `u8` for an object.
    pub dtype: DType,
    /// Sizes in elements: those of the region; one axis for an object.
    pub shape: &'a [u64],
    /// Number of bytes.
    pub bytes: u64,
}

/// What a data file says of its origin.
#[derive(Clone, Copy, Debug)]
pub struct FileHeader<'a> {
    /// The attempt that the file belongs to.
    pub attempt: &'a AttemptId,
    /// The iteration that is saved.
    pub iteration: Iteration,
    /// The global rank that writes it.
    pub rank: u32,
    /// The number of ranks that save.
    pub world_size: u32,
}

/// Bounds of a data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A file is split before its header is longer, in bytes of JSON; more than [`MAX_HEADER_BYTES`] means that.
    pub header_bytes: u64,
    /// Size of a block; `None` = 64 KiB, doubled until the file has at most 65,536 blocks.
    pub block_bytes: Option<u64>,
}

impl Default for Limits {
    /// Headers of at most 80 MB, some 700,000 entries.
    fn default() -> Self {
        Self { header_bytes: 80_000_000, block_bytes: None }
    }
}

/// Where one entry of the input lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedEntry {
    /// Index into the runs given to [`lay_out`].
    pub run: usize,
    /// Index into that run.
    pub index: usize,
    /// Offset from the start of the file. An entry of 0 bytes is not in the header; its offset is where it would be.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A data file, laid out: the header's bytes, and the place of everything after it.
#[derive(Clone, PartialEq, Debug)]
pub struct DataFileLayout {
    header: Vec<u8>,
    entries: Vec<PlacedEntry>,
    block_bytes: u64,
    runs: Vec<u64>,
    end: u64,
    table_offset: u64,
    blocks: u64,
}

/// The parts of a data file in the order of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilePart<'a> {
    /// [`DataFileLayout::header`].
    Header(&'a [u8]),
    /// An entry.
    Entry(PlacedEntry),
    /// This many zero bytes.
    Padding(u64),
    /// The encoded block table.
    BlockTable,
}

impl DataFileLayout {
    /// The first bytes of the file: 8 bytes of length, then JSON padded with spaces to a multiple of 64.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The entries in file order.
    pub fn entries(&self) -> &[PlacedEntry] {
        &self.entries
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Absolute offsets at which the runs begin; the first is the length of the header.
    pub fn runs(&self) -> &[u64] {
        &self.runs
    }

    /// Absolute offset at which the last run ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Absolute offset of the block table.
    pub fn table_offset(&self) -> u64 {
        self.table_offset
    }

    /// Number of blocks, so of the table's words of 4 bytes.
    pub fn block_count(&self) -> u64 {
        self.blocks
    }

    /// Length of the file.
    pub fn length(&self) -> u64 {
        self.table_offset + 4 * self.blocks
    }

    /// The parts of the file in the order of the stream, without gaps.
    pub fn parts(&self) -> impl Iterator<Item = FilePart<'_>> {
        let mut at = self.header.len() as u64;
        let placed = self.entries.iter().filter(|entry| entry.bytes > 0).flat_map(move |&entry| {
            let gap = entry.offset - at;
            at = entry.offset + entry.bytes;
            padding(gap).chain([FilePart::Entry(entry)])
        });
        std::iter::once(FilePart::Header(&self.header))
            .chain(placed)
            .chain(padding(self.table_offset - self.end))
            .chain([FilePart::BlockTable])
    }

    /// The blocks as metadata.json describes them, once the table is written.
    ///
    /// # Errors
    /// [`BlockLayoutError`], never for a layout that [`lay_out`] made.
    pub fn block_layout(&self, table_crc32c: u32) -> Result<BlockLayout, BlockLayoutError> {
        BlockLayout::new(self.block_bytes, self.runs.clone(), self.end, self.table_offset, table_crc32c)
    }
}

fn padding<'a>(bytes: u64) -> impl Iterator<Item = FilePart<'a>> {
    (bytes > 0).then_some(FilePart::Padding(bytes)).into_iter()
}

/// Lays one rank's entries, already in final order and grouped in runs, into one or more files. No entries at all
/// make no file. A run may go on in the next file, where it begins anew.
///
/// # Errors
/// [`FormatError::Name`] where the rank is not below the world size; [`FormatError::Entry`] naming the key where an
/// entry's size does not follow from its shape, two entries have one name, or one name alone is longer than a header
/// may be; [`FormatError::Blocks`] for a block size of 0.
pub fn lay_out(
    header: &FileHeader<'_>,
    runs: &[Vec<Entry<'_>>],
    limits: &Limits,
) -> Result<Vec<DataFileLayout>, FormatError> {
    DataFileName::new(reshard_shard::StateGroup::Model, header.rank, header.world_size, 0)?;
    if limits.block_bytes == Some(0) {
        return Err(FormatError::Blocks { fault: BlockLayoutError::ZeroBlock });
    }
    let header_bytes = limits.header_bytes.min(MAX_HEADER_BYTES);
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    let mut open: Option<OpenFile> = None;
    for (run, entries) in runs.iter().enumerate() {
        for (index, entry) in entries.iter().enumerate() {
            check(entry)?;
            if !seen.insert((entry.key, entry.slice)) {
                return Err(fault(entry, EntryFault::Twice));
            }
            let file = open.get_or_insert_with(|| OpenFile::new(header));
            if file.place(run, index, entry, header_bytes)? {
                continue;
            }
            let full = std::mem::replace(file, OpenFile::new(header));
            files.push(full.close(limits.block_bytes));
            if !file.place(run, index, entry, header_bytes)? {
                return Err(fault(entry, EntryFault::NameTooLong { header_bytes }));
            }
        }
    }
    files.extend(open.map(|file| file.close(limits.block_bytes)));
    Ok(files)
}

fn fault(entry: &Entry<'_>, fault: EntryFault) -> FormatError {
    FormatError::Entry { entry: format!("{}{}", entry.key, entry.slice), fault }
}

fn check(entry: &Entry<'_>) -> Result<(), FormatError> {
    let bits = volume_of(entry.shape).ok().and_then(|volume| volume.checked_mul(entry.dtype.bits()));
    if bits.is_none_or(|bits| bits % 8 != 0 || bits / 8 != entry.bytes) {
        let (dtype, shape) = (entry.dtype, entry.shape.into());
        return Err(fault(entry, EntryFault::Size { dtype, shape, bytes: entry.bytes }));
    }
    let shape_of_slice = match entry.slice {
        EntrySlice::Chunk(region) => region.shape() == entry.shape,
        EntrySlice::Object { .. } => entry.dtype == DType::U8 && entry.shape.len() == 1,
    };
    if shape_of_slice { Ok(()) } else { Err(fault(entry, EntryFault::Slice)) }
}

/// A file being laid out. Offsets count from the start of the data until [`OpenFile::close`].
struct OpenFile {
    text: HeaderText,
    entries: Vec<PlacedEntry>,
    runs: Vec<u64>,
    /// The input run that the last of `runs` is.
    current_run: Option<usize>,
    at: u64,
}

impl OpenFile {
    fn new(header: &FileHeader<'_>) -> Self {
        Self {
            text: HeaderText::new(header),
            entries: Vec::new(),
            runs: Vec::new(),
            current_run: None,
            at: 0,
        }
    }

    /// Places an entry at the end; `false` where the header would grow too long, and then nothing has changed.
    fn place(
        &mut self,
        run: usize,
        index: usize,
        entry: &Entry<'_>,
        limit: u64,
    ) -> Result<bool, FormatError> {
        let bytes = entry.bytes;
        if bytes == 0 {
            self.entries.push(PlacedEntry { run, index, offset: self.at, bytes });
            return Ok(true);
        }
        let new_run = self.current_run != Some(run);
        let alignment = if new_run { RUN_ALIGNMENT } else { (entry.dtype.bits() / 8).max(1) };
        let offset = self.at.next_multiple_of(alignment);
        // Leaves room for the header and the table of any file in 64 bits.
        let end = offset.checked_add(bytes).filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or_else(|| fault(entry, EntryFault::Overflow))?;
        let mark = self.text.mark();
        self.text.padding(self.at, offset);
        self.text.entry(entry, offset, end);
        if self.text.longest() > limit {
            self.text.reset(mark);
            return Ok(false);
        }
        if new_run {
            self.runs.push(offset);
            self.current_run = Some(run);
        }
        self.entries.push(PlacedEntry { run, index, offset, bytes });
        self.at = end;
        Ok(true)
    }

    fn close(mut self, block_bytes: Option<u64>) -> DataFileLayout {
        let block_bytes = block_bytes.unwrap_or_else(|| choose_block_bytes(&self.runs, self.at));
        let blocks = count_blocks(&self.runs, self.at, block_bytes);
        let table = self.at.next_multiple_of(4);
        self.text.padding(self.at, table);
        let header = self.text.finish(table, blocks);
        let start = header.len() as u64;
        for offset in self.entries.iter_mut().map(|entry| &mut entry.offset).chain(&mut self.runs) {
            *offset += start;
        }
        DataFileLayout {
            header,
            entries: self.entries,
            block_bytes,
            runs: self.runs,
            end: start + self.at,
            table_offset: start + table,
            blocks,
        }
    }
}

fn count_blocks(runs: &[u64], end: u64, block_bytes: u64) -> u64 {
    let ends = runs.iter().skip(1).copied().chain([end]);
    runs.iter().zip(ends).map(|(start, end)| (end - start).div_ceil(block_bytes)).sum()
}

fn choose_block_bytes(runs: &[u64], end: u64) -> u64 {
    let mut block_bytes = DEFAULT_BLOCK_BYTES;
    // A block larger than the data can save no further word: each run has one at least.
    while count_blocks(runs, end, block_bytes) > MAX_DEFAULT_BLOCKS && block_bytes < end {
        block_bytes *= 2;
    }
    block_bytes
}
