//! Other tools' checkpoints as saved layouts: read in place, by the path of every load, without a converted copy.
//!
//! A reader here fetches the small files and headers of a checkpoint and turns them into a
//! [`SavedLayout`](crate::format::SavedLayout): which region of which tensor lies where. From there on nothing knows
//! another tool's name. The data files have no checksums ([`SavedFile::blocks`](crate::format::SavedFile::blocks) is
//! `None`), so what is loaded from them is unverified, and a report of such a load says so.
//!
//! [`detect`] tells what lies at a place; [`Opened::open`] reads it. Everything on storage
//! is taken for hostile: no path leaves the checkpoint's directory, memory is bounded by the size of what was read,
//! and what is wrong is an error that names the file and the tensor.

mod detect;
mod directory;
mod error;
pub mod huggingface;
pub mod infinitrain;
mod opened;
mod read;

pub use detect::{Detected, detect};
pub use directory::Directory;
pub use error::{ForeignError, ForeignErrorKind, IndexFault, ShardFault};
pub use opened::Opened;

/// Longest JSON file that is read, in bytes. A million shards take about a third of it.
const MAX_JSON_BYTES: u64 = 1 << 30;
