//! Ranks that hold the same, such as data parallel ones: what was found out for one is known for the others.

use super::exit::Failure;
use reshard_shard::{ShardedStateDict, ShardedTensor};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most state dicts that are kept: with an optimizer dealt over thousands of ranks each has its own.
const KEPT: usize = 256;

/// What is known of state dicts, by their hash.
pub(super) struct Known<T>(Mutex<HashMap<u64, (ShardedStateDict, T)>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Copy> Known<T> {
    /// What is known of a dict that holds the same, or else what `plan` finds out.
    pub(super) fn or_plan(
        &self,
        dict: &ShardedStateDict,
        plan: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let hash = hash(dict);
        if let Some((known, found)) = self.lock().get(&hash)
            && same(known, dict)
        {
            return Ok(*found);
        }
        let found = plan()?;
        let mut known = self.lock();
        if known.len() < KEPT {
            known.insert(hash, (dict.clone(), found));
        }
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (ShardedStateDict, T)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(dict: &ShardedStateDict) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (key, tensor) in dict.iter() {
        (key, tensor.placements()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether two dicts differ at most in which replica they hold, which a load does not ask.
fn same(a: &ShardedStateDict, b: &ShardedStateDict) -> bool {
    let all_but_replica = |a: &ShardedTensor, b: &ShardedTensor| {
        (a.dtype(), a.global_shape(), a.logical_shape(), a.padded_axes())
            == (b.dtype(), b.global_shape(), b.logical_shape(), b.padded_axes())
            && (a.split(), a.placements(), a.local_shape()) == (b.split(), b.placements(), b.local_shape())
            && (a.alias_of(), a.group(), a.parameter()) == (b.alias_of(), b.group(), b.parameter())
    };
    a.len() == b.len()
        && a.iter().zip(b.iter()).all(|((a_key, a), (b_key, b))| a_key == b_key && all_but_replica(a, b))
}
