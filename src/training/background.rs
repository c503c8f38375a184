use super::prune::{Pruned, Pruning};
use super::{Retention, TrainingRun};
use crate::checkpoint::SaveReport;
use crate::format::{FormatError, Iteration};
use crate::transfer::Job;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long a save waits until the branch that was given up is marked deleted: while it is not, a resume after a crash
/// would take it.
const DISCARD_WITHIN: Duration = Duration::from_secs(30);

/// What rank 0 does between calls, and what it knows from earlier ones. Empty on other ranks.
#[derive(Default)]
pub(super) struct Background {
    job: Option<Job<Pruned>>,
    /// Committed iterations of the branch that was given up, as long as they are not marked.
    pub(super) discard: BTreeSet<Iteration>,
    clean: BTreeSet<Iteration>,
    lines: Vec<String>,
}

impl Background {
    /// Whether nothing is under way, after waiting for it up to `timeout`.
    pub(super) fn rest(&mut self, timeout: Duration) -> bool {
        let Some(job) = &self.job else { return true };
        match job.wait(timeout) {
            Ok(None) => return false,
            Ok(Some(pruned)) => {
                self.discard.retain(|iteration| !pruned.clean.contains(iteration));
                self.clean.extend(pruned.clean);
                self.lines.extend(pruned.lines);
            }
            Err(error) => self.lines.push(format!("pruning broke off, the next save tries again: {error}")),
        }
        self.job = None;
        true
    }

    /// The lines that no report had yet.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    pub(super) fn note(&mut self, line: String) {
        self.lines.push(line);
    }

    fn start(&mut self, pruning: Pruning) {
        match Job::start(pruning.run()) {
            Ok(job) => self.job = Some(job),
            Err(error) => self.note(format!("pruning did not start, the next save tries again: {error}")),
        }
    }
}

impl TrainingRun {
    /// On rank 0, after a committed save: starts what is to be removed now, and gives the report the lines so far.
    pub(super) fn after_commit(&mut self, report: &SaveReport) -> Result<Vec<String>, FormatError> {
        let saved = Iteration(report.iteration);
        // It was saved over, if it was of the branch given up.
        self.background.discard.remove(&saved);
        self.background.clean.remove(&saved);
        if !self.background.rest(Duration::ZERO) {
            self.background.note("the pruning of an earlier save is still under way".to_owned());
            return Ok(self.background.take_lines());
        }
        let discards = !self.background.discard.is_empty();
        if discards || self.retention != Retention::All {
            let pruning = Pruning {
                storage: Arc::clone(self.checkpoint.storage()),
                saved,
                attempt: report.attempt.parse()?,
                retention: self.retention,
                resumed: self.resumed,
                discard: self.background.discard.clone(),
                clean: self.background.clean.clone(),
            };
            self.background.start(pruning);
        }
        if discards && !self.background.rest(DISCARD_WITHIN) {
            self.background.note("the discarded iterations are still being removed".to_owned());
        }
        Ok(self.background.take_lines())
    }
}
