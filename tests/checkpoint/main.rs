//! Saves and loads through the whole path, with ranks that are threads, against the oracle.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod contract;
mod corruption;
mod exact_ranges;
#[path = "../foreign_huggingface/fetch.rs"]
mod fetch;
mod field_faults;
mod harness;
mod infinitrain;
mod padding;
mod real_model;
mod round_trip;
mod select;
mod tied;
