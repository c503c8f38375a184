//! The header of any safetensors file, ours or another tool's, read as strictly as the format is meant.

use super::MAX_HEADER_BYTES;
use crate::format::names::reserved_entries::HEADER_METADATA;
use crate::format::{FormatError, HeaderFault, Pairs};
use reshard_shard::{DType, Dims, volume_of};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

const LENGTH_BYTES: usize = 8;

/// A checked header: entries fill the file from the header's end to the last byte without hole or overlap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SafetensorsHeader {
    /// Where the data begins: the header's length with the 8 bytes before it.
    pub data_start: u64,
    /// The file's own strings, `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// The entries in file order.
    pub entries: Vec<SafetensorsEntry>,
}

/// One tensor of a safetensors file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SafetensorsEntry {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Sizes in elements.
    pub shape: Dims,
    /// Offset from the start of the file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl SafetensorsHeader {
    /// How many bytes of `file` its header takes, from the first 8 of them; read so many for
    /// [`SafetensorsHeader::parse`].
    ///
    /// # Errors
    /// [`FormatError::Header`] where the length is past the format's cap or the file's end.
    pub fn bytes(file: &str, first: [u8; LENGTH_BYTES], file_length: u64) -> Result<u64, FormatError> {
        let header = u64::from_le_bytes(first);
        let fault = |fault| Err(FormatError::Header { file: file.to_owned(), fault });
        if header > MAX_HEADER_BYTES {
            return fault(HeaderFault::TooLong { header });
        }
        let end = LENGTH_BYTES as u64 + header;
        if end > file_length { fault(HeaderFault::PastEnd { header, file_length }) } else { Ok(end) }
    }

    /// Reads the header of `file` of `file_length` bytes; `head` is the file's start and holds at least the header.
    ///
    /// # Errors
    /// [`FormatError::Header`] with what is wrong.
    pub fn parse(file: &str, head: &[u8], file_length: u64) -> Result<Self, FormatError> {
        let fault = |fault| FormatError::Header { file: file.to_owned(), fault };
        let short = || fault(HeaderFault::Short { bytes: head.len() as u64 });
        let (first, rest) = head.split_first_chunk::<LENGTH_BYTES>().ok_or_else(short)?;
        let data_start = Self::bytes(file, *first, file_length)?;
        let json = usize::try_from(data_start).ok().and_then(|end| rest.get(..end - LENGTH_BYTES));
        let json = json.ok_or_else(short)?;
        let raw: RawHeader =
            serde_json::from_slice(json).map_err(|error| fault(HeaderFault::Json(error.to_string())))?;
        raw.check(data_start, file_length).map_err(fault)
    }
}

/// The JSON as it stands; a list where a map would hide that a name stands twice.
struct RawHeader<'a> {
    metadata: Vec<Pairs>,
    entries: Vec<(String, RawEntry<'a>)>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Dims,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader<'de>, A::Error> {
                let mut raw = RawHeader { metadata: Vec::new(), entries: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == HEADER_METADATA {
                        raw.metadata.push(map.next_value()?);
                    } else {
                        raw.entries.push((name, map.next_value()?));
                    }
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl RawHeader<'_> {
    fn check(self, data_start: u64, file_length: u64) -> Result<SafetensorsHeader, HeaderFault> {
        if self.metadata.len() > 1 {
            return Err(HeaderFault::Twice { name: HEADER_METADATA.to_owned() });
        }
        let mut metadata = BTreeMap::new();
        for (name, value) in self.metadata.into_iter().flat_map(|pairs| pairs.0) {
            if metadata.insert(name.clone(), value).is_some() {
                return Err(HeaderFault::Twice { name });
            }
        }
        let mut entries = Vec::with_capacity(self.entries.len());
        for (name, raw) in self.entries {
            entries.push(raw.check(name, data_start)?);
        }
        let mut seen = HashSet::with_capacity(entries.len());
        if let Some(twice) = entries.iter().find(|entry| !seen.insert(entry.name.as_str())) {
            return Err(HeaderFault::Twice { name: twice.name.clone() });
        }
        entries.sort_by_key(|entry| (entry.offset, entry.bytes));
        let mut at = data_start;
        for entry in &entries {
            let name = || entry.name.clone();
            if entry.offset < at {
                return Err(HeaderFault::Overlap { name: name(), offset: entry.offset, end_before: at });
            }
            if entry.offset > at {
                return Err(HeaderFault::Hole { name: name(), offset: entry.offset, end_before: at });
            }
            at = entry.offset + entry.bytes;
        }
        if at != file_length {
            return Err(HeaderFault::FileLength { expected: at, found: file_length });
        }
        Ok(SafetensorsHeader { data_start, metadata, entries })
    }
}

impl RawEntry<'_> {
    fn check(self, name: String, data_start: u64) -> Result<SafetensorsEntry, HeaderFault> {
        let Some(&dtype) = DType::ALL.iter().find(|dtype| dtype.safetensors_name() == self.dtype) else {
            return Err(HeaderFault::UnknownDType { name, dtype: self.dtype.into_owned() });
        };
        let (start, end) = self.data_offsets;
        let Some(bytes) = end.checked_sub(start).filter(|_| end.checked_add(data_start).is_some()) else {
            return Err(HeaderFault::Offsets { name, start, end });
        };
        let bits = volume_of(&self.shape).ok().and_then(|volume| volume.checked_mul(dtype.bits()));
        let Some(bits) = bits else {
            return Err(HeaderFault::Overflow { name, shape: self.shape });
        };
        if bits % 8 != 0 {
            return Err(HeaderFault::PartByte { name, bits });
        }
        if bits / 8 != bytes {
            return Err(HeaderFault::Size { name, dtype, shape: self.shape, bytes });
        }
        Ok(SafetensorsEntry { name, dtype, shape: self.shape, offset: data_start + start, bytes })
    }
}
