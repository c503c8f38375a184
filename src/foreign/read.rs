//! Reading small parts of objects.

use super::ForeignError;
use reshard_storage::{Slot, StorageBackend, StoragePath};
use std::ops::Range;

/// The bytes of `range`. The caller has checked its length against the object's.
pub(super) async fn read_range(
    storage: &dyn StorageBackend,
    path: &StoragePath,
    range: Range<u64>,
) -> Result<Slot, ForeignError> {
    let too_long = || ForeignError::TooLong { file: path.to_string(), bytes: range.end - range.start };
    let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| too_long())?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).map_err(|_| too_long())?;
    buffer.resize(length, 0u8);
    let (slot, result) = storage.read(path, range.clone(), Box::new(buffer)).await;
    result?;
    Ok(slot)
}

/// A whole small object; `None` where there is none.
pub(super) async fn read_if_present(
    storage: &dyn StorageBackend,
    path: &StoragePath,
    max_bytes: u64,
) -> Result<Option<bytes::Bytes>, ForeignError> {
    match storage.read_all(path, max_bytes).await {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
