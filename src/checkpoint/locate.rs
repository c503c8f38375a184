use super::CheckpointError;
use super::commit::{FoundCommit, iteration_path, newest, read_commit};
use crate::format::{Commit, Iteration, Metadata, TrainerState};
use crate::transfer::TransferError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use reshard_storage::{StorageBackend, StoragePath};

/// Longest trainer_state.json that is read.
const MAX_TRAINER_STATE_BYTES: u64 = 256 << 20;

/// What rank 0 finds and all ranks get: the checkpoint and its two documents, byte for byte.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Located {
    pub(super) iteration: Iteration,
    /// The attempt's directory, relative to the run.
    pub(super) directory: String,
    pub(super) metadata: Bytes,
    pub(super) trainer_state: Bytes,
}

impl Located {
    /// Finds the given iteration, or the newest committed one, and reads and verifies its documents.
    pub(super) async fn find(
        storage: &dyn StorageBackend,
        wanted: Option<Iteration>,
    ) -> Result<(Self, (Metadata, TrainerState)), CheckpointError> {
        let none = |place: String| CheckpointError::NoCheckpoint { place };
        let (iteration, checkpoint) = match wanted {
            None => newest(storage).await?.ok_or_else(|| none(storage.to_string()))?,
            Some(iteration) => {
                let found = read_commit(storage, iteration).await?;
                match found {
                    Some(FoundCommit { commit: Commit::Committed(checkpoint), .. }) => {
                        (iteration, checkpoint)
                    }
                    Some(FoundCommit { commit, .. }) => {
                        let place = format!("{iteration} in {storage}");
                        (iteration, commit.committed(&place)?)
                    }
                    None => return Err(none(format!("{iteration} in {storage}"))),
                }
            }
        };
        let iteration_directory = iteration_path(iteration).map_err(TransferError::from)?;
        let digest = checkpoint.metadata();
        let path = iteration_directory.join(&digest.path).map_err(TransferError::from)?;
        let (metadata, _) = storage.read_all(&path, digest.length).await?;
        digest.check(&metadata)?;
        let directory =
            iteration_directory.join(&checkpoint.attempt().directory()).map_err(TransferError::from)?;
        let parsed = Metadata::parse(path.as_str(), &metadata)?;
        let state = directory.join(&parsed.trainer_state.path).map_err(TransferError::from)?;
        let (trainer_state, _) =
            storage.read_all(&state, parsed.trainer_state.length.min(MAX_TRAINER_STATE_BYTES)).await?;
        parsed.trainer_state.check(&trainer_state)?;
        let state = TrainerState::parse(state.as_str(), &trainer_state)?;
        let located = Self { iteration, directory: directory.as_str().to_owned(), metadata, trainer_state };
        Ok((located, (parsed, state)))
    }

    /// The documents, parsed.
    pub(super) fn parse(&self) -> Result<(Metadata, TrainerState), CheckpointError> {
        let metadata = Metadata::parse(&format!("{}/metadata.json", self.directory), &self.metadata)?;
        let state =
            TrainerState::parse(&format!("{}/trainer_state.json", self.directory), &self.trainer_state)?;
        Ok((metadata, state))
    }

    /// The attempt's directory.
    pub(super) fn path(&self) -> Result<StoragePath, TransferError> {
        Ok(StoragePath::parse(self.directory.as_str())?)
    }

    /// For the broadcast.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u64(self.iteration.0);
        for part in [self.directory.as_bytes(), &self.metadata, &self.trainer_state] {
            bytes.put_u64(part.len() as u64);
            bytes.put_slice(part);
        }
        bytes.freeze()
    }

    /// The inverse of [`Located::encode`].
    pub(super) fn decode(mut bytes: Bytes) -> Option<Self> {
        let iteration = Iteration(bytes.try_get_u64().ok()?);
        let mut part = || {
            let length = usize::try_from(bytes.try_get_u64().ok()?).ok()?;
            (length <= bytes.len()).then(|| bytes.split_to(length))
        };
        let directory = String::from_utf8(part()?.to_vec()).ok()?;
        Some(Self { iteration, directory, metadata: part()?, trainer_state: part()? })
    }
}
