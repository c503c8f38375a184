//! The conformance suite on the stores that need no server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{DiskBackend, MemoryBackend, OpenOptions, StorageBackend, conformance, open};

async fn conforms(store: &dyn StorageBackend) {
    let report = conformance::run(store).await;
    println!("{store}: {report}");
    assert!(report.is_ok() && report.skipped.is_empty(), "{store}: {report}");
}

#[tokio::test]
async fn memory() {
    conforms(&MemoryBackend::anonymous()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk() {
    let directory = tempfile::tempdir().unwrap();
    conforms(&DiskBackend::new(directory.path().join("not/yet/there")).unwrap()).await;
}

/// The whole stack of decorators, as callers get it.
#[tokio::test(flavor = "multi_thread")]
async fn opened() {
    let directory = tempfile::tempdir().unwrap();
    for uri in [directory.path().to_str().unwrap(), "memory://conformance"] {
        conforms(&*open(uri, &OpenOptions::new()).unwrap()).await;
    }
}
