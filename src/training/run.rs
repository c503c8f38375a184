use super::Retention;
use super::background::Background;
use crate::checkpoint::commit::cannot_remove;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::format::{Iteration, ModelConfig, ParallelSizes, TrainerState};
use std::time::Duration;

/// A training run on one rank: where its checkpoints lie, of what model they are, and which of them are kept.
pub struct TrainingRun {
    pub(super) checkpoint: Checkpoint,
    pub(super) model: ModelConfig,
    pub(super) sizes: ParallelSizes,
    pub(super) retention: Retention,
    /// The iteration that it was resumed from.
    pub(super) resumed: Option<Iteration>,
    pub(super) background: Background,
}

impl TrainingRun {
    /// A run of `model` with parallel dimensions of these sizes. Asks nothing of the store.
    ///
    /// # Errors
    /// [`CheckpointError::Unsupported`] where something is to be pruned and the store has no conditional updates.
    pub fn new(
        checkpoint: Checkpoint,
        model: ModelConfig,
        sizes: ParallelSizes,
        retention: Retention,
    ) -> Result<Self, CheckpointError> {
        let storage = checkpoint.storage();
        if retention != Retention::All && !storage.capabilities().conditional_update {
            return Err(cannot_remove(&**storage));
        }
        Ok(Self { checkpoint, model, sizes, retention, resumed: None, background: Background::default() })
    }

    /// The run's checkpoints without policy.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The state of this run's training loop after `global_step` optimizer steps and `consumed_train_samples` samples
    /// over all data-parallel ranks, with this run's model and sizes. Scheduler and user values are null until set.
    pub fn trainer_state(&self, global_step: u64, consumed_train_samples: u64) -> TrainerState {
        TrainerState {
            global_step,
            consumed_train_samples,
            model: self.model.clone(),
            ran_with: self.sizes,
            lr_scheduler: serde_json::Value::Null,
            user: serde_json::Value::Null,
        }
    }

    /// Waits up to `within` for what runs in the background, and returns the lines that no report had yet. Call it at
    /// the end of the run; what is still under way when the run is dropped is broken off, and the next run's pruning
    /// finishes it. Not collective; only rank 0 has something to wait for.
    pub fn finish(&mut self, within: Duration) -> Vec<String> {
        if !self.background.rest(within) {
            self.background.note(format!("pruning is still under way after {within:?}"));
        }
        self.background.take_lines()
    }
}
