//! The cases of InfiniTrain's own tests of its sharded checkpoints, with the same numbers, through this library.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod checklist;
mod native;
mod planning;
mod store;
mod values;
