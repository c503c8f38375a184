//! The checksums of a data file: one CRC32C (Castagnoli, as in iSCSI) per block, little-endian, last in the file.

use super::DataFileLayout;
use crate::format::{BlockFault, BlockLayout, FormatError};
use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC32C of bytes that come in parts.
#[derive(Clone)]
pub struct BlockHasher(Digest);

impl Default for BlockHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockHasher {
    /// Of no bytes yet.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes since the start or the last call of this, and starts anew.
    pub fn finish(&mut self) -> u32 {
        self.0.finalize_reset() as u32
    }
}

/// The checksums of all blocks of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockTable {
    words: Vec<u32>,
}

impl BlockTable {
    /// Reads the table of `file` whose blocks are `layout`.
    ///
    /// # Errors
    /// [`FormatError::Block`] where the length is not 4 bytes a block, or the table itself is damaged.
    pub fn decode(file: &str, layout: &BlockLayout, bytes: &[u8]) -> Result<Self, FormatError> {
        let fault = |fault| Err(FormatError::Block { file: file.to_owned(), fault });
        let (found, expected) = (bytes.len() as u64, layout.table().end - layout.table().start);
        if found != expected {
            return fault(BlockFault::TableLength { expected, found });
        }
        let (found, expected) = (crc32c(bytes), layout.table_crc32c());
        if found != expected {
            return fault(BlockFault::Table { expected, found });
        }
        let (words, _) = bytes.as_chunks::<4>();
        Ok(Self { words: words.iter().map(|&word| u32::from_le_bytes(word)).collect() })
    }

    /// The table as it stands in the file.
    pub fn encode(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Number of blocks.
    pub fn block_count(&self) -> u64 {
        self.words.len() as u64
    }

    /// Checks the bytes of one whole block of `file`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn verify(&self, file: &str, block: u64, bytes: &[u8]) -> Result<(), FormatError> {
        self.check(file, block, crc32c(bytes))
    }

    /// Checks the CRC32C that the bytes of one whole block of `file` turned out to have.
    ///
    /// # Errors
    /// [`FormatError::Block`] where they are not what was written, or there is no such block.
    pub fn check(&self, file: &str, block: u64, found: u32) -> Result<(), FormatError> {
        let fault = |fault| Err(FormatError::Block { file: file.to_owned(), fault });
        let word = usize::try_from(block).ok().and_then(|block| self.words.get(block));
        let Some(&expected) = word else {
            return fault(BlockFault::NoSuchBlock { block, blocks: self.block_count() });
        };
        if found == expected { Ok(()) } else { fault(BlockFault::Mismatch { block, expected, found }) }
    }
}

/// Makes the table of a file while its data streams by.
pub struct BlockTableBuilder {
    block_bytes: u64,
    /// Absolute starts of the runs after the current one, the next one last, above them the end of the data.
    run_ends: Vec<u64>,
    end: u64,
    at: u64,
    /// Where the current block ends.
    cut: u64,
    hasher: BlockHasher,
    words: Vec<u32>,
}

impl BlockTableBuilder {
    /// Of the file laid out as `layout`.
    pub fn new(layout: &DataFileLayout) -> Self {
        let at = layout.header().len() as u64;
        let mut run_ends = vec![layout.end()];
        run_ends.extend(layout.runs().iter().skip(1).rev());
        let mut builder = Self {
            block_bytes: layout.block_bytes(),
            run_ends,
            end: layout.end(),
            at,
            cut: at,
            hasher: BlockHasher::new(),
            words: Vec::new(),
        };
        builder.cut = builder.next_cut();
        builder
    }

    /// Takes the next bytes of the data: of entries and of the padding between them, from the end of the header up
    /// to the end of the last run, cut in any way.
    ///
    /// # Errors
    /// [`BlockFault::PastEnd`] for more bytes than the layout has.
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<(), BlockFault> {
        let left = self.end - self.at;
        if bytes.len() as u64 > left {
            return Err(BlockFault::PastEnd { bytes: bytes.len() as u64, left });
        }
        while !bytes.is_empty() {
            let room = usize::try_from(self.cut - self.at).unwrap_or(usize::MAX);
            let (block, rest) = bytes.split_at(bytes.len().min(room));
            self.hasher.update(block);
            self.at += block.len() as u64;
            bytes = rest;
            if self.at == self.cut {
                self.words.push(self.hasher.finish());
                self.cut = self.next_cut();
            }
        }
        Ok(())
    }

    /// The table, once all data has been seen.
    ///
    /// # Errors
    /// [`BlockFault::Unfinished`] where data is missing.
    pub fn finish(self) -> Result<BlockTable, BlockFault> {
        if self.at < self.end {
            return Err(BlockFault::Unfinished { left: self.end - self.at });
        }
        Ok(BlockTable { words: self.words })
    }

    fn next_cut(&mut self) -> u64 {
        // The last element, the end of the data, stays.
        while self.run_ends.len() > 1 && self.run_ends.last() == Some(&self.at) {
            self.run_ends.pop();
        }
        let run_end = self.run_ends.last().copied().unwrap_or(self.end);
        run_end.min(self.at.saturating_add(self.block_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polynomial_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut hasher = BlockHasher::new();
        for _ in 0..2 {
            hasher.update(b"1234");
            hasher.update(b"56789");
            assert_eq!(hasher.finish(), 0xe306_9283);
        }
    }
}
