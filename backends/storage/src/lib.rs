//! Object storage for checkpoints: disk, S3, GCS, Azure and memory behind one trait.
//!
//! [`open`] turns a URI into an `Arc<dyn StorageBackend>` that retries, bounds what is under way and counts
//! it. [`StorageBackend`] is what a store has to do; its reads fill memory that the caller owns ([`Slot`]),
//! its uploads abort themselves when dropped ([`Upload`]), and what it says is durable is ([`Durable`]).
//! [`conditional_put`] writes an object only if it is as expected and finds out what became of it.
//! [`conformance`] tells whether a store, yours or one of these, does what the trait asks.
//!
//! The crate knows nothing of checkpoints.

mod backend;
mod backoff;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
mod cloud;
mod conditional;
pub mod conformance;
mod decorate;
mod disk;
mod error;
mod memory;
mod open;
mod path;
mod payload;
mod slot;
mod upload;

pub use backend::{
    Capabilities, DELETE_BATCH, Deletion, Depth, Durable, Expect, Listing, ObjectInfo, Page, PageToken,
    PutOutcome, StorageBackend, Version,
};
pub use conditional::{Outcome, conditional_put, try_conditions};
pub use decorate::{
    Fault, Faulty, Limited, Limits, Meter, Metered, Pace, Record, RetryPolicy, Retrying, Rule, Throttled,
    Totals, When,
};
pub use disk::DiskBackend;
pub use error::{At, Operation, Outage, Result, StorageError};
pub use memory::MemoryBackend;
pub use open::{Deadline, OpenOptions, open};
pub use path::{InvalidPath, MAX_KEY_BYTES, StoragePath};
pub use payload::Payload;
pub use slot::{ReadBuffer, Slot, admit_read};
pub use upload::{Upload, UploadSession, UploadShape};
