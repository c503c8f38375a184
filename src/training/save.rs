use super::TrainingRun;
use crate::checkpoint::commit::committed_after;
use crate::checkpoint::{CheckpointError, CommitState, SaveError, SaveReport, SaveRequest};
use bytes::Bytes;
use reshard_collective::Collective;
use std::sync::Arc;

impl TrainingRun {
    /// Saves an iteration on all ranks or none, then lets rank 0 prune in the background. Collective.
    ///
    /// The notes of rank 0's report say what was pruned since the last report and what could not be.
    ///
    /// # Errors
    /// [`SaveError`] on every rank, which says whether the iteration was committed; what pruning does is never one.
    /// [`CheckpointError::NewerExist`] where newer iterations are committed that are not being discarded;
    /// [`CheckpointError::Invalid`] where the trainer state is not of this run (see [`TrainingRun::trainer_state`]).
    pub fn save_checkpoint(
        &mut self,
        collective: &dyn Collective,
        mut request: SaveRequest<'_>,
    ) -> Result<SaveReport, SaveError> {
        let iteration = request.iteration.0;
        request.replace |= self.admit(collective, &request).map_err(|source| SaveError {
            iteration,
            state: CommitState::NotCommitted,
            source,
        })?;
        let mut report = self.checkpoint.save(collective, request)?;
        if collective.rank() == 0 {
            match self.after_commit(&report) {
                Ok(lines) => report.notes.extend(lines),
                Err(error) => report.notes.push(format!("nothing was pruned: {error}")),
            }
        }
        Ok(report)
    }

    /// Whether the save may begin, decided before anything is written. True where it goes over an iteration of the
    /// branch that was given up.
    fn admit(
        &mut self,
        collective: &dyn Collective,
        request: &SaveRequest<'_>,
    ) -> Result<bool, CheckpointError> {
        let iteration = request.iteration;
        let call = format!(
            "save_checkpoint {iteration} of {} (call {}, retention {:?}, resumed from {:?})",
            self.checkpoint.storage(),
            self.checkpoint.next_call(),
            self.retention,
            self.resumed,
        );
        let meeting = self.checkpoint.meeting(collective);
        meeting.agree(&call)?;
        let mut own = Some(self.check(request));
        let background = &mut self.background;
        // What is being discarded may be this very iteration; all else in the background is older.
        let waits = background.discard.contains(&iteration);
        meeting
            .rounds(|timeout| if waits && !background.rest(timeout) { Ok(None) } else { Ok(own.take()) })?;

        let storage = Arc::clone(self.checkpoint.storage());
        let discard = self.background.discard.clone();
        let (_, replace) = meeting.lead(|| async move {
            let newer = committed_after(&*storage, iteration).await?;
            let newer: Vec<u64> = newer
                .into_iter()
                .map(|(it, _)| it)
                .filter(|it| !discard.contains(it))
                .map(|it| it.0)
                .collect();
            if !newer.is_empty() {
                return Err(CheckpointError::NewerExist { iteration: iteration.0, newer });
            }
            Ok(((), Bytes::from(vec![u8::from(discard.contains(&iteration))])))
        })?;
        Ok(replace[..] == [1])
    }

    fn check(&self, request: &SaveRequest<'_>) -> Result<(), CheckpointError> {
        let state = request.trainer_state;
        if state.model == self.model && state.ran_with == self.sizes {
            return Ok(());
        }
        Err(CheckpointError::Invalid(
            "the trainer state has another model or other sizes than the run; make it with TrainingRun::trainer_state"
                .to_owned(),
        ))
    }
}
