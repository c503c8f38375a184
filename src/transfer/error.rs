use crate::format::FormatError;
use reshard_device::DeviceError;
use reshard_storage::{InvalidPath, StorageError};

/// Why a transfer failed. Everything under way was given up; nothing partial is visible.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The store.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Memory or a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Stored bytes that are not what was written.
    #[error("{source} (it holds part of `{key}`); load an older checkpoint, or restore the file")]
    Corrupt {
        /// A tensor or object that takes bytes from there.
        key: String,
        /// File and block.
        source: FormatError,
    },
    /// A layout that does not describe its own file. Only a defect of the library makes one.
    #[error("file `{file}`: {detail}; this is a defect of reshard, please report it")]
    Layout {
        /// The file.
        file: String,
        /// What does not fit.
        detail: String,
    },
    /// A store that reported success without handing over all bytes in order.
    #[error("file `{file}`: {detail}; the storage backend breaks its contract, run its conformance suite")]
    Contract {
        /// The file.
        file: String,
        /// What it did.
        detail: String,
    },
    /// A file name in a layout is not a path below its directory.
    #[error("file name in the checkpoint's metadata: {0}")]
    Path(#[from] InvalidPath),
    /// A value that the wanted dtype cannot hold.
    #[error("tensor `{key}`: {detail}; want the saved dtype, or one that holds the value")]
    OutOfRange {
        /// The tensor.
        key: String,
        /// The value and the dtypes.
        detail: String,
    },
    /// Tied weights that were saved apart and are not equal.
    #[error("tied tensor `{key}`: its saved copies differ; say which saved key wins")]
    TiedDiffer {
        /// The tensor that owns the storage here.
        key: String,
    },
    /// A part of an upload does not fit the staging memory.
    #[error(
        "file `{file}` must be uploaded in parts of {part_bytes} bytes, and the staging budget is {budget} bytes; raise the budget to twice the part"
    )]
    BudgetTooSmall {
        /// The file.
        file: String,
        /// Bytes of one part.
        part_bytes: u64,
        /// Bytes of the staging pool.
        budget: u64,
    },
    /// The process was forked after the library's threads had started; they do not exist in the child.
    #[error(
        "this process was forked after reshard was used in its parent; use it in the child only, or spawn instead of fork"
    )]
    Forked,
    /// The runtime could not start.
    #[error("the I/O threads could not be started: {0}")]
    Runtime(String),
    /// A background task ended without a result.
    #[error("a background task of reshard ended without a result; this is a defect, please report it")]
    Lost,
}
