use reshard_shard::{CoverageFault, DType, Dims, Region, ShardError};

/// Why no plan can be made. Nothing was read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The caller's state dict is not valid.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// What would be written does not fit the format.
    #[error(transparent)]
    Format(#[from] crate::format::FormatError),
    /// A pattern of a selection is not a glob.
    #[error("`{pattern}` is not a glob: {source}")]
    Glob {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        source: globset::Error,
    },
    /// Saved and wanted dtype differ in a way that the contract does not allow.
    #[error("tensor `{key}` is saved as {saved} and wanted as {wanted}: {hint}")]
    DType {
        /// The tensor.
        key: String,
        /// Its dtype in the checkpoint.
        saved: DType,
        /// The dtype of the destination.
        wanted: DType,
        /// What to do.
        hint: &'static str,
    },
    /// Saved and wanted global shape differ, other than by allowed padding.
    #[error("tensor `{key}` has global shape {saved:?} in the checkpoint and {wanted:?} here: {why}")]
    Shape {
        /// The tensor.
        key: String,
        /// Shape in the checkpoint.
        saved: Dims,
        /// Shape of the destination.
        wanted: Dims,
        /// Why the difference is not allowed.
        why: String,
    },
    /// The stored chunks do not cover what is wanted exactly once.
    #[error("tensor `{key}`: stored chunks do not cover {region} exactly once: {fault}")]
    Coverage {
        /// The tensor.
        key: String,
        /// The wanted region.
        region: Region,
        /// Where the fault is.
        fault: CoverageFault,
    },
    /// A chunk does not lie inside its file, or a file is named that the layout does not have.
    #[error("tensor `{key}`: chunk {region} does not lie inside file `{file}`")]
    ChunkOutsideFile {
        /// The tensor.
        key: String,
        /// The chunk.
        region: Region,
        /// The file.
        file: String,
    },
    /// The key that should win for tied weights is not in the checkpoint.
    #[error("`{winner}` was named to fill the tied tensor `{owner}`, but the checkpoint has no such tensor")]
    TieWinner {
        /// The key that owns the storage here.
        owner: String,
        /// The saved key that should fill it.
        winner: String,
    },
    /// What is said to have been tied when it was saved is not in the checkpoint.
    #[error(
        "`{alias}` was said to have shared the storage of `{owner}`, but the checkpoint has no `{owner}`"
    )]
    SavedTie {
        /// The key said to be the other's alias.
        alias: String,
        /// The key that should be there.
        owner: String,
    },
    /// A per-rank object is wanted on another number of ranks than it was saved on.
    #[error(
        "object `{name}` was saved by {saved} rank(s) and this run has {running}: each rank's own cannot be chosen; ask for all ranks' objects, or start them fresh"
    )]
    ObjectRanks {
        /// Name of the object.
        name: String,
        /// Ranks that saved one.
        saved: u32,
        /// Ranks of this run.
        running: u32,
    },
}

/// The first few keys, quoted, for an error; a very long one is shortened.
pub(crate) fn quoted(keys: &[String]) -> String {
    let mut text =
        keys.iter().take(8).map(|key| format!("`{}`", shortened(key))).collect::<Vec<_>>().join(", ");
    if keys.len() > 8 {
        text.push_str(", ...");
    }
    text
}

/// Most characters of a key in a message.
const KEY_CHARACTERS: usize = 200;

fn shortened(key: &str) -> String {
    match key.char_indices().nth(KEY_CHARACTERS) {
        None => key.to_owned(),
        Some((end, _)) => format!("{}... ({} bytes)", &key[..end], key.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_and_long_keys_are_shortened() {
        let keys: Vec<String> = (0..9).map(|index| format!("k{index}")).collect();
        assert!(quoted(&keys).ends_with("`k7`, ..."));
        let text = quoted(&["é".repeat(1 << 20)]);
        assert!(text.len() < 1000 && text.contains("2097152 bytes"), "{text}");
    }
}
