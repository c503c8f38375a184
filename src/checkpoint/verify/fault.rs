use super::owners::{Owner, held_in};
use crate::format::{EntryName, SavedLayout};
use reshard_shard::Region;
use reshard_storage::StoragePath;
use std::fmt;
use std::ops::Range;

/// Something that is not as it was saved.
#[derive(Clone, PartialEq, Debug)]
pub struct VerifyFault {
    /// What is wrong.
    pub kind: VerifyFaultKind,
    /// The object, relative to the run.
    pub file: String,
    /// The damaged blocks, by number.
    pub blocks: Option<Range<u64>>,
    /// The bytes of the object that are damaged or missing.
    pub bytes: Option<Range<u64>>,
    /// The first few of the chunks and per-rank objects that have bytes there.
    pub holds: Vec<Held>,
    /// How many more there are.
    pub holds_more: u64,
    /// What was found, in one sentence.
    pub detail: String,
}

/// The kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum VerifyFaultKind {
    /// commit.json is damaged.
    Commit,
    /// metadata.json is missing or damaged; nothing else can be judged without it.
    Metadata,
    /// trainer_state.json is missing or damaged.
    TrainerState,
    /// A data file is not there.
    Missing,
    /// An object lies in the attempt that its metadata does not name.
    Unreferenced,
    /// A data file is longer or shorter than it was.
    Length,
    /// A data file says that it is another one: of another attempt, iteration or rank.
    Origin,
    /// The header of a data file is damaged, or does not describe what the metadata says.
    Header,
    /// The table of block checksums is damaged.
    BlockTable,
    /// Blocks whose bytes are not those that were written.
    Block,
    /// A data file that was listed could not be read, or may not be; or a whole iteration among others.
    Unreadable,
}

impl VerifyFaultKind {
    /// Its name in answers for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Metadata => "metadata",
            Self::TrainerState => "trainer_state",
            Self::Missing => "missing",
            Self::Unreferenced => "unreferenced",
            Self::Length => "length",
            Self::Origin => "origin",
            Self::Header => "header",
            Self::BlockTable => "block_table",
            Self::Block => "block",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Who has bytes in a damaged place.
#[derive(Clone, PartialEq, Debug)]
pub enum Held {
    /// A chunk of a tensor.
    Chunk {
        /// The tensor's key.
        key: String,
        /// The region, in global coordinates.
        region: Region,
    },
    /// One rank's bytes under a name.
    Object {
        /// The name.
        name: String,
        /// The rank that saved it.
        rank: u32,
    },
}

impl Held {
    /// Whether an entry of a data file's header is this.
    pub(super) fn is(&self, entry: &EntryName) -> bool {
        match (self, entry) {
            (Self::Chunk { key, region }, EntryName::Chunk { key: found, region: at }) => {
                key == found && region == at
            }
            (Self::Object { name, rank }, EntryName::Object { name: found, rank: of }) => {
                name == found && rank == of
            }
            _ => false,
        }
    }
}

/// `transformer.wte.weight[0:128, 0:64]`, `rng of rank 3`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk { key, region } => write!(f, "{key}{region}"),
            Self::Object { name, rank } => write!(f, "{name} of rank {rank}"),
        }
    }
}

/// The file, what is wrong with it, and whose bytes are concerned, in one line.
impl fmt::Display for VerifyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.detail)?;
        if let Some(bytes) = &self.bytes {
            write!(f, " (bytes {}..{})", bytes.start, bytes.end)?;
        }
        for (index, held) in self.holds.iter().enumerate() {
            let before = if index == 0 { "; it holds " } else { ", " };
            write!(f, "{before}{held}")?;
        }
        if self.holds_more > 0 {
            write!(f, " and {} more", self.holds_more)?;
        }
        Ok(())
    }
}

impl VerifyFault {
    /// Of an object as a whole.
    pub(super) fn of(kind: VerifyFaultKind, path: &StoragePath, detail: impl Into<String>) -> Self {
        let detail: String = detail.into();
        // Errors of the format begin with the file's name, which `file` has already.
        let named = [path.as_str(), path.name()].into_iter().find_map(|name| detail.strip_prefix(name));
        let detail = match named.and_then(|rest| rest.strip_prefix(": ")) {
            Some(rest) => rest.to_owned(),
            None => detail,
        };
        Self {
            kind,
            file: path.as_str().to_owned(),
            blocks: None,
            bytes: None,
            holds: Vec::new(),
            holds_more: 0,
            detail,
        }
    }

    /// The same, of these bytes of a data file.
    pub(super) fn at(mut self, bytes: Range<u64>, layout: &SavedLayout, owners: &[Owner]) -> Self {
        (self.holds, self.holds_more) = held_in(layout, owners, &bytes);
        self.bytes = Some(bytes);
        self
    }
}

/// The fault of a data file that is not there, or has another length.
pub(super) fn wrong_length(
    path: &StoragePath,
    length: u64,
    found: Option<u64>,
    owners: &[Owner],
    layout: &SavedLayout,
) -> VerifyFault {
    let Some(found) = found else {
        let fault = VerifyFault::of(VerifyFaultKind::Missing, path, "the file is missing");
        return fault.at(0..length, layout, owners);
    };
    let detail = format!("the file has {found} bytes instead of {length}");
    let fault = VerifyFault::of(VerifyFaultKind::Length, path, detail);
    if found < length { fault.at(found..length, layout, owners) } else { fault }
}
