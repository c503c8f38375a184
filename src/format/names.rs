//! Every name that this format puts on storage or into a file, in one place.

use super::FormatError;
use reshard_shard::StateGroup;
use std::fmt;
use std::str::FromStr;

/// The version of the format that this code writes and reads.
pub const VERSION: u64 = 1;
/// The value of every `format` field.
pub const FORMAT: &str = "reshard";

/// The commit of an iteration: `<run>/iter_0000100/commit.json`.
pub const COMMIT_FILE: &str = "commit.json";
/// The saved layout, inside an attempt.
pub const METADATA_FILE: &str = "metadata.json";
/// The trainer state, inside an attempt.
pub const TRAINER_STATE_FILE: &str = "trainer_state.json";

const ITERATION_PREFIX: &str = "iter_";
const ATTEMPT_PREFIX: &str = "attempt-";
const DATA_FILE_EXTENSION: &str = ".safetensors";
const MODEL: &str = "model";
const OPTIMIZER: &str = "optimizer";

/// Fields of the `__metadata__` of a data file's header; `FORMAT` and `VERSION` stand under the first two.
pub(super) mod header_fields {
    pub const FORMAT: &str = "format";
    pub const VERSION: &str = "version";
    pub const ATTEMPT: &str = "attempt";
    pub const ITERATION: &str = "iteration";
    pub const RANK: &str = "rank";
    pub const WORLD_SIZE: &str = "world_size";
}

/// Entries of a data file that hold no tensor. No entry of a tensor or an object ends like these (see docs/format.md).
pub(super) mod reserved_entries {
    /// The safetensors header's own map of strings.
    pub const HEADER_METADATA: &str = "__metadata__";
    /// Zero bytes that align what follows; a number follows the prefix.
    pub const PADDING_PREFIX: &str = "__padding__.";
    /// The table of one CRC32C per block.
    pub const BLOCK_TABLE: &str = "__crc32c__";
}

/// The number of training steps done when a checkpoint was saved. Its directory is `iter_` and at least seven digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Iteration(pub u64);

impl fmt::Display for Iteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ITERATION_PREFIX}{:07}", self.0)
    }
}

impl FromStr for Iteration {
    type Err = FormatError;

    /// Reads a directory name. Only the name that [`Iteration`] prints is one: `iter_1` and `iter_00000001` are not.
    fn from_str(name: &str) -> Result<Self, FormatError> {
        canonical(name, "an iteration directory such as iter_0000100", |name| {
            number(name.strip_prefix(ITERATION_PREFIX)?).map(Iteration)
        })
    }
}

/// One try to save one iteration: random, so that no two tries ever share a directory.
///
/// 16 to 32 lower-case hexadecimal digits; [`AttemptId::draw`] makes 32.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AttemptId(String);

impl AttemptId {
    /// Draws a fresh id of 128 random bits.
    ///
    /// # Errors
    /// [`FormatError::Random`] where the operating system has no random numbers.
    pub fn draw() -> Result<Self, FormatError> {
        Ok(Self(random_hex()?))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The attempt's directory: `attempt-<id>`, inside the iteration's.
    pub fn directory(&self) -> String {
        format!("{ATTEMPT_PREFIX}{}", self.0)
    }

    /// Reads the name of an attempt's directory.
    ///
    /// # Errors
    /// [`FormatError::Name`] where it is no such name.
    pub fn from_directory(name: &str) -> Result<Self, FormatError> {
        match name.strip_prefix(ATTEMPT_PREFIX) {
            Some(id) => id.parse(),
            None => Err(FormatError::Name { name: name.to_owned(), what: "an attempt directory" }),
        }
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AttemptId {
    type Err = FormatError;

    fn from_str(id: &str) -> Result<Self, FormatError> {
        if (16..=32).contains(&id.len()) && is_lower_hex(id) {
            Ok(Self(id.to_owned()))
        } else {
            Err(FormatError::Name {
                name: id.to_owned(),
                what: "an attempt id of 16 to 32 hexadecimal digits",
            })
        }
    }
}

/// The name of a data file: `model-00003-of-00008.safetensors`, then `model-00003-of-00008.safetensors.1`, `.2`
/// where one file's header would grow too long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DataFileName {
    group: StateGroup,
    rank: u32,
    world_size: u32,
    piece: u32,
}

impl DataFileName {
    /// The file of global rank `rank`, counted from 0, of `world_size`; `piece` counts from 0.
    ///
    /// # Errors
    /// [`FormatError::Name`] where the rank is not below the world size.
    pub fn new(group: StateGroup, rank: u32, world_size: u32, piece: u32) -> Result<Self, FormatError> {
        let name = Self { group, rank, world_size, piece };
        if rank < world_size {
            Ok(name)
        } else {
            Err(FormatError::Name {
                name: name.to_string(),
                what: "a data file of a rank below the world size",
            })
        }
    }

    /// Model or optimizer.
    pub fn group(self) -> StateGroup {
        self.group
    }

    /// The global rank that wrote it.
    pub fn rank(self) -> u32 {
        self.rank
    }

    /// The number of ranks that saved.
    pub fn world_size(self) -> u32 {
        self.world_size
    }

    /// Which of the rank's files of this group, from 0.
    pub fn piece(self) -> u32 {
        self.piece
    }
}

impl fmt::Display for DataFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = match self.group {
            StateGroup::Model => MODEL,
            StateGroup::Optimizer => OPTIMIZER,
        };
        write!(f, "{group}-{:05}-of-{:05}{DATA_FILE_EXTENSION}", self.rank, self.world_size)?;
        if self.piece > 0 { write!(f, ".{}", self.piece) } else { Ok(()) }
    }
}

impl FromStr for DataFileName {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, FormatError> {
        canonical(name, "a data file such as model-00003-of-00008.safetensors", |name| {
            let (group, rest) = name.split_once('-')?;
            let group = match group {
                MODEL => StateGroup::Model,
                OPTIMIZER => StateGroup::Optimizer,
                _ => return None,
            };
            let (ranks, piece) = rest.split_once(DATA_FILE_EXTENSION)?;
            let (rank, world_size) = ranks.split_once("-of-")?;
            let piece = if piece.is_empty() { 0 } else { number(piece.strip_prefix('.')?)? };
            Self::new(group, number(rank)?, number(world_size)?, piece).ok()
        })
    }
}

/// Accepts only the one spelling that printing gives back.
fn canonical<T: fmt::Display>(
    name: &str,
    what: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, FormatError> {
    parse(name)
        .filter(|parsed| parsed.to_string() == name)
        .ok_or_else(|| FormatError::Name { name: name.to_owned(), what })
}

fn number<T: FromStr>(digits: &str) -> Option<T> {
    // `parse` alone would take a sign.
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub(super) fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// 32 random hexadecimal digits.
pub(super) fn random_hex() -> Result<String, FormatError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| FormatError::Random { why: error.to_string() })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_read_back_only_as_written() {
        for (iteration, name) in [(0, "iter_0000000"), (100, "iter_0000100"), (12_345_678, "iter_12345678")] {
            assert_eq!(Iteration(iteration).to_string(), name);
            assert_eq!(name.parse::<Iteration>().unwrap(), Iteration(iteration));
        }
        assert_eq!(Iteration(u64::MAX).to_string().parse::<Iteration>().unwrap(), Iteration(u64::MAX));
        for name in [
            "iter_1",
            "iter_00000001",
            "iter_",
            "iter_+000001",
            "iter_-000001",
            "Iter_0000001",
            "iter_000000a",
            "iter_99999999999999999999",
            "iter_0000001/",
            "",
        ] {
            assert!(name.parse::<Iteration>().is_err(), "{name}");
        }
    }

    #[test]
    fn attempts_are_random_and_read_back_strictly() {
        let (one, other) = (AttemptId::draw().unwrap(), AttemptId::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), 32);
        assert_eq!(AttemptId::from_directory(&one.directory()).unwrap(), one);
        for id in [
            "",
            "0123456789abcde",
            "0123456789ABCDEF",
            "0123456789abcdeg",
            "../0123456789abcdef",
            "0123456789abcdef0123456789abcdef0",
        ] {
            assert!(id.parse::<AttemptId>().is_err(), "{id}");
        }
        assert!(AttemptId::from_directory("0123456789abcdef").is_err());
    }

    #[test]
    fn data_files_are_read_back_only_as_written() {
        let name = |group, rank, size, piece| DataFileName::new(group, rank, size, piece).unwrap();
        for (file, text) in [
            (name(StateGroup::Model, 3, 8, 0), "model-00003-of-00008.safetensors"),
            (name(StateGroup::Optimizer, 3, 8, 2), "optimizer-00003-of-00008.safetensors.2"),
            (name(StateGroup::Model, 123_456, 200_000, 11), "model-123456-of-200000.safetensors.11"),
        ] {
            assert_eq!(file.to_string(), text);
            assert_eq!(text.parse::<DataFileName>().unwrap(), file);
        }
        for text in [
            "model-3-of-8.safetensors",
            "model-00008-of-00008.safetensors",
            "weights-00000-of-00001.safetensors",
            "model-00003-of-00008.safetensors.0",
            "model-00003-of-00008.safetensors.01",
            "model-00003-of-00008",
            "model-00003-of-00008.safetensorsx",
            "model-+0003-of-00008.safetensors",
        ] {
            assert!(text.parse::<DataFileName>().is_err(), "{text}");
        }
        assert!(DataFileName::new(StateGroup::Model, 1, 1, 0).is_err());
    }
}
