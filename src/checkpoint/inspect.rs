//! What a checkpoint says of itself, read without its tensors and without other ranks.

use super::locate::Located;
use super::{Checkpoint, CheckpointError};
use crate::format::{DataFileName, Iteration, SavedLayout, TrainerState};
use crate::transfer::Job;
use std::sync::Arc;

/// The documents of one committed iteration.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The iteration.
    pub iteration: Iteration,
    /// The directory that the layout's file names are relative to, itself relative to the run.
    pub directory: String,
    /// Where everything lies.
    pub layout: SavedLayout,
    /// Size of metadata.json in bytes.
    pub metadata_bytes: u64,
    /// The state of the training loop.
    pub trainer_state: TrainerState,
}

impl Inspection {
    /// Number of ranks that saved it; `None` where no file of the format says so.
    pub fn world_size(&self) -> Option<u32> {
        world_size(&self.layout)
    }
}

impl Checkpoint {
    /// Reads and proves the documents of an iteration, or of the newest committed one. Not collective.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`] where there is none; [`CheckpointError::Format`] for a damaged one;
    /// [`CheckpointError::Storage`].
    pub fn inspect(&self, iteration: Option<Iteration>) -> Result<Inspection, CheckpointError> {
        let storage = Arc::clone(&self.storage);
        Job::start(async move {
            let (located, (metadata, trainer_state)) = Located::find(&*storage, iteration).await?;
            Ok(Inspection {
                iteration: located.iteration,
                directory: located.directory,
                layout: metadata.layout,
                metadata_bytes: located.metadata.len() as u64,
                trainer_state,
            })
        })?
        .finish()?
    }
}

/// What the names of the data files say.
pub(super) fn world_size(layout: &SavedLayout) -> Option<u32> {
    layout.files.iter().find_map(|file| Some(file.path.parse::<DataFileName>().ok()?.world_size()))
}
