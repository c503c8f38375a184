//! The only entry of the format layer: save and load one iteration, on all ranks or none.

pub(crate) mod commit;
mod destinations;
mod error;
mod load;
mod locate;
mod meeting;
mod open;
mod report;
mod save;

pub(crate) use error::numbers;
pub use error::{CheckpointError, CommitState, ErrorKind, SaveError};
pub use load::{CheckState, CommitMode, LoadBuffers, LoadRequest, Loaded};
pub(crate) use meeting::Meeting;
pub use meeting::MeetingRules;
pub use open::{Checkpoint, Options};
pub use report::{LoadFigures, LoadReport, PhaseSeconds, SaveReport, Verification};
pub use save::{SaveData, SaveRequest};
