//! The JSON of metadata.json, field by field in the order of the text.

use super::{FORMAT, FileFault, Metadata, MetadataFault, ObjectFault, PlaceFault, TensorFault, VERSION};
use crate::format::{
    BlockLayout, ChunkTable, ObjectDigest, SavedFile, SavedLayout, SavedObject, SavedTensor,
};
use reshard_shard::{DType, Dims, Split, StateGroup};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Numbers per object and rank: rank, file, offset, length.
const OBJECT_WORDS: usize = 4;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Text<'a> {
    pub(super) version: u64,
    #[serde(borrow)]
    format: Cow<'a, str>,
    trainer_state: Cow<'a, ObjectDigest>,
    #[serde(borrow)]
    files: Vec<FileText<'a>>,
    #[serde(borrow)]
    tensors: Vec<TensorText<'a>>,
    #[serde(borrow)]
    objects: Vec<ObjectText<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    length: u64,
    block_bytes: u64,
    runs: Cow<'a, [u64]>,
    data_end: u64,
    table_offset: u64,
    table_crc32c: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorText<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    global_shape: Cow<'a, Dims>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logical_shape: Option<Cow<'a, Dims>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    split: Option<Cow<'a, Split>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    alias_of: Option<Cow<'a, str>>,
    group: StateGroup,
    chunks: Cow<'a, [u64]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectText<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    ranks: Vec<u64>,
}

impl<'a> Text<'a> {
    pub(super) fn of(metadata: &'a Metadata) -> Result<Self, MetadataFault> {
        let layout = &metadata.layout;
        Ok(Self {
            version: VERSION,
            format: FORMAT.into(),
            trainer_state: Cow::Borrowed(&metadata.trainer_state),
            files: layout.files.iter().map(FileText::of).collect::<Result<_, _>>()?,
            tensors: layout.tensors.iter().map(|(key, tensor)| TensorText::of(key, tensor)).collect(),
            objects: layout.objects.iter().map(|(name, ranks)| ObjectText::of(name, ranks)).collect(),
        })
    }

    /// Turns text into types; what can only be judged over the whole is left to `check`.
    pub(super) fn into_metadata(self) -> Result<Metadata, MetadataFault> {
        if self.format != FORMAT {
            return Err(MetadataFault::NotOurs(self.format.into_owned()));
        }
        let mut layout = SavedLayout::default();
        for file in self.files {
            layout.files.push(file.into_file()?);
        }
        for tensor in self.tensors {
            let key = tensor.key.clone().into_owned();
            let fault = |fault| MetadataFault::Tensor { key: key.clone(), fault: Box::new(fault) };
            let tensor = tensor.into_tensor().map_err(fault)?;
            if layout.tensors.insert(key.clone(), tensor).is_some() {
                return Err(fault(TensorFault::Twice));
            }
        }
        for object in self.objects {
            let name = object.name.into_owned();
            let ranks = read_ranks(&name, &object.ranks)?;
            if layout.objects.insert(name.clone(), ranks).is_some() {
                return Err(MetadataFault::Object { name, rank: None, fault: ObjectFault::Twice });
            }
        }
        Ok(Metadata { layout, trainer_state: self.trainer_state.into_owned() })
    }
}

impl<'a> FileText<'a> {
    fn of(file: &'a SavedFile) -> Result<Self, MetadataFault> {
        let no_blocks = || MetadataFault::File { path: file.path.clone(), fault: FileFault::NoBlocks };
        let blocks = file.blocks.as_ref().ok_or_else(no_blocks)?;
        Ok(Self {
            path: Cow::Borrowed(&file.path),
            length: file.length,
            block_bytes: blocks.block_bytes(),
            runs: Cow::Borrowed(blocks.runs()),
            data_end: blocks.end(),
            table_offset: blocks.table().start,
            table_crc32c: blocks.table_crc32c(),
        })
    }

    fn into_file(self) -> Result<SavedFile, MetadataFault> {
        let path = self.path.into_owned();
        let runs = self.runs.into_owned();
        match BlockLayout::new(self.block_bytes, runs, self.data_end, self.table_offset, self.table_crc32c) {
            Ok(blocks) => Ok(SavedFile { path, length: self.length, blocks: Some(blocks) }),
            Err(error) => Err(MetadataFault::File { path, fault: error.into() }),
        }
    }
}

impl<'a> TensorText<'a> {
    fn of(key: &'a str, tensor: &'a SavedTensor) -> Self {
        Self {
            key: key.into(),
            dtype: tensor.dtype.name().into(),
            global_shape: Cow::Borrowed(&tensor.global_shape),
            logical_shape: tensor.logical_shape.as_ref().map(Cow::Borrowed),
            split: tensor.split.as_ref().map(Cow::Borrowed),
            alias_of: tensor.alias_of.as_deref().map(Cow::Borrowed),
            group: tensor.group,
            chunks: Cow::Borrowed(tensor.chunks.words()),
        }
    }

    fn into_tensor(self) -> Result<SavedTensor, TensorFault> {
        let dtype: DType =
            self.dtype.parse().map_err(|_| TensorFault::UnknownDType(self.dtype.clone().into_owned()))?;
        let global_shape = self.global_shape.into_owned();
        let chunks = ChunkTable::from_words(global_shape.len(), self.chunks.into_owned());
        Ok(SavedTensor {
            dtype,
            chunks: chunks.map_err(TensorFault::Chunks)?,
            global_shape,
            logical_shape: self.logical_shape.map(Cow::into_owned),
            split: self.split.map(Cow::into_owned),
            alias_of: self.alias_of.map(Cow::into_owned),
            group: self.group,
        })
    }
}

impl<'a> ObjectText<'a> {
    fn of(name: &'a str, ranks: &BTreeMap<u32, SavedObject>) -> Self {
        let words = ranks.iter().flat_map(|(&rank, object)| {
            [u64::from(rank), u64::from(object.file), object.offset, object.length]
        });
        Self { name: name.into(), ranks: words.collect() }
    }
}

fn read_ranks(name: &str, words: &[u64]) -> Result<BTreeMap<u32, SavedObject>, MetadataFault> {
    let fault = |rank, fault| MetadataFault::Object { name: name.to_owned(), rank, fault };
    let (groups, rest) = words.as_chunks::<OBJECT_WORDS>();
    if !rest.is_empty() {
        return Err(fault(None, ObjectFault::Words(words.len())));
    }
    let mut ranks = BTreeMap::new();
    for &[rank, file, offset, length] in groups {
        let rank = u32::try_from(rank).map_err(|_| fault(None, ObjectFault::Rank(rank)))?;
        let no_file = |_| fault(Some(rank), ObjectFault::Place(PlaceFault::NoSuchFile { file, files: 0 }));
        let object = SavedObject { file: u32::try_from(file).map_err(no_file)?, offset, length };
        if ranks.insert(rank, object).is_some() {
            return Err(fault(Some(rank), ObjectFault::Twice));
        }
    }
    Ok(ranks)
}
