use reshard_storage::{InvalidPath, StoragePath};
use std::fmt;

/// A directory of a store: below a prefix, or the store's root.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    prefix: Option<StoragePath>,
}

impl Directory {
    /// The directory at `prefix`; `None` is the root.
    pub fn new(prefix: Option<StoragePath>) -> Self {
        Self { prefix }
    }

    /// The prefix to list; `None` at the root.
    pub fn prefix(&self) -> Option<&StoragePath> {
        self.prefix.as_ref()
    }

    /// The object at `relative` inside the directory; `relative` may have several segments.
    ///
    /// # Errors
    /// [`InvalidPath`] for every path that could lead outside.
    pub fn file(&self, relative: &str) -> Result<StoragePath, InvalidPath> {
        // Checked on its own first: a leading slash would vanish in the joint.
        let inside = StoragePath::parse(relative)?;
        match &self.prefix {
            None => Ok(inside),
            Some(prefix) => prefix.join(relative),
        }
    }

    /// The directory that holds `path`.
    pub fn of(path: &StoragePath) -> Self {
        Self { prefix: path.parent() }
    }

    /// `path` relative to this directory; `None` where it is not inside.
    pub fn relative<'a>(&self, path: &'a StoragePath) -> Option<&'a str> {
        match &self.prefix {
            None => Some(path.as_str()),
            Some(prefix) => path.strip_prefix(prefix),
        }
    }
}

/// Prints the prefix, and `the root` for the root.
impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.prefix {
            None => f.write_str("the root"),
            Some(prefix) => write!(f, "`{prefix}`"),
        }
    }
}
