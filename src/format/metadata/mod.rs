//! metadata.json: where every byte of a checkpoint lies and what it must be.

mod check;
mod fault;
mod manifest;
mod merge;
mod text;
mod tiling;

pub use fault::{FileFault, MetadataFault, ObjectFault, PlaceFault, TensorFault};
pub use manifest::{ManifestFault, WriterManifest, WrittenFile};
pub use merge::merge;

use super::names::{FORMAT, METADATA_FILE, VERSION};
use super::{FormatError, ObjectDigest, SavedLayout, version};

/// The content of metadata.json.
///
/// One that [`Metadata::parse`] or [`merge`] made is proven: every chunk lies in its tensor and in the checksummed
/// part of its file, chunks tile each tensor exactly once, and no two chunks share a byte.
#[derive(Clone, PartialEq, Debug)]
pub struct Metadata {
    /// Files, tensors and objects.
    pub layout: SavedLayout,
    /// The attempt's trainer_state.json; its path is relative to the attempt's directory.
    pub trainer_state: ObjectDigest,
}

impl Metadata {
    /// The bytes of metadata.json.
    ///
    /// # Errors
    /// [`FormatError::Declared`] where a file has no checksums, as other tools' files have none.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let declared = |fault| FormatError::Declared { fault };
        let text = text::Text::of(self).map_err(declared)?;
        serde_json::to_vec(&text).map_err(|error| declared(MetadataFault::Json(error.to_string())))
    }

    /// Reads and proves `file`.
    ///
    /// # Errors
    /// [`FormatError::UnsupportedVersion`]; [`FormatError::Metadata`] naming what is wrong.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, FormatError> {
        let fault = |fault| FormatError::Metadata { file: file.to_owned(), fault };
        let json = |error: serde_json::Error| fault(MetadataFault::Json(error.to_string()));
        let text = version::parse(file, bytes, |text: &text::Text<'_>| text.version, json)?;
        let metadata = text.into_metadata().map_err(fault)?;
        check::check(&metadata).map_err(fault)?;
        Ok(metadata)
    }
}
