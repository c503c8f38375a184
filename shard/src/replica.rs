use serde::{Deserialize, Serialize};
use std::fmt;

/// Identity of a replica group: the set of ranks that hold one shard.
///
/// A hash of the sorted ranks, so that every rank computes it alone. Two shards with the same group have the same
/// holders; two groups of equal size are told apart, which a count alone cannot do (norms over TP x DP beside
/// experts over EP x DP).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct GroupId(u64);

impl GroupId {
    /// The group of the given ranks, in any order.
    pub fn of_ranks(ranks: impl IntoIterator<Item = u64>) -> Self {
        let mut ranks: Vec<u64> = ranks.into_iter().collect();
        ranks.sort_unstable();
        Self(hash_words(&ranks))
    }

    /// The hash.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// FNV-1a over the words' bytes, then a finalizer so that near sets differ in all bits.
fn hash_words(words: &[u64]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Which of the equal copies of a shard this rank holds.
///
/// The members of a group divide the work of saving the group's bytes among themselves without talking:
/// member `id` of `count` takes the `id`-th share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Replica {
    id: u32,
    count: u32,
    group: Option<GroupId>,
}

impl Replica {
    /// The only holder.
    pub const SOLE: Replica = Replica { id: 0, count: 1, group: None };

    /// Replica `id` of `count`, where the other holders are not known by rank.
    ///
    /// Without a group the shard is shared out on its own; with one, all shards of the group together, which
    /// gives longer contiguous ranges.
    ///
    /// `None` where `id >= count`.
    pub fn new(id: u32, count: u32) -> Option<Self> {
        (id < count).then_some(Self { id, count, group: None })
    }

    /// The place of `rank` among the holders `ranks` (sorted, distinct); `None` where it is not one of them or
    /// they are not sorted and distinct.
    pub fn among(rank: u64, ranks: &[u64]) -> Option<Self> {
        if !ranks.is_sorted_by(|a, b| a < b) {
            return None;
        }
        let id = u32::try_from(ranks.binary_search(&rank).ok()?).ok()?;
        let count = u32::try_from(ranks.len()).ok()?;
        Some(Self { id, count, group: Some(GroupId::of_ranks(ranks.iter().copied())) })
    }

    /// Replica `id` of `count` of a group that is already hashed; `id < count`.
    pub(crate) fn in_group(id: u32, count: u32, group: GroupId) -> Self {
        debug_assert!(id < count);
        Self { id, count, group: Some(group) }
    }

    /// 0 for the main replica.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Number of holders, at least 1.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The group, where it is known.
    pub fn group(&self) -> Option<GroupId> {
        self.group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_depend_on_the_set_alone() {
        assert_eq!(GroupId::of_ranks([3, 1, 2]), GroupId::of_ranks([1, 2, 3]));
        assert_ne!(GroupId::of_ranks([0, 2]), GroupId::of_ranks([0, 1]));
        assert_ne!(GroupId::of_ranks([0]), GroupId::of_ranks([]));
        let replica = Replica::among(5, &[1, 5, 9]).unwrap();
        assert_eq!((replica.id(), replica.count()), (1, 3));
        assert_eq!(replica.group(), Some(GroupId::of_ranks([1, 5, 9])));
        assert_eq!(Replica::among(2, &[1, 5]), None);
        assert_eq!(Replica::among(1, &[5, 1]), None);
        assert_eq!(Replica::new(2, 2), None);
    }
}
