//! S3 against a SeaweedFS server: the conformance suite, uploads that vanish, and what errors say.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{
    Depth, Expect, OpenOptions, Outcome, Payload, PutOutcome, RetryPolicy, StorageBackend, StorageError,
    StoragePath, UploadShape, conditional_put, conformance, open,
};
use reshard_storage_testing::{Identity, SeaweedFs, fresh_name};
use std::sync::Arc;
use std::time::Duration;

fn options(identity: Identity) -> OpenOptions {
    let options = OpenOptions::new().without_environment();
    SeaweedFs::shared()
        .options(identity)
        .into_iter()
        .fold(options, |options, (key, value)| options.set(key, value))
}

fn open_as(identity: Identity, bucket: &str) -> Arc<dyn StorageBackend> {
    open(&format!("s3://{bucket}"), &options(identity)).unwrap()
}

fn path(text: &str) -> StoragePath {
    StoragePath::parse(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let bucket = SeaweedFs::shared().bucket();
    for uri in [format!("s3://{bucket}"), format!("s3://{bucket}/a prefix/of two/")] {
        let store = open(&uri, &options(Identity::Admin)).unwrap();
        let report = conformance::run(&*store).await;
        assert!(report.is_ok() && report.skipped.is_empty(), "{uri}: {report}");
    }
    assert_eq!(SeaweedFs::shared().unfinished_uploads(&bucket), [""; 0]);
}

/// An upload that is dropped, and one that fails to complete, leave no parts behind that somebody pays for.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_uploads_are_aborted() {
    let bucket = SeaweedFs::shared().bucket();
    let store = open_as(Identity::Admin, &bucket);
    let uploads = || SeaweedFs::shared().unfinished_uploads(&bucket);
    let shape = UploadShape::new(10 << 20, 5 << 20);
    let dropped = store.start_multipart(&path("dropped"), shape).await.unwrap();
    dropped.put_part(0, vec![1; 5 << 20].into()).await.unwrap();
    let incomplete = store.start_multipart(&path("incomplete"), shape).await.unwrap();
    assert_eq!(uploads(), ["dropped", "incomplete"]);
    drop(dropped);
    assert!(incomplete.complete().await.is_err());
    // The abort runs in the background; wait for its effect, not for a time.
    while !uploads().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(store.list(None, Depth::All).await.unwrap().objects.is_empty());
}

/// What each operation says to a given mistake, and that it says so soon: nothing of this is retried.
async fn every_operation(store: &dyn StorageBackend, is_right: impl Fn(&StorageError) -> bool) {
    let object = path("object");
    let errors = [
        ("read", store.read(&object, 0..4, Box::new(vec![0; 4])).await.1.err()),
        ("read_all", store.read_all(&object, 10).await.err()),
        ("put", store.put(&object, Payload::from("text")).await.err()),
        ("put_if", store.put_if(&object, Payload::from("text"), &Expect::Absent).await.err()),
        ("start_multipart", store.start_multipart(&object, UploadShape::new(4, 4)).await.err()),
        ("list", store.list(None, Depth::Children).await.err()),
    ];
    for (operation, error) in errors {
        let error = error.unwrap_or_else(|| panic!("{operation} succeeded on {store}"));
        assert!(is_right(&error), "{operation}: {error:?}");
        assert!(!error.to_string().contains("secret\""), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_secret_is_access_denied() {
    let store = open_as(Identity::WrongSecret, &SeaweedFs::shared().bucket());
    every_operation(&*store, |error| matches!(error, StorageError::AccessDenied { .. })).await;
    let error = store.list(None, Depth::Children).await.unwrap_err().to_string();
    assert!(error.contains("secret") && !error.contains("another-secret"), "{error}");
    assert!(!format!("{store:?} {:?}", options(Identity::WrongSecret)).contains("another-secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_bucket_is_said_so() {
    let store = open_as(Identity::Admin, &fresh_name());
    every_operation(&*store, |error| matches!(error, StorageError::MissingBucket { .. })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_without_permission_is_access_denied() {
    let bucket = SeaweedFs::shared().bucket();
    let (admin, reader) = (open_as(Identity::Admin, &bucket), open_as(Identity::Reader, &bucket));
    admin.put(&path("object"), Payload::from("text")).await.unwrap();
    assert_eq!(reader.read_all(&path("object"), 10).await.unwrap().0, "text");
    let denied = |error: StorageError| matches!(error, StorageError::AccessDenied { .. });
    assert!(denied(reader.put(&path("object"), Payload::from("new")).await.unwrap_err()));
    assert!(denied(reader.put_if(&path("other"), Payload::from("new"), &Expect::Absent).await.unwrap_err()));
    let other = path("other");
    let put = conditional_put(&*reader, &other, "new".into(), &Expect::Absent, Duration::from_secs(60));
    assert!(denied(put.await.unwrap_err()));
    assert!(denied(reader.start_multipart(&path("object"), UploadShape::new(4, 4)).await.unwrap_err()));
    assert!(denied(reader.delete(&path("object")).await.unwrap_err()));
}

/// The conditional put itself, below the function that settles it.
#[tokio::test(flavor = "multi_thread")]
async fn conditions_hold_at_the_server() {
    let store = open_as(Identity::Admin, &SeaweedFs::shared().bucket());
    let object = path("commit.json");
    let PutOutcome::Written(first) =
        store.put_if(&object, Payload::from("one"), &Expect::Absent).await.unwrap()
    else {
        panic!("the first create didn't win");
    };
    assert_eq!(store.put_if(&object, Payload::from("two"), &Expect::Absent).await.unwrap(), PutOutcome::Lost);
    let update = Expect::Version(first);
    assert!(matches!(
        store.put_if(&object, Payload::from("three"), &update).await.unwrap(),
        PutOutcome::Written(_)
    ));
    assert_eq!(store.put_if(&object, Payload::from("four"), &update).await.unwrap(), PutOutcome::Lost);
    let within = Duration::from_secs(60);
    let lost = conditional_put(&*store, &object, "five".into(), &update, within).await.unwrap();
    assert!(matches!(lost, Outcome::Lost { current: Some((bytes, _)) } if bytes == "three"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens() {
    let options = options(Identity::Admin)
        .set("aws_endpoint", "http://127.0.0.1:1")
        .retry(RetryPolicy { first_wait: Duration::from_millis(1), ..RetryPolicy::default() });
    let store = open("s3://bucket", &options).unwrap();
    every_operation(&*store, |error| matches!(error, StorageError::Unreachable { .. })).await;
}
