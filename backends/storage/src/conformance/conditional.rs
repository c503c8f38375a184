use super::{Check, Place, Verdict, checks, ensure, pattern, text};
use crate::{Expect, Outcome, Version, conditional_put};
use futures::future::try_join_all;
use std::time::Duration;

pub(super) const CHECKS: &[Check] = checks![
    create_only_once: ConditionalCreate,
    racing_creates_have_one_winner: ConditionalCreate,
    update_of_the_current_version: ConditionalUpdate,
    stale_update_loses: ConditionalUpdate,
    update_of_an_absent_object_loses: ConditionalUpdate,
    racing_updates_have_one_winner: ConditionalUpdate,
    counting_together_loses_nothing: ConditionalUpdate,
];

const RACERS: u32 = 8;

async fn put_if(place: &Place<'_>, seed: u32, expect: Expect) -> Result<Outcome, String> {
    let bytes = pattern(64, seed).into();
    conditional_put(place.store, &place.path("object")?, bytes, &expect, Duration::from_secs(60))
        .await
        .map_err(text)
}

async fn written(place: &Place<'_>, seed: u32, expect: Expect) -> Result<Version, String> {
    match put_if(place, seed, expect).await? {
        Outcome::Written(version) => Ok(version),
        other => Err(format!("expected Written, got {other:?}")),
    }
}

async fn create_only_once(place: &Place<'_>) -> Verdict {
    let first = written(place, 1, Expect::Absent).await?;
    match put_if(place, 2, Expect::Absent).await? {
        Outcome::Lost { current: Some((bytes, version)) } => {
            ensure!(bytes == pattern(64, 1), "the loser is shown other bytes");
            ensure!(version.is_same(&first), "{version:?} is shown for {first:?}");
        }
        other => return Err(format!("the second create: expected Lost, got {other:?}")),
    }
    ensure!(place.get("object").await? == pattern(64, 1), "the second create changed the object");
    Ok(())
}

async fn racing_creates_have_one_winner(place: &Place<'_>) -> Verdict {
    let outcomes = try_join_all((0..RACERS).map(|racer| put_if(place, racer, Expect::Absent))).await?;
    one_winner(place, &outcomes).await
}

async fn one_winner(place: &Place<'_>, outcomes: &[Outcome]) -> Verdict {
    let winners: Vec<_> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Written(_)))
        .map(|(racer, _)| racer)
        .collect();
    ensure!(winners.len() == 1, "{} winners: {outcomes:?}", winners.len());
    ensure!(
        outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Unknown { .. })),
        "an outcome stayed unknown: {outcomes:?}"
    );
    ensure!(place.get("object").await? == pattern(64, winners[0] as u32), "the object isn't the winner's");
    Ok(())
}

async fn update_of_the_current_version(place: &Place<'_>) -> Verdict {
    let mut version = written(place, 0, Expect::Absent).await?;
    for seed in 1..4 {
        let (_, read) = place.store.read_all(&place.path("object")?, 1 << 20).await.map_err(text)?;
        ensure!(read.is_same(&version), "{read:?} was read, {version:?} written");
        version = written(place, seed, Expect::Version(read)).await?;
        ensure!(place.get("object").await? == pattern(64, seed), "the update isn't there");
    }
    Ok(())
}

async fn stale_update_loses(place: &Place<'_>) -> Verdict {
    let old = written(place, 1, Expect::Absent).await?;
    let new = written(place, 2, Expect::Version(old.clone())).await?;
    ensure!(!new.is_same(&old), "the version didn't change: {old:?}");
    let outcome = put_if(place, 3, Expect::Version(old)).await?;
    ensure!(matches!(outcome, Outcome::Lost { .. }), "expected Lost, got {outcome:?}");
    ensure!(place.get("object").await? == pattern(64, 2), "a stale update changed the object");
    Ok(())
}

async fn update_of_an_absent_object_loses(place: &Place<'_>) -> Verdict {
    let version = written(place, 1, Expect::Absent).await?;
    place.store.delete(&place.path("object")?).await.map_err(text)?;
    let outcome = put_if(place, 2, Expect::Version(version)).await?;
    ensure!(outcome == Outcome::Lost { current: None }, "expected Lost, got {outcome:?}");
    let result = place.store.head(&place.path("object")?).await;
    ensure!(result.is_err_and(|error| error.is_not_found()), "the update created the object");
    Ok(())
}

async fn racing_updates_have_one_winner(place: &Place<'_>) -> Verdict {
    let version = written(place, 1000, Expect::Absent).await?;
    let racers = (0..RACERS).map(|racer| put_if(place, racer, Expect::Version(version.clone())));
    let outcomes = try_join_all(racers).await?;
    one_winner(place, &outcomes).await
}

/// Writers that each add one to a number a few times, as often as it takes: an update that two win would lose
/// one.
async fn counting_together_loses_nothing(place: &Place<'_>) -> Verdict {
    const EACH: u64 = 4;
    let object = place.path("object")?;
    place.put("object", 0u64.to_le_bytes().to_vec()).await?;
    let object = &object;
    let count = |writer: u64| async move {
        for _ in 0..EACH {
            loop {
                let (bytes, version) = place.store.read_all(object, 64).await.map_err(text)?;
                let number =
                    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or("no number")?;
                // The writer's own number keeps the bytes of two writers apart.
                let next = [(number + 1).to_le_bytes(), writer.to_le_bytes()].concat().into();
                let (expect, within) = (Expect::Version(version), Duration::from_secs(60));
                let put = conditional_put(place.store, object, next, &expect, within);
                match put.await.map_err(text)? {
                    Outcome::Written(_) => break,
                    Outcome::Lost { .. } => {}
                    Outcome::Unknown { cause } => return Err(cause.to_string()),
                }
            }
        }
        Ok(())
    };
    try_join_all((0..u64::from(RACERS)).map(count)).await?;
    let counted = place.get("object").await?;
    let expected = u64::from(RACERS) * EACH;
    ensure!(
        counted.starts_with(&expected.to_le_bytes()),
        "{expected} were counted, but {counted:?} is there"
    );
    Ok(())
}
