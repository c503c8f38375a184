use super::destinations::{Placed, lend};
use super::locate::{Located, Origin, is_committed};
use super::meeting::Meeting;
use super::report::{LoadFigures, LoadReport, PhaseSeconds, Verification};
use super::{Checkpoint, CheckpointError};
use crate::foreign::Directory;
use crate::format::{Iteration, SavedLayout, TrainerState};
use crate::plan::{Destination, LoadPlan, LoadPlanner, LoadRules, ObjectChoice, choose_objects};
use crate::transfer::{Job, ReadJob, ReadMode, ReadStats, Staging, TransferError, read};
use bytes::Bytes;
use reshard_collective::{Collective, Reduce};
use reshard_device::{Buffer, DestinationHandle};
use reshard_shard::ShardedStateDict;
use reshard_storage::Depth;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The caller's local buffers by key, for a load into existing tensors.
pub type LoadBuffers<'a> = BTreeMap<&'a str, &'a mut [u8]>;

/// When the loaded bytes become visible, and where.
#[derive(Default)]
pub enum CommitMode<'a> {
    /// The library allocates new tensors and returns them after the vote; a fresh resume needs one copy of the state.
    #[default]
    Allocate,
    /// Bytes go into the caller's buffers as they come. Needs no second copy; after a failure midway the contents are
    /// undefined on every rank, and the error says so.
    InPlace(LoadBuffers<'a>),
    /// Bytes go into a second copy and are moved into the caller's buffers after the vote: all ranks see the new state
    /// or all keep the old one.
    Staged(LoadBuffers<'a>),
}

impl CommitMode<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::InPlace(_) => "in_place",
            Self::Staged(_) => "staged",
        }
    }

    fn reborrow(&mut self) -> CommitMode<'_> {
        fn again<'b>(buffers: &'b mut LoadBuffers<'_>) -> LoadBuffers<'b> {
            buffers.iter_mut().map(|(key, buffer)| (*key, &mut **buffer)).collect()
        }
        match self {
            Self::Allocate => CommitMode::Allocate,
            Self::InPlace(buffers) => CommitMode::InPlace(again(buffers)),
            Self::Staged(buffers) => CommitMode::Staged(again(buffers)),
        }
    }
}

/// What a rank wants to load.
pub struct LoadRequest<'a> {
    /// Which iteration; `None` = the newest committed one.
    pub iteration: Option<Iteration>,
    /// This rank's shards on the running topology.
    pub target: &'a ShardedStateDict,
    /// Where the bytes go.
    pub mode: CommitMode<'a>,
    /// Selection, dtypes, costs, ties, verification.
    pub rules: LoadRules,
    /// Which per-rank objects.
    pub objects: ObjectChoice,
    /// Wanted keys that the checkpoint lacks are reported, not an error: tensors of the caller keep what they hold, and
    /// [`CommitMode::Allocate`] makes none for them.
    pub allow_missing: bool,
    /// Saved keys that no rank wants are reported, not an error.
    pub allow_unexpected: bool,
    /// Looks at the saved state of the training loop before any data is read; its error stops the load on all ranks.
    pub check: Option<CheckState<'a>>,
}

/// A look at a saved iteration and its state of the training loop; both are `None` where [`Loaded`]'s are.
pub type CheckState<'a> = &'a dyn Fn(Option<Iteration>, Option<&TrainerState>) -> Result<(), CheckpointError>;

impl<'a> LoadRequest<'a> {
    /// The newest checkpoint, all of it, verified, into new tensors.
    pub fn new(target: &'a ShardedStateDict) -> Self {
        Self {
            iteration: None,
            target,
            mode: CommitMode::Allocate,
            rules: LoadRules { verify: true, ..LoadRules::default() },
            objects: ObjectChoice::Own,
            allow_missing: false,
            allow_unexpected: false,
            check: None,
        }
    }

    /// The same request once more, for a load that may have to be repeated.
    pub(crate) fn reborrow(&mut self) -> LoadRequest<'_> {
        LoadRequest {
            iteration: self.iteration,
            target: self.target,
            mode: self.mode.reborrow(),
            rules: self.rules.clone(),
            objects: self.objects,
            allow_missing: self.allow_missing,
            allow_unexpected: self.allow_unexpected,
            check: self.check,
        }
    }
}

/// What a load returns, on every rank or on none.
#[derive(Debug)]
pub struct Loaded {
    /// The iteration; `None` for safetensors files, which don't say one.
    pub iteration: Option<Iteration>,
    /// New tensors by key, with `CommitMode::Allocate`; a tied tensor is under its owner's key.
    pub tensors: BTreeMap<String, Buffer>,
    /// The chosen per-rank objects by name and saving rank.
    pub objects: BTreeMap<(String, u32), Bytes>,
    /// The state of the training loop as it was saved; `None` for another tool's checkpoint without one (safetensors
    /// files never have one).
    pub trainer_state: Option<TrainerState>,
    /// What was done.
    pub report: LoadReport,
}

/// A planned load of this rank.
struct Planned {
    plan: Arc<LoadPlan>,
    staging: Staging,
    placed: Placed,
}

pub(super) fn load(
    checkpoint: &Checkpoint,
    collective: &dyn Collective,
    mut request: LoadRequest<'_>,
) -> Result<Loaded, CheckpointError> {
    let meeting = Meeting::new(collective, &checkpoint.options.meetings);
    let retries = checkpoint.retries();
    let start = Instant::now();
    let call = format!(
        "load {} of {} (call {}, mode {}, verify {}, objects {:?}, reshard {})",
        request.iteration.map_or_else(|| "the newest".to_owned(), |iteration| iteration.to_string()),
        checkpoint.storage,
        checkpoint.next_call(),
        request.mode.name(),
        request.rules.verify,
        request.objects,
        env!("CARGO_PKG_VERSION"),
    );
    meeting.agree(&call)?;

    let located = locate(checkpoint, &meeting, request.iteration)?;
    let Located { origin, iteration, directory, layout, trainer_state } = located;
    let layout = Arc::new(layout);
    let checked = request.check.map_or(Ok(()), |check| check(iteration, trainer_state.as_ref()));
    let planned = checked.and_then(|()| plan(checkpoint, collective, &mut request, &layout));
    let Judged { missing, first_rank, unexpected } =
        judge(&meeting, &request, &layout, planned.as_ref().ok())?;
    let planned = planned.and_then(|planned| {
        if !missing.is_empty() && !request.allow_missing {
            return Err(CheckpointError::Missing { keys: missing.clone(), rank: first_rank });
        }
        if !unexpected.is_empty() && !request.allow_unexpected {
            return Err(CheckpointError::Unexpected { keys: unexpected.clone() });
        }
        Ok(planned)
    });
    let Planned { plan, staging, mut placed } = meeting.settle(planned)?;
    let in_place = matches!(request.mode, CommitMode::InPlace(_));
    if in_place {
        look(checkpoint, &meeting, iteration.filter(|_| origin == Origin::Native), &directory, &layout)?;
    }
    let planned_at = Instant::now();

    let source = Source { checkpoint, directory: &directory, layout: &layout, staging: &staging };
    let moved = source.fill(&meeting, &plan, &mut placed, &mut request.mode);
    let stats = match moved {
        Ok(stats) => stats,
        Err(error) => {
            let error = match (origin, iteration) {
                (Origin::Native, Some(iteration)) => source.explain(&meeting, iteration, error),
                _ => error,
            };
            return Err(if in_place {
                CheckpointError::ContentsUndefined { cause: Box::new(error) }
            } else {
                error
            });
        }
    };
    let moved_at = Instant::now();

    // All ranks have everything, verified: from here nothing can fail before it is visible everywhere.
    let (tensors, objects) = placed.reveal(&plan, &mut request.mode);
    let own = figures(&plan, &stats);
    let total = total(&meeting, &own)?;
    let report = LoadReport {
        iteration: iteration.map(|iteration| iteration.0),
        rank: collective.rank(),
        world_size: collective.size(),
        own,
        total,
        retries: checkpoint.retries() - retries,
        seconds: PhaseSeconds {
            plan: (planned_at - start).as_secs_f64(),
            data: (moved_at - planned_at).as_secs_f64(),
            commit: moved_at.elapsed().as_secs_f64(),
        },
        peak_staging_bytes: staging.pool().peak_bytes(),
        verification: match (request.rules.verify, layout.files.iter().all(|file| file.blocks.is_some())) {
            (false, _) => Verification::Off,
            (true, true) => Verification::Verified,
            (true, false) => Verification::Unverified,
        },
        overflowed: stats.overflowed,
        missing,
        unexpected,
        notes: Vec::new(),
    };
    Ok(Loaded { iteration, tensors, objects, trainer_state, report })
}

/// Rank 0 alone finds the checkpoint and reads its small files; the others get what it read.
fn locate(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    wanted: Option<Iteration>,
) -> Result<Located, CheckpointError> {
    let (storage, file) = (Arc::clone(&checkpoint.storage), checkpoint.file.clone());
    let (found, bytes) =
        meeting.lead(|| async move { Located::find(&*storage, file.as_ref(), wanted).await })?;
    // Rank 0 has parsed and proven it already.
    meeting.settle(found.map_or_else(|| Located::from_bytes(bytes), Ok))
}

fn plan(
    checkpoint: &Checkpoint,
    collective: &dyn Collective,
    request: &mut LoadRequest<'_>,
    layout: &Arc<SavedLayout>,
) -> Result<Planned, CheckpointError> {
    let staging = checkpoint.staging(collective)?;
    let rules = &mut request.rules;
    rules.cost.request_bytes = rules.cost.request_bytes.min(staging.request_bytes());
    let choice = if rules.select.wants_objects() { request.objects } else { ObjectChoice::Fresh };
    let objects = choose_objects(layout, choice, collective.rank() as u32, collective.size() as u32)?;
    let plan = Arc::new(LoadPlanner::new(layout, rules).plan_with_objects(request.target, &objects)?);
    let placed = Placed::new(&*checkpoint.options.device, &plan, request.target, &request.mode)?;
    Ok(Planned { plan, staging, placed })
}

/// What was found over all ranks.
#[derive(Default)]
struct Judged {
    /// Wanted keys that the checkpoint lacks.
    missing: Vec<String>,
    /// The lowest rank that wants one of them.
    first_rank: usize,
    /// Saved keys that no rank wants.
    unexpected: Vec<String>,
}

/// Which wanted keys the checkpoint lacks and which saved keys no rank wants. Both are judged over all ranks, so that a
/// pipeline stage need not know the other stages' keys. Where a rank has no plan its error counts, and nothing is judged.
fn judge(
    meeting: &Meeting<'_>,
    request: &LoadRequest<'_>,
    layout: &SavedLayout,
    planned: Option<&Planned>,
) -> Result<Judged, CheckpointError> {
    let used = |key: &String| planned.is_some_and(|planned| planned.plan.used.contains(key));
    let own = planned.map_or(&[][..], |planned| &planned.plan.missing);
    let mut words = vec![u64::from(planned.is_none()), u64::from(!own.is_empty())];
    words.extend(layout.tensors.keys().map(|key| u64::from(used(key))));
    let over_all = meeting.collective.all_reduce(&words, Reduce::Max, meeting.deadline())?;
    let [failed, any_missing, used @ ..] = &over_all[..] else { return Err(TransferError::Lost.into()) };
    if *failed > 0 {
        return Ok(Judged::default());
    }
    let unexpected = layout
        .tensors
        .iter()
        .zip(used)
        .filter(|((key, tensor), used)| **used == 0 && request.rules.select.wants(key, tensor.group))
        .map(|((key, _), _)| key.clone())
        .collect();
    let (missing, first_rank) = if *any_missing > 0 { meeting.union(own)? } else { Default::default() };
    Ok(Judged { missing, first_rank, unexpected })
}

/// Before the first byte goes into the caller's tensors: are all files there, and whole? `iteration` is that of a run of
/// this library, whose commit says whether a missing file was removed on purpose.
fn look(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    iteration: Option<Iteration>,
    directory: &Directory,
    layout: &Arc<SavedLayout>,
) -> Result<(), CheckpointError> {
    let (storage, directory, layout) =
        (Arc::clone(&checkpoint.storage), directory.clone(), Arc::clone(layout));
    meeting.lead(|| async move {
        let nested = layout.files.iter().any(|file| file.path.contains('/'));
        let depth = if nested { Depth::All } else { Depth::Children };
        let listing = storage.list(directory.prefix(), depth).await?;
        let found: BTreeMap<&str, u64> = listing
            .objects
            .iter()
            .filter_map(|object| Some((directory.relative(&object.path)?, object.len)))
            .collect();
        for file in &layout.files {
            let detail = match found.get(file.path.as_str()) {
                Some(&length) if length == file.length => continue,
                Some(length) => format!("has {length} bytes instead of {}", file.length),
                None => {
                    if let Some(iteration) = iteration
                        && !is_committed(&*storage, iteration, &directory).await?
                    {
                        return Err(CheckpointError::RemovedWhileLoading { iteration: iteration.0 });
                    }
                    "is missing".to_owned()
                }
            };
            let place = directory.to_string();
            return Err(CheckpointError::FilesChanged { place, file: file.path.clone(), detail });
        }
        Ok(((), Bytes::new()))
    })?;
    Ok(())
}

/// Where a rank reads from.
struct Source<'a> {
    checkpoint: &'a Checkpoint,
    directory: &'a Directory,
    layout: &'a Arc<SavedLayout>,
    staging: &'a Staging,
}

impl Source<'_> {
    /// Fills the destinations; returns once every rank has all its bytes, verified, and tied copies are compared.
    fn fill(
        &self,
        meeting: &Meeting<'_>,
        plan: &Arc<LoadPlan>,
        placed: &mut Placed,
        mode: &mut CommitMode<'_>,
    ) -> Result<ReadStats, CheckpointError> {
        lend(placed, plan, mode, |handles| {
            let job = handles.and_then(|handles| {
                let by_destination: BTreeMap<Destination, DestinationHandle> = plan
                    .tensors
                    .iter()
                    .zip(&handles)
                    .map(|(tensor, handle)| (tensor.destination.clone(), handle.clone()))
                    .collect();
                let main = self.job(plan, handles, ReadMode::Fill);
                let ties = match &plan.ties {
                    None => None,
                    Some(ties) => {
                        let handles = ties
                            .tensors
                            .iter()
                            .filter_map(|tied| by_destination.get(&tied.destination).cloned());
                        Some(self.job(&Arc::new((**ties).clone()), handles.collect(), ReadMode::Compare))
                    }
                };
                Ok(Job::start(async move {
                    let mut stats = read(main).await?;
                    if let Some(ties) = ties {
                        stats.add(&read(ties).await?);
                    }
                    Ok::<_, TransferError>(stats)
                })?)
            });
            meeting.work(job)
        })
    }

    fn job(&self, plan: &Arc<LoadPlan>, destinations: Vec<DestinationHandle>, mode: ReadMode) -> ReadJob {
        ReadJob {
            storage: Arc::clone(&self.checkpoint.storage),
            directory: self.directory.prefix().cloned(),
            saved: Arc::clone(self.layout),
            plan: Arc::clone(plan),
            destinations,
            mode,
            staging: self.staging.clone(),
            concurrency: self.checkpoint.options.concurrency,
            progress: Arc::clone(&self.checkpoint.options.progress),
        }
    }

    /// A file that is not there may have been removed meanwhile: rank 0 reads the commit once more. All ranks failed
    /// together, so all come to this meeting; where it fails too, the first error stands.
    fn explain(
        &self,
        meeting: &Meeting<'_>,
        iteration: Iteration,
        error: CheckpointError,
    ) -> CheckpointError {
        let missing = error.is_missing_object()
            || matches!(&error, CheckpointError::RankFailed { kind: super::ErrorKind::NotFound, .. });
        let Ok(any) = meeting.collective.all_reduce(&[u64::from(missing)], Reduce::Max, meeting.deadline())
        else {
            return error;
        };
        if any != [1] {
            return error;
        }
        let (storage, directory) = (Arc::clone(&self.checkpoint.storage), self.directory.clone());
        let same = meeting.lead(|| async move {
            let same = is_committed(&*storage, iteration, &directory).await?;
            Ok(((), Bytes::from(vec![u8::from(same)])))
        });
        match same {
            Ok((_, answer)) if answer[..] == [0] => {
                CheckpointError::RemovedWhileLoading { iteration: iteration.0 }
            }
            _ => error,
        }
    }
}

fn figures(plan: &LoadPlan, stats: &ReadStats) -> LoadFigures {
    let ties = plan.ties.as_ref().map(|ties| ties.cost).unwrap_or_default();
    LoadFigures {
        bytes_needed: plan.cost.bytes_needed + ties.bytes_needed,
        bytes_fetched: stats.bytes_fetched,
        verify_over_read: plan.cost.verify_over_read + ties.verify_over_read,
        coalesce_over_read: plan.cost.coalesce_over_read + ties.coalesce_over_read,
        table_bytes: stats.table_bytes,
        requests: stats.requests,
    }
}

fn total(meeting: &Meeting<'_>, own: &LoadFigures) -> Result<LoadFigures, CheckpointError> {
    let words = [
        own.bytes_needed,
        own.bytes_fetched,
        own.verify_over_read,
        own.coalesce_over_read,
        own.table_bytes,
        own.requests,
    ];
    let [bytes_needed, bytes_fetched, verify_over_read, coalesce_over_read, table_bytes, requests] =
        meeting.sum(&words)?[..]
    else {
        return Err(TransferError::Lost.into());
    };
    Ok(LoadFigures {
        bytes_needed,
        bytes_fetched,
        verify_over_read,
        coalesce_over_read,
        table_bytes,
        requests,
    })
}
