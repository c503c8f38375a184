//! Strict parsing that still knows a newer version when it sees one.

use super::FormatError;
use super::names::VERSION;
use serde::Deserialize;

#[derive(Deserialize)]
struct Peek {
    version: u64,
}

/// Parses the JSON of `file` as version 1. A newer version may have any fields, so what fails is looked at again for
/// its version alone; what parses pays nothing for that.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    file: &str,
    bytes: &'a [u8],
    version_of: impl FnOnce(&T) -> u64,
    error: impl FnOnce(serde_json::Error) -> FormatError,
) -> Result<T, FormatError> {
    let unsupported = |found| FormatError::UnsupportedVersion { file: file.to_owned(), found };
    match serde_json::from_slice::<T>(bytes) {
        Ok(parsed) => match version_of(&parsed) {
            VERSION => Ok(parsed),
            other => Err(unsupported(other)),
        },
        Err(strict) => match serde_json::from_slice::<Peek>(bytes) {
            Ok(Peek { version }) if version != VERSION => Err(unsupported(version)),
            _ => Err(error(strict)),
        },
    }
}
