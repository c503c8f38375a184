//! The conformance suite on any store that the environment names: `RESHARD_TEST_URI=s3://bucket/prefix` with
//! the usual AWS_*, GOOGLE_* or AZURE_* variables runs it against MinIO or a cloud bucket.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{OpenOptions, conformance, open};

#[tokio::test(flavor = "multi_thread")]
async fn conforms() {
    let Ok(uri) = std::env::var("RESHARD_TEST_URI") else {
        println!("RESHARD_TEST_URI is not set: no store was given to test");
        return;
    };
    let store = open(&uri, &OpenOptions::new()).unwrap();
    let report = conformance::run(&*store).await;
    println!("{uri}: {report}");
    assert!(report.is_ok(), "{uri}: {report}");
}
