//! The bytes of a data file from first to last, made on the way: header, chunks of local buffers, padding, block table.
//!
//! What lies in a local buffer as it does in the file is lent as it is; the rest is gathered into memory of the caller.

use super::TransferError;
use crate::format::{BlockTableBuilder, crc32c};
use crate::plan::{ChunkWrite, PlannedFile, WriteSource};
use bytes::Bytes;
use reshard_device::{Axis, SourceHandle, StridedCopy};
use std::collections::BTreeMap;
use std::ops::Range;

/// The local buffers that a save takes its bytes from.
pub type Sources = BTreeMap<WriteSource, SourceHandle>;

/// Bytes that are gathered and then checksummed while they are still in the processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// A row of a local buffer is lent from this length on; shorter ones cost more than a copy.
const SHORTEST_LENT: usize = 64 << 10;

/// Produces a file in order. Holds no bytes of its own but the block table at the end.
pub(super) struct FileStream<'a> {
    file: &'a PlannedFile,
    sources: &'a Sources,
    /// Next byte of the file.
    at: u64,
    /// The first write that is not finished, and what it copies.
    next_write: usize,
    pattern: Option<StridedCopy>,
    table: Option<BlockTableBuilder>,
    encoded: Vec<u8>,
}

impl<'a> FileStream<'a> {
    pub(super) fn new(file: &'a PlannedFile, sources: &'a Sources) -> Self {
        let table = Some(BlockTableBuilder::new(&file.layout));
        Self { file, sources, at: 0, next_write: 0, pattern: None, table, encoded: Vec::new() }
    }

    /// The next bytes of the file, at most `want` of them, where they can be had without a copy.
    pub(super) fn lend(&mut self, want: u64) -> Result<Option<Bytes>, TransferError> {
        let Some((source, row)) = self.lendable()? else { return Ok(None) };
        let count = usize::try_from(want).unwrap_or(usize::MAX).min(row.len());
        let window = source.window(row.start..row.start + count)?;
        self.checksum(&window)?;
        self.at += count as u64;
        Ok(Some(Bytes::from_owner(window)))
    }

    /// Fills `out` with the next bytes of the file up to those that [`lend`](Self::lend) has, and says how many those
    /// were. The file must have that many left.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<usize, TransferError> {
        let mut filled = 0;
        for piece in out.chunks_mut(PIECE_BYTES) {
            let count = self.fill_piece(piece)?;
            filled += count;
            if count < piece.len() {
                break;
            }
        }
        Ok(filled)
    }

    /// CRC32C of the block table, once all has been produced.
    pub(super) fn table_crc32c(&self) -> u32 {
        crc32c(&self.encoded)
    }

    fn fill_piece(&mut self, out: &mut [u8]) -> Result<usize, TransferError> {
        let layout = &self.file.layout;
        let header = layout.header();
        let mut filled = 0;
        while filled < out.len() {
            let rest = &mut out[filled..];
            let count = if self.at < header.len() as u64 {
                let from = &header[self.at as usize..];
                let count = from.len().min(rest.len());
                rest[..count].copy_from_slice(&from[..count]);
                count
            } else if self.at < layout.end() {
                if self.lendable()?.is_some() {
                    break;
                }
                let count = self.fill_data(rest)?;
                self.checksum(&rest[..count])?;
                count
            } else if self.at < layout.table_offset() {
                let count = rest.len().min((layout.table_offset() - self.at) as usize);
                rest[..count].fill(0);
                count
            } else {
                self.finish_table()?;
                let from = self.encoded.get((self.at - layout.table_offset()) as usize..).unwrap_or_default();
                let count = from.len().min(rest.len());
                if count == 0 {
                    return Err(self.misfit("more bytes are wanted than it has"));
                }
                rest[..count].copy_from_slice(&from[..count]);
                count
            };
            filled += count;
            self.at += count as u64;
        }
        if self.at == layout.table_offset() {
            self.finish_table()?; // a file without blocks ends here
        }
        Ok(filled)
    }

    /// Adds the next bytes of the data to the block table.
    fn checksum(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        let updated = match &mut self.table {
            Some(table) => table.update(bytes).map_err(|fault| fault.to_string()),
            None => Err("data after the block table".to_owned()),
        };
        updated.map_err(|detail| self.misfit(&detail))
    }

    fn finish_table(&mut self) -> Result<(), TransferError> {
        if let Some(table) = self.table.take() {
            self.encoded = table.finish().map_err(|fault| self.misfit(&fault.to_string()))?.encode();
        }
        Ok(())
    }

    /// The chunk that the next byte belongs to, and what it copies; `None` in a gap and outside the data.
    fn chunk(&mut self) -> Result<Option<(&'a ChunkWrite, &StridedCopy)>, TransferError> {
        let file = self.file;
        while file.writes.get(self.next_write).is_some_and(|write| write.range.end <= self.at) {
            self.next_write += 1;
            self.pattern = None;
        }
        let Some(write) = file.writes.get(self.next_write).filter(|write| write.range.start <= self.at)
        else {
            return Ok(None);
        };
        if self.pattern.is_none() {
            self.pattern = Some(dense(write)?);
        }
        Ok(self.pattern.as_ref().map(|pattern| (write, pattern)))
    }

    /// The source of the next bytes and where in it they lie, if its rows are long enough to be lent.
    fn lendable(&mut self) -> Result<Option<(&'a SourceHandle, Range<usize>)>, TransferError> {
        let (at, sources) = (self.at, self.sources);
        let Some((write, pattern)) =
            self.chunk()?.filter(|(_, pattern)| pattern.row_bytes() >= SHORTEST_LENT)
        else {
            return Ok(None);
        };
        Ok(sources.get(&write.source).zip(pattern.row_at(at)))
    }

    /// Fills from the current place up to the end of a chunk, of a gap or of `out`.
    fn fill_data(&mut self, out: &mut [u8]) -> Result<usize, TransferError> {
        let (at, sources) = (self.at, self.sources);
        let Some((write, pattern)) = self.chunk()? else {
            let next = self.file.writes.get(self.next_write);
            let gap_end = next.map_or(self.file.layout.end(), |write| write.range.start);
            let count = out.len().min((gap_end - at) as usize);
            out[..count].fill(0);
            return Ok(count);
        };
        let count = out.len().min((write.range.end - at) as usize);
        let gathered = match sources.get(&write.source) {
            Some(source) => source.gather(pattern, at, &mut out[..count])?,
            None => return Err(self.misfit("a chunk without a source")),
        };
        if gathered != count {
            return Err(self.misfit("a chunk whose pattern is not its size"));
        }
        Ok(count)
    }

    fn misfit(&self, detail: &str) -> TransferError {
        TransferError::Layout {
            file: self.file.name.to_string(),
            detail: format!("at byte {}: {detail}", self.at),
        }
    }
}

/// The copy from a local buffer to the chunk's bytes in the file, which are dense.
fn dense(write: &ChunkWrite) -> Result<StridedCopy, TransferError> {
    let mut stream_stride = write.pattern.row_bytes;
    let mut axes: Vec<Axis> = Vec::with_capacity(write.pattern.axes.len());
    for &(count, stride) in write.pattern.axes.iter().rev() {
        axes.push(Axis { count: count as usize, stream_stride, tensor_stride: stride as usize });
        stream_stride *= count;
    }
    axes.reverse();
    let row_bytes = write.pattern.row_bytes as usize;
    Ok(StridedCopy::new(write.range.start, write.pattern.offset as usize, &axes, row_bytes)?)
}
