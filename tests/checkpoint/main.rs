//! Saves and loads through the whole path, with ranks that are threads, against the oracle.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod harness;
mod round_trip;
