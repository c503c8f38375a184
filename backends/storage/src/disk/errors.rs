//! From system errors to [`StorageError`].

use crate::{At, Result, StorageError};
use std::io::{self, ErrorKind};

/// Names what was done when a system call on an existing object fails.
pub(super) trait OnDisk<T> {
    fn on_disk(self, at: &At) -> Result<T>;
}

impl<T> OnDisk<T> for io::Result<T> {
    fn on_disk(self, at: &At) -> Result<T> {
        self.map_err(|error| object_error(at.clone(), error))
    }
}

/// The error of a call that needs the object to be there.
pub(super) fn object_error(at: At, error: io::Error) -> StorageError {
    match error.kind() {
        // A directory is no object, nor is what lies "below" a file.
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            StorageError::NotFound { at }
        }
        _ => other(at, error),
    }
}

/// The error of a call that makes an object.
pub(super) fn write_error(at: At, error: io::Error) -> StorageError {
    match error.kind() {
        ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::DirectoryNotEmpty
        | ErrorKind::AlreadyExists => {
            let detail = format!(
                "on disk no key can be both an object and a prefix of others ({error}); choose another key"
            );
            StorageError::InvalidInput { at, detail }
        }
        _ => other(at, error),
    }
}

fn other(at: At, error: io::Error) -> StorageError {
    let detail = error.to_string();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            StorageError::NoSpace { at, detail }
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            StorageError::AccessDenied { at, detail }
        }
        ErrorKind::InvalidFilename => StorageError::InvalidInput {
            at,
            detail: format!("this file system can't store the name ({detail})"),
        },
        ErrorKind::Unsupported => StorageError::Unsupported { at, detail },
        _ if is_loop(&error) => StorageError::InvalidInput { at, detail },
        _ => StorageError::Internal { at, detail },
    }
}

/// Symbolic links that lead in a circle.
pub(super) fn is_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}
