//! One tensor, or a list of tensors.

use super::super::answer::Answer;
use super::super::exit::{Exit, Failure};
use super::super::text::{Table, brief, count, fields};
use super::summary::{group_name, volume};
use crate::checkpoint::{Inspection, human_bytes};
use crate::format::{SavedLayout, SavedTensor};
use reshard_shard::{DType, Dims, Split};
use serde::Serialize;

#[derive(Serialize)]
struct TensorAnswer<'a> {
    uri: String,
    iteration: Option<u64>,
    key: &'a str,
    group: &'static str,
    dtype: DType,
    global_shape: &'a Dims,
    logical_shape: Option<&'a Dims>,
    bytes: u64,
    split: Option<&'a Split>,
    alias_of: Option<&'a str>,
    chunks: Vec<ChunkRow<'a>>,
}

#[derive(Serialize)]
struct ChunkRow<'a> {
    /// Offset of the region in each axis, in elements.
    offset: Dims,
    /// Size of the region in each axis, in elements.
    shape: Dims,
    bytes: u64,
    file: &'a str,
    file_offset: u64,
}

#[derive(Serialize)]
struct ListAnswer<'a> {
    uri: String,
    iteration: Option<u64>,
    tensors: Vec<ListRow<'a>>,
}

#[derive(Serialize)]
struct ListRow<'a> {
    key: &'a str,
    group: &'static str,
    dtype: DType,
    global_shape: &'a Dims,
    bytes: u64,
    alias_of: Option<&'a str>,
    chunks: usize,
}

pub(super) fn answer(uri: String, inspection: &Inspection, key: &str) -> Result<Answer, Failure> {
    let layout = &inspection.layout;
    let Some(tensor) = layout.tensors.get(key) else {
        return Err(super::no_such_tensor(inspection, key));
    };
    let answer = TensorAnswer {
        uri,
        iteration: inspection.iteration.map(|iteration| iteration.0),
        key,
        group: group_name(tensor.group),
        dtype: tensor.dtype,
        global_shape: &tensor.global_shape,
        logical_shape: tensor.logical_shape.as_ref(),
        bytes: bytes(tensor),
        split: tensor.split.as_ref(),
        alias_of: tensor.alias_of.as_deref(),
        chunks: chunks(layout, tensor),
    };
    let mut rows = vec![
        ("key", brief(key)),
        ("group", answer.group.to_owned()),
        ("dtype", tensor.dtype.to_string()),
        ("global shape", format!("{:?}", tensor.global_shape)),
        ("bytes", human_bytes(answer.bytes)),
    ];
    if let Some(logical) = answer.logical_shape {
        rows.push(("logical shape", format!("{logical:?}, the rest is padding")));
    }
    rows.push(("split", answer.split.map_or_else(|| "none declared".to_owned(), split_text)));
    if let Some(owner) = answer.alias_of {
        rows.push(("tied to", format!("{}, which has the bytes", brief(owner))));
    }
    let mut text = fields(rows);
    if !answer.chunks.is_empty() {
        let mut table = Table::new(["chunk", "bytes", "file", "offset"]);
        for (chunk, row) in tensor.chunks.iter().zip(&answer.chunks) {
            let region = chunk.region.to_string();
            table.row([region, row.bytes.to_string(), row.file.to_owned(), row.file_offset.to_string()]);
        }
        text.push('\n');
        text.push_str(&table.text());
    }
    Answer::new(Exit::Ok, &answer, text)
}

pub(super) fn list(uri: String, inspection: &Inspection, keys: &[&String]) -> Result<Answer, Failure> {
    let mut rows = Vec::with_capacity(keys.len());
    let mut table = Table::new(["key", "group", "dtype", "global shape", "bytes", "chunks", "tied to"]);
    for &key in keys {
        let Some(tensor) = inspection.layout.tensors.get(key) else { continue };
        let (group, bytes, chunks) = (group_name(tensor.group), bytes(tensor), tensor.chunks.len());
        let alias_of = tensor.alias_of.as_deref();
        table.row([
            key.clone(),
            group.to_owned(),
            tensor.dtype.to_string(),
            format!("{:?}", tensor.global_shape),
            human_bytes(bytes),
            chunks.to_string(),
            alias_of.unwrap_or_default().to_owned(),
        ]);
        let (dtype, global_shape) = (tensor.dtype, &tensor.global_shape);
        rows.push(ListRow { key, group, dtype, global_shape, bytes, alias_of, chunks });
    }
    let text = format!("{}{}\n", table.text(), count(rows.len() as u64, "tensor"));
    let answer =
        ListAnswer { uri, iteration: inspection.iteration.map(|iteration| iteration.0), tensors: rows };
    Answer::new(Exit::Ok, &answer, text)
}

fn chunks<'a>(layout: &'a SavedLayout, tensor: &SavedTensor) -> Vec<ChunkRow<'a>> {
    let row = |chunk: crate::format::Chunk| ChunkRow {
        offset: Dims::from_slice(chunk.region.offset()),
        shape: Dims::from_slice(chunk.region.shape()),
        bytes: chunk.region.volume().saturating_mul(tensor.dtype.bits()) / 8,
        file: layout.files.get(chunk.file as usize).map_or("", |file| file.path.as_str()),
        file_offset: chunk.offset,
    };
    tensor.chunks.iter().map(row).collect()
}

/// Bytes of the whole tensor, its alias's for an alias.
fn bytes(tensor: &SavedTensor) -> u64 {
    volume(&tensor.global_shape).saturating_mul(tensor.dtype.bits()) / 8
}

/// A declared split in words.
fn split_text(split: &Split) -> String {
    match split.segments.is_empty() {
        true => format!("axis {}", split.axis),
        false => format!("axis {} in segments {:?}", split.axis, split.segments),
    }
}
