//! The built `reshard` command against checkpoints that the library saved.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod command;
mod diagnosing;
mod explaining;
mod foreign;
mod form;
mod looking;
mod planning;
mod run;
mod verifying;
