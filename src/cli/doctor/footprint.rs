//! Directories that an examination makes on a disk, and their removal.

use super::check::Checks;
use std::path::{Path, PathBuf};

/// The store's own file, which its first write makes.
const LOCK_FILE: &str = ".lock";

/// Which directories of a path were not there before anything was written.
pub(super) struct Footprint {
    /// The deepest, which is the store's own, first.
    missing: Vec<PathBuf>,
}

impl Footprint {
    /// Looks at the path before the first write.
    pub(super) fn before(root: PathBuf) -> Self {
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        Self { missing: root.ancestors().take_while(missing).map(Path::to_owned).collect() }
    }

    /// Takes away again what was not there, unless someone else put something into it. The lock of a directory that
    /// was there stays: a save that began meanwhile may hold it.
    pub(super) fn remove(self, checks: &mut Checks<'_>) {
        let Some(root) = self.missing.first().filter(|root| root.exists()) else { return };
        let name = root.display();
        let only_lock = std::fs::read_dir(root)
            .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|it| it.file_name() == LOCK_FILE)));
        if only_lock {
            // Where the lock can't be removed, its directory can't either, and that is told.
            let _ = std::fs::remove_file(root.join(LOCK_FILE));
        }
        let removed = self.missing.iter().take_while(|path| std::fs::remove_dir(path).is_ok()).count();
        let detail = match removed == self.missing.len() {
            true => format!("{name} did not exist; it was created for this and removed again"),
            false => format!("{name} did not exist; it was created for this and something keeps it there"),
        };
        checks.warn("directory", detail, "correct the path if there should be a directory already");
    }
}
