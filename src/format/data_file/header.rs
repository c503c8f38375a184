//! The header of one of our own data files, read back.

use super::{EntryName, RUN_ALIGNMENT, SafetensorsEntry, SafetensorsHeader};
use crate::format::names::{AttemptId, DataFileName, FORMAT, Iteration, VERSION, header_fields};
use crate::format::{FormatError, HeaderFault};
use reshard_shard::{DType, Dims, StateGroup};
use std::collections::BTreeMap;
use std::ops::Range;

/// What one of our data files says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataFileHeader {
    /// The attempt that the file belongs to.
    pub attempt: AttemptId,
    /// The iteration that was saved.
    pub iteration: Iteration,
    /// The global rank that wrote it.
    pub rank: u32,
    /// The number of ranks that saved.
    pub world_size: u32,
    /// The entries in file order, paddings included; the block table is the last.
    pub entries: Vec<DataFileEntry>,
    /// Where the block table lies in the file.
    pub block_table: Range<u64>,
}

/// An entry of a data file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataFileEntry {
    /// What it holds.
    pub name: EntryName,
    /// Its dtype.
    pub dtype: DType,
    /// Sizes in elements.
    pub shape: Dims,
    /// Offset from the start of the file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl DataFileHeader {
    /// Reads the header of `file` of `file_length` bytes; `head` is the file's start and holds at least the header.
    ///
    /// # Errors
    /// [`FormatError::UnsupportedVersion`]; [`FormatError::Header`] where it is no valid safetensors header, or not
    /// as this format writes them.
    pub fn parse(file: &str, head: &[u8], file_length: u64) -> Result<Self, FormatError> {
        let generic = SafetensorsHeader::parse(file, head, file_length)?;
        let fault = |fault| FormatError::Header { file: file.to_owned(), fault };
        let mut fields = Fields { fields: generic.metadata };
        if fields.take(header_fields::FORMAT).map_err(fault)? != FORMAT {
            return Err(fault(HeaderFault::NotOurs));
        }
        let version = fields.number(header_fields::VERSION).map_err(fault)?;
        if version != VERSION {
            return Err(FormatError::UnsupportedVersion { file: file.to_owned(), found: version });
        }
        let origin = fields.origin().map_err(fault)?;
        let aligned = generic.data_start % RUN_ALIGNMENT == 0;
        if !aligned {
            return Err(fault(HeaderFault::Unaligned { name: "data".into(), offset: generic.data_start }));
        }
        let entries =
            generic.entries.into_iter().map(read_entry).collect::<Result<Vec<_>, _>>().map_err(fault)?;
        let (last, others) = entries.split_last().ok_or_else(|| fault(HeaderFault::NoBlockTable))?;
        let is_table = |entry: &DataFileEntry| entry.name == EntryName::BlockTable;
        if !is_table(last) || others.iter().any(is_table) {
            return Err(fault(HeaderFault::NoBlockTable));
        }
        let block_table = last.offset..last.offset + last.bytes;
        let (attempt, iteration, rank, world_size) = origin;
        Ok(Self { attempt, iteration, rank, world_size, entries, block_table })
    }
}

fn read_entry(entry: SafetensorsEntry) -> Result<DataFileEntry, HeaderFault> {
    let Some(name) = EntryName::parse(&entry.name) else {
        return Err(HeaderFault::UnknownName { name: entry.name });
    };
    let SafetensorsEntry { name: text, dtype, shape, offset, bytes } = entry;
    let fits = match &name {
        EntryName::Chunk { region, .. } => region.shape() == shape.as_slice(),
        EntryName::Object { .. } | EntryName::Padding => dtype == DType::U8 && shape.len() == 1,
        EntryName::BlockTable => dtype == DType::U32 && shape.len() == 1,
    };
    if !fits {
        return Err(HeaderFault::Shape { name: text, dtype, shape });
    }
    if offset % (dtype.bits() / 8).max(1) != 0 {
        return Err(HeaderFault::Unaligned { name: text, offset });
    }
    Ok(DataFileEntry { name, dtype, shape, offset, bytes })
}

struct Fields {
    fields: BTreeMap<String, String>,
}

impl Fields {
    fn take(&mut self, field: &'static str) -> Result<String, HeaderFault> {
        self.fields.remove(field).ok_or(HeaderFault::Field { field, value: None })
    }

    fn number(&mut self, field: &'static str) -> Result<u64, HeaderFault> {
        let text = self.take(field)?;
        let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
        number.ok_or(HeaderFault::Field { field, value: Some(text) })
    }

    fn rank(&mut self, field: &'static str) -> Result<u32, HeaderFault> {
        let number = self.number(field)?;
        u32::try_from(number).map_err(|_| HeaderFault::Field { field, value: Some(number.to_string()) })
    }

    fn origin(mut self) -> Result<(AttemptId, Iteration, u32, u32), HeaderFault> {
        use header_fields::{ATTEMPT, ITERATION, RANK, WORLD_SIZE};
        let text = self.take(ATTEMPT)?;
        let attempt = text.parse().map_err(|_| HeaderFault::Field { field: ATTEMPT, value: Some(text) })?;
        let iteration = Iteration(self.number(ITERATION)?);
        let (rank, world_size) = (self.rank(RANK)?, self.rank(WORLD_SIZE)?);
        if DataFileName::new(StateGroup::Model, rank, world_size, 0).is_err() {
            return Err(HeaderFault::Field { field: RANK, value: Some(rank.to_string()) });
        }
        match self.fields.pop_first() {
            Some((field, _)) => Err(HeaderFault::UnknownField { field }),
            None => Ok((attempt, iteration, rank, world_size)),
        }
    }
}
