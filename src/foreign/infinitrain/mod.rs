//! InfiniTrain's sharded checkpoints, metadata version 3.
//!
//! ```text
//! <root>/latest_checkpointed_iteration.txt
//! <root>/iter_0000042/metadata.json, trainer_state.json, lr_scheduler.ckpt
//! <root>/iter_0000042/rank_000000/model.ckpt, optimizer.ckpt
//! ```
//!
//! metadata.json lists one entry per tensor and writing rank. Each becomes chunks: one, or with segments (packed QKV)
//! one per segment along axis 0, with a file offset of its own. Since both sides of a load are regions, it does not
//! matter whether the target has the same segments, others or none, along which axes it is cut, or how many stages the
//! pipeline has. Replicated tensors are stored by every writer; the copy of the lowest rank is taken.
//!
//! The payload files are not opened: all offsets come from metadata.json. They carry no checksums.

mod entry;
mod iterations;
mod layout;
mod metadata;
mod scheduler;
mod trainer_state;

use super::{Directory, ForeignError, MAX_JSON_BYTES, read};
use crate::format::{SavedLayout, TrainerState};
use reshard_storage::{Depth, StorageBackend};
use std::collections::BTreeMap;

pub use iterations::{ITERATION_PREFIX, LATEST_FILE, latest};
pub use metadata::{FORMAT, VERSION};

/// The saved layout of a checkpoint.
pub const METADATA_FILE: &str = "metadata.json";
/// Steps, architecture and sizes of the run.
pub const TRAINER_STATE_FILE: &str = "trainer_state.json";
/// State of the learning-rate scheduler, where there was one.
pub const SCHEDULER_FILE: &str = "lr_scheduler.ckpt";
/// Name of a rank's file of optimizer state; tensors of all other files are of the model group.
const OPTIMIZER_FILE: &str = "optimizer.ckpt";

/// Longest scheduler state that is read, in bytes.
const MAX_SCHEDULER_BYTES: u64 = 64 << 20;

/// A checkpoint, ready to be planned.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    /// What lies where; paths are relative to the checkpoint's directory.
    pub layout: SavedLayout,
    /// The trainer state with the scheduler's; `None` where the checkpoint has no trainer_state.json.
    pub trainer_state: Option<TrainerState>,
}

/// Reads the checkpoint in `directory`, the one that holds metadata.json; [`latest`] finds it below a run.
///
/// # Errors
/// [`ForeignError`] naming file, tensor and field: another version, a dtype that is not known, coordinates that are no
/// region, a data file that is missing or too short, shards that do not cover a tensor exactly once.
pub async fn open(storage: &dyn StorageBackend, directory: &Directory) -> Result<Checkpoint, ForeignError> {
    let path = |name: &str| {
        directory.file(name).map_err(|source| ForeignError::Path { named_by: directory.to_string(), source })
    };
    let metadata_path = path(METADATA_FILE)?;
    let (bytes, _) = storage.read_all(&metadata_path, MAX_JSON_BYTES).await?;
    let entries = metadata::parse(metadata_path.as_str(), &bytes)?;
    let lengths: BTreeMap<String, u64> = storage
        .list(directory.prefix(), Depth::All)
        .await?
        .objects
        .iter()
        .filter_map(|object| Some((directory.relative(&object.path)?.to_owned(), object.len)))
        .collect();
    let mut shards = Vec::with_capacity(entries.len());
    for entry in entries {
        shards.push(entry.check(metadata_path.as_str(), &lengths)?);
    }
    let mut layout = layout::assemble(metadata_path.as_str(), shards, &lengths)?;

    let state_path = path(TRAINER_STATE_FILE)?;
    let Some(bytes) = read::read_if_present(storage, &state_path, MAX_JSON_BYTES).await? else {
        return Ok(Checkpoint { layout, trainer_state: None });
    };
    let mut trainer_state = trainer_state::parse(state_path.as_str(), &bytes)?;
    let scheduler_path = path(SCHEDULER_FILE)?;
    if let Some(bytes) = read::read_if_present(storage, &scheduler_path, MAX_SCHEDULER_BYTES).await? {
        trainer_state.lr_scheduler = scheduler::parse(scheduler_path.as_str(), &bytes)?;
    }
    if let Some(rows) = trainer_state.model.original_vocab_size {
        layout::state_vocabulary(&mut layout, rows);
    }
    Ok(Checkpoint { layout, trainer_state: Some(trainer_state) })
}
