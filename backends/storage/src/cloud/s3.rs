//! Amazon S3 and what speaks its protocol.

use super::CloudBackend;
use super::config::{admit_endpoint, configure, invalid_options, no_retries};
use super::http::Connector;
use crate::{Capabilities, OpenOptions, Result, StorageBackend};
use object_store::ClientConfigKey;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use std::sync::Arc;

/// Limits of S3, see <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>.
const CAPABILITIES: Capabilities = Capabilities {
    conditional_create: true,
    conditional_update: true,
    local: false,
    max_put_len: 5 << 30,
    min_part_len: 5 << 20,
    max_part_len: 5 << 30,
    max_parts: 10_000,
    max_object_len: 5 << 40,
};

pub(crate) fn open(
    uri: &str,
    bucket: &str,
    prefix: &str,
    options: &OpenOptions,
) -> Result<Arc<dyn StorageBackend>> {
    let builder = if options.environment() { AmazonS3Builder::from_env() } else { AmazonS3Builder::new() };
    let builder = configure(builder, "aws_", uri, options, |b, key: AmazonS3ConfigKey, value| {
        b.with_config(key, value)
    })?;
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    let allow_http = builder.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    let allow_http = admit_endpoint(uri, endpoint.as_deref(), allow_http.as_deref())?;
    // Off for servers that don't have it or ignore it.
    let conditional = builder.get_config_value(&AmazonS3ConfigKey::ConditionalPut);
    let conditional = conditional.as_deref() != Some("disabled");
    let capabilities =
        Capabilities { conditional_create: conditional, conditional_update: conditional, ..CAPABILITIES };
    let store = builder
        .with_bucket_name(bucket)
        .with_allow_http(allow_http)
        .with_retry(no_retries())
        .with_http_connector(Connector)
        .build()
        .map_err(|error| invalid_options(uri, &error))?;
    CloudBackend::open(store, uri, prefix, capabilities, true, options.request_deadline())
}
