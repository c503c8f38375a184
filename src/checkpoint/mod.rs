//! The only entry of the format layer: save and load one iteration, on all ranks or none.

pub(crate) mod commit;
mod destinations;
mod error;
mod inspect;
mod load;
mod locate;
mod meeting;
mod open;
mod report;
mod save;
mod survey;
mod verify;

pub(crate) use error::numbers;
pub use error::{CheckpointError, CommitState, ErrorKind, SaveError};
pub use inspect::Inspection;
pub use load::{CheckState, CommitMode, LoadBuffers, LoadRequest, Loaded};
pub(crate) use meeting::Meeting;
pub use meeting::MeetingRules;
pub use open::{Checkpoint, Options};
#[cfg(feature = "cli")]
pub(crate) use report::human_bytes;
pub use report::{LoadFigures, LoadReport, PhaseSeconds, SaveReport, Verification};
pub use save::{SaveData, SaveRequest};
pub use survey::{Contents, IterationEntry, IterationState, ObjectRole, StoredObject};
pub use verify::{Held, VerifyFault, VerifyFaultKind, VerifyReport};
