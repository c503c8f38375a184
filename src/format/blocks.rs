use std::ops::Range;

/// How a data file is cut into blocks, the units of its checksums.
///
/// Blocks of `block_bytes` are cut anew at every run (see docs/format.md), so that a reader of whole runs reads
/// nothing more in order to verify. The last block of a run is what is left of it. Every byte from the start of
/// the first run to `end` is in exactly one block; the header before and the block table after are not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockLayout {
    block_bytes: u64,
    runs: Vec<u64>,
    end: u64,
    /// Index of the first block of each run.
    first_block: Vec<u64>,
    blocks: u64,
    table_offset: u64,
    table_crc32c: u32,
}

/// Why numbers do not describe blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockLayoutError {
    /// A block has at least one byte.
    #[error("block size 0")]
    ZeroBlock,
    /// Runs are strictly ascending, and the first is not past the end.
    #[error("runs are not ascending up to the end of the data")]
    Runs,
    /// The table begins where the data ends or later, and ends within 64 bits.
    #[error("the block table lies inside the data or ends past 2^64")]
    Table,
}

impl BlockLayout {
    /// Blocks of `block_bytes` over runs that begin at the absolute file offsets `runs` (strictly ascending) and
    /// end at `end`. The block table, one little-endian CRC32C word a block, begins at `table_offset`, and
    /// `table_crc32c` is the checksum of the table's own bytes.
    ///
    /// # Errors
    /// [`BlockLayoutError`].
    pub fn new(
        block_bytes: u64,
        runs: Vec<u64>,
        end: u64,
        table_offset: u64,
        table_crc32c: u32,
    ) -> Result<Self, BlockLayoutError> {
        if block_bytes == 0 {
            return Err(BlockLayoutError::ZeroBlock);
        }
        if !runs.is_sorted_by(|a, b| a < b) || runs.last().is_some_and(|&last| last >= end) {
            return Err(BlockLayoutError::Runs);
        }
        if table_offset < end {
            return Err(BlockLayoutError::Table);
        }
        let mut first_block = Vec::with_capacity(runs.len());
        let mut blocks = 0u64;
        for (index, &start) in runs.iter().enumerate() {
            first_block.push(blocks);
            let run_end = runs.get(index + 1).copied().unwrap_or(end);
            blocks += (run_end - start).div_ceil(block_bytes);
        }
        if blocks.checked_mul(4).and_then(|bytes| bytes.checked_add(table_offset)).is_none() {
            return Err(BlockLayoutError::Table);
        }
        Ok(Self { block_bytes, runs, end, first_block, blocks, table_offset, table_crc32c })
    }

    /// Size of a block in bytes; the last of a run may be shorter.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Absolute file offsets at which the runs begin.
    pub fn runs(&self) -> &[u64] {
        &self.runs
    }

    /// Where the last run ends.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Number of blocks.
    pub fn block_count(&self) -> u64 {
        self.blocks
    }

    /// Where the block table lies in the file: one word of 4 bytes a block.
    pub fn table(&self) -> Range<u64> {
        self.table_offset..self.table_offset + 4 * self.blocks
    }

    /// CRC32C of the block table's bytes.
    pub fn table_crc32c(&self) -> u32 {
        self.table_crc32c
    }

    /// The index and the bytes of the block that holds the byte at `offset`; `None` outside the blocks.
    pub fn block_at(&self, offset: u64) -> Option<(u64, Range<u64>)> {
        if offset >= self.end {
            return None;
        }
        let run = self.runs.partition_point(|&start| start <= offset).checked_sub(1)?;
        let run_end = self.runs.get(run + 1).copied().unwrap_or(self.end);
        let within = (offset - self.runs[run]) / self.block_bytes;
        let start = self.runs[run] + within * self.block_bytes;
        Some((self.first_block[run] + within, start..run_end.min(start + self.block_bytes)))
    }

    /// The smallest range of whole blocks around `range`; `None` where it is empty or not inside the blocks.
    pub fn cover(&self, range: Range<u64>) -> Option<Range<u64>> {
        let last = range.end.checked_sub(1).filter(|&last| last >= range.start)?;
        let (_, first) = self.block_at(range.start)?;
        let (_, last) = self.block_at(last)?;
        Some(first.start..last.end)
    }

    /// The blocks of `range` one by one with their indices. The range must consist of whole blocks.
    pub fn blocks_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (index, block) = self.block_at(at)?;
            at = block.end;
            Some((index, block))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_cut_anew_at_every_run() {
        let layout = BlockLayout::new(100, vec![64, 300, 310], 520, 520, 7).unwrap();
        assert_eq!(layout.block_count(), 3 + 1 + 3);
        assert_eq!(layout.table(), 520..548);
        assert_eq!(layout.block_at(63), None);
        assert_eq!(layout.block_at(64), Some((0, 64..164)));
        assert_eq!(layout.block_at(299), Some((2, 264..300)));
        assert_eq!(layout.block_at(305), Some((3, 300..310)));
        assert_eq!(layout.block_at(519), Some((6, 510..520)));
        assert_eq!(layout.block_at(520), None);
        assert_eq!(layout.cover(165..306), Some(164..310));
        assert_eq!(layout.cover(165..165), None);
        let blocks: Vec<_> = layout.blocks_in(264..410).collect();
        assert_eq!(blocks, vec![(2, 264..300), (3, 300..310), (4, 310..410)]);
        // Every byte is in one block, and the indices count up.
        let mut expected = 0;
        for (index, block) in layout.blocks_in(64..520) {
            assert_eq!(index, expected);
            assert!(block.clone().all(|at| layout.block_at(at) == Some((index, block.clone()))));
            expected += 1;
        }
        assert_eq!(expected, 7);
    }

    #[test]
    fn numbers_that_describe_no_blocks_are_refused() {
        assert_eq!(BlockLayout::new(0, vec![], 0, 0, 0), Err(BlockLayoutError::ZeroBlock));
        assert_eq!(BlockLayout::new(9, vec![5, 5], 9, 9, 0), Err(BlockLayoutError::Runs));
        assert_eq!(BlockLayout::new(9, vec![5], 5, 9, 0), Err(BlockLayoutError::Runs));
        assert_eq!(BlockLayout::new(9, vec![5], 9, 8, 0), Err(BlockLayoutError::Table));
        assert_eq!(BlockLayout::new(9, vec![5], 9, u64::MAX - 3, 0), Err(BlockLayoutError::Table));
        assert_eq!(BlockLayout::new(1, vec![5], u64::MAX, u64::MAX, 0), Err(BlockLayoutError::Table));
        assert_eq!(BlockLayout::new(9, vec![], 9, 9, 0).unwrap().block_count(), 0);
    }
}
