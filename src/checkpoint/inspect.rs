//! What a checkpoint says of itself, read without its tensors and without other ranks.

use super::locate::{Located, Origin};
use super::{Checkpoint, CheckpointError};
use crate::format::{DataFileName, Iteration, SavedLayout, TrainerState};
use crate::transfer::Job;
use std::sync::Arc;

/// The documents of a checkpoint: a committed iteration, or another tool's.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The iteration; `None` for safetensors files, which don't say one.
    pub iteration: Option<Iteration>,
    /// Whether another tool wrote it. Such a checkpoint has no commit, no attempt and no checksums.
    pub foreign: bool,
    /// The directory that the layout's file names are relative to, itself relative to the run; `None` = the run's own.
    pub directory: Option<String>,
    /// Where everything lies.
    pub layout: SavedLayout,
    /// The state of the training loop; `None` where another tool's files have none.
    pub trainer_state: Option<TrainerState>,
}

impl Inspection {
    /// Number of ranks that saved it; `None` where no file of the format says so.
    pub fn world_size(&self) -> Option<u32> {
        world_size(&self.layout)
    }
}

impl Checkpoint {
    /// Reads and proves the documents of an iteration, or of the newest committed one; where there is no run of this
    /// library, those of another tool's checkpoint. Not collective.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`] where there is none; [`CheckpointError::Format`] for a damaged one;
    /// [`CheckpointError::Foreign`] for another tool's; [`CheckpointError::Storage`].
    pub fn inspect(&self, iteration: Option<Iteration>) -> Result<Inspection, CheckpointError> {
        let (storage, file) = (Arc::clone(&self.storage), self.file.clone());
        Job::start(async move {
            let (located, _) = Located::find(&*storage, file.as_ref(), iteration).await?;
            let Located { origin, iteration, directory, layout, trainer_state } = located;
            let foreign = origin == Origin::Foreign;
            let directory = directory.prefix().map(|prefix| prefix.as_str().to_owned());
            Ok(Inspection { iteration, foreign, directory, layout, trainer_state })
        })?
        .finish()?
    }
}

/// What the names of the data files say.
pub(super) fn world_size(layout: &SavedLayout) -> Option<u32> {
    layout.files.iter().find_map(|file| Some(file.path.parse::<DataFileName>().ok()?.world_size()))
}
