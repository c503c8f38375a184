use super::Retention;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::commit::{FoundCommit, Removal, check_whole, list_iterations, read_commit, remove};
use crate::format::{AttemptId, Commit, Iteration};
use futures::stream::{self, StreamExt};
use reshard_storage::StorageBackend;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Commits that are read at once.
const READS: usize = 16;

/// What rank 0 removes after a save was committed.
pub(super) struct Pruning {
    pub(super) storage: Arc<dyn StorageBackend>,
    /// The iteration just saved, and the attempt that was committed.
    pub(super) saved: Iteration,
    pub(super) attempt: AttemptId,
    pub(super) retention: Retention,
    /// Never removed: what the run was resumed from.
    pub(super) resumed: Option<Iteration>,
    /// Iterations of the branch that was given up; they may be newer.
    pub(super) discard: BTreeSet<Iteration>,
    /// Iterations known to be removed to the last object, which need no look any more.
    pub(super) clean: BTreeSet<Iteration>,
}

/// What became of it.
#[derive(Default)]
pub(super) struct Pruned {
    /// For the report, one for each thing.
    pub(super) lines: Vec<String>,
    /// Iterations found or made clean.
    pub(super) clean: BTreeSet<Iteration>,
}

impl Pruning {
    pub(super) async fn run(self) -> Pruned {
        let mut pruned = Pruned::default();
        let candidates = match self.candidates(&mut pruned).await {
            Ok(candidates) => candidates,
            Err(error) => {
                let line = format!(
                    "nothing was pruned behind iteration {}, which could not be verified: {error}",
                    self.saved.0
                );
                pruned.lines.push(line);
                return pruned;
            }
        };
        for (iteration, live) in candidates {
            let number = iteration.0;
            match remove(&*self.storage, iteration).await {
                Ok(Removal::Gone { objects }) => {
                    if live || objects > 0 {
                        pruned.lines.push(format!("pruned iteration {number}: {objects} object(s)"));
                    }
                    pruned.clean.insert(iteration);
                }
                Ok(Removal::Uncommitted) => {
                    pruned.clean.insert(iteration);
                }
                // A pinned iteration is meant to stay, but one to be discarded was meant to go.
                Ok(Removal::Pinned) if self.discard.contains(&iteration) => {
                    pruned
                        .lines
                        .push(format!("iteration {number} was not discarded: it is pinned; unpin it first"));
                }
                Ok(Removal::Pinned) => {}
                Ok(Removal::Changed) => {
                    pruned
                        .lines
                        .push(format!("iteration {number} was changed by another writer and not pruned"));
                }
                Err(error) => pruned.lines.push(failed(iteration, &error)),
            }
        }
        pruned
    }

    /// What is to be removed, oldest first, and whether it has a live commit; proves first that the checkpoint which
    /// makes it surplus is whole.
    async fn candidates(&self, pruned: &mut Pruned) -> Result<Vec<(Iteration, bool)>, CheckpointError> {
        let storage = &*self.storage;
        check_whole(storage, self.saved, &self.attempt).await?;
        let older = list_iterations(storage).await?.into_iter().filter(|iteration| {
            let looked_at = *iteration < self.saved && !self.clean.contains(iteration);
            looked_at || self.discard.contains(iteration)
        });
        let found: Vec<_> = stream::iter(older)
            .map(|iteration| async move { (iteration, read_commit(storage, iteration).await) })
            .buffer_unordered(READS)
            .collect()
            .await;
        let (mut committed, mut interrupted) = (Vec::new(), BTreeSet::new());
        for (iteration, found) in found {
            match found {
                Ok(Some(FoundCommit { commit: Commit::Committed(_), .. })) => committed.push(iteration),
                Ok(Some(FoundCommit { commit: Commit::Deleted(_), .. })) => {
                    interrupted.insert(iteration);
                }
                // Perhaps a save under way, of another job; never ours to remove.
                Ok(None) => {}
                Err(error) => pruned.lines.push(failed(iteration, &error)),
            }
        }
        let surplus = self.retention.surplus(self.saved, &committed);
        let discarded = committed.iter().copied().filter(|iteration| self.discard.contains(iteration));
        let live: BTreeSet<Iteration> = surplus.into_iter().chain(discarded).collect();
        let kept = |iteration: &Iteration| *iteration == self.saved || Some(*iteration) == self.resumed;
        let mut all: Vec<(Iteration, bool)> = live
            .into_iter()
            .map(|it| (it, true))
            .chain(interrupted.into_iter().map(|it| (it, false)))
            .collect();
        all.retain(|(iteration, _)| !kept(iteration));
        all.sort_unstable();
        Ok(all)
    }
}

fn failed(iteration: Iteration, error: &CheckpointError) -> String {
    format!("iteration {} was not pruned, the next save tries again: {error}", iteration.0)
}
