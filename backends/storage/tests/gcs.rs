//! The GCS protocol against a mapping onto SeaweedFS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{OpenOptions, conformance, open};
use reshard_storage_testing::GcsProxy;

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let proxy = GcsProxy::shared();
    let options = proxy
        .options()
        .into_iter()
        .fold(OpenOptions::new().without_environment(), |options, (key, value)| options.set(key, value));
    let store = open(&format!("gs://{}/run", proxy.bucket()), &options).unwrap();
    let report = conformance::run(&*store).await;
    assert!(report.is_ok() && report.skipped.is_empty(), "{report}");
}
