use crate::format::{BlockHasher, BlockLayout, BlockTable, FormatError};
use std::ops::Range;

/// The checksums of a request's blocks, made while its bytes come by in whatever pieces.
pub(super) struct Checksums {
    /// The block that the next byte is in, with its index; `None` past the last one.
    block: Option<(u64, Range<u64>)>,
    /// The next byte, counted from the start of the file.
    at: u64,
    hasher: BlockHasher,
    /// Index, bytes in the file and checksum of each block that is complete.
    found: Vec<(u64, Range<u64>, u32)>,
}

/// A block that is not what was written.
pub(super) struct Damage {
    /// Its bytes in the file.
    pub(super) block: Range<u64>,
    pub(super) error: FormatError,
}

impl Checksums {
    /// For bytes from `start` of the file on, where a block begins.
    pub(super) fn new(layout: &BlockLayout, start: u64) -> Self {
        Self { block: layout.block_at(start), at: start, hasher: BlockHasher::new(), found: Vec::new() }
    }

    /// Takes the next bytes.
    pub(super) fn update(&mut self, layout: &BlockLayout, mut bytes: &[u8]) {
        while let Some((index, block)) = &self.block {
            let left = usize::try_from(block.end - self.at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(left));
            self.hasher.update(now);
            self.at += now.len() as u64;
            bytes = later;
            if self.at < block.end {
                return;
            }
            self.found.push((*index, block.clone(), self.hasher.finish()));
            self.block = layout.block_at(self.at);
        }
    }

    /// Compares them with the table of `file`; returns how many there were.
    ///
    /// # Errors
    /// The first block that differs.
    pub(super) fn compare(&self, file: &str, table: &BlockTable) -> Result<u64, Damage> {
        for (index, block, checksum) in &self.found {
            let checked = table.check(file, *index, *checksum);
            checked.map_err(|error| Damage { block: block.clone(), error })?;
        }
        Ok(self.found.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::crc32c;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_of_any_size_make_the_checksums_of_whole_blocks(
            pieces in proptest::collection::vec(0usize..90, 0..20), first in 0u64..7,
        ) {
            let bytes: Vec<u8> = (0..520u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let layout = BlockLayout::new(100, vec![64, 300, 310], 520, 520, 7).unwrap();
            let all: Vec<_> = layout.blocks_in(64..520).collect();
            let start = all[first as usize].1.start;
            let mut checksums = Checksums::new(&layout, start);
            let mut at = start as usize;
            for piece in pieces {
                let end = (at + piece).min(520);
                checksums.update(&layout, &bytes[at..end]);
                at = end;
            }
            let expected: Vec<_> = all[first as usize..].iter()
                .filter(|(_, block)| block.end <= at as u64)
                .map(|(index, block)| (*index, block.clone(), crc32c(&bytes[block.start as usize..block.end as usize])))
                .collect();
            prop_assert_eq!(checksums.found, expected);
        }
    }
}
