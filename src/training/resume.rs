use super::TrainingRun;
#[cfg(doc)]
use crate::checkpoint::CommitMode;
use crate::checkpoint::commit::{cannot_remove, committed_after, named_attempt, newest};
use crate::checkpoint::{
    Checkpoint, CheckpointError, ErrorKind, LoadReport, LoadRequest, Loaded, Meeting, numbers,
};
use crate::format::{Iteration, ParallelSizes, TrainerState, compare_architecture};
use crate::transfer::TransferError;
use bytes::Bytes;
use reshard_collective::Collective;
use reshard_device::Buffer;
use reshard_shard::ShardedStateDict;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where and how a run resumes.
pub struct ResumeRequest<'a> {
    /// How to load. Its iteration is where to resume: the newest committed one where it is `None`.
    pub load: LoadRequest<'a>,
    /// Gives up the iterations that are newer than the one resumed from: they are marked deleted after the first save.
    pub discard_newer: bool,
}

impl<'a> ResumeRequest<'a> {
    /// From the newest committed iteration, all of it, verified, into new tensors.
    pub fn new(target: &'a ShardedStateDict) -> Self {
        Self { load: LoadRequest::new(target), discard_newer: false }
    }

    /// From this iteration, also where newer ones are committed.
    pub fn at(mut self, iteration: Iteration) -> Self {
        self.load.iteration = Some(iteration);
        self
    }
}

/// What a resume returns, on every rank or on none.
#[derive(Debug)]
pub struct Resumed {
    /// The iteration.
    pub iteration: Iteration,
    /// New tensors by key, with [`CommitMode::Allocate`]; a tied tensor is under its owner's key.
    pub tensors: BTreeMap<String, Buffer>,
    /// The chosen per-rank objects by name and saving rank.
    pub objects: BTreeMap<(String, u32), Bytes>,
    /// The state of the training loop, with the model and the sizes of the run that goes on, not of the one that saved.
    pub state: TrainerState,
    /// The sizes of the run that saved.
    pub saved_sizes: ParallelSizes,
    /// What was done; its notes name newer iterations and a start over.
    pub report: LoadReport,
}

impl Resumed {
    /// How many batches of each data-parallel rank the data loader skips: samples consumed over all ranks, divided by
    /// `local_batch` (samples of one batch of one rank) times the running number of data-parallel ranks.
    ///
    /// # Errors
    /// [`CheckpointError::BatchMisaligned`] where they do not divide: some samples would be seen twice or never.
    pub fn batches_to_skip(&self, local_batch: u64) -> Result<u64, CheckpointError> {
        let (samples, dp) = (self.state.consumed_train_samples, self.state.ran_with.dp.get());
        let divisor = local_batch.saturating_mul(u64::from(dp));
        match samples.checked_rem(divisor) {
            Some(0) => Ok(samples / divisor),
            _ => Err(CheckpointError::BatchMisaligned { samples, divisor, local_batch, dp }),
        }
    }
}

/// What rank 0 chose, told to all.
#[derive(Clone, Serialize, Deserialize)]
struct Choice {
    /// The iteration and its attempt; none where nothing is committed there.
    chosen: Option<(u64, String)>,
    /// Committed iterations that are newer, newest first.
    newer: Vec<u64>,
}

/// What a failed load comes to, decided by rank 0.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The error stands.
    Failed,
    /// There is no checkpoint: the run starts from nothing.
    Fresh,
    /// What was being loaded is gone; there may be a newer one.
    Removed,
}

/// Rank 0 looks what is committed; all ranks get its answer.
fn choose(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    at: Option<Iteration>,
    discard_newer: bool,
) -> Result<Choice, CheckpointError> {
    let storage = Arc::clone(checkpoint.storage());
    let (_, answer) = meeting.lead(|| async move {
        let (chosen, newer) = match at {
            None => {
                let newest = newest(&*storage).await?;
                (newest.map(|(iteration, newest)| (iteration.0, newest.attempt().to_string())), Vec::new())
            }
            Some(at) => {
                let attempt = named_attempt(&*storage, at).await?;
                let newer = committed_after(&*storage, at).await?;
                let pinned = newer.iter().filter(|(_, newer)| !newer.pins().is_empty());
                let iterations: Vec<u64> = pinned.map(|(iteration, _)| iteration.0).collect();
                if discard_newer && !iterations.is_empty() {
                    return Err(CheckpointError::Pinned { iterations });
                }
                let newer = newer.into_iter().map(|(iteration, _)| iteration.0).collect();
                (attempt.map(|attempt| (at.0, attempt.to_string())), newer)
            }
        };
        // Numbers and digits always serialize.
        let answer = serde_json::to_vec(&Choice { chosen, newer }).unwrap_or_default();
        Ok(((), Bytes::from(answer)))
    })?;
    serde_json::from_slice(&answer).map_err(|_| TransferError::Lost.into())
}

/// The error of a second try. What the first one may have left in the caller's tensors stays true.
fn after_first(first: CheckpointError, second: CheckpointError) -> CheckpointError {
    let undefined = |error: &CheckpointError| matches!(error, CheckpointError::ContentsUndefined { .. });
    if undefined(&first) && !undefined(&second) {
        CheckpointError::ContentsUndefined { cause: Box::new(second) }
    } else {
        second
    }
}

impl TrainingRun {
    /// Resumes from the newest committed iteration, or from the one that the request names. `None` where there is no
    /// checkpoint at all, and the run starts from nothing. Collective.
    ///
    /// Before any data is read, the saved model is compared with the running one in what both state. A checkpoint that
    /// is removed while it is being loaded makes the call start over, once, with the newest. The iteration resumed from
    /// is not pruned as long as the run lasts.
    ///
    /// # Errors
    /// [`CheckpointError`] on every rank where one fails: [`CheckpointError::Architecture`] for another model,
    /// [`CheckpointError::NoCheckpoint`] where the named iteration is not there, [`CheckpointError::NoTrainerState`] for
    /// safetensors files, which have none, [`CheckpointError::Pinned`] where one to
    /// be discarded is pinned, [`CheckpointError::Unsupported`] for `discard_newer` on a store without conditional updates,
    /// and those of [`Checkpoint::load`](crate::checkpoint::Checkpoint::load).
    pub fn resume_from_checkpoint(
        &mut self,
        collective: &dyn Collective,
        mut request: ResumeRequest<'_>,
    ) -> Result<Option<Resumed>, CheckpointError> {
        self.admit_resume(collective, &request)?;
        let meeting = self.checkpoint.meeting(collective);
        let (at, discard_newer) = (request.load.iteration, request.discard_newer);
        let mut removed: Option<CheckpointError> = None;
        let (loaded, newer) = loop {
            let choice = choose(&self.checkpoint, &meeting, at, discard_newer)?;
            let error = match self.load_chosen(collective, &mut request.load, &choice) {
                Ok(loaded) => break (loaded, choice.newer),
                Err(error) => error,
            };
            if let Some(first) = removed {
                return Err(after_first(first, error));
            }
            match self.judge(&meeting, &error, at, &choice) {
                Verdict::Failed => return Err(error),
                Verdict::Fresh => return Ok(None),
                Verdict::Removed => removed = Some(error),
            }
        };
        let mut resumed = self.resumed(loaded)?;
        self.resumed = Some(resumed.iteration);
        self.background.discard.clear();
        let lead = meeting.is_lead();
        if discard_newer && lead {
            self.background.discard.extend(newer.iter().map(|&iteration| Iteration(iteration)));
        }
        let notes = &mut resumed.report.notes;
        if let Some(removed) = removed {
            notes.push(format!("started over: {removed}"));
        }
        if !newer.is_empty() {
            let then = match discard_newer {
                true => "they are removed after the first save",
                false => "no save is taken while they are there, unless they are discarded",
            };
            notes.push(format!("newer iterations are committed: {}; {then}", numbers(&newer)));
        }
        Ok(Some(resumed))
    }

    /// The first meetings: all ranks want the same, and nothing is being removed any more.
    fn admit_resume(
        &mut self,
        collective: &dyn Collective,
        request: &ResumeRequest<'_>,
    ) -> Result<(), CheckpointError> {
        let storage = self.checkpoint.storage();
        let call = format!(
            "resume_from_checkpoint {:?} of {storage} (call {}, discard_newer {})",
            request.load.iteration,
            self.checkpoint.next_call(),
            request.discard_newer,
        );
        let able = storage.capabilities().conditional_update || !request.discard_newer;
        let mut own = Some(if able { Ok(()) } else { Err(cannot_remove(&**storage)) });
        let meeting = self.checkpoint.meeting(collective);
        meeting.agree(&call)?;
        let background = &mut self.background;
        meeting.rounds(|timeout| if background.rest(timeout) { Ok(own.take()) } else { Ok(None) })
    }

    fn load_chosen(
        &self,
        collective: &dyn Collective,
        request: &mut LoadRequest<'_>,
        choice: &Choice,
    ) -> Result<Loaded, CheckpointError> {
        let further = request.check;
        let check = |iteration: Option<Iteration>, saved: Option<&TrainerState>| {
            let (Some(at), Some(state)) = (iteration, saved) else {
                return Err(CheckpointError::NoTrainerState);
            };
            let mut differences = compare_architecture(&state.model, &self.model);
            differences.retain(|difference| !difference.is_padding());
            if !differences.is_empty() {
                return Err(CheckpointError::Architecture { iteration: at.0, differences });
            }
            further.map_or(Ok(()), |check| check(iteration, saved))
        };
        let chosen = choice.chosen.as_ref().map(|(iteration, _)| Iteration(*iteration));
        let mut load = request.reborrow();
        load.iteration = chosen.or(load.iteration);
        load.check = Some(&check);
        self.checkpoint.load(collective, load)
    }

    fn judge(
        &self,
        meeting: &Meeting<'_>,
        error: &CheckpointError,
        at: Option<Iteration>,
        choice: &Choice,
    ) -> Verdict {
        // Ranks that cannot meet cannot agree on anything else.
        if at.is_some() || matches!(error, CheckpointError::Collective(_)) {
            return Verdict::Failed;
        }
        let storage = Arc::clone(self.checkpoint.storage());
        let none = matches!(error, CheckpointError::NoCheckpoint { .. });
        let may_be_gone =
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Corrupt);
        let chosen = choice.chosen.clone();
        let verdict = meeting.lead(|| async move {
            let verdict = match chosen {
                None if none => Verdict::Fresh,
                Some((iteration, attempt)) if may_be_gone => {
                    match named_attempt(&*storage, Iteration(iteration)).await? {
                        Some(named) if named.as_str() == attempt => Verdict::Failed,
                        _ => Verdict::Removed,
                    }
                }
                _ => Verdict::Failed,
            };
            Ok(((), Bytes::from(vec![verdict as u8])))
        });
        match verdict {
            Ok((_, byte)) if byte[..] == [Verdict::Fresh as u8] => Verdict::Fresh,
            Ok((_, byte)) if byte[..] == [Verdict::Removed as u8] => Verdict::Removed,
            _ => Verdict::Failed,
        }
    }

    fn resumed(&self, loaded: Loaded) -> Result<Resumed, CheckpointError> {
        let Loaded { iteration, tensors, objects, trainer_state, report } = loaded;
        let (Some(iteration), Some(saved)) = (iteration, trainer_state) else {
            return Err(CheckpointError::NoTrainerState); // refused before any data was read
        };
        let saved_sizes = saved.ran_with;
        let state = TrainerState { model: self.model.clone(), ran_with: self.sizes, ..saved };
        Ok(Resumed { iteration, tensors, objects, state, saved_sizes, report })
    }
}
