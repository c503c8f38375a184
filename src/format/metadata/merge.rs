//! Rank 0 makes one layout of what all ranks wrote, and proves it.

use super::{FileFault, METADATA_FILE, Metadata, MetadataFault, WriterManifest, check};
use crate::format::{ChunkTable, FormatError, ObjectDigest, SavedFile, SavedLayout, SavedTensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;

/// Joins the gathered manifests, each with the rank that sent it, into the proven metadata of the attempt.
/// They are decoded one at a time.
///
/// # Errors
/// [`FormatError::Manifest`] where bytes are not a manifest; [`FormatError::Disagreement`] where two ranks describe one
/// tensor differently; [`FormatError::Declared`] where chunks do not tile a tensor exactly once or do not lie in their
/// files.
pub fn merge<'a>(
    gathered: impl IntoIterator<Item = (u32, &'a [u8])>,
    trainer_state: ObjectDigest,
) -> Result<Metadata, FormatError> {
    let mut merged = Merged::default();
    for (rank, bytes) in gathered {
        merged.add(rank, WriterManifest::decode(rank, bytes)?)?;
    }
    let tensors = merged.tensors.into_iter().map(|(key, (_, tensor))| (key, tensor));
    merged.layout.tensors = tensors.collect();
    let metadata = Metadata { layout: merged.layout, trainer_state };
    match check::check(&metadata) {
        Ok(()) => Ok(metadata),
        Err(fault) => Err(FormatError::Declared { fault }),
    }
}

#[derive(Default)]
struct Merged {
    layout: SavedLayout,
    /// Tensors with the first rank that wrote of them; hashed, because every rank asks for hundreds.
    tensors: HashMap<String, (u32, SavedTensor)>,
}

impl Merged {
    fn add(&mut self, rank: u32, manifest: WriterManifest) -> Result<(), FormatError> {
        let first_file = self.layout.files.len();
        let file_fault =
            |path: String, fault| FormatError::Declared { fault: MetadataFault::File { path, fault } };
        for file in manifest.files {
            let path = file.name.to_string();
            if file.name.rank() != rank {
                return Err(file_fault(path, FileFault::OtherRank { rank }));
            }
            let length = file.blocks.table().end;
            self.layout.files.push(SavedFile { path, length, blocks: Some(file.blocks) });
        }
        let too_many = || file_fault(METADATA_FILE.to_owned(), FileFault::TooMany);
        u32::try_from(self.layout.files.len()).map_err(|_| too_many())?;
        let files = u32::try_from(first_file).map_err(|_| too_many())?;
        for (key, tensor) in manifest.tensors {
            match self.tensors.entry(key) {
                Entry::Vacant(entry) => {
                    let mut chunks = ChunkTable::new(tensor.global_shape.len());
                    chunks.append(&tensor.chunks, files);
                    entry.insert((rank, SavedTensor { chunks, ..tensor }));
                }
                Entry::Occupied(mut entry) => {
                    agree(entry.key(), entry.get().0, &entry.get().1, rank, &tensor)?;
                    entry.get_mut().1.chunks.append(&tensor.chunks, files);
                }
            }
        }
        for (name, mut object) in manifest.objects {
            object.file += files;
            self.layout.objects.entry(name).or_default().insert(rank, object);
        }
        Ok(())
    }
}

/// Compares everything but the chunks.
fn agree(
    key: &str,
    first_rank: u32,
    first: &SavedTensor,
    rank: u32,
    other: &SavedTensor,
) -> Result<(), FormatError> {
    fn differ<T: PartialEq + Debug>(
        what: &'static str,
        a: &T,
        b: &T,
    ) -> Option<(&'static str, String, String)> {
        (a != b).then(|| (what, format!("{a:?}"), format!("{b:?}")))
    }
    let difference = differ("dtype", &first.dtype, &other.dtype)
        .or_else(|| differ("global shape", &first.global_shape, &other.global_shape))
        .or_else(|| differ("logical shape", &first.logical_shape, &other.logical_shape))
        .or_else(|| differ("split", &first.split, &other.split))
        .or_else(|| differ("alias", &first.alias_of, &other.alias_of))
        .or_else(|| differ("group", &first.group, &other.group));
    match difference {
        None => Ok(()),
        Some((what, first, other)) => {
            Err(FormatError::Disagreement { key: key.to_owned(), what, first_rank, first, rank, other })
        }
    }
}
