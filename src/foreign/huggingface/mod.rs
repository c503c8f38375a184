//! Checkpoints in the form that Hugging Face libraries write: one safetensors file, or several and an index.
//!
//! Only headers are read, by range: the 8 bytes of the length, then the header. Every tensor is one chunk, whole; those
//! without elements have none. Packed sub-byte dtypes are opaque and load whole. All tensors are of the model group.

mod index;

use super::{Directory, ForeignError, MAX_JSON_BYTES, read};
use crate::format::{Chunk, ChunkTable, SafetensorsHeader, SavedFile, SavedLayout, SavedTensor};
use futures::stream::{self, StreamExt, TryStreamExt};
use index::Index;
use reshard_shard::{MAX_AXES, Region, RegionError, StateGroup};
use reshard_storage::{StorageBackend, StoragePath};

/// The usual name of a checkpoint in one file.
pub const MODEL_FILE: &str = "model.safetensors";
/// How the name of a safetensors file ends.
pub const FILE_EXTENSION: &str = ".safetensors";
/// How the name of an index ends; the usual one is `model.safetensors.index.json`.
pub const INDEX_EXTENSION: &str = ".safetensors.index.json";

/// Headers read at the same time.
const CONCURRENT_HEADERS: usize = 16;

/// A checkpoint of this kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// One safetensors file.
    File(StoragePath),
    /// An index, which names files relative to its own directory.
    Index(StoragePath),
}

impl Source {
    /// What an object of this name would be; `None` where it is neither.
    pub fn from_path(path: &StoragePath) -> Option<Self> {
        if path.as_str().ends_with(INDEX_EXTENSION) {
            Some(Self::Index(path.clone()))
        } else if path.as_str().ends_with(FILE_EXTENSION) {
            Some(Self::File(path.clone()))
        } else {
            None
        }
    }

    /// The directory that the layout's files are relative to.
    pub fn directory(&self) -> Directory {
        match self {
            Self::File(path) | Self::Index(path) => Directory::of(path),
        }
    }
}

/// Reads the headers of a checkpoint.
///
/// # Errors
/// [`ForeignError`] naming file and key: a file that is missing or damaged, a dtype that is not known, an index that
/// names a key that its file lacks, a key in two files.
pub async fn open(storage: &dyn StorageBackend, source: &Source) -> Result<SavedLayout, ForeignError> {
    match source {
        Source::File(path) => {
            let (length, header) = header(storage, path).await?;
            let mut layout = SavedLayout::default();
            add_file(&mut layout, path.name().to_owned(), length, header)?;
            Ok(layout)
        }
        Source::Index(path) => open_index(storage, path).await,
    }
}

async fn open_index(storage: &dyn StorageBackend, path: &StoragePath) -> Result<SavedLayout, ForeignError> {
    let (bytes, _) = storage.read_all(path, MAX_JSON_BYTES).await?;
    let directory = Directory::of(path);
    let index = Index::parse(path.as_str(), &bytes)?;
    let mut files = Vec::new();
    for file in index.files() {
        let object = directory
            .file(file)
            .map_err(|source| ForeignError::Path { named_by: path.to_string(), source })?;
        files.push((file.to_owned(), object));
    }
    let headers: Vec<_> = stream::iter(files)
        .map(|(file, object)| async move {
            match header(storage, &object).await {
                Err(ForeignError::Storage(error)) if error.is_not_found() => {
                    Err(ForeignError::MissingFile { named_by: path.to_string(), file })
                }
                Err(error) => Err(error),
                Ok((length, header)) => Ok((file, length, header)),
            }
        })
        .buffered(CONCURRENT_HEADERS)
        .try_collect()
        .await?;
    index
        .check(headers.iter().map(|(file, _, header)| (file.as_str(), header)))
        .map_err(|fault| ForeignError::Index { index: path.to_string(), fault })?;
    let mut layout = SavedLayout::default();
    for (file, length, header) in headers {
        add_file(&mut layout, file, length, header)?;
    }
    Ok(layout)
}

/// The length and the header of a safetensors file.
async fn header(
    storage: &dyn StorageBackend,
    path: &StoragePath,
) -> Result<(u64, SafetensorsHeader), ForeignError> {
    let length = storage.head(path).await?.len;
    let first = read::read_range(storage, path, 0..length.min(8)).await?;
    let end = match first.bytes().first_chunk() {
        Some(&first) => SafetensorsHeader::bytes(path.as_str(), first, length)?,
        None => length,
    };
    let head = read::read_range(storage, path, 0..end).await?;
    Ok((length, SafetensorsHeader::parse(path.as_str(), head.bytes(), length)?))
}

/// Adds a file, whose keys the layout does not have yet.
fn add_file(
    layout: &mut SavedLayout,
    path: String,
    length: u64,
    header: SafetensorsHeader,
) -> Result<(), ForeignError> {
    let file = layout.files.len() as u32;
    for entry in header.entries {
        let malformed = |error: RegionError| ForeignError::Malformed {
            file: path.clone(),
            why: format!("tensor `{}`: {error}", entry.name),
        };
        if entry.shape.len() > MAX_AXES {
            return Err(malformed(RegionError::TooManyAxes(entry.shape.len())));
        }
        let mut chunks = ChunkTable::new(entry.shape.len());
        if let Some(region) = Region::whole(&entry.shape).map_err(malformed)? {
            chunks.push(&Chunk { region, file, offset: entry.offset });
        }
        let tensor = SavedTensor {
            dtype: entry.dtype,
            global_shape: entry.shape,
            logical_shape: None,
            split: None,
            alias_of: None,
            group: StateGroup::Model,
            chunks,
        };
        layout.tensors.insert(entry.name, tensor);
    }
    layout.files.push(SavedFile { path, length, blocks: None });
    Ok(())
}
