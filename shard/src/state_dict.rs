use crate::{ShardError, ShardedTensor};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// All tensors of one rank by key: what it holds at save, what it wants at load.
///
/// A rank lists only the tensors of its own pipeline stage. Any UTF-8 key is legal and no separator has a meaning.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardedStateDict {
    tensors: BTreeMap<String, ShardedTensor>,
}

impl ShardedStateDict {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// [`ShardError::DuplicateKey`].
    pub fn insert(&mut self, key: impl Into<String>, tensor: ShardedTensor) -> Result<(), ShardError> {
        match self.tensors.entry(key.into()) {
            Entry::Occupied(taken) => Err(ShardError::DuplicateKey { key: taken.key().clone() }),
            Entry::Vacant(free) => {
                free.insert(tensor);
                Ok(())
            }
        }
    }

    /// Adds all tensors of another state dict (model, then optimizer).
    ///
    /// # Errors
    /// [`ShardError::DuplicateKey`]; tensors before it have been added.
    pub fn merge(&mut self, other: ShardedStateDict) -> Result<(), ShardError> {
        other.tensors.into_iter().try_for_each(|(key, tensor)| self.insert(key, tensor))
    }

    /// The tensor of that key.
    pub fn get(&self, key: &str) -> Option<&ShardedTensor> {
        self.tensors.get(key)
    }

    /// All tensors, in ascending byte order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ShardedTensor)> {
        self.tensors.iter().map(|(key, tensor)| (key.as_str(), tensor))
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Checks that every alias names a tensor of this state dict that is not an alias itself and agrees with it in
    /// dtype, shapes and regions.
    ///
    /// # Errors
    /// [`ShardError::Alias`].
    pub fn check_aliases(&self) -> Result<(), ShardError> {
        for (key, tensor) in &self.tensors {
            let Some(target) = tensor.alias_of() else { continue };
            let same = self.tensors.get(target).is_some_and(|owner| {
                owner.alias_of().is_none()
                    && owner.dtype() == tensor.dtype()
                    && owner.global_shape() == tensor.global_shape()
                    && owner.placements() == tensor.placements()
            });
            if !same {
                return Err(ShardError::Alias { key: key.clone(), target: target.to_owned() });
            }
        }
        Ok(())
    }
}
