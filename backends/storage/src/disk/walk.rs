//! Listing and deleting files so that directories look like key prefixes: an empty one doesn't exist.

use super::errors::is_loop;
use super::temporary::{is_temporary, sweep};
use super::{LOCK_FILE, modified};
use crate::{Deletion, Depth, Listing, ObjectInfo, StoragePath};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device and inode: the same directory by whatever name.
type Identity = (u64, u64);

fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// Adds what lies below `prefix` to `listing`.
pub(super) fn list(
    root: &Path,
    prefix: Option<&StoragePath>,
    depth: Depth,
    listing: &mut Listing,
) -> io::Result<()> {
    let directory = prefix.map_or_else(|| root.to_owned(), |prefix| root.join(prefix.as_str()));
    let mut above = fs::metadata(directory).iter().map(identity).collect();
    below(root, prefix, depth, listing, &mut above)
}

/// As [`list`]; `above` are the directories from where the listing began down to this one.
fn below(
    root: &Path,
    prefix: Option<&StoragePath>,
    depth: Depth,
    listing: &mut Listing,
    above: &mut Vec<Identity>,
) -> io::Result<()> {
    let directory = prefix.map_or_else(|| root.to_owned(), |prefix| root.join(prefix.as_str()));
    for (path, metadata) in children(&directory, prefix, above)? {
        if !metadata.is_dir() {
            listing.objects.push(ObjectInfo { path, len: metadata.len(), modified: modified(&metadata) });
            continue;
        }
        above.push(identity(&metadata));
        match depth {
            Depth::All => below(root, Some(&path), depth, listing, above)?,
            Depth::Children if has_object(root, &path, above)? => listing.prefixes.push(path),
            Depth::Children => {}
        }
        above.pop();
    }
    Ok(())
}

/// The entries of a directory that are objects or may hold some. Names that are no keys are passed over: this
/// library didn't write them and can't address them. What vanishes while it is looked at isn't there, and a link to a
/// directory that it lies in holds nothing more.
fn children(
    directory: &Path,
    prefix: Option<&StoragePath>,
    above: &[Identity],
) -> io::Result<Vec<(StoragePath, fs::Metadata)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut children = Vec::new();
    for entry in entries {
        let entry = match entry {
            Err(error) if is_absence(&error) => continue,
            entry => entry?,
        };
        let name = entry.file_name();
        if is_temporary(&name) || (prefix.is_none() && name == LOCK_FILE) {
            continue;
        }
        let path = name.to_str().and_then(|name| match prefix {
            Some(prefix) => prefix.join(name).ok(),
            None => StoragePath::parse(name).ok(),
        });
        let Some(path) = path else { continue };
        match fs::metadata(entry.path()) {
            Err(error) if is_absence(&error) || is_loop(&error) => {}
            Ok(metadata) if above.contains(&identity(&metadata)) => {}
            metadata => children.push((path, metadata?)),
        }
    }
    Ok(children)
}

/// Whether anything lies below `prefix`. A directory that may not be read may hold something; whoever looks into it is
/// told so then.
fn has_object(root: &Path, prefix: &StoragePath, above: &mut Vec<Identity>) -> io::Result<bool> {
    let children = match children(&root.join(prefix.as_str()), Some(prefix), above) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(true),
        children => children?,
    };
    for (path, metadata) in children {
        if !metadata.is_dir() {
            return Ok(true);
        }
        above.push(identity(&metadata));
        let found = has_object(root, &path, above)?;
        above.pop();
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the file of one object. A crash may bring it back: the directory isn't fsynced.
pub(super) fn remove(file: &Path) -> io::Result<Deletion> {
    match fs::remove_file(file) {
        Ok(()) => Ok(Deletion::Deleted),
        Err(error) if is_absence(&error) || error.kind() == ErrorKind::IsADirectory => Ok(Deletion::Absent),
        Err(error) => Err(error),
    }
}

/// Removes the directories that held `files`, and those above them below `root`, where nothing is left in
/// them. What crashed writes left beside the files goes too. An error leaves an empty directory, which no
/// listing shows.
pub(super) fn prune_directories(root: &Path, files: &[PathBuf]) {
    let directories: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).collect();
    for directory in directories.into_iter().rev() {
        if sweep(directory).is_err() {
            continue;
        }
        let below_root = |ancestor: &&Path| *ancestor != root && ancestor.starts_with(root);
        for ancestor in directory.ancestors().take_while(below_root) {
            if fs::remove_dir(ancestor).is_err() {
                break;
            }
        }
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
