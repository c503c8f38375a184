//! commit.json: the one object that says whether there is a checkpoint.

use super::names::{AttemptId, FORMAT, Iteration, METADATA_FILE, VERSION, is_lower_hex, random_hex};
use super::{FormatError, ObjectDigest, Sha256, crc32c};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What stands before the checksum's digits; the checksum is that of all bytes before this.
const CRC_FIELD: &[u8] = b",\"crc32c\":\"";
/// What stands after the digits.
const CRC_END: &[u8] = b"\"}";
const CRC_DIGITS: usize = 8;

/// A parsed commit.json.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Commit {
    /// There is a checkpoint.
    Committed(CommittedCheckpoint),
    /// There was one, or an attempt was collected; whatever lies here is garbage.
    Deleted(DeletedCheckpoint),
}

/// A checkpoint that can be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommittedCheckpoint {
    iteration: Iteration,
    attempt: AttemptId,
    metadata: ObjectDigest,
    pins: BTreeSet<String>,
    nonce: String,
}

/// A deleted checkpoint. It names nothing: of what lies in the iteration's directory, nothing is live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedCheckpoint {
    nonce: String,
}

/// Why bytes are not a commit.json.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitFault {
    /// Not JSON at all.
    #[error("not JSON: {0}")]
    NotJson(String),
    /// JSON that does not end with a checksum.
    #[error("the checksum is missing at the end")]
    NoChecksum,
    /// The bytes are not those that were written.
    #[error("CRC32C {found:08x}, not {expected:08x}: the commit is damaged")]
    Checksum {
        /// As it says itself.
        expected: u32,
        /// Of the bytes.
        found: u32,
    },
    /// JSON of something else.
    #[error("not a commit of reshard")]
    NotOurs,
    /// Neither committed nor deleted.
    #[error("unknown state `{0}`")]
    State(String),
    /// A field is missing, unknown, doubled or of the wrong type.
    #[error("bad fields: {0}")]
    Fields(String),
    /// The metadata is not where an attempt's is.
    #[error("metadata path `{path}` is not that of attempt {attempt}")]
    MetadataPath {
        /// The path.
        path: String,
        /// The attempt.
        attempt: AttemptId,
    },
    /// Pins are sorted, distinct and not empty.
    #[error("pin `{0}` is empty, doubled or out of order")]
    Pins(String),
    /// The commit of one iteration lies in the directory of another.
    #[error("it commits {0}: a checkpoint that is copied must keep the name of its directory")]
    OtherIteration(Iteration),
    /// The nonce is 32 hexadecimal digits.
    #[error("bad nonce `{0}`")]
    Nonce(String),
}

#[derive(Deserialize)]
struct Peek {
    version: u64,
    format: String,
    state: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CommittedText {
    version: u64,
    format: String,
    state: String,
    iteration: u64,
    attempt: String,
    metadata: ObjectDigest,
    pins: Vec<String>,
    nonce: String,
    #[serde(skip_serializing, rename = "crc32c")]
    _crc32c: IgnoredAny,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeletedText {
    version: u64,
    format: String,
    state: String,
    nonce: String,
    #[serde(skip_serializing, rename = "crc32c")]
    _crc32c: IgnoredAny,
}

const COMMITTED: &str = "committed";
const DELETED: &str = "deleted";

impl CommittedCheckpoint {
    /// Of an attempt whose metadata.json is `metadata`. Draws a nonce, so that no two commits are equal in bytes.
    ///
    /// # Errors
    /// [`FormatError::Random`]; [`FormatError::Name`] for an empty pin.
    pub fn new(
        iteration: Iteration,
        attempt: AttemptId,
        metadata: &[u8],
        pins: BTreeSet<String>,
    ) -> Result<Self, FormatError> {
        let path = metadata_path(&attempt);
        let metadata = ObjectDigest { path, length: metadata.len() as u64, sha256: Sha256::of(metadata) };
        Self { iteration, attempt, metadata, pins: BTreeSet::new(), nonce: String::new() }.with_pins(pins)
    }

    /// The same checkpoint with other pins, and a fresh nonce.
    ///
    /// # Errors
    /// [`FormatError::Random`]; [`FormatError::Name`] for an empty pin.
    pub fn with_pins(&self, pins: BTreeSet<String>) -> Result<Self, FormatError> {
        if pins.contains("") {
            return Err(FormatError::Name { name: String::new(), what: "the name of a pin" });
        }
        let (attempt, metadata) = (self.attempt.clone(), self.metadata.clone());
        Ok(Self { iteration: self.iteration, attempt, metadata, pins, nonce: random_hex()? })
    }

    /// The iteration that was committed. It is that of the directory, unless somebody copied the one to another's name.
    pub fn iteration(&self) -> Iteration {
        self.iteration
    }

    /// The attempt that was committed.
    pub fn attempt(&self) -> &AttemptId {
        &self.attempt
    }

    /// The attempt's metadata.json; its path is relative to the iteration's directory.
    pub fn metadata(&self) -> &ObjectDigest {
        &self.metadata
    }

    /// Who wants it kept. A pinned checkpoint is not pruned.
    pub fn pins(&self) -> &BTreeSet<String> {
        &self.pins
    }
}

impl DeletedCheckpoint {
    /// A new one, with a fresh nonce.
    ///
    /// # Errors
    /// [`FormatError::Random`].
    pub fn new() -> Result<Self, FormatError> {
        Ok(Self { nonce: random_hex()? })
    }
}

impl Commit {
    /// The bytes of commit.json.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (version, format) = (VERSION, FORMAT.to_owned());
        let text = match self {
            Self::Committed(it) => serde_json::to_vec(&CommittedText {
                version,
                format,
                state: COMMITTED.to_owned(),
                iteration: it.iteration.0,
                attempt: it.attempt.to_string(),
                metadata: it.metadata.clone(),
                pins: it.pins.iter().cloned().collect(),
                nonce: it.nonce.clone(),
                _crc32c: IgnoredAny,
            }),
            Self::Deleted(it) => serde_json::to_vec(&DeletedText {
                version,
                format,
                state: DELETED.to_owned(),
                nonce: it.nonce.clone(),
                _crc32c: IgnoredAny,
            }),
        };
        // Strings and numbers always serialize.
        let mut text = text.unwrap_or_default();
        // The closing brace makes room for the checksum.
        text.pop();
        let crc = crc32c(&text);
        text.extend_from_slice(CRC_FIELD);
        text.extend_from_slice(format!("{crc:08x}").as_bytes());
        text.extend_from_slice(CRC_END);
        text
    }

    /// Reads `file`. The checksum comes first, so that damage is never taken for another version.
    ///
    /// # Errors
    /// [`FormatError::Commit`] or [`FormatError::UnsupportedVersion`].
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, FormatError> {
        let fault = |fault| FormatError::Commit { file: file.to_owned(), fault };
        let fields = |error: serde_json::Error| fault(CommitFault::Fields(error.to_string()));
        serde_json::from_slice::<IgnoredAny>(bytes)
            .map_err(|error| fault(CommitFault::NotJson(error.to_string())))?;
        check_crc(bytes).map_err(fault)?;
        let peek: Peek = serde_json::from_slice(bytes).map_err(fields)?;
        if peek.format != FORMAT {
            return Err(fault(CommitFault::NotOurs));
        }
        if peek.version != VERSION {
            return Err(FormatError::UnsupportedVersion { file: file.to_owned(), found: peek.version });
        }
        match peek.state.as_deref() {
            Some(COMMITTED) => {
                let text: CommittedText = serde_json::from_slice(bytes).map_err(fields)?;
                text.check().map(Self::Committed).map_err(fault)
            }
            Some(DELETED) => {
                let text: DeletedText = serde_json::from_slice(bytes).map_err(fields)?;
                let nonce = check_nonce(text.nonce).map_err(fault)?;
                Ok(Self::Deleted(DeletedCheckpoint { nonce }))
            }
            other => Err(fault(CommitFault::State(other.unwrap_or_default().to_owned()))),
        }
    }

    /// Checks that what `file` commits is the iteration in whose directory it lies.
    ///
    /// # Errors
    /// [`CommitFault::OtherIteration`].
    pub fn in_directory_of(self, iteration: Iteration, file: &str) -> Result<Self, FormatError> {
        match &self {
            Self::Committed(checkpoint) if checkpoint.iteration != iteration => {
                let fault = CommitFault::OtherIteration(checkpoint.iteration);
                Err(FormatError::Commit { file: file.to_owned(), fault })
            }
            _ => Ok(self),
        }
    }

    /// The checkpoint that `file` commits.
    ///
    /// # Errors
    /// [`FormatError::Deleted`].
    pub fn committed(self, file: &str) -> Result<CommittedCheckpoint, FormatError> {
        match self {
            Self::Committed(checkpoint) => Ok(checkpoint),
            Self::Deleted(_) => Err(FormatError::Deleted { file: file.to_owned() }),
        }
    }
}

impl CommittedText {
    fn check(self) -> Result<CommittedCheckpoint, CommitFault> {
        let attempt: AttemptId =
            self.attempt.parse().map_err(|error: FormatError| CommitFault::Fields(error.to_string()))?;
        if self.metadata.path != metadata_path(&attempt) {
            return Err(CommitFault::MetadataPath { path: self.metadata.path, attempt });
        }
        let mut pins = BTreeSet::new();
        for pin in self.pins {
            if pin.is_empty() || pins.last().is_some_and(|last| *last >= pin) {
                return Err(CommitFault::Pins(pin));
            }
            pins.insert(pin);
        }
        let iteration = Iteration(self.iteration);
        Ok(CommittedCheckpoint {
            iteration,
            attempt,
            metadata: self.metadata,
            pins,
            nonce: check_nonce(self.nonce)?,
        })
    }
}

fn metadata_path(attempt: &AttemptId) -> String {
    format!("{}/{METADATA_FILE}", attempt.directory())
}

fn check_nonce(nonce: String) -> Result<String, CommitFault> {
    if nonce.len() == 32 && is_lower_hex(&nonce) { Ok(nonce) } else { Err(CommitFault::Nonce(nonce)) }
}

fn check_crc(bytes: &[u8]) -> Result<(), CommitFault> {
    let digits = bytes.strip_suffix(CRC_END).and_then(|bytes| bytes.split_last_chunk::<CRC_DIGITS>());
    let (before, digits) = digits.ok_or(CommitFault::NoChecksum)?;
    let before = before.strip_suffix(CRC_FIELD).ok_or(CommitFault::NoChecksum)?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| is_lower_hex(digits));
    let expected =
        digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).ok_or(CommitFault::NoChecksum)?;
    let found = crc32c(before);
    if found == expected { Ok(()) } else { Err(CommitFault::Checksum { expected, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(pins: &[&str]) -> Commit {
        let pins = pins.iter().map(|&pin| pin.to_owned()).collect();
        Commit::Committed(
            CommittedCheckpoint::new(Iteration(7), AttemptId::draw().unwrap(), b"{}", pins).unwrap(),
        )
    }

    /// A text with its own checksum.
    fn sealed(text: &str) -> Vec<u8> {
        format!("{text},\"crc32c\":\"{:08x}\"}}", crc32c(text.as_bytes())).into_bytes()
    }

    fn fault(bytes: &[u8]) -> CommitFault {
        match Commit::parse("c", bytes).unwrap_err() {
            FormatError::Commit { file, fault } if file == "c" => fault,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn commits_round_trip_and_no_two_are_equal() {
        for commit in [committed(&[]), committed(&["a", "best é \"quoted\""])] {
            let bytes = commit.to_bytes();
            assert_eq!(Commit::parse("c", &bytes).unwrap(), commit);
            let checkpoint = commit.clone().committed("c").unwrap();
            checkpoint.metadata().check(b"{}").unwrap();
            let again = checkpoint.with_pins(checkpoint.pins().clone()).unwrap();
            assert_ne!(Commit::Committed(again).to_bytes(), bytes);
        }
        let deleted = Commit::Deleted(DeletedCheckpoint::new().unwrap());
        assert_eq!(Commit::parse("c", &deleted.to_bytes()).unwrap(), deleted);
        assert_ne!(Commit::Deleted(DeletedCheckpoint::new().unwrap()).to_bytes(), deleted.to_bytes());
        let error = deleted.committed("c").unwrap_err();
        assert_eq!(
            (&error, error.kind()),
            (&FormatError::Deleted { file: "c".into() }, crate::format::FormatErrorKind::Deleted)
        );
        assert!(
            CommittedCheckpoint::new(
                Iteration(7),
                AttemptId::draw().unwrap(),
                b"",
                BTreeSet::from([String::new()])
            )
            .is_err()
        );
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_refused() {
        let bytes = committed(&["pin"]).to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let fault = fault(&damaged);
            assert!(
                matches!(
                    fault,
                    CommitFault::NotJson(_) | CommitFault::NoChecksum | CommitFault::Checksum { .. }
                ),
                "bit {bit}: {fault}"
            );
        }
        for length in 0..bytes.len() {
            assert!(matches!(fault(&bytes[..length]), CommitFault::NotJson(_)));
        }
    }

    #[test]
    fn every_fault_has_an_error_of_its_own() {
        let text = String::from_utf8(committed(&["a", "b"]).to_bytes()).unwrap();
        let text = &text[..text.len() - 21];
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            sealed(&text.replacen(from, to, 1))
        };
        assert!(Commit::parse("c", &sealed(text)).is_ok());
        let newer = Commit::parse("c", &with("\"version\":1", "\"version\":2,\"new\":0")).unwrap_err();
        assert_eq!(newer, FormatError::UnsupportedVersion { file: "c".into(), found: 2 });
        assert_eq!(fault(b"{}"), CommitFault::NoChecksum);
        assert_eq!(fault(&with("reshard", "other")), CommitFault::NotOurs);
        assert_eq!(fault(&with("committed", "commited")), CommitFault::State("commited".into()));
        assert!(matches!(fault(&with("\"pins\"", "\"pinned\"")), CommitFault::Fields(_)));
        assert!(matches!(fault(&with("\"pins\"", "\"nonce\":\"\",\"pins\"")), CommitFault::Fields(_)));
        assert!(matches!(fault(&with("\"attempt\":\"", "\"attempt\":\"x")), CommitFault::Fields(_)));
        assert!(matches!(fault(&with("\"sha256\":\"", "\"sha256\":\"0")), CommitFault::Fields(_)));
        assert!(matches!(fault(&with("\"path\":\"", "\"path\":\"../")), CommitFault::MetadataPath { .. }));
        assert_eq!(fault(&with("[\"a\",\"b\"]", "[\"b\",\"a\"]")), CommitFault::Pins("a".into()));
        assert_eq!(fault(&with("[\"a\",\"b\"]", "[\"a\",\"a\"]")), CommitFault::Pins("a".into()));
        assert_eq!(fault(&with("[\"a\",\"b\"]", "[\"\"]")), CommitFault::Pins("".into()));
        assert!(matches!(fault(&with("\"nonce\":\"", "\"nonce\":\"0")), CommitFault::Nonce(_)));
        let deleted =
            r#"{"version":1,"format":"reshard","state":"deleted","nonce":"00112233445566778899aabbccddeeff""#;
        assert!(Commit::parse("c", &sealed(deleted)).is_ok());
        let with_pins = sealed(&format!("{deleted},\"pins\":[]"));
        assert!(matches!(fault(&with_pins), CommitFault::Fields(_)));
    }
}
