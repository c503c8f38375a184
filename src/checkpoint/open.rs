use super::commit::{list_iterations, newest, set_pin};
use super::meeting::{Meeting, MeetingRules};
use super::{CheckpointError, LoadRequest, Loaded, SaveError, SaveReport, SaveRequest};
use crate::foreign::huggingface::Source;
use crate::format::Iteration;
use crate::transfer::{Job, NoProgress, Progress, Staging, TransferError};
use reshard_collective::Collective;
use reshard_device::{Device, DeviceError, Host};
use reshard_storage::{Meter, OpenOptions, StorageBackend, StoragePath};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a [`Checkpoint`] works, whatever is saved or loaded.
#[derive(Clone)]
pub struct Options {
    /// Staging memory of the process in bytes; ranks that are threads of one process share it evenly.
    pub staging_bytes: usize,
    /// Most requests of one rank with data at once. The staging slots are a limit too, where bytes wait in them.
    pub concurrency: usize,
    /// How ranks meet.
    pub meetings: MeetingRules,
    /// Told how far this rank is.
    pub progress: Arc<dyn Progress>,
    /// Where tensors live.
    pub device: Arc<dyn Device>,
}

impl Default for Options {
    /// 256 MiB of staging, 64 requests at once, host memory.
    fn default() -> Self {
        Self {
            staging_bytes: 256 << 20,
            concurrency: 64,
            meetings: MeetingRules::default(),
            progress: Arc::new(NoProgress),
            device: Arc::new(Host),
        }
    }
}

/// A run on storage: the place under which its iterations lie.
///
/// Every rank has one, and all ranks make the same calls in the same order.
pub struct Checkpoint {
    pub(super) storage: Arc<dyn StorageBackend>,
    /// The file that the URI names, where it names one: it can only be another tool's.
    pub(super) file: Option<StoragePath>,
    pub(super) options: Options,
    meter: Option<Arc<Meter>>,
    calls: AtomicU64,
}

impl Checkpoint {
    /// Opens the run at `uri`: a path, `file://`, `s3://`, `gs://`, `az://` or `memory://`. It may also be the place of
    /// another tool's checkpoint, to load from: a directory, a safetensors file, or the index of several.
    ///
    /// # Errors
    /// [`CheckpointError::Storage`] for a URI or configuration that is not valid. Nothing is asked of the store yet.
    pub fn open(uri: &str, storage: OpenOptions, options: Options) -> Result<Self, CheckpointError> {
        let meter = Meter::counting();
        let (uri, file) = split_file(uri);
        let storage = reshard_storage::open(uri, &storage.meter(Arc::clone(&meter)))?;
        Ok(Self { meter: Some(meter), file, ..Self::new(storage, options) })
    }

    /// A run on a store that the caller made. Its retries are not known to reports.
    pub fn new(storage: Arc<dyn StorageBackend>, options: Options) -> Self {
        Self { storage, file: None, options, meter: None, calls: AtomicU64::new(0) }
    }

    /// The store.
    pub fn storage(&self) -> &Arc<dyn StorageBackend> {
        &self.storage
    }

    /// Saves one iteration, on all ranks or none. Collective: every rank calls it with its own shards.
    ///
    /// # Errors
    /// [`SaveError`], which says whether the iteration was committed. Training can go on, and a later save works.
    pub fn save(
        &self,
        collective: &dyn Collective,
        request: SaveRequest<'_>,
    ) -> Result<SaveReport, SaveError> {
        super::save::save(self, collective, request)
    }

    /// Loads one iteration onto the layout that `request` wants, on all ranks or none. Collective.
    ///
    /// # Errors
    /// [`CheckpointError`] on every rank where one fails.
    pub fn load(
        &self,
        collective: &dyn Collective,
        request: LoadRequest<'_>,
    ) -> Result<Loaded, CheckpointError> {
        super::load::load(self, collective, request)
    }

    /// The iterations that have a directory, newest first, committed or not. Not collective.
    ///
    /// # Errors
    /// [`CheckpointError::Storage`].
    pub fn iterations(&self) -> Result<Vec<Iteration>, CheckpointError> {
        let storage = Arc::clone(&self.storage);
        Job::start(async move { list_iterations(&*storage).await })?.finish()?
    }

    /// The newest committed iteration. Not collective.
    ///
    /// # Errors
    /// [`CheckpointError::Storage`]; [`CheckpointError::Format`] for a damaged commit.
    pub fn newest(&self) -> Result<Option<Iteration>, CheckpointError> {
        let storage = Arc::clone(&self.storage);
        let found = Job::start(async move { newest(&*storage).await })?.finish()??;
        Ok(found.map(|(iteration, _)| iteration))
    }

    /// Keeps an iteration from being pruned as long as the pin `name` is on it. Not collective.
    ///
    /// # Errors
    /// [`CheckpointError::NoCheckpoint`]; [`CheckpointError::Lost`] where another writer changed the commit meanwhile;
    /// [`CheckpointError::Unsupported`] for a store without conditional updates.
    pub fn pin(&self, iteration: Iteration, name: &str) -> Result<(), CheckpointError> {
        self.set_pin(iteration, name, true)
    }

    /// Takes a pin away; one that is not there is no error. Not collective.
    ///
    /// # Errors
    /// As [`Checkpoint::pin`].
    pub fn unpin(&self, iteration: Iteration, name: &str) -> Result<(), CheckpointError> {
        self.set_pin(iteration, name, false)
    }

    fn set_pin(&self, iteration: Iteration, name: &str, pinned: bool) -> Result<(), CheckpointError> {
        let (storage, name) = (Arc::clone(&self.storage), name.to_owned());
        Job::start(async move { set_pin(&*storage, iteration, &name, pinned).await })?.finish()?
    }

    /// How this rank meets the others.
    pub(crate) fn meeting<'a>(&'a self, collective: &'a dyn Collective) -> Meeting<'a> {
        Meeting::new(collective, &self.options.meetings)
    }

    /// A number that is the same on all ranks for calls that belong together.
    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn staging(&self, collective: &dyn Collective) -> Result<Staging, CheckpointError> {
        let Options { device, staging_bytes, .. } = &self.options;
        let ranks = collective.ranks_in_process();
        Staging::new(Arc::clone(device), *staging_bytes, ranks).map_err(|error| match error {
            // Told in the caller's terms: the whole budget, not a rank's share.
            TransferError::Device(DeviceError::BudgetTooSmall { minimum, .. }) => {
                CheckpointError::Invalid(format!(
                    "staging_bytes = {staging_bytes} is too small for the ranks of this process ({ranks}); give at least {}",
                    minimum.saturating_mul(ranks)
                ))
            }
            error => error.into(),
        })
    }

    pub(super) fn retries(&self) -> u64 {
        self.meter.as_ref().map_or(0, |meter| meter.totals().retries)
    }
}

/// The directory of a URI that names a safetensors file or index, and the file in it.
fn split_file(uri: &str) -> (&str, Option<StoragePath>) {
    let (directory, name) = match uri.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((directory, _)) if directory.ends_with(":/") => return (uri, None), // a bucket
        Some(split) => split,
        None => (".", uri),
    };
    match StoragePath::parse(name).ok().filter(|path| Source::from_path(path).is_some()) {
        Some(file) => (directory, Some(file)),
        None => (uri, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_in_its_directory() {
        let split = |uri| {
            let (directory, file) = split_file(uri);
            (directory, file.map(|file| file.to_string()))
        };
        let model = || Some("model.safetensors".to_owned());
        assert_eq!(split("s3://bucket/a/model.safetensors"), ("s3://bucket/a", model()));
        assert_eq!(split("s3://bucket/model.safetensors"), ("s3://bucket", model()));
        assert_eq!(split("/model.safetensors"), ("/", model()));
        assert_eq!(split("model.safetensors"), (".", model()));
        assert_eq!(split("a/m.safetensors.index.json"), ("a", Some("m.safetensors.index.json".to_owned())));
        for run in
            ["s3://bucket/run", "run", "s3://bucket.safetensors", "s3://bucket/run.safetensors/", "/", "."]
        {
            assert_eq!(split(run), (run, None));
        }
    }
}
