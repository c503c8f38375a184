//! What a place for tensors offers.

use std::fmt::Debug;

use crate::{Buffer, DeviceError};

/// Host memory that stages copies from and to a device.
pub trait StagingMemory: AsRef<[u8]> + AsMut<[u8]> + Debug + Send + Sync {}

/// A place where tensors live.
pub trait Device: Debug + Send + Sync {
    /// Its name in reports and errors, as in `host`.
    fn name(&self) -> &str;

    /// Zeroed host memory of `bytes` bytes that copies from and to this device are quick with, aligned to
    /// 4096 bytes, as direct reads from disk ask for.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate_staging(&self, bytes: usize) -> Result<Box<dyn StagingMemory>, DeviceError>;

    /// Memory for a tensor of `bytes` bytes, zeroed, aligned to 64 bytes.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError>;
}
