//! Directories that survive a crash: a file's name is durable once the directory that holds it is fsynced,
//! and so on upwards.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Creates `directory` and what misses above it. What lies above and up to `root` is made durable by
/// [`sync_to_root`] when the object is; a `root` that doesn't exist yet is made durable here, once.
pub(super) fn create_directories(root: &Path, directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = directory.parent().ok_or(error)?;
            create_directories(root, parent)?;
            match fs::create_dir(directory) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Err(error) => return Err(error),
    }
    match directory.parent() {
        Some(parent) if root.starts_with(directory) => sync(parent),
        _ => Ok(()),
    }
}

/// Fsyncs `directory` and every directory above it, up to and including `root`.
///
/// All of them every time: another process may have made one and not synced it yet.
pub(super) fn sync_to_root(root: &Path, directory: &Path) -> io::Result<()> {
    directory.ancestors().take_while(|ancestor| ancestor.starts_with(root)).try_for_each(sync)
}

fn sync(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        // Some network file systems can't sync a directory and write its entries through instead.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}
