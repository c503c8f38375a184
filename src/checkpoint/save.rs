use super::commit::{Opening, check_listing, delete_attempt, open_attempt, publish};
use super::meeting::Meeting;
use super::report::{PhaseSeconds, SaveReport};
use super::{Checkpoint, CheckpointError, CommitState, ErrorKind, SaveError};
use crate::format::{
    AttemptId, CommittedCheckpoint, FileHeader, Iteration, Limits, METADATA_FILE, ObjectDigest,
    TRAINER_STATE_FILE, TrainerState, merge,
};
use crate::plan::{
    Declaration, ObjectLengths, SavePlan, SavePlanner, WriteSource, check_declarations, decode_declarations,
    encode_declarations, manifest,
};
use crate::transfer::{Job, Sources, TransferError, WriteJob, WrittenFile, write};
use bytes::Bytes;
use reshard_collective::Collective;
use reshard_device::with_sources;
use reshard_shard::{ShardedStateDict, StateGroup};
use reshard_storage::StorageBackend;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The bytes of this rank's local buffers by key. Aliases need none.
pub type SaveData<'a> = BTreeMap<&'a str, &'a [u8]>;

/// What a rank saves.
pub struct SaveRequest<'a> {
    /// The iteration.
    pub iteration: Iteration,
    /// This rank's shards.
    pub state: &'a ShardedStateDict,
    /// Their bytes: for every tensor that is not an alias a buffer of `local_bytes`. An alias needs none; where some are
    /// given, they must be its owner's.
    pub data: SaveData<'a>,
    /// This rank's own byte objects by name (RNG state, data-loader position).
    pub objects: BTreeMap<String, &'a [u8]>,
    /// The state of the training loop; the same on every rank.
    pub trainer_state: &'a TrainerState,
    /// Keys of the model that must be in `state`: a parameter that the sharding forgot is an error, not a hole in the
    /// checkpoint.
    pub model_keys: &'a [String],
    /// Whether a committed checkpoint of the iteration is replaced.
    pub replace: bool,
    /// Bounds of the data files.
    pub limits: Limits,
    /// How long the outcome of the commit is looked for after a lost answer.
    pub commit_within: Duration,
}

impl<'a> SaveRequest<'a> {
    /// A save of these shards with defaults for all else.
    pub fn new(
        iteration: Iteration,
        state: &'a ShardedStateDict,
        data: SaveData<'a>,
        trainer_state: &'a TrainerState,
    ) -> Self {
        Self {
            iteration,
            state,
            data,
            objects: BTreeMap::new(),
            trainer_state,
            model_keys: &[],
            replace: false,
            limits: Limits::default(),
            commit_within: Duration::from_secs(120),
        }
    }
}

/// What rank 0 keeps of an attempt between meetings.
struct Prepared {
    checkpoint: CommittedCheckpoint,
    metadata_bytes: u64,
}

pub(super) fn save(
    checkpoint: &Checkpoint,
    collective: &dyn Collective,
    request: SaveRequest<'_>,
) -> Result<SaveReport, SaveError> {
    let iteration = request.iteration.0;
    let fail = |state, source| SaveError { iteration, state, source };
    let before = |source| fail(CommitState::NotCommitted, source);
    let meeting = Meeting::new(collective, &checkpoint.options.meetings);
    let (rank, world_size) = (collective.rank(), collective.size());
    let retries = checkpoint.retries();
    let start = Instant::now();

    let trainer_state = request.trainer_state.to_bytes().map_err(CheckpointError::from);
    let call = format!(
        "save {} of {} (call {}, replace {}, trainer state {}, reshard {})",
        request.iteration,
        checkpoint.storage,
        checkpoint.next_call(),
        request.replace,
        trainer_state.as_ref().map_or_else(|_| "invalid".to_owned(), |bytes| short_digest(bytes)),
        env!("CARGO_PKG_VERSION"),
    );
    meeting.agree(&call).map_err(before)?;

    let (opening, attempt) = open(checkpoint, &meeting, &request).map_err(before)?;
    let staging = checkpoint.staging(collective);
    let plan = check(checkpoint, &request).and_then(|()| {
        let header = FileHeader {
            attempt: &attempt,
            iteration: request.iteration,
            rank: rank as u32,
            world_size: world_size as u32,
        };
        let lengths: ObjectLengths =
            request.objects.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect();
        Ok(Arc::new(SavePlanner::new(header, request.limits).plan(request.state, &lengths)?))
    });
    let planned = Instant::now();

    let peak = staging.as_ref().ok().map(|staging| staging.pool().clone());
    let ready = plan.and_then(|plan| Ok((plan, staging?, trainer_state?)));
    let written = write_data(checkpoint, &meeting, &request, &attempt, &ready);
    let moved = Instant::now();
    let published = written.and_then(|files| {
        let (plan, _, trainer_state) = ready.as_ref().map_err(Clone::clone)?;
        let prepared = prepare(checkpoint, &meeting, &request, &opening, plan, &files, trainer_state)?;
        Ok((files, prepared))
    });
    let (files, prepared) = match published {
        Ok(published) => published,
        Err(error) => {
            give_up(checkpoint, &meeting, opening, &error);
            return Err(before(error));
        }
    };

    let metadata_bytes = prepared.as_ref().map_or(0, |prepared| prepared.metadata_bytes);
    let outcome = commit(checkpoint, &meeting, &request, opening, prepared);
    outcome.map_err(|(state, source)| fail(state, source))?;
    let bytes = ready.as_ref().map_or(0, |(plan, ..)| plan.bytes);
    // Committed from here on: the figures are all that can still fail.
    let sums =
        meeting.sum(&[bytes, metadata_bytes]).map_err(|source| fail(CommitState::Committed, source))?;
    Ok(SaveReport {
        iteration,
        attempt: attempt.to_string(),
        rank,
        world_size,
        bytes,
        total_bytes: sums.first().copied().unwrap_or(0),
        files: files.len() as u64,
        requests: files.iter().map(|file| file.requests).sum(),
        retries: checkpoint.retries() - retries,
        metadata_bytes: sums.get(1).copied().unwrap_or(0),
        seconds: PhaseSeconds {
            plan: (planned - start).as_secs_f64(),
            data: (moved - planned).as_secs_f64(),
            commit: moved.elapsed().as_secs_f64(),
        },
        peak_staging_bytes: peak.map_or(0, |pool| pool.peak_bytes()),
        notes: Vec::new(),
    })
}

fn short_digest(bytes: &[u8]) -> String {
    crate::format::Sha256::of(bytes).to_string().chars().take(16).collect()
}

/// Rank 0 reads what is there and draws the attempt; all ranks learn its id.
fn open(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    request: &SaveRequest<'_>,
) -> Result<(Option<Opening>, AttemptId), CheckpointError> {
    let (storage, iteration, replace) = (Arc::clone(&checkpoint.storage), request.iteration, request.replace);
    let (opening, id) = meeting.lead(|| async move {
        let opening = open_attempt(&*storage, iteration, replace).await?;
        let id = Bytes::copy_from_slice(opening.attempt.as_str().as_bytes());
        Ok((opening, id))
    })?;
    let attempt = String::from_utf8_lossy(&id).parse()?;
    Ok((opening, attempt))
}

/// Checks the caller's arguments against each other.
fn check(checkpoint: &Checkpoint, request: &SaveRequest<'_>) -> Result<(), CheckpointError> {
    let invalid = |text: String| Err(CheckpointError::Invalid(text));
    if let Some(file) = &checkpoint.file {
        return invalid(format!("`{file}` is one file; save to a directory"));
    }
    for (key, tensor) in request.state.iter().filter(|(_, tensor)| tensor.alias_of().is_none()) {
        match request.data.get(key) {
            None if tensor.placements().is_empty() => {}
            None => {
                return invalid(format!("tensor `{key}` is in the state dict but its bytes were not given"));
            }
            Some(bytes) if bytes.len() as u64 != tensor.local_bytes() => {
                return invalid(format!(
                    "tensor `{key}`: its local buffer has {} bytes and its shard of {} {:?} needs {}",
                    bytes.len(),
                    tensor.dtype(),
                    tensor.local_shape(),
                    tensor.local_bytes()
                ));
            }
            Some(_) => {}
        }
    }
    for (key, tensor) in request.state.iter() {
        let owner = tensor.alias_of().and_then(|owner| Some((owner, request.data.get(owner)?)));
        if let (Some(bytes), Some((owner, owners))) = (request.data.get(key), owner)
            && !std::ptr::eq(*bytes, *owners)
            && bytes != owners
        {
            return invalid(format!(
                "`{key}` is an alias of `{owner}`, and other bytes were given for it; give none, or save it as a tensor of its own"
            ));
        }
    }
    if let Some(key) = request.data.keys().find(|key| request.state.get(key).is_none()) {
        return invalid(format!("bytes were given for `{key}`, which is not in the state dict"));
    }
    let forgotten = request
        .model_keys
        .iter()
        .find(|key| request.state.get(key).is_none_or(|tensor| tensor.group() != StateGroup::Model));
    if let Some(key) = forgotten {
        return invalid(format!(
            "model tensor `{key}` is missing from the state dict; every parameter needs a sharding"
        ));
    }
    Ok(())
}

type Ready = Result<(Arc<SavePlan>, crate::transfer::Staging, Vec<u8>), CheckpointError>;

/// Uploads this rank's files; returns once every rank's data is durable.
fn write_data(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    request: &SaveRequest<'_>,
    attempt: &AttemptId,
    ready: &Ready,
) -> Result<Vec<WrittenFile>, CheckpointError> {
    let (mut kinds, mut slices) = (Vec::new(), Vec::new());
    for (&key, &bytes) in &request.data {
        kinds.push(WriteSource::Tensor(key.to_owned()));
        slices.push(bytes);
    }
    for (name, &bytes) in &request.objects {
        kinds.push(WriteSource::Object(name.clone()));
        slices.push(bytes);
    }
    let (under_way, ended) = channel();
    let written = with_sources(slices, |handles| {
        let job = ready.as_ref().map_err(Clone::clone).and_then(|(plan, staging, _)| {
            let directory = super::commit::iteration_path(request.iteration)
                .and_then(|path| path.join(&attempt.directory()))
                .map_err(TransferError::from)?;
            let sources: Sources = kinds.into_iter().zip(handles).collect();
            Ok(Job::start(write(WriteJob {
                storage: Arc::clone(&checkpoint.storage),
                directory,
                plan: Arc::clone(plan),
                sources,
                staging: staging.clone(),
                concurrency: checkpoint.options.concurrency,
                progress: Arc::clone(&checkpoint.options.progress),
                under_way,
            }))?)
        });
        meeting.work(job)
    });
    if written.is_err() {
        // What this rank still had under way is ending; rank 0 deletes the attempt only after that.
        let _ = ended.recv_timeout(CLEAN_UP);
    }
    written
}

/// Gathers what the ranks wrote on rank 0, which proves it, writes the metadata and looks that everything is there.
fn prepare(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    request: &SaveRequest<'_>,
    opening: &Option<Opening>,
    plan: &SavePlan,
    files: &[WrittenFile],
    trainer_state: &[u8],
) -> Result<Option<Prepared>, CheckpointError> {
    let tables: Vec<u32> = files.iter().map(|file| file.table_crc32c).collect();
    // A plan's own manifest cannot fail; if it does, an empty word makes rank 0 refuse the attempt by name.
    let manifest =
        manifest(plan, request.state, &tables).map(|manifest| manifest.encode()).unwrap_or_default();
    let word = [encode_declarations(&plan.declarations), manifest].concat();
    let gathered = meeting.collective.gather(0, Bytes::from(word), meeting.deadline())?;
    let (storage, opening) = (Arc::clone(&checkpoint.storage), opening.clone());
    let trainer_state = trainer_state.to_vec();
    let (prepared, _) = meeting.lead(|| async move {
        let (Some(opening), Some(gathered)) = (opening, gathered) else {
            return Err(TransferError::Lost.into());
        };
        let prepared = prove_and_describe(&*storage, &opening, &gathered, trainer_state).await?;
        Ok((prepared, Bytes::new()))
    })?;
    Ok(prepared)
}

async fn prove_and_describe(
    storage: &dyn StorageBackend,
    opening: &Opening,
    gathered: &[Bytes],
    trainer_state: Vec<u8>,
) -> Result<Prepared, CheckpointError> {
    let mut declared: Vec<Vec<Declaration>> = Vec::with_capacity(gathered.len());
    let mut manifests: Vec<(u32, &[u8])> = Vec::with_capacity(gathered.len());
    for (rank, word) in gathered.iter().enumerate() {
        let (declarations, rest) = decode_declarations(word)
            .ok_or_else(|| CheckpointError::Invalid(format!("rank {rank} sent no declarations")))?;
        declared.push(declarations);
        manifests.push((rank as u32, rest));
    }
    check_declarations(declared.iter().map(Vec::as_slice).enumerate())?;
    let digest = ObjectDigest::of(TRAINER_STATE_FILE, &trainer_state);
    let metadata = merge(manifests, digest)?;
    let bytes = Bytes::from(metadata.to_bytes()?);
    let directory = opening.directory()?;
    let path = |name: &str| directory.join(name).map_err(TransferError::from);
    storage.put(&path(TRAINER_STATE_FILE)?, trainer_state.clone().into()).await?;
    storage.put(&path(METADATA_FILE)?, bytes.clone().into()).await?;

    // One listing shows that every file is there and whole before anything points to it.
    let wanted = metadata
        .layout
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.length))
        .chain([(METADATA_FILE, bytes.len() as u64), (TRAINER_STATE_FILE, trainer_state.len() as u64)]);
    check_listing(storage, &directory, &opening.attempt, wanted).await?;
    let metadata_bytes = bytes.len() as u64;
    let checkpoint =
        CommittedCheckpoint::new(opening.iteration, opening.attempt.clone(), &bytes, Default::default())?;
    Ok(Prepared { checkpoint, metadata_bytes })
}

/// The conditional put and the final vote. What became of the put is told to all ranks, so that all say the same.
fn commit(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    request: &SaveRequest<'_>,
    opening: Option<Opening>,
    prepared: Option<Prepared>,
) -> Result<(), (CommitState, CheckpointError)> {
    let (storage, within) = (Arc::clone(&checkpoint.storage), request.commit_within);
    // A rank that hears nothing at all of the put cannot know.
    let unheard = |error| (CommitState::Unknown, error);
    let (own, told) = meeting
        .lead(|| async move {
            let (Some(opening), Some(prepared)) = (opening, prepared) else {
                return Err(TransferError::Lost.into());
            };
            let outcome = publish(&*storage, &opening, prepared.checkpoint, within).await;
            if matches!(&outcome, Err(error) if !matches!(error, CheckpointError::Unknown { .. })) {
                // Refused, and never to be put again: what the attempt wrote is garbage now.
                if let Err(left) = delete_attempt(&*storage, &opening).await {
                    tracing::warn!(attempt = %opening.attempt, error = %left, "the lost attempt was not removed; gc will");
                }
            }
            let told = tell(&outcome);
            Ok((outcome, told))
        })
        .map_err(unheard)?;
    let (state, failure) = hear(&told);
    match (own, failure) {
        (Some(Ok(_)), _) | (None, None) => Ok(()),
        (Some(Err(error)), _) => Err((state, error)),
        (None, Some((kind, cause))) => Err((state, CheckpointError::RankFailed { rank: 0, kind, cause })),
    }
}

/// What rank 0 tells of the put: nothing where it was written, else the error's kind and text, and first whether the
/// outcome is unknown.
fn tell<T>(outcome: &Result<T, CheckpointError>) -> Bytes {
    let Err(error) = outcome else { return Bytes::new() };
    let unknown = u8::from(matches!(error, CheckpointError::Unknown { .. }));
    let mut told = vec![unknown, error.kind().code()];
    told.extend(error.to_string().into_bytes());
    told.into()
}

fn hear(told: &[u8]) -> (CommitState, Option<(ErrorKind, String)>) {
    let [unknown, kind, text @ ..] = told else { return (CommitState::Committed, None) };
    let state = if *unknown == 1 { CommitState::Unknown } else { CommitState::NotCommitted };
    (state, Some((ErrorKind::from_code(*kind), String::from_utf8_lossy(text).into_owned())))
}

/// After a failure before the commit: rank 0, which will never publish the attempt, removes what it can, once the
/// others say that nothing of theirs comes any more. What remains all the same is for gc.
fn give_up(
    checkpoint: &Checkpoint,
    meeting: &Meeting<'_>,
    opening: Option<Opening>,
    error: &CheckpointError,
) {
    // Ranks that cannot meet any more are not waited for.
    if !matches!(error, CheckpointError::Collective(_)) {
        let _ = meeting.collective.barrier(meeting.deadline());
    }
    let Some(opening) = opening.filter(|_| meeting.is_lead()) else { return };
    let storage = Arc::clone(&checkpoint.storage);
    let removed = Job::start(async move {
        let removed = delete_attempt(&*storage, &opening).await;
        if let Err(error) = &removed {
            tracing::warn!(attempt = %opening.attempt, %error, "the failed attempt was not removed; gc will");
        }
    });
    // Bounded: a store that hangs must not keep the error back.
    if let Ok(job) = removed {
        let _ = job.wait(CLEAN_UP);
    }
}

/// How long a failed save waits for its own remains to be removed.
const CLEAN_UP: Duration = Duration::from_secs(10);
