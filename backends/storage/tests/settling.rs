//! `conditional_put` over a store that loses requests and answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use bytes::Bytes;
use reshard_storage::{
    Expect, Fault, Faulty, MemoryBackend, Meter, Metered, Operation, Outcome, Payload, Rule, StorageBackend,
    StorageError, StoragePath, Version, When, conditional_put, try_conditions,
};
use std::sync::Arc;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(30);

fn path() -> StoragePath {
    StoragePath::parse("iter_1/commit.json").unwrap()
}

/// A store whose requests fail by `rules`, and the one behind, where the truth lies.
fn faulty(rules: impl IntoIterator<Item = Rule>) -> (Faulty, Arc<MemoryBackend>, Arc<Meter>) {
    let truth = Arc::new(MemoryBackend::anonymous());
    let meter = Meter::recording();
    let metered = Arc::new(Metered::new(Arc::clone(&truth) as _, Arc::clone(&meter)));
    (Faulty::new(metered, 7, rules), truth, meter)
}

async fn put(store: &dyn StorageBackend, bytes: &'static str, expect: &Expect) -> Outcome {
    conditional_put(store, &path(), bytes.into(), expect, WITHIN).await.unwrap()
}

async fn stored(store: &dyn StorageBackend) -> (Bytes, Version) {
    store.read_all(&path(), 100).await.unwrap()
}

/// Puts that reached the store behind.
fn puts(meter: &Meter) -> usize {
    meter.take_records().iter().filter(|record| record.operation == Operation::PutIf).count()
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_read_back_as_written() {
    let (store, truth, meter) = faulty([Rule::on(Operation::PutIf, When::Always, Fault::LostAnswer)]);
    let outcome = put(&store, "mine", &Expect::Absent).await;
    let (bytes, version) = stored(&*truth).await;
    assert_eq!((outcome, bytes), (Outcome::Written(version.clone()), "mine".into()));
    assert_eq!(puts(&meter), 1, "a put that landed was sent again");
    let outcome = put(&store, "next", &Expect::Version(version)).await;
    assert_eq!(outcome, Outcome::Written(stored(&*truth).await.1));
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_sent_again() {
    let (store, truth, meter) = faulty([Rule::on(Operation::PutIf, When::First(3), Fault::LostRequest)]);
    let outcome = put(&store, "mine", &Expect::Absent).await;
    let (bytes, version) = stored(&*truth).await;
    assert_eq!((outcome, bytes), (Outcome::Written(version.clone()), "mine".into()));
    assert_eq!(puts(&meter), 1);

    let (store, truth, _) = faulty([Rule::on(Operation::PutIf, When::Nth(1), Fault::LostRequest)]);
    truth.put(&path(), Payload::from("old")).await.unwrap();
    let old = Expect::Version(stored(&*truth).await.1);
    assert!(matches!(put(&store, "mine", &old).await, Outcome::Written(_)));
    assert_eq!(stored(&*truth).await.0, "mine");
}

/// An unheard put and failing reads: the reads are repeated until one tells.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_survives_failing_reads() {
    let (store, truth, _) = faulty([
        Rule::on(Operation::PutIf, When::Nth(1), Fault::LostAnswer),
        Rule::on(Operation::ReadAll, When::First(3), Fault::LostRequest),
    ]);
    assert!(matches!(put(&store, "mine", &Expect::Absent).await, Outcome::Written(_)));
    assert_eq!(stored(&*truth).await.0, "mine");
}

#[tokio::test(start_paused = true)]
async fn anothers_object_is_lost_and_shown() {
    for rules in [vec![], vec![Rule::on(Operation::PutIf, When::Always, Fault::LostAnswer)]] {
        let (store, truth, _) = faulty(rules);
        truth.put(&path(), Payload::from("theirs")).await.unwrap();
        let lost = Outcome::Lost { current: Some(stored(&*truth).await) };
        assert_eq!(put(&store, "mine", &Expect::Absent).await, lost);
        let stale = Expect::Version(Version::new(None, Some("0".to_owned())));
        assert_eq!(put(&store, "mine", &stale).await, lost);
        assert_eq!(stored(&*truth).await.0, "theirs");
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_lands_and_never_answers_is_unknown() {
    let (store, truth, _) = faulty([Rule::on(Operation::PutIf, When::Always, Fault::LostRequest)]);
    assert!(matches!(put(&store, "mine", &Expect::Absent).await, Outcome::Unknown { .. }));
    assert!(truth.head(&path()).await.unwrap_err().is_not_found());

    let (store, _, _) = faulty([
        Rule::on(Operation::PutIf, When::Always, Fault::LostAnswer),
        Rule::on(Operation::ReadAll, When::Always, Fault::LostRequest),
    ]);
    assert!(matches!(put(&store, "mine", &Expect::Absent).await, Outcome::Unknown { .. }));

    let (store, _, _) = faulty([Rule::on(Operation::PutIf, When::Always, Fault::Delay(WITHIN * 2))]);
    assert!(matches!(put(&store, "mine", &Expect::Absent).await, Outcome::Unknown { .. }));
}

/// A refusal is an error as long as nothing was sent before that may have landed.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_only_without_doubt() {
    let (store, _, _) = faulty([Rule::on(Operation::PutIf, When::Always, Fault::Refused)]);
    let refused = conditional_put(&store, &path(), "mine".into(), &Expect::Absent, WITHIN).await;
    assert!(matches!(refused, Err(StorageError::AccessDenied { .. })), "{refused:?}");

    let (store, _, _) = faulty([
        Rule::on(Operation::PutIf, When::Nth(1), Fault::LostRequest),
        Rule::on(Operation::PutIf, When::Nth(2), Fault::Refused),
    ]);
    assert!(matches!(put(&store, "mine", &Expect::Absent).await, Outcome::Unknown { .. }));
}

/// Whatever gets lost, eight writers have one winner, who is right about it, and nobody else believes to have
/// won.
#[tokio::test(start_paused = true)]
async fn racers_over_a_lossy_store_have_one_winner() {
    for seed in 0..200 {
        let truth = Arc::new(MemoryBackend::anonymous());
        let chance = |fault| Rule::on_any(When::Chance(0.3), fault);
        let rules =
            [chance(Fault::LostAnswer), chance(Fault::LostRequest), chance(Fault::Delay(WITHIN / 100))];
        let store = Faulty::new(Arc::clone(&truth) as _, seed, rules);
        let racers =
            ["a", "b", "c", "d", "e", "f", "g", "h"].map(|racer| put(&store, racer, &Expect::Absent));
        let outcomes = futures::future::join_all(racers).await;
        let winner = stored(&*truth).await.0;
        for (racer, outcome) in ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().zip(outcomes) {
            match outcome {
                Outcome::Written(_) => assert_eq!(winner, racer, "seed {seed}"),
                Outcome::Lost { .. } => assert_ne!(winner, racer, "seed {seed}"),
                Outcome::Unknown { .. } => {}
            }
        }
    }
}

#[tokio::test]
async fn conditions_are_tried() {
    let memory = MemoryBackend::anonymous();
    try_conditions(&memory, &path()).await.unwrap();
    assert!(memory.head(&path()).await.unwrap_err().is_not_found(), "the scratch object stays");
}
