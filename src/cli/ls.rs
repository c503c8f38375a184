use super::Global;
use super::answer::Answer;
use super::exit::{Exit, Failure};
use super::place::Place;
use super::text::{Table, count, one_line, time};
use crate::checkpoint::{Checkpoint, IterationEntry, IterationState, ObjectRole, StoredObject, human_bytes};
use crate::format::{Iteration, ParallelSizes};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;

/// List the iterations of a run, newest first, or the files of one iteration
///
/// Each iteration is committed (it can be loaded), foreign (another tool's, which can be loaded too), deleted (its space is
/// or will be freed), uncommitted (a save failed or is still running), damaged or unreadable. Of an iteration, every object below it is listed with what it is for; a leftover belongs
/// to another attempt.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  reshard ls s3://bucket/run
  reshard ls s3://bucket/run --newest 5
  reshard ls s3://bucket/run/iter_0000100
  reshard ls /data/run --json | jq '.iterations[] | select(.state == \"committed\") | .iteration'")]
pub(super) struct Ls {
    /// A run, or one iteration of it
    uri: String,
    /// Only the N newest iterations
    #[arg(long, short, value_name = "N")]
    newest: Option<NonZeroUsize>,
}

#[derive(Serialize)]
struct RunListing {
    uri: String,
    iterations: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    iteration: u64,
    state: &'static str,
    committed_at: Option<String>,
    bytes: Option<u64>,
    files: Option<usize>,
    tensors: Option<usize>,
    world_size: Option<u32>,
    saved_with: Option<ParallelSizes>,
    pins: BTreeSet<String>,
    fault: Option<String>,
}

#[derive(Serialize)]
struct IterationListing {
    uri: String,
    iteration: u64,
    objects: Vec<ObjectRow>,
}

#[derive(Serialize)]
struct ObjectRow {
    path: String,
    bytes: u64,
    modified: String,
    role: &'static str,
}

impl Ls {
    pub(super) fn run(&self, global: &Global) -> Result<Answer, Failure> {
        let place = Place::parse(&self.uri);
        let checkpoint = place.open(global)?;
        match place.iteration(None)? {
            Some(iteration) => list_objects(&checkpoint, iteration),
            None => {
                place.check_directory(global, &checkpoint)?;
                list_iterations(&place, &checkpoint, self.newest.map(usize::from))
            }
        }
    }
}

fn list_iterations(place: &Place, checkpoint: &Checkpoint, newest: Option<usize>) -> Result<Answer, Failure> {
    let entries = checkpoint.survey(newest)?;
    if entries.is_empty() {
        place.check_name()?;
    }
    let uri = checkpoint.storage().to_string();
    let listing = RunListing { iterations: entries.iter().map(Row::of).collect(), uri };
    let mut table = Table::new(["iteration", "state", "bytes", "tensors", "saved with", "committed", "pins"]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for row in &listing.iterations {
        table.row([
            row.iteration.to_string(),
            row.state.to_owned(),
            or_dash(row.bytes.map(human_bytes)),
            or_dash(row.tensors.map(|tensors| tensors.to_string())),
            or_dash(row.saved_with.map(|sizes| saved_with(&sizes, row.world_size))),
            or_dash(row.committed_at.clone()),
            row.pins.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        ]);
    }
    let mut text = match listing.iterations.is_empty() {
        true => format!("{} has no iterations; `reshard inspect` reads other tools' files\n", listing.uri),
        false => table.text(),
    };
    for row in &listing.iterations {
        if let Some(fault) = &row.fault {
            text.push_str(&format!("{}: {}\n", Iteration(row.iteration), one_line(fault)));
        }
    }
    Answer::new(Exit::Ok, &listing, text)
}

fn list_objects(checkpoint: &Checkpoint, iteration: Iteration) -> Result<Answer, Failure> {
    let objects = checkpoint.objects(iteration)?;
    let uri = checkpoint.storage().to_string();
    if objects.is_empty() {
        let message = format!("{uri} has no {iteration}; `reshard ls {uri}` shows what is there");
        return Err(Failure::new(Exit::NotFound, message));
    }
    let mut table = Table::new(["role", "bytes", "modified", "path"]);
    let rows: Vec<ObjectRow> = objects.iter().map(ObjectRow::of).collect();
    for row in &rows {
        table.row([row.role.to_owned(), human_bytes(row.bytes), row.modified.clone(), row.path.clone()]);
    }
    let total = human_bytes(rows.iter().map(|row| row.bytes).sum());
    let text = format!("{}{}, {total}\n", table.text(), count(rows.len() as u64, "object"));
    let listing = IterationListing { uri, iteration: iteration.0, objects: rows };
    Answer::new(Exit::Ok, &listing, text)
}

impl Row {
    fn of(entry: &IterationEntry) -> Self {
        let (state, contents, fault) = match &entry.state {
            IterationState::Committed(contents) => ("committed", Some(contents), None),
            IterationState::Foreign(contents) => ("foreign", Some(contents), None),
            IterationState::Deleted => ("deleted", None, None),
            IterationState::Uncommitted => ("uncommitted", None, None),
            IterationState::Damaged(error) => ("damaged", None, Some(error.to_string())),
            IterationState::Unreadable(error) => ("unreadable", None, Some(error.to_string())),
        };
        Self {
            iteration: entry.iteration.0,
            state,
            committed_at: entry.committed_at.map(time),
            bytes: contents.map(|contents| contents.bytes),
            files: contents.map(|contents| contents.files),
            tensors: contents.map(|contents| contents.tensors),
            world_size: contents.and_then(|contents| contents.world_size),
            saved_with: contents.and_then(|contents| contents.ran_with),
            pins: contents.map(|contents| contents.pins.clone()).unwrap_or_default(),
            fault,
        }
    }
}

impl ObjectRow {
    fn of(object: &StoredObject) -> Self {
        let role = match object.role {
            ObjectRole::Commit => "commit",
            ObjectRole::Metadata => "metadata",
            ObjectRole::TrainerState => "trainer_state",
            ObjectRole::Data => "data",
            ObjectRole::Leftover => "leftover",
        };
        Self { path: object.path.clone(), bytes: object.bytes, modified: time(object.modified), role }
    }
}

/// `tp2 pp2 dp2 (8 ranks)`: sizes of 1 are left out.
pub(super) fn saved_with(sizes: &ParallelSizes, world_size: Option<u32>) -> String {
    let ParallelSizes { tp, pp, dp, sp, vpp } = *sizes;
    let named = [("tp", tp), ("pp", pp), ("dp", dp), ("sp", sp), ("vpp", vpp)];
    let mut words: Vec<String> =
        named.iter().filter(|(_, size)| size.get() > 1).map(|(name, size)| format!("{name}{size}")).collect();
    if let Some(ranks) = world_size {
        let ranks = count(ranks, "rank");
        words.push(if words.is_empty() { ranks } else { format!("({ranks})") });
    }
    words.join(" ")
}
