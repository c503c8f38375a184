//! The conformance suite: whether a [`StorageBackend`] does what the trait asks, on a real store.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use reshard_storage::{MemoryBackend, conformance};
//! let report = conformance::run(&MemoryBackend::anonymous()).await;
//! assert!(report.is_ok(), "{report}");
//! # });
//! ```

mod conditional;
mod deleting;
mod listing;
mod reading;
mod uploading;
mod writing;

use crate::{Durable, Payload, StorageBackend, StorageError, StoragePath};
use futures::future::BoxFuture;
use std::fmt::{self, Display};

/// A check's verdict; the text says what was expected and what came.
pub type Verdict = Result<(), String>;

/// One named check.
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What the store must be able to do for it.
    needs: Needs,
    run: for<'a> fn(&'a Place<'a>) -> BoxFuture<'a, Verdict>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    ConditionalCreate,
    ConditionalUpdate,
}

/// Where a check works: below a prefix of its own.
pub struct Place<'a> {
    store: &'a dyn StorageBackend,
    prefix: StoragePath,
}

impl Place<'_> {
    fn path(&self, relative: &str) -> Result<StoragePath, String> {
        self.prefix.join(relative).map_err(|error| error.to_string())
    }

    async fn put(&self, relative: &str, payload: impl Into<Payload>) -> Result<Durable, String> {
        self.store.put(&self.path(relative)?, payload.into()).await.map_err(text)
    }

    async fn get(&self, relative: &str) -> Result<Vec<u8>, String> {
        let (bytes, _) = self.store.read_all(&self.path(relative)?, 64 << 20).await.map_err(text)?;
        Ok(bytes.into())
    }
}

/// Fails the check with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
use ensure;

/// Declares checks: each is an async function of a [`Place`].
macro_rules! checks {
    ($($name:ident: $needs:ident),+ $(,)?) => {
        &[$(super::Check {
            name: stringify!($name),
            needs: super::Needs::$needs,
            run: |place| Box::pin($name(place)),
        }),+]
    };
}
use checks;

/// Every check, in the order in which [`run`] runs them.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        reading::CHECKS,
        writing::CHECKS,
        conditional::CHECKS,
        uploading::CHECKS,
        listing::CHECKS,
        deleting::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// How each check of a run ended.
#[derive(Debug, Default)]
pub struct Report {
    /// Checks that held.
    pub passed: Vec<&'static str>,
    /// Checks that the store's capabilities rule out.
    pub skipped: Vec<&'static str>,
    /// Checks that didn't hold, and what was wrong.
    pub failed: Vec<(&'static str, String)>,
}

impl Report {
    /// Whether nothing failed.
    pub fn is_ok(&self) -> bool {
        self.failed.is_empty()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} skipped, {} failed",
            self.passed.len(),
            self.skipped.len(),
            self.failed.len()
        )?;
        for name in &self.skipped {
            write!(f, "\n  skipped {name}: the store doesn't claim to do it")?;
        }
        for (name, why) in &self.failed {
            write!(f, "\n  FAILED {name}: {why}")?;
        }
        Ok(())
    }
}

/// Runs every check that the store's [`capabilities`](StorageBackend::capabilities) call for, below a fresh
/// prefix that is deleted afterwards. Writes about 40 MiB and 1,100 objects.
pub async fn run(store: &dyn StorageBackend) -> Report {
    let mut report = Report::default();
    let fresh = getrandom::u64().unwrap_or_default();
    for check in all() {
        let able = match check.needs {
            Needs::Nothing => true,
            Needs::ConditionalCreate => store.capabilities().conditional_create,
            Needs::ConditionalUpdate => store.capabilities().conditional_update,
        };
        if !able {
            report.skipped.push(check.name);
            continue;
        }
        let verdict = match StoragePath::parse(format!("conformance-{fresh:016x}/{}", check.name)) {
            Ok(prefix) => {
                let place = Place { store, prefix };
                let verdict = (check.run)(&place).await;
                let cleaned = store.delete_prefix(&place.prefix).await.map_err(text);
                verdict.and(cleaned.map(drop))
            }
            Err(error) => Err(error.to_string()),
        };
        match verdict {
            Ok(()) => report.passed.push(check.name),
            Err(why) => report.failed.push((check.name, why)),
        }
    }
    report
}

fn text(error: StorageError) -> String {
    error.to_string()
}

/// Bytes that differ from place to place, so that a shifted or swapped piece shows.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}
