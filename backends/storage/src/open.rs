//! [`open`]: from a URI to a store that retries, keeps its limits and is counted.

use crate::{
    At, DiskBackend, Limited, Limits, MemoryBackend, Meter, Metered, Operation, Result, RetryPolicy,
    Retrying, StorageBackend, StorageError,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long one request may take before it counts as failed: a base plus time for its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// For the request as such.
    pub base: Duration,
    /// The slowest acceptable transfer of one request's bytes.
    pub bytes_per_second: u64,
}

impl Default for Deadline {
    /// 30 s and 1 MiB/s, so 38 s for 8 MiB.
    fn default() -> Self {
        Self { base: Duration::from_secs(30), bytes_per_second: 1 << 20 }
    }
}

impl Deadline {
    /// The time for a request of `bytes` bytes.
    pub fn of(&self, bytes: u64) -> Duration {
        self.base.saturating_add(Duration::from_secs(bytes.div_ceil(self.bytes_per_second.max(1))))
    }
}

/// Options of [`open`]. By default everything comes from the environment.
#[derive(Clone)]
pub struct OpenOptions {
    config: BTreeMap<String, String>,
    environment: bool,
    limits: Limits,
    retry: RetryPolicy,
    deadline: Deadline,
    meter: Arc<Meter>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            config: BTreeMap::new(),
            environment: true,
            limits: Limits::default(),
            retry: RetryPolicy::default(),
            deadline: Deadline::default(),
            meter: Meter::counting(),
        }
    }
}

impl OpenOptions {
    /// Everything from the environment, default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a provider's option; it wins over the environment. Keys are those of the environment in lower
    /// case: `aws_access_key_id`, `aws_endpoint`, `google_service_account`, `azure_storage_account_name`,
    /// `allow_http`, ... One provider's keys don't disturb another's, so one set of options opens any URI.
    pub fn set(mut self, key: &str, value: impl Into<String>) -> Self {
        self.config.insert(key.to_ascii_lowercase(), value.into());
        self
    }

    /// Ignores the environment: only what was [`set`](Self::set) counts.
    pub fn without_environment(mut self) -> Self {
        self.environment = false;
        self
    }

    /// How much may be under way at once.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How failed requests are repeated.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// How long one request to an object store may take.
    pub fn deadline(mut self, deadline: Deadline) -> Self {
        self.deadline = deadline;
        self
    }

    /// Where requests and retries are counted; several stores may share one.
    pub fn meter(mut self, meter: Arc<Meter>) -> Self {
        self.meter = meter;
        self
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn config(&self) -> &BTreeMap<String, String> {
        &self.config
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn environment(&self) -> bool {
        self.environment
    }

    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn request_deadline(&self) -> Deadline {
        self.deadline
    }
}

/// Names the options that are set, never their values: they may be secrets.
impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("set", &self.config.keys())
            .field("environment", &self.environment)
            .field("limits", &self.limits)
            .field("retry", &self.retry)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Opens the store that a URI names; nothing is asked of it yet, so a wrong name shows with the first
/// request.
///
/// - `/path`, `./path`, `file:///path`: a directory, created by the first write
/// - `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`: an object store (features `s3`,
///   `gcs`, `azure`)
/// - `memory://name`: the store of that name in this process
///
/// # Errors
/// `InvalidInput` for what is no such URI or a wrong option; `Unsupported` when the feature isn't compiled
/// in.
pub fn open(uri: &str, options: &OpenOptions) -> Result<Arc<dyn StorageBackend>> {
    let store = backend(uri, options)?;
    let metered = Arc::new(Metered::new(store, Arc::clone(&options.meter)));
    let limited = Arc::new(Limited::new(metered, options.limits));
    Ok(Arc::new(Retrying::new(limited, options.retry, Arc::clone(&options.meter))))
}

fn backend(uri: &str, options: &OpenOptions) -> Result<Arc<dyn StorageBackend>> {
    let Some((scheme, rest)) = uri.split_once("://") else {
        if uri.is_empty() {
            return Err(invalid(uri, "an empty path"));
        }
        return Ok(Arc::new(DiskBackend::new(uri)?));
    };
    match scheme {
        "file" => {
            let parsed = url::Url::parse(uri).ok().and_then(|url| url.to_file_path().ok());
            let path = parsed.ok_or_else(|| invalid(uri, "write it as file:///absolute/path"))?;
            Ok(Arc::new(DiskBackend::new(path)?))
        }
        "memory" if rest.is_empty() => Err(invalid(uri, "a memory store needs a name: memory://name")),
        "memory" => Ok(Arc::new(MemoryBackend::named(rest))),
        "s3" | "s3a" => bucket(uri, rest).and_then(|(bucket, prefix)| s3(uri, bucket, prefix, options)),
        "gs" => bucket(uri, rest).and_then(|(bucket, prefix)| gcs(uri, bucket, prefix, options)),
        "az" => bucket(uri, rest).and_then(|(bucket, prefix)| azure(uri, bucket, prefix, options)),
        _ => Err(invalid(uri, "the scheme is none of file, s3, gs, az and memory")),
    }
}

/// Bucket and prefix of `bucket/prefix`, a trailing slash forgiven.
fn bucket<'a>(uri: &str, rest: &'a str) -> Result<(&'a str, &'a str)> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if bucket.is_empty() || !bucket.chars().all(legal) {
        // Whoever writes `key:secret@bucket` shall not find it in a log.
        let shown = uri.split_once("://").map_or("", |(scheme, _)| scheme);
        return Err(invalid(
            &format!("{shown}://..."),
            "a bucket name has letters, digits, `-`, `_` and `.` only; credentials belong in the environment",
        ));
    }
    Ok((bucket, prefix.trim_end_matches('/')))
}

fn invalid(uri: &str, detail: &str) -> StorageError {
    StorageError::InvalidInput { at: At::new(Operation::Open, uri), detail: detail.to_owned() }
}

#[cfg(feature = "azure")]
use crate::cloud::azure::open as azure;
#[cfg(feature = "gcs")]
use crate::cloud::gcs::open as gcs;
#[cfg(feature = "s3")]
use crate::cloud::s3::open as s3;

/// What the opener of a provider is when its feature isn't compiled in.
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
macro_rules! missing {
    ($feature:literal, $name:ident) => {
        #[cfg(not(feature = $feature))]
        fn $name(
            uri: &str,
            _bucket: &str,
            _prefix: &str,
            _options: &OpenOptions,
        ) -> Result<Arc<dyn StorageBackend>> {
            let detail = concat!("this build can't; compile it with the feature `", $feature, "`").to_owned();
            Err(StorageError::Unsupported { at: At::new(Operation::Open, uri), detail })
        }
    };
}
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
missing!("s3", s3);
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
missing!("gcs", gcs);
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
missing!("azure", azure);
