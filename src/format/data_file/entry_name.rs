//! Names of the entries of a data file.
//!
//! A name is the key followed by one bracket group, and nothing in that group is a bracket but its two ends. So the
//! last `[` of a name is where the key ends, whatever the key holds: no key can imitate another, and no escape is
//! needed. Names without a bracket at the end (`__metadata__`, padding, the block table) belong to no key.

use crate::format::names::reserved_entries::{BLOCK_TABLE, PADDING_PREFIX};
use reshard_shard::{Dims, Region};
use std::fmt;

/// What of its key an entry holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EntrySlice<'a> {
    /// A region of a tensor.
    Chunk(&'a Region),
    /// The bytes that `rank` saved under a name.
    Object {
        /// The global rank.
        rank: u32,
    },
}

/// What an entry is, read from its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryName {
    /// A region of a tensor.
    Chunk {
        /// The tensor's key.
        key: String,
        /// The region.
        region: Region,
    },
    /// One rank's bytes.
    Object {
        /// The object's name.
        name: String,
        /// The global rank that saved it.
        rank: u32,
    },
    /// Zero bytes between entries.
    Padding,
    /// The table of one CRC32C per block.
    BlockTable,
}

/// Prints the bracket group: `[0:128, 64:96]`, `[]` for a 0-dim tensor, `[rank 3]` for an object.
impl fmt::Display for EntrySlice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntrySlice::Chunk(region) => region.fmt(f),
            EntrySlice::Object { rank } => write!(f, "[rank {rank}]"),
        }
    }
}

impl EntryName {
    /// Reads a name; `None` where this format writes no such name.
    pub fn parse(name: &str) -> Option<Self> {
        if name == BLOCK_TABLE {
            return Some(Self::BlockTable);
        }
        let Some(body) = name.strip_suffix(']') else {
            return name.starts_with(PADDING_PREFIX).then_some(Self::Padding);
        };
        let (key, slice) = body.rsplit_once('[')?;
        if let Some(rank) = slice.strip_prefix("rank ") {
            let rank = rank.parse().ok()?;
            let name = key.to_owned();
            return (format!("{rank}") == slice["rank ".len()..]).then_some(Self::Object { name, rank });
        }
        let (mut offset, mut shape) = (Dims::new(), Dims::new());
        for range in slice.split(", ").filter(|_| !slice.is_empty()) {
            let (start, end) = range.split_once(':')?;
            let start: u64 = start.parse().ok()?;
            offset.push(start);
            shape.push(end.parse::<u64>().ok()?.checked_sub(start)?);
        }
        let region = Region::new(offset, shape).ok()?;
        // One spelling for each region: no signs, no leading zeros.
        (region.to_string().get(1..) == name.get(key.len() + 1..))
            .then(|| Self::Chunk { key: key.to_owned(), region })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_names_as_written_are_read() {
        let region = Region::new([0, 64], [128, 32]).unwrap();
        let chunk = |key: &str, region: &Region| EntryName::Chunk { key: key.into(), region: region.clone() };
        assert_eq!(EntryName::parse("w[0:128, 64:96]"), Some(chunk("w", &region)));
        assert_eq!(EntryName::parse("w[0:1][0:128, 64:96]"), Some(chunk("w[0:1]", &region)));
        assert_eq!(EntryName::parse("[]"), Some(chunk("", &Region::new([], []).unwrap())));
        assert_eq!(EntryName::parse("rng[rank 3]"), Some(EntryName::Object { name: "rng".into(), rank: 3 }));
        assert_eq!(EntryName::parse("__padding__.7"), Some(EntryName::Padding));
        assert_eq!(EntryName::parse("__crc32c__"), Some(EntryName::BlockTable));
        let __metadata__ = Region::new([0], [4]).unwrap();
        assert_eq!(EntryName::parse("__metadata__[0:4]"), Some(chunk("__metadata__", &__metadata__)));
        for name in [
            "w",
            "w]",
            "w[0:+1]",
            "w[00:1]",
            "w[1:1]",
            "w[2:1]",
            "w[0:1,0:1]",
            "w[0:1, ]",
            "w[rank +3]",
            "w[rank 03]",
            "w[rank]",
            "w[0:1] ",
            "w[:]",
            "__metadata__",
            "",
        ] {
            assert_eq!(EntryName::parse(name), None, "{name}");
        }
    }

    proptest! {
        /// Reading back what was written, for keys full of brackets, is what makes names injective.
        #[test]
        fn names_round_trip(
            key in "(\\[|\\]|[0-9]|:|, |rank |__crc32c__|__padding__\\.|\\PC){0,8}",
            axes in proptest::collection::vec((0u64..1 << 40, 1u64..1 << 10), 0..5),
            rank in any::<u32>(),
        ) {
            let region = Region::new(
                axes.iter().map(|axis| axis.0).collect::<Dims>(),
                axes.iter().map(|axis| axis.1).collect::<Dims>(),
            ).unwrap();
            let chunk = format!("{key}{}", EntrySlice::Chunk(&region));
            prop_assert_eq!(EntryName::parse(&chunk), Some(EntryName::Chunk { key: key.clone(), region }));
            let object = format!("{key}{}", EntrySlice::Object { rank });
            prop_assert_eq!(EntryName::parse(&object), Some(EntryName::Object { name: key, rank }));
        }
    }
}
