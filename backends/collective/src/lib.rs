//! Collectives over ranks: one process, threads of one process.
//!
//! A group of ranks meets in calls that every rank of it makes in the same order: a [`Collective`] is
//! one rank's handle. [`Single`] is a group of one; [`Threads`] is a group of threads of one process.
//! Every call has a [`Deadline`] and returns by it: a rank that is late, gone or calls something else
//! becomes an error that names it, on every rank, and never a hang.
//!
//! ```
//! use std::time::Duration;
//! use reshard_collective::{Collective, Deadline, Reduce, Threads};
//!
//! let ranks = Threads::new(4)?;
//! std::thread::scope(|scope| {
//!     for rank in ranks {
//!         scope.spawn(move || {
//!             let deadline = Deadline::after(Duration::from_secs(60));
//!             let largest = rank.all_reduce(&[rank.rank() as u64], Reduce::Max, deadline)?;
//!             assert_eq!(largest, [3]);
//!             Ok::<_, reshard_collective::CollectiveError>(())
//!         });
//!     }
//! });
//! # Ok::<_, reshard_collective::CollectiveError>(())
//! ```

mod collective;
pub mod conformance;
mod deadline;
mod error;
mod meeting;
mod single;
mod threads;

pub use collective::{Collective, Reduce};
pub use deadline::Deadline;
pub use error::{CollectiveError, Departure, Operation};
pub use single::Single;
pub use threads::{ThreadRank, Threads};
