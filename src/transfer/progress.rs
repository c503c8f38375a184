/// What a save or load is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Reading metadata and planning.
    Plan,
    /// Reading data.
    Read,
    /// Writing data.
    Write,
    /// Meeting the other ranks, publishing.
    Commit,
}

/// Told how far this rank is; implementations must be quick and may be called from any thread.
pub trait Progress: Send + Sync {
    /// `done` of `total` bytes of the phase.
    fn advance(&self, phase: Phase, done: u64, total: u64);
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn advance(&self, _: Phase, _: u64, _: u64) {}
}
