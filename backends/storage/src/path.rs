//! [`StoragePath`]: the key of an object, relative to the root that was opened.

use std::fmt::{self, Display};

/// Longest key in bytes that every backend accepts: S3, GCS and Azure allow 1024 bytes for the whole key, the
/// opened prefix included.
pub const MAX_KEY_BYTES: usize = 1024;

/// The key of an object: one or more segments joined by `/`, relative to the opened root.
///
/// No segment is empty or ends in a dot (so none is `.` or `..`), none holds a control character or a
/// backslash, and there is no slash at either end: a path can't leave the opened root and means the same
/// object on every backend (Azure turns backslashes into slashes and drops dots at the end). Every other
/// character is legal and kept as it is: backends escape for their protocol, `a%20b` and `a b` are two
/// objects.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoragePath(String);

/// Why a string is no [`StoragePath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is no storage path: {reason}")]
pub struct InvalidPath {
    path: String,
    reason: &'static str,
}

impl StoragePath {
    /// Takes `path` as it is, or says what is wrong with it.
    pub fn parse(path: impl Into<String>) -> Result<Self, InvalidPath> {
        let path = path.into();
        match fault(&path) {
            None => Ok(Self(path)),
            Some(reason) => Err(InvalidPath { path, reason }),
        }
    }

    /// `relative` (which may hold several segments) below this path.
    pub fn join(&self, relative: &str) -> Result<Self, InvalidPath> {
        Self::parse(format!("{}/{relative}", self.0))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The path without its last segment; `None` at the top.
    pub fn parent(&self) -> Option<Self> {
        self.0.rsplit_once('/').map(|(parent, _)| Self(parent.to_owned()))
    }

    /// The segments, in order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// What remains of this path below `prefix`, compared by whole segments: `iter_10/a` is not below
    /// `iter_1`.
    pub fn strip_prefix(&self, prefix: &Self) -> Option<&str> {
        self.0.strip_prefix(&prefix.0)?.strip_prefix('/')
    }
}

fn fault(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.len() > MAX_KEY_BYTES {
        return Some("it is longer than 1024 bytes, the most that object stores accept");
    }
    if path.chars().any(char::is_control) {
        return Some("it holds a control character");
    }
    if path.contains('\\') {
        return Some("it holds a backslash, which some stores take for a slash");
    }
    path.split('/').find_map(|segment| match segment {
        "" => Some("it has an empty segment (a leading, trailing or double slash)"),
        _ if segment.ends_with('.') => Some("a segment ends in a dot, which some stores drop"),
        _ => None,
    })
}

impl Display for StoragePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StoragePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::str::FromStr for StoragePath {
    type Err = InvalidPath;

    fn from_str(path: &str) -> Result<Self, InvalidPath> {
        Self::parse(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_what_could_leave_the_root_or_name_two_objects() {
        for bad in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.", "a.", "a./b", "a\\b", "a\nb",
            "a\0", "\u{7f}", "\u{85}",
        ] {
            assert!(StoragePath::parse(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(StoragePath::parse("k".repeat(MAX_KEY_BYTES)).is_ok());
        assert!(StoragePath::parse("k".repeat(MAX_KEY_BYTES + 1)).is_err());
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        let path = StoragePath::parse("run/iter_10/commit.json").unwrap();
        let ten = StoragePath::parse("run/iter_10").unwrap();
        let one = StoragePath::parse("run/iter_1").unwrap();
        assert_eq!(path.strip_prefix(&ten), Some("commit.json"));
        assert_eq!(path.strip_prefix(&one), None);
        assert_eq!(ten.strip_prefix(&ten), None);
        assert_eq!((path.name(), path.parent()), ("commit.json", Some(ten)));
    }

    proptest! {
        /// Against a second way to say it: a path is legal when each segment is, and joining is
        /// concatenation.
        #[test]
        fn legal_by_segments(text in "[a./ %\\x07é]{0,12}") {
            let legal = !text.is_empty()
                && text.split('/').all(|s| !s.is_empty() && !s.ends_with('.') && !s.contains('\x07'));
            prop_assert_eq!(StoragePath::parse(text.clone()).is_ok(), legal);
            if legal {
                let joined = StoragePath::parse("root").unwrap().join(&text).unwrap();
                prop_assert_eq!(joined.strip_prefix(&StoragePath::parse("root").unwrap()), Some(text.as_str()));
            }
        }
    }
}
