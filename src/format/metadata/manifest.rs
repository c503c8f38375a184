//! What one rank wrote, as it tells rank 0.
//!
//! A large job has thousands of ranks with hundreds of tensors each, so the encoding is binary: numbers of 7 bits a
//! byte, lowest first, and keys in order, each as the length of what it shares with the key before it and the rest.
//! It lives only between ranks of one run, which have compared library versions, and never lies on storage.

use crate::format::names::DataFileName;
use crate::format::{BlockLayout, BlockLayoutError, ChunkTable, FormatError, SavedObject, SavedTensor};
use reshard_shard::{DType, Dims, RegionError, Split, StateGroup};
use std::collections::BTreeMap;

/// The files, chunks and objects that one rank wrote. Chunks and objects name files by their index here.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WriterManifest {
    /// The rank's data files.
    pub files: Vec<WrittenFile>,
    /// The tensors that it wrote chunks of, or is the one to declare (aliases, tensors without elements).
    pub tensors: BTreeMap<String, SavedTensor>,
    /// Its objects by name.
    pub objects: BTreeMap<String, SavedObject>,
}

/// A data file that was written. Its length is where its block table ends.
#[derive(Clone, PartialEq, Debug)]
pub struct WrittenFile {
    /// Its name inside the attempt.
    pub name: DataFileName,
    /// Its blocks.
    pub blocks: BlockLayout,
}

/// Why bytes are not a manifest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManifestFault {
    /// The bytes end too early, or a number does not end.
    #[error("cut off")]
    CutOff,
    /// Bytes are left over.
    #[error("{0} bytes too many")]
    TooLong(usize),
    /// A number is out of the range of what it stands for.
    #[error("{0} out of range")]
    Range(&'static str),
    /// A key is not UTF-8 or not in order.
    #[error("a key is not text or not in order")]
    Key,
    /// Blocks.
    #[error("blocks: {0}")]
    Blocks(#[from] BlockLayoutError),
    /// Chunks.
    #[error("chunks: {0}")]
    Chunks(#[from] RegionError),
}

impl WriterManifest {
    /// The bytes to gather.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder(Vec::new());
        to.number(self.files.len() as u64);
        for file in &self.files {
            let (name, blocks) = (file.name, &file.blocks);
            to.group(name.group());
            to.numbers([name.rank().into(), name.world_size().into(), name.piece().into()]);
            to.list(blocks.runs());
            to.numbers([
                blocks.block_bytes(),
                blocks.end(),
                blocks.table().start,
                blocks.table_crc32c().into(),
            ]);
        }
        to.number(self.tensors.len() as u64);
        let mut before = "";
        for (key, tensor) in &self.tensors {
            to.key(before, key);
            before = key;
            to.tensor(tensor);
        }
        to.number(self.objects.len() as u64);
        before = "";
        for (name, object) in &self.objects {
            to.key(before, name);
            before = name;
            to.numbers([object.file.into(), object.offset, object.length]);
        }
        to.0
    }

    /// Reads what `rank` sent.
    ///
    /// # Errors
    /// [`FormatError::Manifest`].
    pub fn decode(rank: u32, bytes: &[u8]) -> Result<Self, FormatError> {
        Decoder(bytes).manifest().map_err(|fault| FormatError::Manifest { rank, fault })
    }
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn numbers<const N: usize>(&mut self, numbers: [u64; N]) {
        numbers.into_iter().for_each(|number| self.number(number));
    }

    fn list(&mut self, numbers: &[u64]) {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|&number| self.number(number));
    }

    /// Nothing, or a list, told apart by the length plus one.
    fn optional_list(&mut self, numbers: Option<&[u64]>) {
        let Some(numbers) = numbers else { return self.number(0) };
        self.number(numbers.len() as u64 + 1);
        numbers.iter().for_each(|&number| self.number(number));
    }

    fn group(&mut self, group: StateGroup) {
        self.number(match group {
            StateGroup::Model => 0,
            StateGroup::Optimizer => 1,
        });
    }

    fn key(&mut self, before: &str, key: &str) {
        let shared = before.bytes().zip(key.bytes()).take_while(|(a, b)| a == b).count();
        let rest = &key.as_bytes()[shared..];
        self.numbers([shared as u64, rest.len() as u64]);
        self.0.extend_from_slice(rest);
    }

    fn tensor(&mut self, tensor: &SavedTensor) {
        let dtype = DType::ALL.iter().position(|&dtype| dtype == tensor.dtype);
        self.number(dtype.unwrap_or(DType::ALL.len()) as u64);
        self.group(tensor.group);
        self.list(&tensor.global_shape);
        self.optional_list(tensor.logical_shape.as_deref());
        match &tensor.split {
            None => self.number(0),
            Some(split) => {
                self.number(split.axis as u64 + 1);
                self.list(&split.segments);
            }
        }
        match &tensor.alias_of {
            None => self.number(0),
            Some(key) => {
                self.number(key.len() as u64 + 1);
                self.0.extend_from_slice(key.as_bytes());
            }
        }
        self.list(tensor.chunks.words());
    }
}

struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn manifest(mut self) -> Result<WriterManifest, ManifestFault> {
        let mut manifest = WriterManifest::default();
        for _ in 0..self.number()? {
            let group = self.group()?;
            let (rank, world_size, piece) =
                (self.small("rank")?, self.small("world size")?, self.small("piece")?);
            let name = DataFileName::new(group, rank, world_size, piece);
            let name = name.map_err(|_| ManifestFault::Range("rank"))?;
            let runs = self.list()?;
            let (block_bytes, end, table) = (self.number()?, self.number()?, self.number()?);
            let blocks = BlockLayout::new(block_bytes, runs, end, table, self.small("CRC32C")?)?;
            manifest.files.push(WrittenFile { name, blocks });
        }
        let mut key = Vec::new();
        for index in 0..self.number()? {
            let name = self.key(&mut key, index == 0)?;
            let tensor = self.tensor()?;
            if tensor.chunks.files().any(|file| file as usize >= manifest.files.len()) {
                return Err(ManifestFault::Range("file"));
            }
            manifest.tensors.insert(name, tensor);
        }
        key.clear();
        for index in 0..self.number()? {
            let name = self.key(&mut key, index == 0)?;
            let (file, offset, length) = (self.small("file")?, self.number()?, self.number()?);
            if file as usize >= manifest.files.len() {
                return Err(ManifestFault::Range("file"));
            }
            let object = SavedObject { file, offset, length };
            manifest.objects.insert(name, object);
        }
        if self.0.is_empty() { Ok(manifest) } else { Err(ManifestFault::TooLong(self.0.len())) }
    }

    fn number(&mut self) -> Result<u64, ManifestFault> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ManifestFault::CutOff)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ManifestFault::Range("number"))
    }

    fn small(&mut self, what: &'static str) -> Result<u32, ManifestFault> {
        u32::try_from(self.number()?).map_err(|_| ManifestFault::Range(what))
    }

    fn length(&mut self) -> Result<usize, ManifestFault> {
        // Everything counted takes a byte at least; this bounds what is allocated.
        let length = usize::try_from(self.number()?).map_err(|_| ManifestFault::CutOff)?;
        if length > self.0.len() { Err(ManifestFault::CutOff) } else { Ok(length) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ManifestFault> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ManifestFault::CutOff)?;
        self.0 = rest;
        Ok(taken)
    }

    fn list<L: FromIterator<u64>>(&mut self) -> Result<L, ManifestFault> {
        let length = self.length()?;
        (0..length).map(|_| self.number()).collect()
    }

    /// A number that stands for nothing (0) or one more than itself.
    fn optional(&mut self) -> Result<Option<u64>, ManifestFault> {
        Ok(self.number()?.checked_sub(1))
    }

    fn group(&mut self) -> Result<StateGroup, ManifestFault> {
        match self.number()? {
            0 => Ok(StateGroup::Model),
            1 => Ok(StateGroup::Optimizer),
            _ => Err(ManifestFault::Range("group")),
        }
    }

    /// The next key; `before` holds the one before it and then this one.
    fn key(&mut self, before: &mut Vec<u8>, first: bool) -> Result<String, ManifestFault> {
        let shared = usize::try_from(self.number()?).map_err(|_| ManifestFault::Key)?;
        let length = self.length()?;
        let rest = self.take(length)?;
        let replaced = before.get(shared..).ok_or(ManifestFault::Key)?;
        if !first && rest <= replaced {
            return Err(ManifestFault::Key);
        }
        before.truncate(shared);
        before.extend_from_slice(rest);
        std::str::from_utf8(before).map(str::to_owned).map_err(|_| ManifestFault::Key)
    }

    fn text(&mut self, length: u64) -> Result<String, ManifestFault> {
        let length = usize::try_from(length).map_err(|_| ManifestFault::CutOff)?;
        std::str::from_utf8(self.take(length)?).map(str::to_owned).map_err(|_| ManifestFault::Key)
    }

    fn tensor(&mut self) -> Result<SavedTensor, ManifestFault> {
        let dtype = usize::try_from(self.number()?).ok().and_then(|index| DType::ALL.get(index));
        let dtype = *dtype.ok_or(ManifestFault::Range("dtype"))?;
        let group = self.group()?;
        let global_shape: Dims = self.list()?;
        let logical_shape = match self.optional()? {
            None => None,
            Some(length) => Some((0..length).map(|_| self.number()).collect::<Result<Dims, _>>()?),
        };
        let split = match self.optional()? {
            None => None,
            Some(axis) => {
                let axis = usize::try_from(axis).map_err(|_| ManifestFault::Range("axis"))?;
                Some(Split { axis, segments: self.list()? })
            }
        };
        let alias_of = match self.optional()? {
            None => None,
            Some(length) => Some(self.text(length)?),
        };
        let chunks = ChunkTable::from_words(global_shape.len(), self.list()?)?;
        Ok(SavedTensor { dtype, global_shape, logical_shape, split, alias_of, group, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_and_no_other_bytes() {
        for number in [0, 1, 127, 128, 300, 1 << 32, 1 << 63, u64::MAX] {
            let mut to = Encoder(Vec::new());
            to.number(number);
            assert_eq!(Decoder(&to.0).number(), Ok(number));
            assert_eq!(Decoder(&to.0[1..]).number().is_ok(), to.0.len() > 1);
        }
        assert_eq!(Decoder(&[0x80; 3]).number(), Err(ManifestFault::CutOff));
        assert_eq!(Decoder(&[0xff; 10]).number(), Err(ManifestFault::Range("number")));
    }
}
