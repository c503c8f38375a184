//! [`Temporary`]: a file under a reserved name until it is whole.

use super::durable::{create_directories, sync_to_root};
use crate::Payload;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = ".reshard-tmp-";

/// Whether this is the name of a write in progress or of one that a crash left behind.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// A file beside its target, removed when dropped before it got its final name.
///
/// Its owner holds a lock on it while it lives, so that a sweep can tell a running write from what a crash
/// left.
#[derive(Debug)]
pub(super) struct Temporary {
    root: PathBuf,
    target: PathBuf,
    name: PathBuf,
    file: File,
}

/// What became of a move that doesn't replace.
#[derive(Debug)]
pub(super) enum Created {
    /// The target is durable.
    Durable,
    /// The target was there already.
    Exists,
    /// The target is there, but a directory above it couldn't be fsynced.
    NotSynced(io::Error),
}

impl Temporary {
    /// An empty temporary for `target`, whose directories are created where they miss.
    pub(super) fn create(root: &Path, target: PathBuf) -> io::Result<Self> {
        let directory = target.parent().ok_or(ErrorKind::InvalidInput)?;
        // A concurrent delete may remove an empty directory, or sweep the file before it is locked: then
        // again.
        for _ in 0..ATTEMPTS {
            match create_directories(root, directory) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                created => created?,
            }
            let name =
                directory.join(format!("{PREFIX}{:016x}", getrandom::u64().map_err(io::Error::other)?));
            let file = match OpenOptions::new().write(true).create_new(true).open(&name) {
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {
                    continue;
                }
                file => file?,
            };
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                // A sweep has it, and will remove it.
                continue;
            }
            // Locked; or locks don't work here, then no sweep takes it either.
            let temporary = Self { root: root.to_owned(), target: target.clone(), name, file };
            if temporary.file.metadata()?.nlink() > 0 {
                return Ok(temporary);
            }
        }
        Err(io::Error::new(ErrorKind::ResourceBusy, "the directory is being deleted again and again"))
    }

    /// Writes `payload` at `offset`; callable from several threads at once.
    pub(super) fn write_at(&self, mut offset: u64, payload: &Payload) -> io::Result<()> {
        for piece in payload.pieces() {
            self.file.write_all_at(piece, offset)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Has the kernel begin to write `length` bytes at `offset` to the disk, so that it is busy while the next ones
    /// come and [`Self::sync`] finds little left to do.
    pub(super) fn begin_sync(&self, offset: u64, length: u64) {
        // Linux starts to write pages that it is told nobody needs; the portable call for that alone waits.
        #[cfg(target_os = "linux")]
        if let Some(length) = std::num::NonZeroU64::new(length) {
            let _only_advice =
                rustix::fs::fadvise(&self.file, offset, Some(length), rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _unused = (offset, length);
    }

    /// Makes the content durable; the name isn't yet.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Gives the file its final name, in place of what had it; [`Self::sync_name`] makes that durable.
    pub(super) fn rename(&self) -> io::Result<()> {
        fs::rename(&self.name, &self.target)
    }

    /// Gives the file its final name if nothing has it, atomically, and makes the name durable.
    ///
    /// # Errors
    /// `Unsupported` when the file system can neither link nor rename without replacing.
    pub(super) fn create_target(&self) -> io::Result<Created> {
        match fs::hard_link(&self.name, &self.target) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Created::Exists),
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied || error.kind() == ErrorKind::Unsupported =>
            {
                match rename_no_replace(&self.name, &self.target) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Created::Exists),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
        // A leftover second name would be swept later; the first fsync covers its removal too.
        let _removed = fs::remove_file(&self.name);
        Ok(match self.sync_name() {
            Ok(()) => Created::Durable,
            Err(error) => Created::NotSynced(error),
        })
    }

    /// Removes the file unless it has its final name.
    pub(super) fn remove(&self) {
        let _gone_or_renamed = fs::remove_file(&self.name);
    }

    /// Makes the final name durable, up to the root.
    pub(super) fn sync_name(&self) -> io::Result<()> {
        let directory = self.target.parent().ok_or(ErrorKind::InvalidInput)?;
        sync_to_root(&self.root, directory)
    }
}

const ATTEMPTS: usize = 100;

impl Drop for Temporary {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
fn rename_no_replace(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(|errno| match errno {
        rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP => io::Error::new(
            ErrorKind::Unsupported,
            "this file system can neither link nor rename without replacing, so no commit on it can be exclusive; \
             choose another file system or an object store",
        ),
        errno => errno.into(),
    })
}

/// Removes what a crash left in `directory`: temporaries that no living owner has locked.
pub(super) fn sweep(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if is_temporary(&entry.file_name()) {
            let file = File::open(entry.path())?;
            if file.try_lock().is_ok() {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}
