//! Which checkpoint of a run is the newest.

use super::super::{Directory, ForeignError, read};
use reshard_storage::StorageBackend;

/// Names the newest iteration of a run, in decimal.
pub const LATEST_FILE: &str = "latest_checkpointed_iteration.txt";
/// Begins the directory of an iteration; at least seven digits follow.
pub const ITERATION_PREFIX: &str = "iter_";

/// No number of steps is longer; some room for white space around it.
const MAX_LATEST_BYTES: u64 = 64;

/// The directory of the newest checkpoint of the run at `root`, as its file of that name says; `None` where there is no
/// such file, and then `root` itself may be a checkpoint.
///
/// # Errors
/// [`ForeignError::Malformed`] where the file does not hold a number. Whether the directory is there is for
/// [`open`](super::open) to find out.
pub async fn latest(
    storage: &dyn StorageBackend,
    root: &Directory,
) -> Result<Option<Directory>, ForeignError> {
    let path = |relative: &str| {
        root.file(relative).map_err(|source| ForeignError::Path { named_by: root.to_string(), source })
    };
    let file = path(LATEST_FILE)?;
    let Some(bytes) = read::read_if_present(storage, &file, MAX_LATEST_BYTES).await? else {
        return Ok(None);
    };
    let digits = bytes.trim_ascii();
    let step = std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse::<u64>().ok())
        .ok_or_else(|| ForeignError::Malformed {
            file: file.to_string(),
            why: "it does not hold the number of an iteration; name the iteration's directory".to_owned(),
        })?;
    Ok(Some(Directory::new(Some(path(&format!("{ITERATION_PREFIX}{step:07}"))?))))
}
