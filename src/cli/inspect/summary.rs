//! A checkpoint as a whole.

use super::super::answer::Answer;
use super::super::exit::{Exit, Failure};
use super::super::ls::saved_with;
use super::super::text::{Table, count, fields};
use crate::checkpoint::{Inspection, human_bytes};
use crate::format::{AttemptId, BlockLayout, ModelConfig, ParallelSizes, SavedFile, SavedLayout};
use reshard_shard::{StateGroup, volume_of};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Summary<'a> {
    uri: String,
    iteration: Option<u64>,
    foreign: bool,
    attempt: Option<String>,
    world_size: Option<u32>,
    saved_with: Option<ParallelSizes>,
    global_step: Option<u64>,
    consumed_train_samples: Option<u64>,
    model: Option<&'a ModelConfig>,
    tensors: usize,
    aliases: usize,
    /// Of the tensors, without headers and checksums.
    bytes: u64,
    groups: BTreeMap<&'static str, Total>,
    dtypes: BTreeMap<&'static str, Total>,
    objects: Vec<ObjectTotal<'a>>,
    files: Vec<FileRow<'a>>,
}

#[derive(Serialize, Default)]
struct Total {
    tensors: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct ObjectTotal<'a> {
    name: &'a str,
    ranks: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct FileRow<'a> {
    path: &'a str,
    bytes: u64,
    blocks: Option<u64>,
    block_bytes: Option<u64>,
    runs: Option<usize>,
}

pub(super) fn answer(uri: String, inspection: &Inspection) -> Result<Answer, Failure> {
    let summary = Summary::of(uri, inspection);
    Answer::new(Exit::Ok, &summary, summary.text())
}

impl<'a> Summary<'a> {
    fn of(uri: String, inspection: &'a Inspection) -> Self {
        let Inspection { iteration, foreign, directory, layout, trainer_state } = inspection;
        let state = trainer_state.as_ref();
        let mut summary = Self {
            uri,
            iteration: iteration.map(|iteration| iteration.0),
            foreign: *foreign,
            attempt: directory.as_deref().and_then(attempt_of),
            world_size: inspection.world_size(),
            saved_with: state.map(|state| state.ran_with),
            global_step: state.map(|state| state.global_step),
            consumed_train_samples: state.map(|state| state.consumed_train_samples),
            model: state.map(|state| &state.model),
            tensors: layout.tensors.len(),
            aliases: layout.tensors.values().filter(|tensor| tensor.alias_of.is_some()).count(),
            bytes: 0,
            groups: BTreeMap::new(),
            dtypes: BTreeMap::new(),
            objects: objects(layout),
            files: files(layout),
        };
        for tensor in layout.tensors.values() {
            // An alias has no bytes of its own. Sizes were proven with the metadata.
            let elements = if tensor.alias_of.is_some() { 0 } else { volume(&tensor.global_shape) };
            let bytes = elements.saturating_mul(tensor.dtype.bits()) / 8;
            summary.bytes += bytes;
            for total in [
                summary.groups.entry(group_name(tensor.group)).or_default(),
                summary.dtypes.entry(tensor.dtype.name()).or_default(),
            ] {
                total.tensors += 1;
                total.bytes += bytes;
            }
        }
        summary
    }

    fn text(&self) -> String {
        let unknown = || "-".to_owned();
        let number = |number: Option<u64>| number.map_or_else(unknown, |number| number.to_string());
        let origin =
            |foreign| if foreign { "another tool's, without checksums".to_owned() } else { unknown() };
        let model = serde_json::to_value(self.model).unwrap_or_default();
        let model = model.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
        let named = |(name, total): (&&str, &Total)| {
            format!("{name}: {}, {}", count(total.tensors, "tensor"), human_bytes(total.bytes))
        };
        let mut rows = vec![
            ("uri", self.uri.clone()),
            ("iteration", number(self.iteration)),
            ("attempt", self.attempt.clone().unwrap_or_else(|| origin(self.foreign))),
            ("saved with", self.saved_with.map_or_else(unknown, |sizes| saved_with(&sizes, self.world_size))),
            ("global step", number(self.global_step)),
            ("samples", number(self.consumed_train_samples)),
            ("model", model.collect::<Vec<_>>().join(" ")),
            ("tensors", format!("{} ({} tied), {}", self.tensors, self.aliases, human_bytes(self.bytes))),
        ];
        rows.extend(self.groups.iter().map(|total| ("  group", named(total))));
        rows.extend(self.dtypes.iter().map(|total| ("  dtype", named(total))));
        rows.extend(self.objects.iter().map(|object| {
            let (ranks, bytes) = (count(object.ranks as u64, "rank"), human_bytes(object.bytes));
            ("object", format!("{} of {ranks}, {bytes}", object.name))
        }));
        let mut table = Table::new(["file", "bytes", "blocks", "runs"]);
        for file in &self.files {
            let blocks = match (file.blocks, file.block_bytes) {
                (Some(blocks), Some(bytes)) => format!("{blocks} x {}", human_bytes(bytes)),
                _ => "no checksums".to_owned(),
            };
            let runs = file.runs.map_or_else(|| "-".to_owned(), |runs| runs.to_string());
            table.row([file.path.to_owned(), human_bytes(file.bytes), blocks, runs]);
        }
        format!("{}\n{}", fields(rows), table.text())
    }
}

fn objects(layout: &SavedLayout) -> Vec<ObjectTotal<'_>> {
    let mut totals = Vec::with_capacity(layout.objects.len());
    for (name, ranks) in &layout.objects {
        let bytes = ranks.values().map(|object| object.length).sum();
        totals.push(ObjectTotal { name, ranks: ranks.len(), bytes });
    }
    totals
}

fn files(layout: &SavedLayout) -> Vec<FileRow<'_>> {
    let mut rows = Vec::with_capacity(layout.files.len());
    for SavedFile { path, length, blocks } in &layout.files {
        rows.push(FileRow {
            path,
            bytes: *length,
            blocks: blocks.as_ref().map(BlockLayout::block_count),
            block_bytes: blocks.as_ref().map(BlockLayout::block_bytes),
            runs: blocks.as_ref().map(|blocks| blocks.runs().len()),
        });
    }
    rows
}

/// The attempt whose directory it is.
fn attempt_of(directory: &str) -> Option<String> {
    let name = directory.rsplit('/').next()?;
    Some(AttemptId::from_directory(name).ok()?.to_string())
}

/// The name of a group in answers.
pub(super) fn group_name(group: StateGroup) -> &'static str {
    match group {
        StateGroup::Model => "model",
        StateGroup::Optimizer => "optimizer",
    }
}

/// Number of elements; metadata with a shape that overflows was refused.
pub(super) fn volume(shape: &[u64]) -> u64 {
    volume_of(shape).unwrap_or(0)
}
