//! Azure Blob Storage. An upload's parts are blocks, which Azure drops by itself a week after the last one
//! unless they are committed; there is nothing to abort.

use super::CloudBackend;
use super::config::{admit_endpoint, configure, invalid_options, no_retries};
use super::http::Connector;
use crate::{Capabilities, OpenOptions, Result, StorageBackend};
use object_store::ClientConfigKey;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use std::sync::Arc;

/// Limits of block blobs, see <https://learn.microsoft.com/rest/api/storageservices/put-block>.
const CAPABILITIES: Capabilities = Capabilities {
    conditional_create: true,
    conditional_update: true,
    local: false,
    max_put_len: 5000 << 20,
    min_part_len: 1,
    max_part_len: 4000 << 20,
    max_parts: 50_000,
    max_object_len: 50_000 * (4000 << 20),
};

pub(crate) fn open(
    uri: &str,
    container: &str,
    prefix: &str,
    options: &OpenOptions,
) -> Result<Arc<dyn StorageBackend>> {
    let builder =
        if options.environment() { MicrosoftAzureBuilder::from_env() } else { MicrosoftAzureBuilder::new() };
    let builder = configure(builder, "azure_", uri, options, |b, key: AzureConfigKey, value| {
        b.with_config(key, value)
    })?;
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    let allow_http = builder.get_config_value(&AzureConfigKey::Client(ClientConfigKey::AllowHttp));
    let allow_http = admit_endpoint(uri, endpoint.as_deref(), allow_http.as_deref())?;
    let store = builder
        .with_container_name(container)
        .with_allow_http(allow_http)
        .with_retry(no_retries())
        .with_http_connector(Connector)
        .build()
        .map_err(|error| invalid_options(uri, &error))?;
    CloudBackend::open(store, uri, prefix, CAPABILITIES, false, options.request_deadline())
}
