//! One data file: its header, its block table, all its blocks.

use super::owners::Owners;
use super::{Held, Shared, VerifyFault, VerifyFaultKind};
use crate::checkpoint::{CheckpointError, ErrorKind};
use crate::format::{
    BlockLayout, BlockTable, DataFileHeader, DataFileName, EntryName, SafetensorsHeader, SavedFile,
};
use crate::transfer::TransferError;
use reshard_storage::{Slot, StorageError, StoragePath};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::task::JoinSet;

/// Memory is counted in these.
pub(super) const UNIT_BYTES: usize = 64 << 10;
/// Blocks are read in pieces of about this many bytes.
const PIECE_BYTES: u64 = 8 << 20;
/// Pieces of one file that are under way at once.
const PIECES_AT_ONCE: usize = 16;

/// What is under way at once over all files.
pub(super) struct Limits {
    pub(super) readers: Semaphore,
    /// Permits of [`UNIT_BYTES`].
    pub(super) memory: Semaphore,
    /// All of them.
    pub(super) units: u32,
}

/// What was read of a file, and what is wrong with it.
#[derive(Default)]
pub(super) struct FileReport {
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    pub(super) faults: Vec<VerifyFault>,
}

/// A data file that has the right length.
pub(super) struct DataFile {
    pub(super) shared: Arc<Shared>,
    /// Its number in the layout.
    pub(super) index: usize,
    pub(super) path: StoragePath,
    pub(super) owners: Owners,
}

/// Why a file's part can't be judged any further.
enum Stop {
    /// A fault of the file.
    Fault(Box<VerifyFault>),
    /// Nothing can be said at all.
    Error(CheckpointError),
}

impl DataFile {
    pub(super) async fn verify(self) -> Result<FileReport, CheckpointError> {
        let mut report = FileReport::default();
        let shared = Arc::clone(&self.shared);
        let Some(file) = shared.layout.files.get(self.index) else { return Ok(report) };
        match self.judge(file, &mut report).await {
            Ok(()) => {}
            Err(Stop::Fault(fault)) => report.faults.push(*fault),
            Err(Stop::Error(error)) => return Err(error),
        }
        // What was not read is done with, too.
        shared.advance(file.length.saturating_sub(report.bytes));
        Ok(report)
    }

    async fn judge(&self, file: &SavedFile, report: &mut FileReport) -> Result<(), Stop> {
        let header = self.header(file, report).await?;
        self.check_origin(file, &header)?;
        let Some(blocks) = &file.blocks else { return Ok(()) };
        self.check_entries(&header, blocks)?;
        drop(header);
        let table = self.table(file, blocks, report).await?;
        self.blocks(file, blocks, table, report).await
    }

    async fn header(&self, file: &SavedFile, report: &mut FileReport) -> Result<DataFileHeader, Stop> {
        let corrupt = |error: crate::format::FormatError| {
            self.fault(VerifyFaultKind::Header, format!("the header is damaged: {error}"))
        };
        let first = self.read(0..file.length.min(8)).await?;
        let first = <[u8; 8]>::try_from(first.bytes()).map_err(|_| {
            self.fault(VerifyFaultKind::Header, "the file is shorter than any header".to_owned())
        })?;
        let length = SafetensorsHeader::bytes(&file.path, first, file.length).map_err(corrupt)?;
        let head = self.read(0..length).await?;
        report.bytes += length;
        self.shared.advance(length);
        DataFileHeader::parse(&file.path, head.bytes(), file.length).map_err(corrupt)
    }

    /// A file of another attempt, iteration or rank is whole and still the wrong one.
    fn check_origin(&self, file: &SavedFile, header: &DataFileHeader) -> Result<(), Stop> {
        let (attempt, iteration) = (&self.shared.attempt, self.shared.iteration);
        let name: Option<DataFileName> = file.path.parse().ok();
        let ranks = name.map(|name| (name.rank(), name.world_size()));
        let same = &header.attempt == attempt && header.iteration == iteration;
        if same && ranks.is_none_or(|ranks| ranks == (header.rank, header.world_size)) {
            return Ok(());
        }
        let detail = format!(
            "another file lies here: its header says {} of attempt {}, rank {} of {}",
            header.iteration, header.attempt, header.rank, header.world_size
        );
        Err(self.fault(VerifyFaultKind::Origin, detail))
    }

    /// The header lists exactly what the metadata says to lie in the file, where it says.
    fn check_entries(&self, header: &DataFileHeader, blocks: &BlockLayout) -> Result<(), Stop> {
        let differs = |detail: String| Err(self.fault(VerifyFaultKind::Header, detail));
        if header.block_table != blocks.table() {
            let found = &header.block_table;
            return differs(format!("the header has the block table at {}..{}", found.start, found.end));
        }
        let listed = header
            .entries
            .iter()
            .filter(|entry| !matches!(entry.name, EntryName::Padding | EntryName::BlockTable));
        let mut found = 0usize;
        for entry in listed {
            found += 1;
            let first = self.owners.partition_point(|owner| owner.start < entry.offset);
            let here = self.owners.iter().skip(first).take_while(|owner| owner.start == entry.offset);
            let mut described = here.filter(|owner| owner.end - owner.start == entry.bytes);
            let is_entry = |(held, dtype): (Held, _)| held.is(&entry.name) && dtype == entry.dtype;
            if !described.any(|owner| owner.held(&self.shared.layout).is_some_and(is_entry)) {
                return differs(format!(
                    "the header has {} at {}, the metadata has not",
                    label(&entry.name),
                    entry.offset
                ));
            }
        }
        match self.owners.len() {
            expected if expected == found => Ok(()),
            expected => differs(format!("the header has {found} entries, the metadata {expected}")),
        }
    }

    async fn table(
        &self,
        file: &SavedFile,
        blocks: &BlockLayout,
        report: &mut FileReport,
    ) -> Result<Arc<BlockTable>, Stop> {
        let range = blocks.table();
        let bytes = self.read(range.clone()).await?;
        report.bytes += range.end - range.start;
        self.shared.advance(range.end - range.start);
        match BlockTable::decode(&file.path, blocks, bytes.bytes()) {
            Ok(table) => Ok(Arc::new(table)),
            Err(error) => {
                Err(self.fault(VerifyFaultKind::BlockTable, format!("the block table is damaged: {error}")))
            }
        }
    }

    /// Reads all blocks, some pieces at once.
    async fn blocks(
        &self,
        file: &SavedFile,
        blocks: &BlockLayout,
        table: Arc<BlockTable>,
        report: &mut FileReport,
    ) -> Result<(), Stop> {
        let mut damaged: Vec<(u64, Range<u64>)> = Vec::new();
        let mut tasks: JoinSet<Result<Piece, Stop>> = JoinSet::new();
        let mut pieces = pieces(blocks).into_iter();
        loop {
            while tasks.len() < PIECES_AT_ONCE
                && let Some(range) = pieces.next()
            {
                let reader = PieceReader {
                    shared: Arc::clone(&self.shared),
                    path: self.path.clone(),
                    file: file.path.clone(),
                    table: Arc::clone(&table),
                    blocks: blocks.blocks_in(range.clone()).collect(),
                    range,
                };
                tasks.spawn(reader.verify());
            }
            let Some(done) = tasks.join_next().await else { break };
            let piece = done.map_err(|_| Stop::Error(TransferError::Lost.into()))??;
            report.blocks += piece.blocks;
            report.bytes += piece.bytes;
            self.shared.advance(piece.bytes);
            damaged.extend(piece.damaged);
        }
        for (blocks, bytes) in joined(damaged) {
            let what = match blocks.end - blocks.start {
                1 => format!("block {} is damaged", blocks.start),
                _ => format!("blocks {} to {} are damaged", blocks.start, blocks.end - 1),
            };
            let mut fault = VerifyFault::of(VerifyFaultKind::Block, &self.path, what).at(
                bytes,
                &self.shared.layout,
                &self.owners,
            );
            fault.blocks = Some(blocks);
            report.faults.push(fault);
        }
        Ok(())
    }

    async fn read(&self, range: Range<u64>) -> Result<Slot, Stop> {
        let permits = self.shared.limits.enter(&range).await.map_err(Stop::Error)?;
        let read = fetch(&self.shared, &self.path, range).await;
        drop(permits);
        read
    }

    fn fault(&self, kind: VerifyFaultKind, detail: String) -> Stop {
        Stop::Fault(Box::new(VerifyFault::of(kind, &self.path, detail)))
    }
}

fn label(name: &EntryName) -> String {
    match name {
        EntryName::Chunk { key, region } => format!("`{key}`{region}"),
        EntryName::Object { name, rank } => format!("`{name}` of rank {rank}"),
        EntryName::Padding | EntryName::BlockTable => "padding".to_owned(),
    }
}

impl Limits {
    /// Waits for memory for a range and for the right to ask for it. One that is larger than all memory waits for all.
    async fn enter(&self, range: &Range<u64>) -> Result<[SemaphorePermit<'_>; 2], CheckpointError> {
        let units = (range.end - range.start).div_ceil(UNIT_BYTES as u64);
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(self.units);
        let permits = async { Ok([self.memory.acquire_many(units).await?, self.readers.acquire().await?]) };
        permits.await.map_err(|_: AcquireError| TransferError::Lost.into())
    }
}

async fn fetch(shared: &Shared, path: &StoragePath, range: Range<u64>) -> Result<Slot, Stop> {
    let slot: Slot = Box::new(vec![0u8; (range.end - range.start) as usize]);
    match shared.storage.read(path, range, slot).await {
        (slot, Ok(())) => Ok(slot),
        (_, Err(error)) => Err(stopped(path, error)),
    }
}

/// A file that vanishes or shrinks after it was listed, or that may not be read where it may be listed, is a fault of
/// the file; that the store fails is not.
fn stopped(path: &StoragePath, error: StorageError) -> Stop {
    if matches!(error, StorageError::AccessDenied { .. }) {
        return Stop::Fault(Box::new(VerifyFault::of(VerifyFaultKind::Unreadable, path, error.to_string())));
    }
    let error = CheckpointError::from(error);
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::NotFound => {
            Stop::Fault(Box::new(VerifyFault::of(VerifyFaultKind::Unreadable, path, error.to_string())))
        }
        _ => Stop::Error(error),
    }
}

/// Whole blocks of one run after the other, about [`PIECE_BYTES`] each.
fn pieces(blocks: &BlockLayout) -> Vec<Range<u64>> {
    let mut pieces: Vec<Range<u64>> = Vec::new();
    let start = blocks.runs().first().copied().unwrap_or(blocks.end());
    for (_, block) in blocks.blocks_in(start..blocks.end()) {
        match pieces.last_mut() {
            Some(last) if last.end == block.start && block.end - last.start <= PIECE_BYTES => {
                last.end = block.end;
            }
            _ => pieces.push(block),
        }
    }
    pieces
}

/// Neighbouring damaged blocks as one.
fn joined(mut damaged: Vec<(u64, Range<u64>)>) -> Vec<(Range<u64>, Range<u64>)> {
    damaged.sort_unstable_by_key(|(block, _)| *block);
    let mut joined: Vec<(Range<u64>, Range<u64>)> = Vec::new();
    for (block, bytes) in damaged {
        match joined.last_mut() {
            Some((blocks, all)) if blocks.end == block => {
                blocks.end = block + 1;
                all.end = bytes.end;
            }
            _ => joined.push((block..block + 1, bytes)),
        }
    }
    joined
}

/// What a piece came to.
struct Piece {
    blocks: u64,
    bytes: u64,
    damaged: Vec<(u64, Range<u64>)>,
}

/// Some neighbouring blocks, to be read as one.
struct PieceReader {
    shared: Arc<Shared>,
    path: StoragePath,
    /// The file's name in the metadata.
    file: String,
    table: Arc<BlockTable>,
    blocks: Vec<(u64, Range<u64>)>,
    range: Range<u64>,
}

impl PieceReader {
    async fn verify(self) -> Result<Piece, Stop> {
        let _permits = self.shared.limits.enter(&self.range).await.map_err(Stop::Error)?;
        let mut damaged = self.damaged(&self.blocks).await?;
        if !damaged.is_empty() {
            // Bytes may be damaged on the way; only what is stored can be damaged twice in the same place.
            damaged = self.damaged(&damaged).await?;
        }
        Ok(Piece { blocks: self.blocks.len() as u64, bytes: self.range.end - self.range.start, damaged })
    }

    /// Reads the piece and gives those of `blocks` that are not what was written.
    async fn damaged(&self, blocks: &[(u64, Range<u64>)]) -> Result<Vec<(u64, Range<u64>)>, Stop> {
        let slot = fetch(&self.shared, &self.path, self.range.clone()).await?;
        let mut damaged = Vec::new();
        for (block, bytes) in blocks {
            let (start, end) = (bytes.start - self.range.start, bytes.end - self.range.start);
            let bytes_of = slot.bytes().get(start as usize..end as usize).unwrap_or_default();
            if self.table.verify(&self.file, *block, bytes_of).is_err() {
                damaged.push((*block, bytes.clone()));
            }
        }
        Ok(damaged)
    }
}
