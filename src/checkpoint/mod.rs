//! The only entry of the format layer: save and load one iteration, on all ranks or none.

mod commit;
mod destinations;
mod error;
mod load;
mod locate;
mod meeting;
mod open;
mod report;
mod save;

pub use error::{CheckpointError, CommitState, ErrorKind, SaveError};
pub use load::{CommitMode, LoadBuffers, LoadRequest, Loaded};
pub use meeting::MeetingRules;
pub use open::{Checkpoint, Options};
pub use report::{LoadFigures, LoadReport, PhaseSeconds, SaveReport, Verification};
pub use save::{SaveData, SaveRequest};
