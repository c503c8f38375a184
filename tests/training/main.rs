//! The policy layer on ranks that are threads: what a run resumes from, what it keeps, and that all ranks return alike
//! whatever one of them does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod apart;
mod choosing;
mod failing;
mod harness;
mod hooked;
mod objects;
mod pruning;
mod racing;
