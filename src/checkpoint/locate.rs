use super::CheckpointError;
use super::commit::{FoundCommit, iteration_path, newest, read_commit};
use super::error::LOOK;
use crate::foreign::{Directory, ForeignError, Opened, detect};
use crate::format::{
    Commit, CommittedCheckpoint, Iteration, METADATA_FILE, Metadata, ObjectDigest, SavedLayout,
    TRAINER_STATE_FILE, TrainerState,
};
use crate::transfer::TransferError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use reshard_storage::{StorageBackend, StoragePath};

/// Longest trainer_state.json that is read.
const MAX_TRAINER_STATE_BYTES: u64 = 256 << 20;

/// Whose checkpoint it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    Native,
    /// Another tool's: no commit, no attempt, no checksums.
    Foreign,
}

/// A checkpoint that was found, with its documents: what a load is planned from, on every rank.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Located {
    pub(super) origin: Origin,
    /// `None` where another tool's files don't say.
    pub(super) iteration: Option<Iteration>,
    /// What the paths of the layout's files are relative to: of a run of this library, the attempt's directory.
    pub(super) directory: Directory,
    pub(super) layout: SavedLayout,
    pub(super) trainer_state: Option<TrainerState>,
}

impl Located {
    /// Finds the given iteration, or the newest committed one, and reads and verifies its documents; where the place is
    /// no run of this library, another tool's checkpoint. `file` names one file of the store, which can only be
    /// another tool's.
    ///
    /// The bytes are for the other ranks, which make the same of them with [`Located::from_bytes`].
    pub(super) async fn find(
        storage: &dyn StorageBackend,
        file: Option<&StoragePath>,
        wanted: Option<Iteration>,
    ) -> Result<(Self, Bytes), CheckpointError> {
        if file.is_none()
            && let Some((iteration, checkpoint)) = committed(storage, wanted).await?
        {
            let path = iteration_path(iteration).map_err(TransferError::from)?;
            let directory = path.join(&checkpoint.attempt().directory()).map_err(TransferError::from)?;
            let found = native(storage, iteration, &checkpoint, directory.clone()).await;
            let Some(missing) = found.as_ref().err().and_then(CheckpointError::missing_object) else {
                return found;
            };
            if !is_committed(storage, iteration, &Directory::new(Some(directory))).await? {
                return Err(CheckpointError::RemovedWhileLoading { iteration: iteration.0 });
            }
            let (place, file) = (storage.to_string(), missing.to_string());
            return Err(CheckpointError::FilesChanged { place, file, detail: "is missing".to_owned() });
        }
        let opened = foreign(storage, file, wanted).await?;
        let mut bytes = BytesMut::new();
        bytes.put_u8(FOREIGN);
        let text = opened.to_bytes().map_err(|error| CheckpointError::Invalid(error.to_string()))?;
        bytes.put_slice(&text);
        Ok((Self::from(opened), bytes.freeze()))
    }

    /// What rank 0 found, from its bytes.
    pub(super) fn from_bytes(mut bytes: Bytes) -> Result<Self, CheckpointError> {
        let lost = || CheckpointError::Transfer(TransferError::Lost);
        match bytes.try_get_u8().map_err(|_| lost())? {
            FOREIGN => Opened::from_bytes(&bytes).map(Self::from).ok_or_else(lost),
            _ => {
                let (iteration, directory, [metadata, state]) = split_native(bytes).ok_or_else(lost)?;
                let metadata = Metadata::parse(&format!("{directory}/{METADATA_FILE}"), &metadata)?;
                let state = TrainerState::parse(&format!("{directory}/{TRAINER_STATE_FILE}"), &state)?;
                Ok(Self::native(iteration, directory, metadata, state))
            }
        }
    }

    fn native(
        iteration: Iteration,
        directory: StoragePath,
        metadata: Metadata,
        trainer_state: TrainerState,
    ) -> Self {
        Self {
            origin: Origin::Native,
            iteration: Some(iteration),
            directory: Directory::new(Some(directory)),
            layout: metadata.layout,
            trainer_state: Some(trainer_state),
        }
    }
}

impl From<Opened> for Located {
    fn from(opened: Opened) -> Self {
        let Opened { iteration, trainer_state, layout, directory } = opened;
        Self { origin: Origin::Foreign, iteration, directory, layout, trainer_state }
    }
}

/// The commit of the given iteration, or of the newest; `None` where there is none.
async fn committed(
    storage: &dyn StorageBackend,
    wanted: Option<Iteration>,
) -> Result<Option<(Iteration, CommittedCheckpoint)>, CheckpointError> {
    let Some(iteration) = wanted else { return newest(storage).await };
    match read_commit(storage, iteration).await? {
        None => Ok(None),
        Some(FoundCommit { commit: Commit::Committed(checkpoint), .. }) => Ok(Some((iteration, checkpoint))),
        Some(FoundCommit { commit, .. }) => {
            let checkpoint = commit.committed(&format!("{iteration} in {storage}"))?;
            Ok(Some((iteration, checkpoint)))
        }
    }
}

/// Another tool's checkpoint: at `file`, or at the root of the store, or of an iteration below it.
async fn foreign(
    storage: &dyn StorageBackend,
    file: Option<&StoragePath>,
    wanted: Option<Iteration>,
) -> Result<Opened, CheckpointError> {
    let place = match wanted {
        None => storage.to_string(),
        Some(iteration) => format!("{iteration} in {storage}"),
    };
    let nothing = |hint: String| CheckpointError::NoCheckpoint { place: place.clone(), hint };
    let below = match (file, wanted) {
        (Some(_), Some(_)) => return Err(nothing("one file has no iterations; leave it out".to_owned())),
        (Some(file), None) => Some(file.clone()),
        (None, Some(iteration)) => Some(iteration_path(iteration).map_err(TransferError::from)?),
        (None, None) => None,
    };
    let detected = match detect(storage, below.as_ref()).await {
        Err(ForeignError::Nothing { hint, .. }) => return Err(nothing(format!("{hint}; {LOOK}"))),
        Err(ForeignError::Unrecognised { hint, .. }) if wanted.is_some() => return Err(nothing(hint)),
        other => other?,
    };
    Opened::open(storage, &detected).await?.ok_or_else(|| nothing(LOOK.to_owned()))
}

/// Whether the iteration's commit still names the attempt in `directory`.
pub(super) async fn is_committed(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    directory: &Directory,
) -> Result<bool, CheckpointError> {
    let found = read_commit(storage, iteration).await?;
    let attempt = directory.prefix().map(StoragePath::name);
    Ok(matches!(found, Some(FoundCommit { commit: Commit::Committed(checkpoint), .. })
        if attempt == Some(&*checkpoint.attempt().directory())))
}

/// First byte of what rank 0 sends: which of the two follows.
const NATIVE: u8 = 0;
const FOREIGN: u8 = 1;

/// The digest with the object's whole path, for its errors.
fn named(digest: &ObjectDigest, path: &StoragePath) -> ObjectDigest {
    ObjectDigest { path: path.as_str().to_owned(), ..digest.clone() }
}

/// Reads and verifies the documents of a checkpoint of this library, whose attempt lies in `directory`. The other ranks get them byte for byte, so that
/// each parses and proves what was saved.
async fn native(
    storage: &dyn StorageBackend,
    iteration: Iteration,
    checkpoint: &CommittedCheckpoint,
    directory: StoragePath,
) -> Result<(Located, Bytes), CheckpointError> {
    let digest = checkpoint.metadata();
    let path =
        iteration_path(iteration).and_then(|path| path.join(&digest.path)).map_err(TransferError::from)?;
    let state_path = directory.join(TRAINER_STATE_FILE).map_err(TransferError::from)?;
    // Both at once: a store far away answers each after a while.
    let (metadata, trainer_state) = futures::join!(
        storage.read_all(&path, digest.length),
        storage.read_all(&state_path, MAX_TRAINER_STATE_BYTES)
    );
    let (metadata, _) = metadata?;
    named(digest, &path).check(&metadata)?;
    let parsed = Metadata::parse(path.as_str(), &metadata)?;
    let digest = &parsed.trainer_state;
    let path = directory.join(&digest.path).map_err(TransferError::from)?;
    let (trainer_state, _) = match digest.path.as_str() {
        TRAINER_STATE_FILE => trainer_state?,
        _ => storage.read_all(&path, digest.length.min(MAX_TRAINER_STATE_BYTES)).await?,
    };
    named(digest, &path).check(&trainer_state)?;

    let mut bytes = BytesMut::new();
    bytes.put_u8(NATIVE);
    bytes.put_u64(iteration.0);
    for part in [directory.as_str().as_bytes(), &metadata, &trainer_state] {
        bytes.put_u64(part.len() as u64);
        bytes.put_slice(part);
    }
    let trainer_state = TrainerState::parse(path.as_str(), &trainer_state)?;
    Ok((Located::native(iteration, directory, parsed, trainer_state), bytes.freeze()))
}

/// What [`native`] made; `None` for bytes of another form.
fn split_native(mut bytes: Bytes) -> Option<(Iteration, StoragePath, [Bytes; 2])> {
    let iteration = Iteration(bytes.try_get_u64().ok()?);
    let mut part = || {
        let length = usize::try_from(bytes.try_get_u64().ok()?).ok()?;
        (length <= bytes.len()).then(|| bytes.split_to(length))
    };
    let directory = String::from_utf8(part()?.to_vec()).ok()?;
    Some((iteration, StoragePath::parse(directory).ok()?, [part()?, part()?]))
}
