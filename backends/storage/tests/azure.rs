//! Azure Blob Storage against its emulator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{Depth, OpenOptions, StorageError, conformance, open};
use reshard_storage_testing::{Azurite, fresh_name};

fn options() -> OpenOptions {
    let options = OpenOptions::new().without_environment();
    Azurite::shared().options().into_iter().fold(options, |options, (key, value)| options.set(key, value))
}

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let store = open(&format!("az://{}/run", Azurite::shared().container()), &options()).unwrap();
    let report = conformance::run(&*store).await;
    assert!(report.is_ok() && report.skipped.is_empty(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_container_is_said_so() {
    let store = open(&format!("az://{}", fresh_name()), &options()).unwrap();
    let error = store.list(None, Depth::Children).await.unwrap_err();
    assert!(matches!(error, StorageError::MissingBucket { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_key_is_access_denied() {
    let container = Azurite::shared().container();
    let options = options().set("azure_storage_account_key", "d3Jvbmc=");
    let store = open(&format!("az://{container}"), &options).unwrap();
    let error = store.list(None, Depth::Children).await.unwrap_err();
    assert!(matches!(error, StorageError::AccessDenied { .. }), "{error:?}");
    assert!(!error.to_string().contains("d3Jvbmc="), "{error}");
}
