//! [`conditional_put`]: a conditional put whose outcome is known, or known to be unknown.

use crate::backend::at;
use crate::backoff::Backoff;
use crate::{
    Expect, Operation, Outage, PutOutcome, Result, StorageBackend, StorageError, StoragePath, Version,
};
use bytes::Bytes;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// What became of a [`conditional_put`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes lie there, durable, with this version.
    Written(Version),
    /// The object is another's.
    Lost {
        /// What lies there; `None` when it couldn't be read or is gone again.
        current: Option<(Bytes, Version)>,
    },
    /// It could not be found out in time; the object may be written now, later, or never.
    Unknown {
        /// What stood in the way last.
        cause: StorageError,
    },
}

/// Longest object that is read back to be compared.
const MAX_READ_BACK: u64 = 16 << 20;

/// Writes `bytes` at `path` only if it is as `expect` says, and finds out what became of it.
///
/// A lost answer is settled by reading back: the same bytes mean written, other bytes lost. While the object
/// is still as expected the same put is sent again, until `within` has passed; then the outcome is unknown.
/// That needs bytes which nobody else writes: put something fresh into them.
///
/// # Errors
/// Only when nothing was written: the store refused, or could never be reached.
pub async fn conditional_put(
    storage: &dyn StorageBackend,
    path: &StoragePath,
    bytes: Bytes,
    expect: &Expect,
    within: Duration,
) -> Result<Outcome> {
    let until = Instant::now() + within;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    // Whether a put was sent whose fate isn't known.
    let mut doubt = false;
    loop {
        let sent = match timeout_at(until, storage.put_if(path, bytes.clone().into(), expect)).await {
            Ok(answer) => answer,
            Err(_) => return Ok(Outcome::Unknown { cause: late(storage, path, within) }),
        };
        let open = match sent {
            Ok(PutOutcome::Written(version)) => return Ok(Outcome::Written(version)),
            Ok(outcome) => {
                let answered = matches!(outcome, PutOutcome::Lost);
                doubt |= !answered;
                let read = timeout_at(until, read_back(storage, path)).await;
                match (read.unwrap_or_else(|_| Err(late(storage, path, within))), outcome) {
                    (Ok(Some((current, version))), _) if current == bytes => {
                        return Ok(Outcome::Written(version));
                    }
                    (Ok(current), PutOutcome::Unknown { cause }) if is_met(expect, current.as_ref()) => cause,
                    (Ok(current), _) => return Ok(Outcome::Lost { current }),
                    (Err(_), _) if !doubt => return Ok(Outcome::Lost { current: None }),
                    (Err(error), _) => error,
                }
            }
            Err(error) if error.is_transient() => error,
            Err(cause) if doubt => return Ok(Outcome::Unknown { cause }),
            Err(error) => return Err(error),
        };
        tracing::debug!(%path, error = %open, "the outcome of a conditional put is open");
        let next = Instant::now() + backoff.next_delay();
        if next >= until {
            return if doubt { Ok(Outcome::Unknown { cause: open }) } else { Err(open) };
        }
        sleep_until(next).await;
    }
}

/// Tries whether the store really keeps the conditions of puts, by four of them on the unused path `scratch`,
/// which is absent afterwards. There are servers that ignore conditions, and on those two writers would both
/// believe to have won.
///
/// # Errors
/// `Unsupported` when it doesn't; other errors when it couldn't be tried.
pub async fn try_conditions(storage: &dyn StorageBackend, scratch: &StoragePath) -> Result<()> {
    let put = async |bytes: &'static str, expect: &Expect| match storage
        .put_if(scratch, bytes.into(), expect)
        .await?
    {
        PutOutcome::Written(version) => Ok(Some(version)),
        PutOutcome::Lost => Ok(None),
        PutOutcome::Unknown { cause } => Err(cause),
    };
    let tried = async {
        let Some(first) = put("first", &Expect::Absent).await? else {
            return Ok(Some("creating an absent object"));
        };
        if put("again", &Expect::Absent).await?.is_some() {
            return Ok(Some("keeping a second create out"));
        }
        let first = Expect::Version(first);
        if put("update", &first).await?.is_none() {
            return Ok(Some("updating the current version"));
        }
        Ok(put("stale", &first).await?.map(|_| "keeping a stale update out"))
    };
    let failed = tried.await;
    storage.delete(scratch).await?;
    match failed? {
        None => Ok(()),
        Some(what) => Err(StorageError::Unsupported {
            at: at(storage, Operation::PutIf, scratch),
            detail: format!(
                "this store fails at {what}, so no commit on it is exclusive; use one with conditional writes"
            ),
        }),
    }
}

async fn read_back(storage: &dyn StorageBackend, path: &StoragePath) -> Result<Option<(Bytes, Version)>> {
    match storage.read_all(path, MAX_READ_BACK).await {
        Ok(current) => Ok(Some(current)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_met(expect: &Expect, current: Option<&(Bytes, Version)>) -> bool {
    match (expect, current) {
        (Expect::Absent, None) => true,
        (Expect::Version(expected), Some((_, version))) => expected.is_same(version),
        _ => false,
    }
}

fn late(storage: &dyn StorageBackend, path: &StoragePath, within: Duration) -> StorageError {
    StorageError::Unavailable {
        at: at(storage, Operation::PutIf, path),
        outage: Outage::Timeout,
        detail: format!("no answer within {within:?}"),
    }
}
