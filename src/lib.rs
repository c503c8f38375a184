//! Save sharded training state on one topology, resume it byte-exactly on another.
//!
//! Folders are layers, and imports go one way:
//! `cli -> training -> checkpoint -> foreign, transfer -> plan -> format -> shard`;
//! `training`, `checkpoint`, `foreign` and `transfer` also use the backends (storage, device, collective).

pub mod checkpoint;
#[cfg(feature = "cli")]
pub mod cli;
pub mod foreign;
pub mod format;
pub mod plan;
pub mod training;
pub mod transfer;

pub use reshard_collective as collective;
pub use reshard_device as device;
pub use reshard_shard as shard;
pub use reshard_storage as storage;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
