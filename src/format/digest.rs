//! SHA-256 of the small objects, so that whoever trusts commit.json can trust them.

use super::FormatError;
use super::names::is_lower_hex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest;
use std::fmt;
use std::str::FromStr;

/// A SHA-256 hash; 64 lower-case hexadecimal digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// Of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Not 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a SHA-256 of 64 lower-case hexadecimal digits")]
pub struct NotSha256(pub String);

impl FromStr for Sha256 {
    type Err = NotSha256;

    fn from_str(text: &str) -> Result<Self, NotSha256> {
        let refused = || NotSha256(text.to_owned());
        if text.len() != 64 || !is_lower_hex(text) {
            return Err(refused());
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| refused())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A small object: where it lies and what it must be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectDigest {
    /// Path relative to the directory of the object that names it.
    pub path: String,
    /// Length in bytes.
    pub length: u64,
    /// Hash of the whole.
    pub sha256: Sha256,
}

/// Why bytes are not the object that was named.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DigestFault {
    /// Another length.
    #[error("{found} bytes, not {expected}")]
    Length {
        /// As named.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// The same length, other bytes.
    #[error("SHA-256 {found}, not {expected}")]
    Sha256 {
        /// As named.
        expected: Sha256,
        /// Of the bytes.
        found: Sha256,
    },
}

impl ObjectDigest {
    /// Of an object of `bytes` that will lie at `path`.
    pub fn of(path: impl Into<String>, bytes: &[u8]) -> Self {
        Self { path: path.into(), length: bytes.len() as u64, sha256: Sha256::of(bytes) }
    }

    /// Checks that `bytes` are the object.
    ///
    /// # Errors
    /// [`FormatError::Digest`] with the path.
    pub fn check(&self, bytes: &[u8]) -> Result<(), FormatError> {
        let fault = |fault| Err(FormatError::Digest { file: self.path.clone(), fault });
        let found = bytes.len() as u64;
        if found != self.length {
            return fault(DigestFault::Length { expected: self.length, found });
        }
        let found = Sha256::of(bytes);
        if found != self.sha256 {
            return fault(DigestFault::Sha256 { expected: self.sha256, found });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_checked_and_read_back_strictly() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Sha256::of(b"abc").to_string(), abc);
        assert_eq!(abc.parse::<Sha256>().unwrap(), Sha256::of(b"abc"));
        for text in ["", &abc[1..], &abc.to_uppercase(), &abc.replace('b', "+"), &abc.replace('b', "é")] {
            assert!(text.parse::<Sha256>().is_err(), "{text}");
        }
        let digest = ObjectDigest::of("a/b.json", b"abc");
        assert!(digest.check(b"abc").is_ok());
        let fault = |bytes| match digest.check(bytes).unwrap_err() {
            FormatError::Digest { file, fault } if file == "a/b.json" => fault,
            other => panic!("{other}"),
        };
        assert_eq!(fault(b"ab"), DigestFault::Length { expected: 3, found: 2 });
        assert!(matches!(fault(b"abd"), DigestFault::Sha256 { .. }));
    }
}
