//! The group of one rank: a job without distribution takes the same path as any other.

use bytes::Bytes;

use crate::{Collective, CollectiveError, Deadline, Operation, Reduce};

/// A group of one rank, which never waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Single;

fn check_root(root: usize, operation: Operation) -> Result<(), CollectiveError> {
    if root == 0 {
        return Ok(());
    }
    Err(CollectiveError::NoSuchRoot { rank: 0, operation, size: 1 })
}

impl Collective for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn barrier(&self, _: Deadline) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn broadcast(&self, root: usize, bytes: Bytes, _: Deadline) -> Result<Bytes, CollectiveError> {
        check_root(root, Operation::Broadcast { root })?;
        Ok(bytes)
    }

    fn gather(&self, root: usize, bytes: Bytes, _: Deadline) -> Result<Option<Vec<Bytes>>, CollectiveError> {
        check_root(root, Operation::Gather { root })?;
        Ok(Some(vec![bytes]))
    }

    fn all_gather(&self, bytes: Bytes, _: Deadline) -> Result<Vec<Bytes>, CollectiveError> {
        Ok(vec![bytes])
    }

    fn all_reduce(&self, words: &[u64], _: Reduce, _: Deadline) -> Result<Vec<u64>, CollectiveError> {
        Ok(words.to_vec())
    }

    fn all_to_all(&self, messages: Vec<Bytes>, _: Deadline) -> Result<Vec<Bytes>, CollectiveError> {
        if messages.len() != 1 {
            return Err(CollectiveError::WrongMessageCount { rank: 0, messages: messages.len(), size: 1 });
        }
        Ok(messages)
    }

    fn split(&self, _: u64, _: u64, _: Deadline) -> Result<Box<dyn Collective>, CollectiveError> {
        Ok(Box::new(Self))
    }
}
