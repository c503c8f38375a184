//! A group whose ranks are threads of one process.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;

use crate::meeting::{Met, Place, Said};
use crate::{Collective, CollectiveError, Deadline, Departure, Operation, Reduce};

/// Makes groups whose ranks are threads of one process.
#[derive(Debug)]
pub struct Threads;

impl Threads {
    /// A group of `size` ranks: one handle for each, in the order of ranks, to be moved to its thread.
    ///
    /// # Errors
    /// [`CollectiveError::EmptyGroup`] where `size` is 0.
    #[expect(clippy::new_ret_no_self, reason = "a group exists only as the handles of its ranks")]
    pub fn new(size: usize) -> Result<Vec<ThreadRank>, CollectiveError> {
        if size == 0 {
            return Err(CollectiveError::EmptyGroup);
        }
        let place = Arc::new(Place::new((0..size).collect()));
        Ok((0..size).map(|rank| ThreadRank::new(Arc::clone(&place), rank, size)).collect())
    }
}

/// One rank of a group of [`Threads`].
///
/// Moves between threads but is not shared by them: a rank is in one meeting at a time. Dropping it leaves
/// the group: the other ranks' meeting under way and every later one fail with
/// [`CollectiveError::PeerGone`], which names this rank and says whether its thread was panicking.
#[derive(Debug)]
pub struct ThreadRank {
    place: Arc<Place>,
    rank: usize,
    /// Ranks of the first, unsplit group: all are threads of this process.
    threads: usize,
    not_sync: PhantomData<Cell<()>>,
}

impl ThreadRank {
    fn new(place: Arc<Place>, rank: usize, threads: usize) -> Self {
        Self { place, rank, threads, not_sync: PhantomData }
    }

    fn meet(
        &self,
        operation: Operation,
        said: Said,
        deadline: Deadline,
    ) -> Result<Arc<Met>, CollectiveError> {
        self.place.meet(self.rank, operation, said, deadline)
    }

    fn meet_with_message(
        &self,
        operation: Operation,
        bytes: Bytes,
        deadline: Deadline,
    ) -> Result<Arc<Met>, CollectiveError> {
        self.meet(operation, Said { messages: vec![bytes], ..Said::default() }, deadline)
    }

    /// A wrong root fails the group at once: the others would wait in vain for this rank.
    fn check_root(&self, root: usize, operation: Operation) -> Result<(), CollectiveError> {
        let size = self.place.size();
        if root < size {
            return Ok(());
        }
        let rank = self.place.first_rank(self.rank);
        Err(self.place.refuse(CollectiveError::NoSuchRoot { rank, operation, size }))
    }
}

/// The message that `said` holds for rank `to`; operations with one message for all ask for 0.
fn message(said: &Said, to: usize) -> Bytes {
    said.messages.get(to).cloned().unwrap_or_default()
}

impl Collective for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.place.size()
    }

    fn ranks_in_process(&self) -> usize {
        self.threads
    }

    fn barrier(&self, deadline: Deadline) -> Result<(), CollectiveError> {
        self.meet(Operation::Barrier, Said::default(), deadline).map(drop)
    }

    fn broadcast(&self, root: usize, bytes: Bytes, deadline: Deadline) -> Result<Bytes, CollectiveError> {
        let operation = Operation::Broadcast { root };
        self.check_root(root, operation)?;
        let bytes = if self.rank == root { bytes } else { Bytes::new() };
        let met = self.meet_with_message(operation, bytes, deadline)?;
        Ok(met.said.get(root).map(|said| message(said, 0)).unwrap_or_default())
    }

    fn gather(
        &self,
        root: usize,
        bytes: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Vec<Bytes>>, CollectiveError> {
        let operation = Operation::Gather { root };
        self.check_root(root, operation)?;
        let met = self.meet_with_message(operation, bytes, deadline)?;
        Ok((self.rank == root).then(|| met.said.iter().map(|said| message(said, 0)).collect()))
    }

    fn all_gather(&self, bytes: Bytes, deadline: Deadline) -> Result<Vec<Bytes>, CollectiveError> {
        let met = self.meet_with_message(Operation::AllGather, bytes, deadline)?;
        Ok(met.said.iter().map(|said| message(said, 0)).collect())
    }

    fn all_reduce(
        &self,
        words: &[u64],
        reduce: Reduce,
        deadline: Deadline,
    ) -> Result<Vec<u64>, CollectiveError> {
        let operation = Operation::AllReduce { reduce, words: words.len() };
        let said = Said { words: words.to_vec(), ..Said::default() };
        let met = self.meet(operation, said, deadline)?;
        let all = met.said.iter().map(|said| said.words.clone());
        let combine =
            |a: Vec<u64>, b: Vec<u64>| a.iter().zip(&b).map(|(a, b)| reduce.apply(*a, *b)).collect();
        Ok(all.reduce(combine).unwrap_or_default())
    }

    fn all_to_all(&self, messages: Vec<Bytes>, deadline: Deadline) -> Result<Vec<Bytes>, CollectiveError> {
        let size = self.place.size();
        if messages.len() != size {
            let rank = self.place.first_rank(self.rank);
            let messages = messages.len();
            return Err(self.place.refuse(CollectiveError::WrongMessageCount { rank, messages, size }));
        }
        let met = self.meet(Operation::AllToAll, Said { messages, ..Said::default() }, deadline)?;
        Ok(met.said.iter().map(|said| message(said, self.rank)).collect())
    }

    fn split(
        &self,
        color: u64,
        key: u64,
        deadline: Deadline,
    ) -> Result<Box<dyn Collective>, CollectiveError> {
        let said = Said { words: vec![color, key], ..Said::default() };
        let met = self.meet(Operation::Split, said, deadline)?;
        let asked = met.said.iter().enumerate();
        let mut members: Vec<_> = asked
            .filter(|(_, said)| said.words.first() == Some(&color))
            .map(|(rank, said)| (said.words.get(1).copied(), rank))
            .collect();
        members.sort_unstable();
        let ranks: Vec<_> = members.into_iter().map(|(_, rank)| rank).collect();
        let rank = ranks.iter().take_while(|rank| **rank != self.rank).count();
        let first_ranks = ranks.into_iter().map(|rank| self.place.first_rank(rank)).collect();
        Ok(Box::new(ThreadRank::new(met.group(color, first_ranks), rank, self.threads)))
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        let cause = if std::thread::panicking() { Departure::Panicked } else { Departure::Dropped };
        self.place.leave(self.rank, cause);
    }
}
