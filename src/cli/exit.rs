//! Exit codes, and failures that carry one.

use super::text::{one_line, visible};
use crate::checkpoint::{CheckpointError, ErrorKind};
use crate::foreign::ForeignError;
use crate::plan::PlanError;
use crate::transfer::TransferError;
use reshard_shard::ShardError;
use reshard_storage::StorageError;
use std::process::ExitCode;

/// The exit codes, as `--help` and docs/cli.md say them.
pub(super) const HELP: &str = "\
Exit codes:
  0  it worked, and nothing is wrong
  1  a fault was found (verify, doctor)
  2  the command line is wrong
  3  there is no such checkpoint, tensor, file or bucket
  4  access denied, no space left, or the store can't be reached
  5  the checkpoint is damaged
  6  the checkpoint does not fit what was asked for (shapes, dtypes, topology)
  7  the checkpoint was changed meanwhile; try again
  8  this store or this release can't do it
  9  a defect of reshard

Examples:
  reshard ls s3://bucket/run
  reshard inspect /data/run/iter_0000100
  reshard plan s3://bucket/run --tp 4 --pp 2
  reshard verify s3://bucket/run --all
  reshard doctor s3://bucket";

/// How the command ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exit {
    Ok = 0,
    Fault = 1,
    Usage = 2,
    NotFound = 3,
    Access = 4,
    Corrupt = 5,
    Incompatible = 6,
    Conflict = 7,
    Unsupported = 8,
    Defect = 9,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    /// What failed, where, and what to do next.
    message: String,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(super) fn print(&self) {
        use std::io::Write;
        // Nobody reads standard error: the exit code still says it.
        let _ = writeln!(std::io::stderr(), "error: {}", visible(&self.message));
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Self {
        let storage = match &error {
            CheckpointError::Storage(error)
            | CheckpointError::Transfer(TransferError::Storage(error))
            | CheckpointError::Foreign(ForeignError::Storage(error)) => Some(error),
            _ => None,
        };
        let exit = storage.map_or_else(|| of_kind(error.kind()), of_storage);
        Self::new(exit, one_line(&error.to_string()))
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Self::new(of_storage(&error), one_line(&error.to_string()))
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        CheckpointError::from(error).into()
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        CheckpointError::from(error).into()
    }
}

/// A topology or rules that do not fit the checkpoint's tensors; a wrong table or size is the command line's fault.
impl From<ShardError> for Failure {
    fn from(error: ShardError) -> Self {
        let exit = match &error {
            ShardError::Cut { .. }
            | ShardError::Expert { .. }
            | ShardError::NoRule { .. }
            | ShardError::NoStage { .. }
            | ShardError::Layer { .. }
            | ShardError::State { .. }
            | ShardError::Alias { .. } => Exit::Incompatible,
            _ => Exit::Usage,
        };
        Self::new(exit, one_line(&error.to_string()))
    }
}

/// Why an endpoint does not serve tells more than what its caller could do about it.
fn of_storage(error: &StorageError) -> Exit {
    match error {
        StorageError::NotFound { .. } | StorageError::MissingBucket { .. } => Exit::NotFound,
        StorageError::AccessDenied { .. }
        | StorageError::Unreachable { .. }
        | StorageError::WrongEndpoint { .. }
        | StorageError::NoSpace { .. }
        | StorageError::Unavailable { .. } => Exit::Access,
        StorageError::Corrupt { .. } => Exit::Corrupt,
        StorageError::InvalidInput { .. } => Exit::Usage,
        StorageError::Unsupported { .. } => Exit::Unsupported,
        _ => Exit::Defect,
    }
}

fn of_kind(kind: ErrorKind) -> Exit {
    match kind {
        ErrorKind::NotFound => Exit::NotFound,
        ErrorKind::Conflict => Exit::Conflict,
        ErrorKind::Corrupt => Exit::Corrupt,
        ErrorKind::Invalid => Exit::Usage,
        ErrorKind::Unavailable => Exit::Access,
        ErrorKind::Unsupported => Exit::Unsupported,
        ErrorKind::Incompatible => Exit::Incompatible,
        ErrorKind::Interrupted | ErrorKind::Internal => Exit::Defect,
    }
}
