//! The two conditional writes on which a commit rests. A store that ignores the condition answers as if all were well,
//! so each write that must be refused is tried, and the object is read back.

use super::super::exit::Failure;
use super::Probe;
use super::check::{Bad, Checks};
use bytes::Bytes;
use futures::future::join_all;
use reshard_storage::{Expect, PutOutcome, StorageError, StoragePath, Version};

/// Writers at once.
const RACERS: usize = 8;
const ALLOW: &str =
    "to write: s3:PutObject on the prefix, storage.objects.create, or Storage Blob Data Contributor";
const CREATE_FIX: &str = "use a store, or a release of it, that honours If-None-Match on a write: here two saves of one \
                          iteration could both believe that they are the checkpoint";
const UPDATE_FIX: &str = "use a store, or a release of it, that honours If-Match on a write; until then save each iteration \
                          once, and do not replace, pin, prune or delete checkpoints here";

/// Creates an object where none is; a second create must be refused, and of several at once all but one.
pub(super) async fn create(probe: &Probe, checks: &mut Checks<'_>) -> Result<(), Failure> {
    let (path, raced) = (probe.path("created")?, probe.path("created-at-once")?);
    let work = async {
        written(probe, &path, "first", &Expect::Absent).await?;
        let second = put(probe, &path, "second", &Expect::Absent).await?;
        let ignored = "the server ignores If-None-Match: it took a second create of the same object";
        refused(probe, &path, &second, "first", ignored, CREATE_FIX).await?;
        one_winner(probe, &raced, &Expect::Absent, CREATE_FIX).await?;
        Ok(((), format!("a second one is refused, and of {RACERS} at once all but one")))
    };
    checks.attempt("create if absent", ALLOW, work).await;
    Ok(())
}

/// Updates an object that has not changed; an update of an older version must be refused, and of several at once all
/// but one.
pub(super) async fn update(probe: &Probe, checks: &mut Checks<'_>) -> Result<(), Failure> {
    let path = probe.path("updated")?;
    let work = async {
        let first = written(probe, &path, "first", &Expect::Absent).await?;
        let second = written(probe, &path, "second", &Expect::Version(first.clone())).await?;
        let stale = put(probe, &path, "stale", &Expect::Version(first)).await?;
        let ignored = "the server ignores If-Match: it took an update of a version that was no longer there";
        refused(probe, &path, &stale, "second", ignored, UPDATE_FIX).await?;
        one_winner(probe, &path, &Expect::Version(second), UPDATE_FIX).await?;
        Ok(((), format!("one of an old version is refused, and of {RACERS} at once all but one")))
    };
    checks.attempt("update if unchanged", ALLOW, work).await;
    Ok(())
}

async fn put(
    probe: &Probe,
    path: &StoragePath,
    text: &str,
    expect: &Expect,
) -> Result<PutOutcome, StorageError> {
    probe.storage.put_if(path, Bytes::from(text.to_owned()).into(), expect).await
}

/// A conditional write whose condition holds.
async fn written(probe: &Probe, path: &StoragePath, text: &str, expect: &Expect) -> Result<Version, Bad> {
    match put(probe, path, text, expect).await? {
        PutOutcome::Written(version) => Ok(version),
        PutOutcome::Unknown { cause } => Err(cause.into()),
        PutOutcome::Lost => Err(Bad::Behaviour {
            detail: format!("the server refuses a conditional write of {path} although its condition holds"),
            fix: match expect {
                Expect::Absent => CREATE_FIX,
                Expect::Version(_) => UPDATE_FIX,
            },
        }),
    }
}

/// A conditional write whose condition does not hold, and what must lie there still.
async fn refused(
    probe: &Probe,
    path: &StoragePath,
    outcome: &PutOutcome,
    kept: &str,
    ignored: &str,
    fix: &'static str,
) -> Result<(), Bad> {
    let (found, _) = probe.storage.read_all(path, 1024).await?;
    match outcome {
        PutOutcome::Lost if found == kept => Ok(()),
        PutOutcome::Unknown { cause } => Err(cause.clone().into()),
        _ => Err(Bad::Behaviour { detail: ignored.to_owned(), fix }),
    }
}

/// Of several writers with the same condition one may win.
async fn one_winner(
    probe: &Probe,
    path: &StoragePath,
    expect: &Expect,
    fix: &'static str,
) -> Result<(), Bad> {
    let texts: Vec<String> = (0..RACERS).map(|racer| format!("racer {racer}")).collect();
    let outcomes = join_all(texts.iter().map(|text| put(probe, path, text, expect))).await;
    let mut winners = Vec::new();
    for (text, outcome) in texts.iter().zip(outcomes) {
        // "Another conditional write is under way" leaves it open; what matters is that no two win.
        if let PutOutcome::Written(_) = outcome? {
            winners.push(text);
        }
    }
    let (found, _) = probe.storage.read_all(path, 1024).await?;
    match winners[..] {
        [] => Ok(()),
        [winner] if found == *winner => Ok(()),
        _ => Err(Bad::Behaviour {
            detail: format!("{} of {RACERS} writers at once were told that they had won", winners.len()),
            fix,
        }),
    }
}
