//! Carries plans out: reads into staging, verification, conversion, copies to destinations; uploads from sources.
//!
//! All I/O runs on one runtime that the library owns ([`Job`]); the caller's thread stays free for collectives.

mod checksums;
pub mod convert;
mod error;
mod intake;
mod job;
mod payload;
mod progress;
mod read;
mod rows;
mod scatter;
mod staging;
mod stream;
mod write;

pub use error::TransferError;
pub use job::Job;
pub use progress::{NoProgress, Phase, Progress};
pub use read::{ReadJob, ReadMode, ReadStats, read};
pub use staging::Staging;
pub use stream::Sources;
pub use write::{WriteJob, WrittenFile, write};
