//! The bytes of a data file from first to last, made on the way: header, chunks gathered from local buffers,
//! padding, block table.

use super::TransferError;
use crate::format::{BlockTableBuilder, DataFileLayout, crc32c};
use crate::plan::{ChunkWrite, PlannedFile, WriteSource};
use reshard_device::{Axis, SourceHandle, StridedCopy};
use std::collections::BTreeMap;

/// The local buffers that a save takes its bytes from.
pub type Sources = BTreeMap<WriteSource, SourceHandle>;

/// Bytes that are gathered and then checksummed while they are still in the processor's cache.
const PIECE_BYTES: usize = 256 << 10;

/// Produces a file in order. Holds no bytes of its own but the block table at the end.
pub(super) struct FileStream<'a> {
    file: &'a PlannedFile,
    sources: &'a Sources,
    /// Next byte of the file.
    at: u64,
    /// The next write that is not finished.
    next_write: usize,
    table: Option<BlockTableBuilder>,
    encoded: Vec<u8>,
}

impl<'a> FileStream<'a> {
    pub(super) fn new(file: &'a PlannedFile, sources: &'a Sources) -> Self {
        let table = Some(BlockTableBuilder::new(&file.layout));
        Self { file, sources, at: 0, next_write: 0, table, encoded: Vec::new() }
    }

    /// Fills `out` with the next bytes of the file, which must have that many left.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<(), TransferError> {
        for piece in out.chunks_mut(PIECE_BYTES) {
            self.fill_piece(piece)?;
        }
        Ok(())
    }

    /// CRC32C of the block table, once all has been produced.
    pub(super) fn table_crc32c(&self) -> u32 {
        crc32c(&self.encoded)
    }

    fn fill_piece(&mut self, out: &mut [u8]) -> Result<(), TransferError> {
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
                let count = self.fill_data(rest, layout)?;
                let updated = match &mut self.table {
                    Some(table) => table.update(&rest[..count]).map_err(|fault| fault.to_string()),
                    None => Err("data after the block table".to_owned()),
                };
                updated.map_err(|detail| self.misfit(&detail))?;
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
        Ok(())
    }

    fn finish_table(&mut self) -> Result<(), TransferError> {
        if let Some(table) = self.table.take() {
            self.encoded = table.finish().map_err(|fault| self.misfit(&fault.to_string()))?.encode();
        }
        Ok(())
    }

    /// Fills from the current place up to the end of a chunk, of a gap or of `out`.
    fn fill_data(&mut self, out: &mut [u8], layout: &DataFileLayout) -> Result<usize, TransferError> {
        while self.file.writes.get(self.next_write).is_some_and(|write| write.range.end <= self.at) {
            self.next_write += 1;
        }
        let write = self.file.writes.get(self.next_write);
        let gap_end = write.map_or(layout.end(), |write| write.range.start);
        if self.at < gap_end {
            let count = out.len().min((gap_end - self.at) as usize);
            out[..count].fill(0);
            return Ok(count);
        }
        let Some(write) = write else { return Err(self.misfit("no chunk at its place")) };
        let count = out.len().min((write.range.end - self.at) as usize);
        let source =
            self.sources.get(&write.source).ok_or_else(|| self.misfit("a chunk without a source"))?;
        let gathered = source.gather(&dense(write)?, self.at, &mut out[..count])?;
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
