//! Google Cloud Storage, by its XML interface.

use super::CloudBackend;
use super::config::{admit_endpoint, configure, invalid_options, no_retries};
use super::http::Connector;
use crate::{Capabilities, OpenOptions, Result, StorageBackend};
use object_store::ClientConfigKey;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use std::sync::Arc;

/// Limits of Google Cloud Storage, see <https://cloud.google.com/storage/quotas>.
const CAPABILITIES: Capabilities = Capabilities {
    conditional_create: true,
    conditional_update: true,
    local: false,
    max_put_len: 5 << 40,
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
    let builder = if options.environment() {
        GoogleCloudStorageBuilder::from_env()
    } else {
        GoogleCloudStorageBuilder::new()
    };
    let builder = configure(builder, "google_", uri, options, |b, key: GoogleConfigKey, value| {
        b.with_config(key, value)
    })?;
    let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let allow_http = builder.get_config_value(&GoogleConfigKey::Client(ClientConfigKey::AllowHttp));
    let allow_http = admit_endpoint(uri, endpoint.as_deref(), allow_http.as_deref())?;
    let store = builder
        .with_bucket_name(bucket)
        .with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), allow_http.to_string())
        .with_retry(no_retries())
        .with_http_connector(Connector)
        .build()
        .map_err(|error| invalid_options(uri, &error))?;
    CloudBackend::open(store, uri, prefix, CAPABILITIES, true, options.request_deadline())
}
