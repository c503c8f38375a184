//! Storage servers for tests: started on free ports of this machine, gone when the test process is.
//!
//! Servers are installed on first use below `$RESHARD_TEST_ENV` (default `~/.cache/reshard-test`). Everything
//! here panics with a clear text when it can't do its work: a test without its server has failed.

mod azurite;
mod gcs;
mod http;
mod install;
mod process;
mod seaweedfs;
mod sign;

pub use azurite::Azurite;
pub use gcs::GcsProxy;
pub use http::{Reply, Request, Server, forward};
pub use seaweedfs::{Identity, SeaweedFs};

/// Options for opening a store, as `reshard_storage::OpenOptions::set` takes them.
pub type Options = Vec<(&'static str, String)>;

/// A name that no earlier test has used, legal for buckets and containers.
pub fn fresh_name() -> String {
    format!("test-{:016x}", getrandom::u64().expect("random bytes"))
}
