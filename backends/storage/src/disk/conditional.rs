//! Conditional puts on a file system: a move that doesn't replace, and compare + rename under a lock.

use super::errors::object_error;
use super::temporary::Created;
use super::{DiskBackend, LOCK_FILE, read_small};
use crate::backend::at;
use crate::{Operation, Payload, PutOutcome, Result, StorageError, StoragePath, Version};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::ErrorKind;

/// Longest object that a conditional update reads to compare it: far above any commit object.
const MAX_COMPARED: u64 = 64 << 20;

/// The version is a hash of the content: inode numbers and times return, content with a nonce in it doesn't.
pub(super) fn version_of(bytes: &[u8]) -> Version {
    let mut tag = String::from("sha256-");
    for byte in Sha256::digest(bytes) {
        // Writing to a string can't fail.
        let _infallible = write!(tag, "{byte:02x}");
    }
    Version::new(Some(tag), None)
}

pub(super) fn create(disk: &DiskBackend, path: &StoragePath, payload: &Payload) -> Result<PutOutcome> {
    let temporary = disk.staged(path, payload, Operation::PutIf)?;
    let created =
        temporary.create_target().map_err(|error| disk.write_error(Operation::PutIf, path, error))?;
    Ok(match created {
        Created::Durable => PutOutcome::Written(version_of(&payload.to_bytes())),
        Created::Exists if disk.file_of(path, Operation::PutIf)?.is_dir() => {
            return Err(disk.write_error(Operation::PutIf, path, ErrorKind::IsADirectory.into()));
        }
        Created::Exists => PutOutcome::Lost,
        Created::NotSynced(error) => {
            PutOutcome::Unknown { cause: disk.write_error(Operation::PutIf, path, error) }
        }
    })
}

pub(super) fn update(
    disk: &DiskBackend,
    path: &StoragePath,
    payload: &Payload,
    expected: &Version,
) -> Result<PutOutcome> {
    let here = || at(disk, Operation::PutIf, path);
    let file = disk.file_of(path, Operation::PutIf)?;
    // Written before the lock is taken, so that the lock is held for a comparison and a rename only.
    let temporary = disk.staged(path, payload, Operation::PutIf)?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(disk.root.join(LOCK_FILE))
        .map_err(|error| disk.write_error(Operation::PutIf, path, error))?;
    lock.lock().map_err(|error| StorageError::Unsupported {
        at: here(),
        detail: format!("this file system has no file locks ({error}), so no update on it can be exclusive"),
    })?;
    match read_small(&file, MAX_COMPARED, here()) {
        Ok(current) if version_of(&current) == *expected => {}
        Ok(_) | Err(StorageError::NotFound { .. }) => return Ok(PutOutcome::Lost),
        Err(error) => return Err(error),
    }
    temporary.rename().map_err(|error| object_error(here(), error))?;
    Ok(match temporary.sync_name() {
        Ok(()) => PutOutcome::Written(version_of(&payload.to_bytes())),
        Err(error) => PutOutcome::Unknown { cause: object_error(here(), error) },
    })
}
