//! Which tool's checkpoint lies at a place: told by the names of the files, by at most a few listings.

use super::huggingface::{self, Source};
use super::infinitrain::{self, ITERATION_PREFIX, LATEST_FILE};
use super::{Directory, ForeignError};
use crate::format::{AttemptId, COMMIT_FILE};
use reshard_storage::{Depth, StorageBackend, StoragePath};

/// The usual name of the index of a checkpoint in several files.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Begins the directory of an InfiniTrain rank.
const RANK_PREFIX: &str = "rank_";
/// Most names that an error lists.
const NAMES: usize = 8;

/// What lies at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Detected {
    /// A run, or an iteration of one, that this library saved.
    Native,
    /// Safetensors files.
    HuggingFace(Source),
    /// The directory with the metadata.json of an InfiniTrain checkpoint; of a run, its newest.
    InfiniTrain(Directory),
}

/// Tells what lies at `place`: a directory of a store (`None`: its root), or a safetensors file or index.
///
/// # Errors
/// [`ForeignError::Nothing`] where nothing looks like a checkpoint; [`ForeignError::Unrecognised`] with what lies there
/// and what to do; [`ForeignError::Ambiguous`] where one of several
/// files has to be named; what the store says.
pub async fn detect(
    storage: &dyn StorageBackend,
    place: Option<&StoragePath>,
) -> Result<Detected, ForeignError> {
    if let Some(source) = place.and_then(Source::from_path)
        && let Some(path) = place
    {
        match storage.head(path).await {
            Ok(_) => return Ok(Detected::HuggingFace(source)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let directory = Directory::new(place.cloned());
    let names = Names::of(storage, &directory).await?;
    if names.has_file(COMMIT_FILE) || names.directories.iter().any(|name| is_attempt(name)) {
        return Ok(Detected::Native);
    }
    if names.has_file(LATEST_FILE)
        && let Some(newest) = infinitrain::latest(storage, &directory).await?
    {
        return Ok(Detected::InfiniTrain(newest));
    }
    if place.is_some_and(|path| is_attempt(path.name())) {
        return Err(names.unrecognised(
            "it is one attempt of a save; name the run or the iteration above it, whose commit says which attempt counts",
        ));
    }
    let has_metadata = names.has_file(infinitrain::METADATA_FILE);
    if has_metadata && names.directories.iter().any(|name| name.starts_with(RANK_PREFIX)) {
        return Ok(Detected::InfiniTrain(directory));
    }
    if let Some(source) = names.safetensors()? {
        return Ok(Detected::HuggingFace(source));
    }
    if has_metadata {
        return Ok(Detected::InfiniTrain(directory));
    }
    names.below_iterations(storage).await
}

fn is_attempt(name: &str) -> bool {
    AttemptId::from_directory(name).is_ok()
}

/// The names right below a directory.
struct Names<'a> {
    directory: &'a Directory,
    files: Vec<String>,
    directories: Vec<String>,
}

impl<'a> Names<'a> {
    async fn of(storage: &dyn StorageBackend, directory: &'a Directory) -> Result<Self, ForeignError> {
        let listing = storage.list(directory.prefix(), Depth::Children).await?;
        let name = |path: &StoragePath| directory.relative(path).map(str::to_owned);
        let files = listing.objects.iter().filter_map(|object| name(&object.path)).collect();
        let directories = listing.prefixes.iter().filter_map(name).collect();
        Ok(Self { directory, files, directories })
    }

    fn has_file(&self, name: &str) -> bool {
        self.files.iter().any(|file| file == name)
    }

    /// The one safetensors checkpoint: the files of the usual names, or the only one.
    fn safetensors(&self) -> Result<Option<Source>, ForeignError> {
        for usual in [INDEX_FILE, huggingface::MODEL_FILE] {
            if self.has_file(usual) {
                return Ok(self.source(usual));
            }
        }
        for extension in [huggingface::INDEX_EXTENSION, huggingface::FILE_EXTENSION] {
            let found: Vec<&String> = self.files.iter().filter(|file| file.ends_with(extension)).collect();
            match found.as_slice() {
                [] => {}
                [one] => return Ok(self.source(one)),
                several => {
                    return Err(ForeignError::Ambiguous {
                        place: self.directory.to_string(),
                        candidates: several.iter().take(NAMES).map(|name| format!("`{name}`")).collect(),
                    });
                }
            }
        }
        Ok(None)
    }

    fn source(&self, name: &str) -> Option<Source> {
        Source::from_path(&self.directory.file(name).ok()?)
    }

    /// A run of iterations: what the newest one says.
    async fn below_iterations(&self, storage: &dyn StorageBackend) -> Result<Detected, ForeignError> {
        let number = |name: &str| name.strip_prefix(ITERATION_PREFIX)?.parse::<u64>().ok();
        let newest = self.directories.iter().filter_map(|name| Some((number(name)?, name))).max();
        let Some((_, newest)) = newest else {
            return Err(match self.hint() {
                Some(hint) => self.unrecognised(hint),
                None => self.nothing(),
            });
        };
        let iteration = Directory::new(self.directory.file(newest).ok());
        let names = Names::of(storage, &iteration).await?;
        if names.has_file(COMMIT_FILE) || names.directories.iter().any(|name| is_attempt(name)) {
            return Ok(Detected::Native);
        }
        if names.has_file(infinitrain::METADATA_FILE) {
            return Err(self.unrecognised(&format!(
                "it has iterations of InfiniTrain but no {LATEST_FILE}; name an iteration, such as {newest}"
            )));
        }
        Err(self.unrecognised(&format!(
            "{newest}, the newest iteration there, has no metadata; {}",
            names.hint().unwrap_or("the save was not finished")
        )))
    }

    /// What to do about files that are not read here; `None` where they are of no known checkpoint.
    fn hint(&self) -> Option<&'static str> {
        let ends = |extension: &str| self.files.iter().any(|file| file.ends_with(extension));
        let inside_ranks = self.directories.iter().any(|name| name.starts_with(RANK_PREFIX));
        if ends(".distcp") {
            Some(
                "it is a torch.distributed.checkpoint, whose metadata is a pickle; load it with PyTorch and save it anew",
            )
        } else if ends(".bin") || ends(".pt") || ends(".pth") {
            Some("pickles and raw dumps are not read; convert them to safetensors")
        } else if inside_ranks || ends(".ckpt") {
            Some(
                "an InfiniTrain checkpoint has a metadata.json; without it the save was not finished, or is of the older kind that loads on its own topology only",
            )
        } else {
            None
        }
    }

    fn nothing(&self) -> ForeignError {
        let hint = match self.files.is_empty() && self.directories.is_empty() {
            true => "nothing lies there; check the path",
            false => {
                "known are runs of this library, safetensors files with or without an index, and InfiniTrain's sharded checkpoints"
            }
        };
        ForeignError::Nothing { place: self.directory.to_string(), hint: self.with_names(hint) }
    }

    fn unrecognised(&self, hint: &str) -> ForeignError {
        ForeignError::Unrecognised { place: self.directory.to_string(), hint: self.with_names(hint) }
    }

    /// The hint and the first few names that are there.
    fn with_names(&self, hint: &str) -> String {
        let names: Vec<_> = self.files.iter().chain(&self.directories).take(NAMES).cloned().collect();
        if names.is_empty() { hint.to_owned() } else { format!("{hint} (found: {})", names.join(", ")) }
    }
}
