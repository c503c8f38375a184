//! Where a verb looks: the URI of a run, or of one iteration of it.

use super::Global;
use super::exit::{Exit, Failure};
use crate::checkpoint::{Checkpoint, Options};
use crate::format::Iteration;
use crate::transfer::{NoProgress, Progress};
use reshard_storage::{OpenOptions, StorageBackend};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A run, and perhaps one iteration of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    run: String,
    iteration: Option<Iteration>,
}

impl Place {
    /// Reads a URI. Its last segment names an iteration where it is the name of one.
    pub(super) fn parse(uri: &str) -> Self {
        let trimmed = uri.trim_end_matches('/');
        let (run, name) = trimmed.rsplit_once('/').unwrap_or((".", trimmed));
        // A URI of a bucket named like an iteration is still a bucket.
        match name.parse() {
            Ok(iteration) if !run.ends_with('/') => {
                let run = if run.is_empty() { "/" } else { run };
                Self { run: run.to_owned(), iteration: Some(iteration) }
            }
            _ => Self { run: uri.to_owned(), iteration: None },
        }
    }

    /// The iteration that the URI or the option names.
    pub(super) fn iteration(&self, option: Option<u64>) -> Result<Option<Iteration>, Failure> {
        match (self.iteration, option.map(Iteration)) {
            (Some(named), Some(asked)) if named != asked => Err(Failure::usage(format!(
                "the URI names {named} and --iteration names {asked}; leave one of them out"
            ))),
            (named, asked) => Ok(named.or(asked)),
        }
    }

    /// The URI of the run.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Refuses `s3:bucket`, which would be the path of a directory of that name, unless there is one.
    pub(super) fn check_scheme(&self) -> Result<(), Failure> {
        match self.run.split_once(':') {
            Some((scheme, rest))
                if ["s3", "s3a", "gs", "az", "file", "memory"].contains(&scheme)
                    && !rest.starts_with("//")
                    && !Path::new(&self.run).exists() =>
            {
                let rest = rest.trim_start_matches('/');
                let root = if scheme == "file" { "/" } else { "" };
                Err(Failure::usage(format!(
                    "`{}` is no URI; did you mean {scheme}://{root}{rest}?",
                    self.run
                )))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a file, and a directory on disk that is not there: that it holds nothing would be no news.
    pub(super) fn check_directory(&self, global: &Global, checkpoint: &Checkpoint) -> Result<(), Failure> {
        let uri = &self.run;
        let whole = reshard_storage::open(uri, &global.open_options()?)?;
        // A checkpoint of a file is opened in the file's directory.
        let is_file = whole.to_string() != checkpoint.storage().to_string();
        let message = match on_disk(uri, &*whole) {
            Some(path) if !path.exists() => format!("there is no {uri}; correct the path"),
            Some(path) if path.is_dir() => return Ok(()),
            None if !is_file => return Ok(()),
            _ => format!("{uri} is a file and no run; `reshard inspect {uri}` reads other tools' files"),
        };
        self.check_name()?;
        Err(Failure::new(Exit::NotFound, message))
    }

    /// Refuses what was meant as an iteration and is not written as one.
    pub(super) fn check_name(&self) -> Result<(), Failure> {
        let trimmed = self.run.trim_end_matches('/');
        let name = trimmed.rsplit_once('/').map_or(trimmed, |(_, name)| name);
        let number = name.strip_prefix("iter_").and_then(|digits| digits.parse().ok());
        match number.map(Iteration) {
            Some(iteration) if iteration.to_string() != name => {
                let message = format!("{} is no iteration; it is written {iteration}", self.run);
                Err(Failure::new(Exit::NotFound, message))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn open(&self, global: &Global) -> Result<Checkpoint, Failure> {
        self.open_with(global, Arc::new(NoProgress))
    }

    pub(super) fn open_with(
        &self,
        global: &Global,
        progress: Arc<dyn Progress>,
    ) -> Result<Checkpoint, Failure> {
        self.check_scheme()?;
        let options = Options { progress, ..Options::default() };
        Ok(Checkpoint::open(&self.run, global.open_options()?, options)?)
    }
}

/// The directory of a store on disk.
pub(super) fn on_disk(uri: &str, storage: &dyn StorageBackend) -> Option<PathBuf> {
    let disk = uri.starts_with("file://") || !uri.contains("://");
    // A disk's name is its path.
    disk.then(|| PathBuf::from(storage.to_string()))
}

impl Global {
    /// The options of the store.
    pub(super) fn open_options(&self) -> Result<OpenOptions, Failure> {
        self.settings.iter().try_fold(OpenOptions::new(), |options, setting| {
            // What follows may be a secret, so an error must not repeat it.
            let (key, value) =
                setting.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                    Failure::usage(
                        "an option of the store is written --set KEY=VALUE, such as --set allow_http=true",
                    )
                })?;
            Ok(options.set(key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_run_or_an_iteration() {
        let place = |run: &str, iteration: Option<u64>| Place {
            run: run.to_owned(),
            iteration: iteration.map(Iteration),
        };
        assert_eq!(Place::parse("s3://bucket/run"), place("s3://bucket/run", None));
        assert_eq!(Place::parse("s3://bucket/run/iter_0000012/"), place("s3://bucket/run", Some(12)));
        assert_eq!(Place::parse("s3://bucket/iter_0000012"), place("s3://bucket", Some(12)));
        assert_eq!(Place::parse("s3://iter_0000012"), place("s3://iter_0000012", None));
        assert_eq!(Place::parse("iter_0000012"), place(".", Some(12)));
        assert_eq!(Place::parse("/iter_0000012"), place("/", Some(12)));
        assert_eq!(Place::parse("/run/iter_12"), place("/run/iter_12", None));
        assert_eq!(Place::parse("/"), place("/", None));
        let twelve = Place::parse("/run/iter_0000012");
        assert_eq!(twelve.iteration(None).unwrap(), Some(Iteration(12)));
        assert_eq!(twelve.iteration(Some(12)).unwrap(), Some(Iteration(12)));
        assert!(twelve.iteration(Some(13)).is_err());
        assert_eq!(Place::parse("/run").iteration(Some(13)).unwrap(), Some(Iteration(13)));
    }
}
