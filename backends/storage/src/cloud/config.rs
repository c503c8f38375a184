//! A provider's options: from the environment, then from the caller's map.

use super::classify::classify;
use crate::{At, OpenOptions, Operation, Result, StorageError};
use object_store::RetryConfig;
use std::net::IpAddr;

/// Hands the caller's options to a provider's builder.
///
/// A key of another provider (known by its prefix) is passed over, so that one map serves every URI; any
/// other key that the provider doesn't know is an error.
pub(super) fn configure<B, K: std::str::FromStr>(
    mut builder: B,
    own_prefix: &str,
    uri: &str,
    options: &OpenOptions,
    with: impl Fn(B, K, &str) -> B,
) -> Result<B> {
    for (key, value) in options.config() {
        match key.parse() {
            Ok(known) => builder = with(builder, known, value),
            Err(_) if PREFIXES.iter().any(|prefix| *prefix != own_prefix && key.starts_with(prefix)) => {}
            Err(_) => {
                let detail = format!("there is no option `{key}` for this store");
                return Err(StorageError::InvalidInput { at: At::new(Operation::Open, uri), detail });
            }
        }
    }
    Ok(builder)
}

const PREFIXES: [&str; 3] = ["aws_", "google_", "azure_"];

/// No retries: [`Retrying`](crate::Retrying) is the one place for them.
pub(super) fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// Whether an endpoint may be asked without TLS: on this machine always, elsewhere only when the caller said
/// so, because credentials and checkpoints would cross the network readably.
pub(super) fn admit_endpoint(uri: &str, endpoint: Option<&str>, allow_http: Option<&str>) -> Result<bool> {
    let allowed = allow_http.is_some_and(|text| matches!(text, "true" | "1" | "yes" | "y" | "on"));
    let Some(endpoint) = endpoint else { return Ok(allowed) };
    let invalid = |detail| StorageError::InvalidInput { at: At::new(Operation::Open, uri), detail };
    let url =
        url::Url::parse(endpoint).map_err(|error| invalid(format!("the endpoint is no URL: {error}")))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if url.scheme() != "http" || allowed || local {
        return Ok(allowed || local);
    }
    Err(invalid(format!("the endpoint on {host} is not encrypted; use https, or set `allow_http` to `true`")))
}

/// The error of a builder.
pub(super) fn invalid_options(uri: &str, error: &object_store::Error) -> StorageError {
    match classify(At::new(Operation::Open, uri), error) {
        StorageError::Internal { at, detail } => StorageError::InvalidInput { at, detail },
        error => error,
    }
}
