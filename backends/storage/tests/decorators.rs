//! The decorators, over a store in memory or on disk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{
    Expect, Fault, Faulty, Limited, Limits, MemoryBackend, Meter, Metered, Operation, Pace, Payload, Record,
    RetryPolicy, Retrying, Rule, StorageBackend, StorageError, StoragePath, Throttled, UploadShape, When,
    conformance,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

fn path(text: &str) -> StoragePath {
    StoragePath::parse(text).unwrap()
}

async fn memory_with(name: &str, bytes: &'static str) -> Arc<MemoryBackend> {
    let memory = MemoryBackend::anonymous();
    memory.put(&path(name), Payload::from(bytes)).await.unwrap();
    Arc::new(memory)
}

async fn read(store: &dyn StorageBackend, range: std::ops::Range<u64>) -> Result<Vec<u8>, StorageError> {
    let slot = Box::new(vec![0; (range.end - range.start) as usize]);
    let (slot, result) = store.read(&path("object"), range, slot).await;
    result.map(|()| slot.bytes().to_vec())
}

#[tokio::test]
async fn records_say_exactly_what_was_asked() {
    let meter = Meter::recording();
    let store = Metered::new(memory_with("object", "0123456789").await, Arc::clone(&meter));
    read(&store, 2..5).await.unwrap();
    read(&store, 3..3).await.unwrap();
    read(&store, 8..12).await.unwrap_err();
    store.read_all(&path("object"), 100).await.unwrap();
    store.put_if(&path("object"), Payload::from("no"), &Expect::Absent).await.unwrap();
    let upload = store.start_multipart(&path("other"), UploadShape::new(5, 3)).await.unwrap();
    upload.put_part(1, Payload::from("de")).await.unwrap();
    upload.put_part(0, Payload::from("abc")).await.unwrap();
    upload.complete().await.unwrap();
    let record = |operation, name: &str, range, bytes, ok| Record {
        operation,
        path: Some(path(name)),
        range,
        bytes,
        ok,
    };
    assert_eq!(
        meter.take_records(),
        [
            record(Operation::Read, "object", Some(2..5), 3, true),
            record(Operation::Read, "object", Some(8..12), 0, false),
            record(Operation::ReadAll, "object", None, 10, true),
            record(Operation::PutIf, "object", None, 0, true),
            record(Operation::StartUpload, "other", None, 0, true),
            record(Operation::PutPart, "other", Some(3..5), 2, true),
            record(Operation::PutPart, "other", Some(0..3), 3, true),
            record(Operation::CompleteUpload, "other", None, 0, true),
        ]
    );
    let totals = meter.totals();
    assert_eq!((totals.requests, totals.failures, totals.bytes_read, totals.bytes_written), (8, 1, 13, 5));
    assert!(meter.take_records().is_empty());
}

/// Under way at once are as many requests and bytes as allowed: with requests of one second each, the time
/// tells.
#[tokio::test(start_paused = true)]
async fn limits_bound_requests_and_bytes() {
    const SECOND: Duration = Duration::from_secs(1);
    let slow = Pace { first_byte: SECOND, bytes_per_second: u64::MAX };
    let seconds_for = async |limits: Limits, requests: u64, len: u64| {
        let memory = MemoryBackend::anonymous();
        memory.put(&path("object"), vec![0; 1 << 20].into()).await.unwrap();
        let store = Limited::new(Arc::new(Throttled::new(Arc::new(memory), slow)), limits);
        let begin = Instant::now();
        let reads = (0..requests).map(|_| read(&store, 0..len));
        futures::future::try_join_all(reads).await.unwrap();
        begin.elapsed().as_secs()
    };
    let wide = Limits { requests: 100, bytes: 1 << 30 };
    assert_eq!(seconds_for(wide, 12, 1000).await, 1);
    assert_eq!(seconds_for(Limits { requests: 4, ..wide }, 12, 1000).await, 3);
    assert_eq!(seconds_for(Limits { bytes: 64 << 10, ..wide }, 12, 16 << 10).await, 3);
    // One that is larger than the limit runs, alone.
    assert_eq!(seconds_for(Limits { bytes: 64 << 10, ..wide }, 3, 1 << 20).await, 3);
    assert_eq!(seconds_for(Limits { requests: 0, bytes: 0 }, 2, 100).await, 2);
}

#[tokio::test(start_paused = true)]
async fn throttled_takes_latency_and_bandwidth() {
    let pace = Pace { first_byte: Duration::from_millis(100), bytes_per_second: 1000 };
    let store = Throttled::new(memory_with("object", "0123456789").await, pace);
    let begin = Instant::now();
    read(&store, 0..10).await.unwrap();
    assert_eq!(begin.elapsed().as_millis(), 110);
    store.put(&path("object"), vec![0; 500].into()).await.unwrap();
    assert_eq!(begin.elapsed().as_millis(), 710);
}

#[tokio::test]
async fn faults_strike_where_they_should() {
    let object = path("object");
    let with = async |rules: Vec<Rule>| Faulty::new(memory_with("object", "01234567").await, 1, rules);

    let store = with(vec![Rule::on(Operation::Read, When::Nth(2), Fault::LostRequest)]).await;
    let results = [read(&store, 0..8).await, read(&store, 0..8).await, read(&store, 0..8).await];
    assert_eq!(results.map(|result| result.is_ok()), [true, false, true]);

    let store = with(vec![Rule::on(Operation::Read, When::Nth(1), Fault::WrongByte)]).await;
    let (wrong, right) = (read(&store, 0..8).await.unwrap(), read(&store, 0..8).await.unwrap());
    assert_eq!(wrong.iter().zip(&right).filter(|(a, b)| a != b).count(), 1);

    let store = with(vec![Rule::on(Operation::Read, When::Always, Fault::CutShort)]).await;
    let (slot, result) = store.read(&object, 0..8, Box::new(vec![b'-'; 8])).await;
    assert_eq!((slot.bytes(), result.is_err()), (&b"0123----"[..], true));

    let store = with(vec![Rule::on(Operation::Put, When::Always, Fault::LostAnswer)]).await;
    store.put(&object, Payload::from("new")).await.unwrap_err();
    assert_eq!(store.read_all(&object, 10).await.unwrap().0, "new");

    let store = with(vec![Rule::on_any(When::Always, Fault::Refused).path("other")]).await;
    read(&store, 0..8).await.unwrap();
    store.head(&path("another")).await.unwrap_err();

    // After a stop nothing happens any more, not even the abort of an upload.
    let store = with(vec![Rule::on_any(When::Nth(3), Fault::Stop)]).await;
    let upload = store.start_multipart(&path("upload"), UploadShape::new(1, 1)).await.unwrap();
    upload.put_part(0, Payload::from("x")).await.unwrap();
    upload.complete().await.unwrap_err();
    let error = store.head(&object).await.unwrap_err();
    assert!(!error.is_transient(), "{error:?}");
}

/// Same seed, same faults; another seed, others.
#[tokio::test]
async fn draws_depend_on_the_seed_alone() {
    let run = async |seed| {
        let rules = [Rule::on(Operation::Head, When::Chance(0.5), Fault::LostRequest)];
        let store = Faulty::new(memory_with("object", "x").await, seed, rules);
        let mut pattern = Vec::new();
        for _ in 0..200 {
            pattern.push(store.head(&path("object")).await.is_ok());
        }
        pattern
    };
    let first = run(1).await;
    assert_eq!(first, run(1).await);
    assert_ne!(first, run(2).await);
    let good = first.iter().filter(|ok| **ok).count();
    assert!((60..140).contains(&good), "{good} of 200 at even odds");
}

/// A store that loses a fifth of everything conforms once its requests are repeated.
#[tokio::test(start_paused = true)]
async fn retries_hide_a_lossy_store() {
    let memory = Arc::new(MemoryBackend::anonymous());
    let lossy = [Fault::LostRequest, Fault::LostAnswer].map(|fault| Rule::on_any(When::Chance(0.1), fault));
    let faulty = Arc::new(Faulty::new(memory, 42, lossy));
    let meter = Meter::counting();
    let store = Retrying::new(faulty, RetryPolicy::default(), Arc::clone(&meter));
    let report = conformance::run(&store).await;
    assert!(report.is_ok() && report.skipped.is_empty(), "{report}");
    assert!(meter.totals().retries > 100, "{:?}", meter.totals());
}

#[tokio::test(start_paused = true)]
async fn retries_keep_their_budget() {
    let faulty = || {
        let rules = [Rule::on_any(When::Always, Fault::LostRequest)];
        Arc::new(Faulty::new(Arc::new(MemoryBackend::anonymous()), 1, rules))
    };
    let policy = RetryPolicy { tries: u32::MAX, budget: Duration::from_secs(100), ..RetryPolicy::default() };
    let begin = Instant::now();
    let store = Retrying::new(faulty(), policy, Meter::counting());
    store.head(&path("object")).await.unwrap_err();
    assert!(begin.elapsed() <= policy.budget, "{:?}", begin.elapsed());
    assert!(begin.elapsed() > policy.budget / 2, "gave up after {:?}", begin.elapsed());

    let meter = Meter::counting();
    let store = Retrying::new(faulty(), RetryPolicy { tries: 4, ..policy }, Arc::clone(&meter));
    store.head(&path("object")).await.unwrap_err();
    assert_eq!(meter.totals().retries, 3);
}
