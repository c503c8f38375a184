//! Progress bars on standard error: only on a terminal, and not with `--json` or `--quiet`.

use super::Global;
use crate::transfer::{Phase, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar, or nothing to be seen.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// Of bytes.
    pub(super) fn of_bytes(global: &Global, what: &'static str) -> Self {
        const STYLE: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        Self::new(global, what, STYLE)
    }

    /// Of so many ranks.
    pub(super) fn of_ranks(global: &Global, ranks: u64) -> Self {
        let bar = Self::new(global, "planning", "{msg} [{bar:30}] {pos}/{len} ranks {eta}");
        bar.0.set_length(ranks);
        bar
    }

    /// Of steps that have names.
    pub(super) fn of_steps(global: &Global) -> Self {
        Self::new(global, "", "{spinner} {msg}")
    }

    /// Another step begins.
    pub(super) fn say(&self, step: &'static str) {
        self.0.set_message(step);
        self.0.tick();
    }

    /// One more is done.
    pub(super) fn step(&self) {
        self.0.inc(1);
    }

    fn new(global: &Global, what: &'static str, style: &str) -> Self {
        // indicatif itself draws nothing where standard error is no terminal.
        let shown = !global.json && !global.quiet;
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }
}

impl Progress for Bar {
    fn advance(&self, _: Phase, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
