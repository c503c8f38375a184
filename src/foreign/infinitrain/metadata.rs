//! metadata.json as it stands: JSON of the right form, nothing more.

use super::entry::RawEntry;
use crate::foreign::ForeignError;
use serde::Deserialize;
use serde_json::Value;

/// The version of metadata.json that is read.
pub const VERSION: u64 = 3;
/// What the field `format` says.
pub const FORMAT: &str = "infinitrain_sharded";

#[derive(Deserialize)]
struct Peek {
    version: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(rename = "version")]
    _version: u64,
    format: String,
    tensors: Vec<RawEntry>,
}

/// The entries of `file`.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Vec<RawEntry>, ForeignError> {
    let malformed = |why: String| ForeignError::Malformed { file: file.to_owned(), why };
    let not_metadata =
        |error: serde_json::Error| malformed(format!("not the metadata of a sharded checkpoint: {error}"));
    // Another version may have any other fields, so the version comes first.
    let Peek { version } = serde_json::from_slice(bytes).map_err(not_metadata)?;
    if version != VERSION {
        return Err(ForeignError::Version {
            file: file.to_owned(),
            found: version.to_string(),
            supported: VERSION,
        });
    }
    let raw: Raw = serde_json::from_slice(bytes).map_err(not_metadata)?;
    if raw.format != FORMAT {
        return Err(malformed(format!("format `{}` is not `{FORMAT}`", raw.format)));
    }
    Ok(raw.tensors)
}
