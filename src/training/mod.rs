//! Policy: what a training loop calls. Where a run resumes, what it keeps, and whether a checkpoint is of this model.
//!
//! Every rank has a [`TrainingRun`], made with the same arguments, and all ranks make the same calls in the same order:
//!
//! ```no_run
//! # use reshard::checkpoint::{Checkpoint, CheckpointError, Options, SaveRequest};
//! # use reshard::collective::Collective;
//! # use reshard::format::{Iteration, ModelConfig, ParallelSizes};
//! # use reshard::shard::ShardedStateDict;
//! # use reshard::storage::OpenOptions;
//! # use reshard::training::{ResumeRequest, Retention, TrainingRun};
//! # use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};
//! # fn train(ranks: &dyn Collective, model: ModelConfig, sizes: ParallelSizes, shards: &ShardedStateDict)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let place = Checkpoint::open("s3://bucket/run", OpenOptions::new(), Options::default())?;
//! let keep = NonZeroUsize::MIN.saturating_add(2);
//! let mut run = TrainingRun::new(place, model, sizes, Retention::Newest { keep, keep_every: None })?;
//!
//! let (mut step, mut samples) = (0, 0);
//! if let Some(resumed) = run.resume_from_checkpoint(ranks, ResumeRequest::new(shards))? {
//!     (step, samples) = (resumed.state.global_step, resumed.state.consumed_train_samples);
//!     let _batches = resumed.batches_to_skip(8)?; // and copy `resumed.tensors` into the model
//! }
//! // ... train; every now and then:
//! # let (data, step, samples) = (BTreeMap::new(), step + 1, samples + 64);
//! let state = run.trainer_state(step, samples);
//! match run.save_checkpoint(ranks, SaveRequest::new(Iteration(step), shards, data, &state)) {
//!     Ok(report) => println!("{report}"),
//!     Err(error) => eprintln!("{error}"), // training goes on, and a later save works
//! }
//! // ... at the end:
//! for line in run.finish(Duration::from_secs(60)) {
//!     println!("{line}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! **What is kept.** With [`Retention::Newest`], rank 0 removes surplus iterations in the background after a save has
//! been committed on all ranks, and only once that save's files have been listed with the right lengths. It touches
//! neither the iteration just saved, nor the one that the run was resumed from, nor pinned ones
//! ([`Checkpoint::pin`](crate::checkpoint::Checkpoint::pin)), nor any that is newer. What goes wrong is a note in the
//! next save's report (or a line of [`TrainingRun::finish`]), and the next save tries again.
//!
//! **Going back.** A resume takes the newest committed iteration unless the request names another. While newer
//! iterations are committed, a save is refused ([`NewerExist`](crate::checkpoint::CheckpointError::NewerExist)) before
//! anything is written: the next plain resume would pass the new branch over, and sooner or later the branches would
//! meet at one iteration. Resume with `discard_newer` to give the newer ones up: the first save goes over one of them
//! where it meets it, and the rest is marked deleted once that save is committed; until then they are all there.

mod background;
mod prune;
mod resume;
mod retention;
mod run;
mod save;

pub use resume::{ResumeRequest, Resumed};
pub use retention::Retention;
pub use run::TrainingRun;
