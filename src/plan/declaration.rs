//! What a rank says of the shards that it shares with others, small enough to send to rank 0 at every save.
//!
//! A group divides its bytes without talking, which is right only while all members declare the same shards. Each
//! rank sends one hash a group; rank 0 checks that every group is complete and of one mind.

use reshard_shard::{Replica, ShardedStateDict, ShardedTensor};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// One rank's word on one replica group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// The group: that of the ranks, or of one tensor's regions where the ranks are not known.
    pub group: u64,
    /// Which member this rank is.
    pub replica_id: u32,
    /// How many members there are.
    pub replica_count: u32,
    /// Hash of every shard of the group: key, dtype, shapes, split and regions.
    pub hash: [u8; 16],
}

/// The members of a group do not agree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeclarationFault {
    /// Not every member of the group takes part, or two claim one place.
    #[error(
        "replica group {group:016x} has {count} members but ranks {ranks:?} declare themselves its members {ids:?}: every holder of a shard must save it, each with its own replica_id"
    )]
    Incomplete {
        /// The group.
        group: u64,
        /// Its declared size.
        count: u32,
        /// The ranks that spoke for it.
        ranks: Vec<usize>,
        /// Their replica ids, in the same order.
        ids: Vec<u32>,
    },
    /// The members declare different shards.
    #[error(
        "the members of replica group {group:016x} declare different shards: rank {rank} differs from rank {first}"
    )]
    Different {
        /// The group.
        group: u64,
        /// The first member.
        first: usize,
        /// The first that differs from it.
        rank: usize,
    },
}

/// Identity of the group that shares out a tensor's bytes.
pub(crate) fn group_key(key: &str, tensor: &ShardedTensor) -> u64 {
    match tensor.replica().group() {
        Some(group) => group.value(),
        None => {
            let mut hasher = Sha256::new();
            hash_shard(&mut hasher, key, tensor);
            let digest = hasher.finalize();
            digest.iter().take(8).fold(0, |word, &byte| word << 8 | u64::from(byte))
        }
    }
}

/// The declarations of a rank, one for each group, in ascending order of the group.
pub(crate) fn declare(dict: &ShardedStateDict) -> Vec<Declaration> {
    let mut groups: BTreeMap<u64, (Replica, Sha256)> = BTreeMap::new();
    // An empty shard has no holders to agree with, and an alias's bytes are its owner's.
    for (key, tensor) in
        dict.iter().filter(|(_, tensor)| !tensor.placements().is_empty() && tensor.alias_of().is_none())
    {
        let group = group_key(key, tensor);
        let (_, hasher) = groups.entry(group).or_insert_with(|| (tensor.replica(), Sha256::new()));
        hash_shard(hasher, key, tensor);
    }
    groups
        .into_iter()
        .map(|(group, (replica, hasher))| {
            let digest = hasher.finalize();
            let mut hash = [0; 16];
            hash.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
            Declaration { group, replica_id: replica.id(), replica_count: replica.count(), hash }
        })
        .collect()
}

/// The declarations as bytes for rank 0: their number, then 32 bytes each.
pub fn encode_declarations(declarations: &[Declaration]) -> Vec<u8> {
    let mut bytes = (declarations.len() as u64).to_le_bytes().to_vec();
    for declaration in declarations {
        bytes.extend(declaration.group.to_le_bytes());
        bytes.extend(declaration.replica_id.to_le_bytes());
        bytes.extend(declaration.replica_count.to_le_bytes());
        bytes.extend(declaration.hash);
    }
    bytes
}

/// The inverse of [`encode_declarations`], and what follows it. `None` where the bytes end too early.
pub fn decode_declarations(bytes: &[u8]) -> Option<(Vec<Declaration>, &[u8])> {
    let (count, mut rest) = bytes.split_first_chunk::<8>()?;
    let count = u64::from_le_bytes(*count);
    let mut declarations = Vec::new();
    for _ in 0..count {
        let (group, after) = rest.split_first_chunk()?;
        let (replica_id, after) = after.split_first_chunk()?;
        let (replica_count, after) = after.split_first_chunk()?;
        let (hash, after) = after.split_first_chunk()?;
        rest = after;
        declarations.push(Declaration {
            group: u64::from_le_bytes(*group),
            replica_id: u32::from_le_bytes(*replica_id),
            replica_count: u32::from_le_bytes(*replica_count),
            hash: *hash,
        });
    }
    Some((declarations, rest))
}

fn hash_shard(hasher: &mut Sha256, key: &str, tensor: &ShardedTensor) {
    let mut words = |list: &[u64]| {
        hasher.update((list.len() as u64).to_le_bytes());
        list.iter().for_each(|word| hasher.update(word.to_le_bytes()));
    };
    words(tensor.global_shape());
    words(tensor.logical_shape().map_or(&[], |shape| shape));
    words(&[tensor.placements().len() as u64, tensor.group() as u64]);
    for placement in tensor.placements() {
        words(placement.region.offset());
        words(placement.region.shape());
    }
    if let Some(split) = tensor.split() {
        words(&[split.axis as u64]);
        words(&split.segments);
    }
    for text in [key, tensor.dtype().name(), tensor.alias_of().unwrap_or("")] {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
}

/// Checks the declarations of all ranks: every group complete and of one mind.
///
/// # Errors
/// [`DeclarationFault`] naming the group and the ranks.
pub fn check_declarations<'a>(
    by_rank: impl IntoIterator<Item = (usize, &'a [Declaration])>,
) -> Result<(), DeclarationFault> {
    let mut groups: BTreeMap<u64, Vec<(usize, &Declaration)>> = BTreeMap::new();
    for (rank, declarations) in by_rank {
        for declaration in declarations {
            groups.entry(declaration.group).or_default().push((rank, declaration));
        }
    }
    for (group, members) in groups {
        let Some(&(first, head)) = members.first() else { continue };
        if let Some(&(rank, _)) = members
            .iter()
            .find(|(_, member)| (member.hash, member.replica_count) != (head.hash, head.replica_count))
        {
            return Err(DeclarationFault::Different { group, first, rank });
        }
        let ids: BTreeSet<u32> = members.iter().map(|(_, member)| member.replica_id).collect();
        if members.len() != head.replica_count as usize || !ids.into_iter().eq(0..head.replica_count) {
            return Err(DeclarationFault::Incomplete {
                group,
                count: head.replica_count,
                ranks: members.iter().map(|&(rank, _)| rank).collect(),
                ids: members.iter().map(|(_, member)| member.replica_id).collect(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_shard::DType;

    fn dict(rank: u64, rows: u64) -> ShardedStateDict {
        let mut dict = ShardedStateDict::new();
        let replica = Replica::among(rank, &[0, 1]).unwrap();
        let shared = ShardedTensor::builder(DType::F32, [rows]).replica(replica).build("norm").unwrap();
        dict.insert("norm", shared).unwrap();
        let own =
            ShardedTensor::builder(DType::F32, [8]).region([4 * rank], [4]).unwrap().build("w").unwrap();
        dict.insert("w", own).unwrap();
        dict
    }

    #[test]
    fn groups_must_be_complete_and_agree() {
        let (a, b, other) = (declare(&dict(0, 4)), declare(&dict(1, 4)), declare(&dict(1, 5)));
        assert_eq!(a.len(), 2);
        assert!(check_declarations([(0, a.as_slice()), (1, &b)]).is_ok());
        let bytes = [encode_declarations(&a), vec![9]].concat();
        assert_eq!(decode_declarations(&bytes), Some((a.clone(), &[9][..])));
        assert_eq!(decode_declarations(&bytes[..bytes.len() - 2]), None);
        assert!(matches!(
            check_declarations([(0, a.as_slice())]),
            Err(DeclarationFault::Incomplete { count: 2, ranks, .. }) if ranks == [0]
        ));
        assert!(matches!(
            check_declarations([(0, a.as_slice()), (1, &a)]),
            Err(DeclarationFault::Incomplete { .. })
        ));
        assert!(matches!(
            check_declarations([(0, a.as_slice()), (1, &other)]),
            Err(DeclarationFault::Different { first: 0, rank: 1, .. })
        ));
    }
}
