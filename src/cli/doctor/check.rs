//! One thing that is tried, how it went, and what to do about it.

use super::super::progress::Bar;
use crate::checkpoint::CheckpointError;
use crate::transfer::TransferError;
use reshard_storage::StorageError;
use serde::Serialize;
use std::future::Future;

/// How a check went.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Ok,
    /// It works, but something should be looked at.
    Warning,
    Fault,
}

impl Status {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Fault => "FAULT",
        }
    }
}

#[derive(Serialize, Clone, PartialEq, Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) detail: String,
    pub(super) fix: Option<String>,
}

/// How something that was tried turned out badly.
pub(super) enum Bad {
    /// The store says so itself.
    Store(StorageError),
    /// It did not do what it should have.
    Behaviour { detail: String, fix: &'static str },
}

impl From<StorageError> for Bad {
    fn from(error: StorageError) -> Self {
        Self::Store(error)
    }
}

impl From<TransferError> for Bad {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Storage(error) => Self::Store(error),
            other => Self::Behaviour {
                detail: CheckpointError::from(other).to_string(),
                fix: "choose a shorter URI",
            },
        }
    }
}

/// The checks so far.
pub(super) struct Checks<'a> {
    checks: Vec<Check>,
    bar: &'a Bar,
    /// Whether the store is a disk, which has permissions of files and no credentials.
    on_disk: bool,
}

impl<'a> Checks<'a> {
    pub(super) fn new(bar: &'a Bar, on_disk: bool) -> Self {
        Self { checks: Vec::new(), bar, on_disk }
    }

    /// Tries something. `allow` names the permissions that it needs. `None` where it is a fault.
    pub(super) async fn attempt<T>(
        &mut self,
        name: &'static str,
        allow: &str,
        work: impl Future<Output = Result<(T, String), Bad>>,
    ) -> Option<T> {
        self.bar.say(name);
        let (value, status, detail, fix) = match work.await {
            Ok((value, detail)) => (Some(value), Status::Ok, detail, None),
            Err(Bad::Store(error)) if self.on_disk => {
                (None, Status::Fault, detail_on_disk(&error), Some(fix_on_disk(&error, allow)))
            }
            Err(Bad::Store(error)) => (None, Status::Fault, error.to_string(), Some(fix(&error, allow))),
            Err(Bad::Behaviour { detail, fix }) => (None, Status::Fault, detail, Some(fix.to_owned())),
        };
        self.checks.push(Check { name, status, detail, fix });
        value
    }

    /// Adds something that works and should be looked at.
    pub(super) fn warn(&mut self, name: &'static str, detail: String, fix: &str) {
        self.checks.push(Check { name, status: Status::Warning, detail, fix: Some(fix.to_owned()) });
    }

    pub(super) fn done(self) -> Vec<Check> {
        self.checks
    }
}

/// A disk's error without advice on credentials.
fn detail_on_disk(error: &StorageError) -> String {
    match error {
        StorageError::AccessDenied { at, detail } => format!("{at}: access denied ({detail})"),
        _ => error.to_string(),
    }
}

/// What to do about a disk's error.
fn fix_on_disk(error: &StorageError, allow: &str) -> String {
    match error {
        StorageError::AccessDenied { .. } => {
            "let this user read, write and search the directory and all above it (chmod, chown; `ls -ld` shows the \
             permissions), mount the disk writable, or choose another directory"
                .to_owned()
        }
        StorageError::NotFound { .. } | StorageError::Corrupt { .. } => {
            "something else deletes or changes files here; checkpoints need them left alone".to_owned()
        }
        StorageError::Internal { .. } | StorageError::Unavailable { .. } => {
            "see that each part of the path is a directory and that the disk works (`dmesg`, `mount`), or choose \
             another directory"
                .to_owned()
        }
        _ => fix(error, allow),
    }
}

/// What to do about a store's error. Where permissions are missing, these are `allow`.
fn fix(error: &StorageError, allow: &str) -> String {
    match error {
        StorageError::AccessDenied { detail, .. } => {
            let of_key = ["InvalidAccessKeyId", "SignatureDoesNotMatch", "no credentials", "ExpiredToken"];
            if detail.contains("TimeTooSkewed") {
                "set this machine's clock (NTP): the store refuses requests of another time".to_owned()
            } else if of_key.iter().any(|sign| detail.contains(sign)) {
                "set the credentials in the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and \
                 AWS_SESSION_TOKEN), GOOGLE_APPLICATION_CREDENTIALS, or AZURE_STORAGE_ACCOUNT_NAME and \
                 AZURE_STORAGE_ACCOUNT_KEY"
                    .to_owned()
            } else {
                format!("allow these credentials {allow}")
            }
        }
        StorageError::MissingBucket { .. } => {
            "create the bucket or container, or correct its name, the region (AWS_REGION) and the endpoint \
             (AWS_ENDPOINT)"
                .to_owned()
        }
        StorageError::Unreachable { .. } => {
            "correct the endpoint (AWS_ENDPOINT, or --set aws_endpoint=http://host:port), or open the way to it: \
             name resolution, proxy, firewall"
                .to_owned()
        }
        StorageError::WrongEndpoint { .. } => {
            "set the endpoint of the store's protocol (AWS_ENDPOINT): its console or another service answers here"
                .to_owned()
        }
        StorageError::NoSpace { .. } => "free space, or raise the quota".to_owned(),
        StorageError::Unavailable { .. } => {
            "try again later; if it stays so, ask who runs the store about its load and its request limits".to_owned()
        }
        StorageError::Unsupported { .. } => {
            "use a store, or a release of it, that can do this".to_owned()
        }
        StorageError::InvalidInput { .. } => "correct the URI or the option that the message names".to_owned(),
        StorageError::NotFound { .. } | StorageError::Corrupt { .. } => {
            "something else deletes or changes objects here, or the store does not show what was just written; \
             checkpoints need neither"
                .to_owned()
        }
        _ => "please report it, with the message".to_owned(),
    }
}
