//! `*.safetensors.index.json`: which file holds which key.

use crate::foreign::{ForeignError, IndexFault};
use crate::format::{Pairs, SafetensorsHeader};
use std::collections::{BTreeMap, BTreeSet};

/// A parsed index: no key stands twice in it.
pub(super) struct Index {
    file_by_key: BTreeMap<String, String>,
}

/// Fields beside the map, such as a total size, say nothing that the headers don't.
#[derive(serde::Deserialize)]
struct Raw {
    weight_map: Pairs,
}

impl Index {
    /// Reads `file`.
    pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Self, ForeignError> {
        let raw: Raw = serde_json::from_slice(bytes).map_err(|error| ForeignError::Malformed {
            file: file.to_owned(),
            why: format!("not an index of safetensors files: {error}"),
        })?;
        let mut file_by_key = BTreeMap::new();
        for (key, name) in raw.weight_map.0 {
            if file_by_key.insert(key.clone(), name).is_some() {
                return Err(ForeignError::Index { index: file.to_owned(), fault: IndexFault::Twice { key } });
            }
        }
        Ok(Self { file_by_key })
    }

    /// The files that it names, each once, sorted.
    pub(super) fn files(&self) -> BTreeSet<&str> {
        self.file_by_key.values().map(String::as_str).collect()
    }

    /// Compares with the headers of all its files.
    pub(super) fn check<'a>(
        &self,
        headers: impl IntoIterator<Item = (&'a str, &'a SafetensorsHeader)>,
    ) -> Result<(), IndexFault> {
        let found = file_of_key(headers)?;
        for (key, file) in &self.file_by_key {
            if found.get(key.as_str()) != Some(&file.as_str()) {
                return Err(IndexFault::NotInFile { key: key.clone(), file: file.clone() });
            }
        }
        match found.iter().find(|(key, _)| !self.file_by_key.contains_key(**key)) {
            None => Ok(()),
            Some((key, file)) => {
                Err(IndexFault::NotInIndex { key: (*key).to_owned(), file: (*file).to_owned() })
            }
        }
    }
}

/// The file of every key, over all headers.
fn file_of_key<'a>(
    headers: impl IntoIterator<Item = (&'a str, &'a SafetensorsHeader)>,
) -> Result<BTreeMap<&'a str, &'a str>, IndexFault> {
    let mut files = BTreeMap::new();
    for (file, header) in headers {
        for entry in &header.entries {
            if let Some(first) = files.insert(entry.name.as_str(), file) {
                return Err(IndexFault::InTwoFiles {
                    key: entry.name.clone(),
                    first: first.to_owned(),
                    second: file.to_owned(),
                });
            }
        }
    }
    Ok(files)
}
