use super::Global;
use super::answer::Answer;
use super::exit::{Exit, Failure};
use super::place::Place;
use super::progress::Bar;
use super::text::{count, one_line};
use crate::checkpoint::{Checkpoint, Held, IterationState, VerifyFault, VerifyReport, human_bytes};
use crate::format::Iteration;
use clap::Args;
use reshard_shard::Dims;
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// Read a whole checkpoint and compare every byte with its checksums
///
/// Checks commit, metadata and trainer state, that every data file is there, is itself (attempt, iteration, rank), has its
/// length, and describes what the metadata says, its block table and all its blocks. Each fault names the file, the
/// blocks, and the tensors and regions that have bytes there. Files that nothing names are faults, what other attempts
/// left is not. Exits with 1 where a fault was found. Memory stays bounded, whatever the size.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  reshard verify s3://bucket/run
  reshard verify s3://bucket/run --iteration 100
  reshard verify /data/run --all --json | jq '.checkpoints[].faults[]'")]
pub(super) struct Verify {
    /// A run, or one iteration of it
    uri: String,
    /// The iteration; the newest committed one where neither this nor the URI names one
    #[arg(long, value_name = "N", conflicts_with = "all")]
    iteration: Option<u64>,
    /// Every committed iteration of the run
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct VerifyAnswer {
    uri: String,
    whole: bool,
    checkpoints: Vec<CheckpointAnswer>,
}

#[derive(Serialize)]
struct CheckpointAnswer {
    iteration: u64,
    attempt: Option<String>,
    whole: bool,
    files: u64,
    blocks: u64,
    bytes: u64,
    leftover_objects: u64,
    leftover_bytes: u64,
    faults: Vec<FaultAnswer>,
}

#[derive(Serialize)]
struct FaultAnswer {
    kind: &'static str,
    file: String,
    blocks: Option<Range<u64>>,
    bytes: Option<Range<u64>>,
    holds: Vec<HeldAnswer>,
    holds_more: u64,
    detail: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum HeldAnswer {
    Chunk { key: String, offset: Dims, shape: Dims },
    Object { object: String, rank: u32 },
}

impl Verify {
    pub(super) fn run(&self, global: &Global) -> Result<Answer, Failure> {
        let place = Place::parse(&self.uri);
        let iteration = place.iteration(self.iteration)?;
        if self.all && iteration.is_some() {
            return Err(Failure::usage("--all is for a run; the URI names one iteration"));
        }
        let checkpoint = place.open_with(global, Arc::new(Bar::of_bytes(global, "verifying")))?;
        let iterations = match self.all {
            true => candidates(&checkpoint)?.into_iter().map(Some).collect(),
            false => vec![iteration],
        };
        let mut reports = Vec::with_capacity(iterations.len());
        for iteration in iterations {
            let report = checkpoint.verify(iteration);
            reports.push(match (iteration, report) {
                // One that may not be read does not keep the others from being looked at.
                (Some(iteration), Err(error)) if self.all => VerifyReport::refused(iteration, error)?,
                (_, report) => report?,
            });
        }
        let whole = reports.iter().all(VerifyReport::is_whole);
        let text: String = reports.iter().map(text).collect();
        let checkpoints = reports.iter().map(CheckpointAnswer::of).collect();
        let answer = VerifyAnswer { uri: checkpoint.storage().to_string(), whole, checkpoints };
        Answer::new(if whole { Exit::Ok } else { Exit::Fault }, &answer, text)
    }
}

/// Every iteration that is, or should be, a checkpoint.
fn candidates(checkpoint: &Checkpoint) -> Result<Vec<Iteration>, Failure> {
    let mut iterations = Vec::new();
    for entry in checkpoint.survey(None)? {
        match entry.state {
            IterationState::Committed(_) | IterationState::Damaged(_) | IterationState::Unreadable(_) => {
                iterations.push(entry.iteration)
            }
            IterationState::Foreign(_) | IterationState::Deleted | IterationState::Uncommitted => {}
        }
    }
    if iterations.is_empty() {
        let message = format!("{} has no committed checkpoint", checkpoint.storage());
        return Err(Failure::new(Exit::NotFound, message));
    }
    Ok(iterations)
}

fn text(report: &VerifyReport) -> String {
    let (files, blocks) = (count(report.files, "file"), count(report.blocks, "block"));
    let read = format!("{files}, {blocks}, {} read", human_bytes(report.bytes));
    let verdict = match report.faults.len() as u64 {
        0 => "whole".to_owned(),
        faults => count(faults, "fault"),
    };
    let mut text = format!("{}: {verdict} ({read})\n", report.iteration);
    for fault in &report.faults {
        text.push_str(&format!("  {}: {}\n", fault.kind.name(), one_line(&fault.to_string())));
    }
    if report.leftovers.0 > 0 {
        let (objects, bytes) = (count(report.leftovers.0, "object"), human_bytes(report.leftovers.1));
        text.push_str(&format!("  {objects} of other attempts, {bytes}: no fault\n"));
    }
    text
}

impl CheckpointAnswer {
    fn of(report: &VerifyReport) -> Self {
        Self {
            iteration: report.iteration.0,
            attempt: report.attempt.as_ref().map(ToString::to_string),
            whole: report.is_whole(),
            files: report.files,
            blocks: report.blocks,
            bytes: report.bytes,
            leftover_objects: report.leftovers.0,
            leftover_bytes: report.leftovers.1,
            faults: report.faults.iter().map(FaultAnswer::of).collect(),
        }
    }
}

impl FaultAnswer {
    fn of(fault: &VerifyFault) -> Self {
        Self {
            kind: fault.kind.name(),
            file: fault.file.clone(),
            blocks: fault.blocks.clone(),
            bytes: fault.bytes.clone(),
            holds: fault.holds.iter().map(HeldAnswer::of).collect(),
            holds_more: fault.holds_more,
            detail: fault.detail.clone(),
        }
    }
}

impl HeldAnswer {
    fn of(held: &Held) -> Self {
        match held {
            Held::Chunk { key, region } => Self::Chunk {
                key: key.clone(),
                offset: Dims::from_slice(region.offset()),
                shape: Dims::from_slice(region.shape()),
            },
            Held::Object { name, rank } => Self::Object { object: name.clone(), rank: *rank },
        }
    }
}
