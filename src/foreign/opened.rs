use super::huggingface::{self, Source};
use super::{Detected, Directory, ForeignError, infinitrain};
use crate::format::{ChunkTable, Iteration, SavedFile, SavedLayout, SavedTensor, TrainerState};
use reshard_shard::{DType, Dims, Split, StateGroup};
use reshard_storage::{StorageBackend, StoragePath};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Another tool's checkpoint, ready to be planned.
#[derive(Clone, PartialEq, Debug)]
pub struct Opened {
    /// Which iteration it is; `None` for safetensors files, which don't say, and where an InfiniTrain checkpoint lies in a
    /// directory of another name and has no trainer state.
    pub iteration: Option<Iteration>,
    /// Steps, samples, architecture and scheduler; `None` for safetensors files, and where InfiniTrain wrote none.
    pub trainer_state: Option<TrainerState>,
    /// What lies where; paths are relative to the directory.
    pub layout: SavedLayout,
    /// The directory.
    pub directory: Directory,
}

impl Opened {
    /// Reads the small files and headers of what [`detect`](super::detect) found; `None` for a run of this library.
    ///
    /// # Errors
    /// Those of [`huggingface::open`] and [`infinitrain::open`].
    pub async fn open(
        storage: &dyn StorageBackend,
        detected: &Detected,
    ) -> Result<Option<Self>, ForeignError> {
        match detected {
            Detected::Native => Ok(None),
            Detected::HuggingFace(source) => Self::safetensors(storage, source).await.map(Some),
            Detected::InfiniTrain(directory) => Self::infinitrain(storage, directory).await.map(Some),
        }
    }

    async fn safetensors(storage: &dyn StorageBackend, source: &Source) -> Result<Self, ForeignError> {
        let layout = huggingface::open(storage, source).await?;
        Ok(Self { iteration: None, trainer_state: None, layout, directory: source.directory() })
    }

    async fn infinitrain(storage: &dyn StorageBackend, directory: &Directory) -> Result<Self, ForeignError> {
        let infinitrain::Checkpoint { layout, trainer_state } = infinitrain::open(storage, directory).await?;
        let named = directory.prefix().and_then(|prefix| prefix.name().parse().ok());
        let iteration = named.or(trainer_state.as_ref().map(|state| Iteration(state.global_step)));
        Ok(Self { iteration, trainer_state, layout, directory: directory.clone() })
    }

    /// What one rank has read, for the others: a few tens of bytes a shard, against the headers of all files.
    ///
    /// # Errors
    /// [`serde_json::Error`] where the trainer state has values that JSON lacks.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Text {
            iteration: self.iteration.map(|iteration| iteration.0),
            trainer_state: self.trainer_state.as_ref().map(Cow::Borrowed),
            directory: self.directory.prefix().map(|prefix| prefix.as_str().into()),
            files: self.layout.files.iter().map(|file| (file.path.as_str().into(), file.length)).collect(),
            tensors: self.layout.tensors.iter().map(|(key, tensor)| TensorText::of(key, tensor)).collect(),
        })
    }

    /// The inverse of [`Opened::to_bytes`]; `None` for any other bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text: Text<'_> = serde_json::from_slice(bytes).ok()?;
        let prefix = text.directory.map(|prefix| StoragePath::parse(&*prefix)).transpose().ok()?;
        let mut layout = SavedLayout::default();
        let file =
            |(path, length): (Cow<'_, str>, u64)| SavedFile { path: path.into_owned(), length, blocks: None };
        layout.files.extend(text.files.into_iter().map(file));
        for tensor in text.tensors {
            let (key, tensor) = tensor.into_tensor()?;
            layout.tensors.insert(key, tensor);
        }
        Some(Self {
            iteration: text.iteration.map(Iteration),
            trainer_state: text.trainer_state.map(Cow::into_owned),
            layout,
            directory: Directory::new(prefix),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Text<'a> {
    iteration: Option<u64>,
    trainer_state: Option<Cow<'a, TrainerState>>,
    #[serde(borrow)]
    directory: Option<Cow<'a, str>>,
    /// Path and length. Other tools' files have no checksums, and their checkpoints no per-rank objects.
    #[serde(borrow)]
    files: Vec<(Cow<'a, str>, u64)>,
    #[serde(borrow)]
    tensors: Vec<TensorText<'a>>,
}

#[derive(Serialize, Deserialize)]
struct TensorText<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    dtype: DType,
    global_shape: Cow<'a, Dims>,
    logical_shape: Option<Cow<'a, Dims>>,
    split: Option<Cow<'a, Split>>,
    #[serde(borrow)]
    alias_of: Option<Cow<'a, str>>,
    group: StateGroup,
    chunks: Cow<'a, [u64]>,
}

impl<'a> TensorText<'a> {
    fn of(key: &'a str, tensor: &'a SavedTensor) -> Self {
        Self {
            key: key.into(),
            dtype: tensor.dtype,
            global_shape: Cow::Borrowed(&tensor.global_shape),
            logical_shape: tensor.logical_shape.as_ref().map(Cow::Borrowed),
            split: tensor.split.as_ref().map(Cow::Borrowed),
            alias_of: tensor.alias_of.as_deref().map(Cow::Borrowed),
            group: tensor.group,
            chunks: Cow::Borrowed(tensor.chunks.words()),
        }
    }

    fn into_tensor(self) -> Option<(String, SavedTensor)> {
        let chunks = ChunkTable::from_words(self.global_shape.len(), self.chunks.into_owned()).ok()?;
        let tensor = SavedTensor {
            dtype: self.dtype,
            global_shape: self.global_shape.into_owned(),
            logical_shape: self.logical_shape.map(Cow::into_owned),
            split: self.split.map(Cow::into_owned),
            alias_of: self.alias_of.map(Cow::into_owned),
            group: self.group,
            chunks,
        };
        Some((self.key.into_owned(), tensor))
    }
}
