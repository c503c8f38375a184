//! From an HTTP failure to the [`StorageError`] that says what to do about it.

use super::http::{Failure, chain};
use crate::{At, Operation, Outage, PutOutcome, Result, StorageError};
use object_store::client::{HttpError, HttpErrorKind};

fn failure(error: &object_store::Error) -> Option<&Failure> {
    chain(error).find_map(|error| error.downcast_ref::<Failure>())
}

/// Whether the answer says that the object (not the bucket) isn't there.
pub(super) fn is_absent(error: &object_store::Error) -> bool {
    match failure(error) {
        Some(Failure::Status { status: 404, code, .. }) => !is_missing_bucket(code),
        Some(_) => false,
        None => matches!(error, object_store::Error::NotFound { .. }),
    }
}

fn is_missing_bucket(code: &str) -> bool {
    matches!(code, "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted" | "ResourceNotFound")
}

/// What a conditional put came to that failed: lost, unknown, or an error that says that nothing was written.
pub(super) fn outcome_of_failed_put(at: At, error: &object_store::Error) -> Result<PutOutcome> {
    if let Some(Failure::Status { status, code, .. }) = failure(error) {
        match status {
            // S3, R2, GCS and Azure spell a failed precondition in one of these ways; an update of an absent
            // object is 404 on S3.
            304 | 412 => return Ok(PutOutcome::Lost),
            409 if code.contains("AlreadyExists") => return Ok(PutOutcome::Lost),
            404 if !is_missing_bucket(code) => return Ok(PutOutcome::Lost),
            _ => {}
        }
    }
    match classify(at, error) {
        // S3's 409 means that another conditional write is under way; it is among these.
        cause @ (StorageError::Unavailable { .. } | StorageError::Internal { .. }) => {
            Ok(PutOutcome::Unknown { cause })
        }
        error => Err(error),
    }
}

/// The error of a failed request.
pub(super) fn classify(at: At, error: &object_store::Error) -> StorageError {
    match failure(error) {
        Some(Failure::Status { status, code, message }) => by_status(at, *status, code, message),
        Some(Failure::Alien(detail)) => StorageError::WrongEndpoint { at, detail: detail.clone() },
        Some(Failure::Credentials { host, failure }) => without_credentials(at, host, failure),
        Some(Failure::Transport { connecting: true, message, .. }) => {
            StorageError::Unreachable { at, detail: message.clone() }
        }
        Some(Failure::Transport { kind, message, connecting: false }) => broken(at, *kind, message.clone()),
        None => without_failure(at, error),
    }
}

/// There are no credentials. A busy service is an outage like any other; many ranks start at once.
fn without_credentials(at: At, host: &str, failure: &Failure) -> StorageError {
    match failure {
        Failure::Status { status: status @ (408 | 429 | 500..=599), code, message } => {
            by_status(at, *status, code, message)
        }
        Failure::Transport { connecting: false, kind, message } => broken(at, *kind, message.clone()),
        _ => StorageError::AccessDenied {
            at,
            detail: format!("no usable credentials are set, and asking {host} for some failed: {failure}"),
        },
    }
}

/// The connection broke, before the answer or inside its body.
fn broken(at: At, kind: HttpErrorKind, detail: String) -> StorageError {
    let outage = if kind == HttpErrorKind::Timeout { Outage::Timeout } else { Outage::Connection };
    StorageError::Unavailable { at, outage, detail }
}

fn without_failure(at: At, error: &object_store::Error) -> StorageError {
    if let Some(http) = chain(error).find_map(|error| error.downcast_ref::<HttpError>()) {
        let cause = chain(http).last().map(ToString::to_string).unwrap_or_default();
        return broken(at, http.kind(), cause);
    }
    let detail = error.to_string();
    match error {
        object_store::Error::NotFound { .. } => StorageError::NotFound { at },
        object_store::Error::InvalidPath { .. } | object_store::Error::UnknownConfigurationKey { .. } => {
            StorageError::InvalidInput { at, detail }
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            StorageError::Unsupported { at, detail }
        }
        // A success whose body is no listing.
        _ if at.operation() == Operation::List => StorageError::WrongEndpoint { at, detail },
        _ => StorageError::Internal { at, detail },
    }
}

fn by_status(at: At, status: u16, code: &str, message: &str) -> StorageError {
    let detail = match (code, message) {
        ("", "") => format!("HTTP status {status}"),
        _ => format!("HTTP status {status}, {code}: {message}"),
    };
    let unavailable = |outage| StorageError::Unavailable { at: at.clone(), outage, detail: detail.clone() };
    match (status, code) {
        (404, code) if is_missing_bucket(code) || at.operation() == Operation::List => {
            StorageError::MissingBucket { at }
        }
        (404 | 410, _) => StorageError::NotFound { at },
        (_, "QuotaExceeded" | "XMinioStorageFull" | "InsufficientStorage") | (507, _) => {
            StorageError::NoSpace { at, detail }
        }
        (_, "RequestTimeout") | (408, _) => unavailable(Outage::Timeout),
        (_, "SlowDown" | "ServerBusy" | "ThrottlingException" | "RequestLimitExceeded") | (429, _) => {
            unavailable(Outage::Throttled)
        }
        (_, "AccessDenied") => StorageError::AccessDenied { at, detail },
        (501, _) => StorageError::Unsupported { at, detail },
        (500..=599, _) | (200, _) | (409, _) => unavailable(Outage::ServerError),
        (401 | 403, _)
        | (
            400,
            "ExpiredToken"
            | "InvalidToken"
            | "TokenRefreshRequired"
            | "AuthorizationHeaderMalformed"
            | "InvalidAccessKeyId",
        ) => StorageError::AccessDenied { at, detail },
        (416, _) => {
            StorageError::Corrupt { at, detail: "the range begins past the end of the object".to_owned() }
        }
        (301 | 302 | 307 | 308, _) => StorageError::InvalidInput {
            at,
            detail: format!(
                "{detail}; the bucket lies in another region or behind another endpoint, set that one"
            ),
        },
        (400, _) => StorageError::InvalidInput { at, detail },
        _ => StorageError::Internal { at, detail },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(operation: Operation, status: u16, code: &str) -> String {
        let error = by_status(At::new(operation, "s3://bucket"), status, code, "message");
        format!("{error:?}").split_whitespace().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn statuses_by_what_to_do() {
        use Operation::{List, Put, Read};
        let cases = [
            (Read, 404, "NoSuchKey", "NotFound"),
            (Read, 404, "NoSuchBucket", "MissingBucket"),
            (List, 404, "", "MissingBucket"),
            (Read, 404, "ContainerNotFound", "MissingBucket"),
            (Read, 403, "SignatureDoesNotMatch", "AccessDenied"),
            (Read, 401, "", "AccessDenied"),
            (Put, 400, "ExpiredToken", "AccessDenied"),
            (Put, 400, "RequestTimeout", "Unavailable"),
            (Put, 400, "InvalidArgument", "InvalidInput"),
            (Put, 409, "OperationAborted", "Unavailable"),
            (Put, 429, "", "Unavailable"),
            (Put, 503, "SlowDown", "Unavailable"),
            (Put, 500, "InternalError", "Unavailable"),
            (Put, 200, "InternalError", "Unavailable"),
            (Operation::Delete, 200, "AccessDenied", "AccessDenied"),
            (Put, 507, "", "NoSpace"),
            (Read, 416, "InvalidRange", "Corrupt"),
            (Put, 501, "NotImplemented", "Unsupported"),
            (Put, 301, "PermanentRedirect", "InvalidInput"),
            (Put, 418, "", "Internal"),
        ];
        for (operation, status, code, expected) in cases {
            assert_eq!(kind(operation, status, code), expected, "{status} {code}");
        }
    }
}
