//! The crate's error, grouped by what its reader can do about it.

use crate::StoragePath;
use std::fmt::{self, Display};
use std::ops::Range;

/// Result of a storage operation.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// What a request does; part of every error and of every record of [`Metered`](crate::Metered).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Opening a URI.
    Open,
    /// Reading a range into a slot.
    Read,
    /// Reading a whole small object.
    ReadAll,
    /// Asking for an object's length.
    Head,
    /// Writing an object whatever is there.
    Put,
    /// Writing an object on a condition.
    PutIf,
    /// Starting a multipart upload.
    StartUpload,
    /// Sending one part.
    PutPart,
    /// Making an upload visible.
    CompleteUpload,
    /// Giving an upload up.
    AbortUpload,
    /// Fetching one page of a listing.
    List,
    /// Deleting objects.
    Delete,
}

impl Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read | Self::ReadAll => "read",
            Self::Head => "look up",
            Self::Put => "write",
            Self::PutIf => "conditionally write",
            Self::StartUpload => "start the upload of",
            Self::PutPart => "upload a part of",
            Self::CompleteUpload => "complete the upload of",
            Self::AbortUpload => "abort the upload of",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}

/// Where an error happened: operation, store, and path and byte range as they apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At(Box<Place>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    operation: Operation,
    store: String,
    path: Option<StoragePath>,
    range: Option<Range<u64>>,
}

impl At {
    /// `operation` on `store` (its `Display`, which never holds a secret).
    pub fn new(operation: Operation, store: &(impl Display + ?Sized)) -> Self {
        Self(Box::new(Place { operation, store: store.to_string(), path: None, range: None }))
    }

    /// Names the object.
    pub fn path(mut self, path: &StoragePath) -> Self {
        self.0.path = Some(path.clone());
        self
    }

    /// Names the byte range of the object.
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.0.range = Some(range);
        self
    }

    /// What was done.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The object concerned, if it is one object.
    pub fn object(&self) -> Option<&StoragePath> {
        self.0.path.as_ref()
    }
}

impl Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &*self.0;
        write!(f, "can't {}", place.operation)?;
        if let Some(path) = &place.path {
            write!(f, " `{path}`")?;
        }
        if let Some(range) = &place.range {
            write!(f, " bytes {}..{}", range.start, range.end)?;
        }
        match place.path {
            Some(_) => write!(f, " in {}", place.store),
            None => write!(f, " {}", place.store),
        }
    }
}

/// Why a store can't answer for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// It asks to slow down (429, 503 SlowDown).
    Throttled,
    /// It failed inside (5xx).
    ServerError,
    /// No answer within the request's deadline.
    Timeout,
    /// The connection broke after the request had begun.
    Connection,
}

impl Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Throttled => "the store asks to slow down",
            Self::ServerError => "the store failed inside",
            Self::Timeout => "no answer in time",
            Self::Connection => "the connection broke",
        })
    }
}

/// A failed storage operation. Cloneable, so that one failure can be told to every waiting party.
///
/// Credentials never appear in it: it holds the store's `Display`, status codes and the server's own message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// There is no such object.
    #[error("{at}: there is no such object")]
    NotFound {
        /// What was tried.
        at: At,
    },
    /// The bucket or container does not exist.
    #[error("{at}: the bucket or container doesn't exist; create it or correct the URI and the endpoint")]
    MissingBucket {
        /// What was tried.
        at: At,
    },
    /// The store refuses these credentials, or what they may do.
    #[error(
        "{at}: access denied ({detail}); check key id, secret, session token, clock and policy, or the file's \
         permissions"
    )]
    AccessDenied {
        /// What was tried.
        at: At,
        /// The server's status, code and message.
        detail: String,
    },
    /// No connection to the host.
    #[error("{at}: the host can't be reached ({detail}); check endpoint, DNS, proxy and firewall")]
    Unreachable {
        /// What was tried.
        at: At,
        /// What the connection attempt said.
        detail: String,
    },
    /// Something answers there, but it is no store of this protocol.
    #[error(
        "{at}: the endpoint doesn't answer like an object store ({detail}); check it, its port and its scheme"
    )]
    WrongEndpoint {
        /// What was tried.
        at: At,
        /// What came instead.
        detail: String,
    },
    /// The disk or the quota is full.
    #[error("{at}: no space left ({detail}); free space or raise the quota, nothing partial was kept")]
    NoSpace {
        /// What was tried.
        at: At,
        /// The system's message.
        detail: String,
    },
    /// The store can't answer for now; retrying later may help.
    #[error("{at}: {outage} ({detail}); the store may answer later")]
    Unavailable {
        /// What was tried.
        at: At,
        /// Which kind of outage.
        outage: Outage,
        /// The server's status and message.
        detail: String,
    },
    /// The stored bytes are not what they should be: an object shorter than a range, an answer cut short.
    #[error("{at}: {detail}; the object is truncated or isn't the one expected")]
    Corrupt {
        /// What was tried.
        at: At,
        /// What differs.
        detail: String,
    },
    /// The caller asked for something impossible.
    #[error("{at}: {detail}")]
    InvalidInput {
        /// What was tried.
        at: At,
        /// What to change.
        detail: String,
    },
    /// This store, or this build, can't do it.
    #[error("{at}: {detail}")]
    Unsupported {
        /// What was tried.
        at: At,
        /// What is missing, and what offers it.
        detail: String,
    },
    /// Anything else: an answer that isn't understood, a failed system call.
    #[error("{at}: {detail}")]
    Internal {
        /// What was tried.
        at: At,
        /// The underlying message.
        detail: String,
    },
}

impl StorageError {
    /// Where it happened.
    pub fn at(&self) -> &At {
        match self {
            Self::NotFound { at }
            | Self::MissingBucket { at }
            | Self::AccessDenied { at, .. }
            | Self::Unreachable { at, .. }
            | Self::WrongEndpoint { at, .. }
            | Self::NoSpace { at, .. }
            | Self::Unavailable { at, .. }
            | Self::Corrupt { at, .. }
            | Self::InvalidInput { at, .. }
            | Self::Unsupported { at, .. }
            | Self::Internal { at, .. } => at,
        }
    }

    /// Whether the object isn't there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the same request may succeed later without anyone changing anything.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unreachable { .. })
    }
}
