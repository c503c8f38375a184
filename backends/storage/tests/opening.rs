//! URIs and options.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{Depth, OpenOptions, Payload, StorageBackend, StorageError, StoragePath, open};
use std::sync::Arc;

fn opened(uri: &str) -> Result<Arc<dyn StorageBackend>, StorageError> {
    open(uri, &OpenOptions::new().without_environment())
}

fn refused(uri: &str) -> String {
    match opened(uri) {
        Err(error @ StorageError::InvalidInput { .. }) => error.to_string(),
        other => panic!("{uri}: expected InvalidInput, got {other:?}"),
    }
}

#[tokio::test]
async fn paths_and_file_uris_are_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let object = StoragePath::parse("object").unwrap();
    opened(&format!("{folder}/a b")).unwrap().put(&object, Payload::from("x")).await.unwrap();
    let store = opened(&format!("file://{folder}/a%20b/")).unwrap();
    assert_eq!(store.read_all(&object, 10).await.unwrap().0, "x");
    assert_eq!(store.to_string(), format!("{folder}/a b/"));
    refused("");
    refused("file://relative/path");
}

#[tokio::test]
async fn memory_stores_have_names() {
    let object = StoragePath::parse("object").unwrap();
    opened("memory://one/run").unwrap().put(&object, Payload::from("x")).await.unwrap();
    assert_eq!(opened("memory://one/run").unwrap().read_all(&object, 10).await.unwrap().0, "x");
    assert!(opened("memory://two").unwrap().list(None, Depth::All).await.unwrap().objects.is_empty());
    refused("memory://");
}

#[test]
fn what_is_no_store_is_refused() {
    assert!(refused("ftp://host/path").contains("scheme"));
    for uri in ["s3://", "s3:///prefix", "gs://", "az:///x"] {
        refused(uri);
    }
    // Credentials in a URI are refused, and not repeated.
    let error = refused("s3://AKIAKEY:hunter2@bucket/prefix");
    assert!(!error.contains("hunter2") && !error.contains("AKIAKEY"), "{error}");
}

#[test]
fn options_show_no_value() {
    let options = OpenOptions::new().set("aws_secret_access_key", "hunter2");
    let shown = format!("{options:?}");
    assert!(shown.contains("aws_secret_access_key") && !shown.contains("hunter2"), "{shown}");
}

#[cfg(not(feature = "s3"))]
#[test]
fn a_feature_that_is_not_compiled_in_is_named() {
    let error = opened("s3://bucket/prefix").unwrap_err();
    assert!(
        matches!(error, StorageError::Unsupported { .. }) && error.to_string().contains("`s3`"),
        "{error}"
    );
}

#[cfg(feature = "s3")]
mod s3 {
    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<Arc<dyn StorageBackend>, StorageError> {
        let options = OpenOptions::new().without_environment();
        let options = settings.iter().fold(options, |options, (key, value)| options.set(key, *value));
        open("s3://bucket/prefix/", &options)
    }

    #[test]
    fn plain_http_needs_a_loopback_or_a_word() {
        let far = ("aws_endpoint", "http://minio.example.com:9000");
        let error = with(&[far]).unwrap_err();
        assert!(error.to_string().contains("allow_http"), "{error}");
        with(&[far, ("allow_http", "true")]).unwrap();
        with(&[("aws_endpoint", "https://minio.example.com")]).unwrap();
        for near in ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000"] {
            with(&[("aws_endpoint", near)]).unwrap();
        }
        with(&[("aws_endpoint", "nonsense")]).unwrap_err();
    }

    #[test]
    fn conditional_puts_can_be_switched_off() {
        assert!(with(&[]).unwrap().capabilities().conditional_update);
        let store = with(&[("aws_conditional_put", "disabled")]).unwrap();
        assert!(!store.capabilities().conditional_update && !store.capabilities().conditional_create);
    }

    #[test]
    fn options_are_checked_by_name() {
        let error = with(&[("aws_sekret", "x")]).unwrap_err().to_string();
        assert!(error.contains("`aws_sekret`"), "{error}");
        with(&[("bogus", "x")]).unwrap_err();
        // Those of other providers are for other URIs.
        let store =
            with(&[("google_service_account", "/nowhere"), ("azure_storage_account_name", "x")]).unwrap();
        assert_eq!(store.to_string(), "s3://bucket/prefix");
    }
}
