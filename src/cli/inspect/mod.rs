mod summary;
mod tensor;

use super::Global;
use super::answer::Answer;
use super::exit::{Exit, Failure};
use super::place::Place;
use super::text::brief;
use crate::checkpoint::Inspection;
use clap::Args;
use globset::Glob;

/// Show what a checkpoint holds, or where a tensor of it lies
///
/// Without a key: iteration, attempt, sizes it ran with, model configuration, totals by group and dtype, files. Other tools' checkpoints (Hugging Face safetensors, InfiniTrain) say less of themselves. With the
/// key of a tensor: dtype, shapes, declared split, and every stored chunk with its file and offset. A glob that is no key
/// (`transformer.h.0.*`, `*`) lists the tensors that it matches. Nothing but the checkpoint's small documents is read.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  reshard inspect s3://bucket/run
  reshard inspect s3://bucket/run --iteration 100
  reshard inspect /data/run/iter_0000100 '*.attn.*'
  reshard inspect /data/run transformer.wte.weight --json")]
pub(super) struct Inspect {
    /// A run, or one iteration of it
    uri: String,
    /// The key of a tensor, or a glob of keys
    key: Option<String>,
    /// The iteration; the newest committed one where neither this nor the URI names one
    #[arg(long, value_name = "N")]
    iteration: Option<u64>,
}

impl Inspect {
    pub(super) fn run(&self, global: &Global) -> Result<Answer, Failure> {
        let place = Place::parse(&self.uri);
        let checkpoint = place.open(global)?;
        let inspection = checkpoint.inspect(place.iteration(self.iteration)?)?;
        let uri = checkpoint.storage().to_string();
        match &self.key {
            None => summary::answer(uri, &inspection),
            Some(key) if inspection.layout.tensors.contains_key(key) => tensor::answer(uri, &inspection, key),
            Some(glob) => list(uri, &inspection, glob),
        }
    }
}

/// The tensors that a glob matches.
fn list(uri: String, inspection: &Inspection, glob: &str) -> Result<Answer, Failure> {
    let keys: Vec<&String> = match Glob::new(glob) {
        Ok(glob) => {
            let matcher = glob.compile_matcher();
            inspection.layout.tensors.keys().filter(|key| matcher.is_match(key)).collect()
        }
        // Brackets that are no glob may well be in a key.
        Err(_) => Vec::new(),
    };
    if keys.is_empty() {
        return Err(no_such_tensor(inspection, glob));
    }
    tensor::list(uri, inspection, &keys)
}

/// The error for a key that the checkpoint lacks, with the keys that are most like it.
pub(super) fn no_such_tensor(inspection: &Inspection, key: &str) -> Failure {
    let mut near: Vec<(usize, &String)> = inspection
        .layout
        .tensors
        .keys()
        .map(|known| (shared_ends(known, key), known))
        .filter(|&(shared, _)| shared > 0 && shared * 2 >= key.len())
        .collect();
    near.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let near: Vec<String> = near.iter().take(3).map(|(_, key)| format!("`{}`", brief(key))).collect();
    let hint = match near.is_empty() {
        true => "`reshard inspect URI '*'` lists the keys".to_owned(),
        false => format!("did you mean {}?", near.join(" or ")),
    };
    let name = checkpoint_name(inspection);
    Failure::new(Exit::NotFound, format!("{name} has no tensor `{}`; {hint}", brief(key)))
}

/// A checkpoint in a sentence.
pub(super) fn checkpoint_name(inspection: &Inspection) -> String {
    inspection.iteration.map_or_else(|| "the checkpoint".to_owned(), |iteration| iteration.to_string())
}

/// How many bytes two keys have in common at their beginning and, of the rest, at their end.
fn shared_ends(a: &str, b: &str) -> usize {
    let front = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let rest = a.len().min(b.len()) - front;
    front + a.bytes().rev().zip(b.bytes().rev()).take(rest).take_while(|(a, b)| a == b).count()
}
