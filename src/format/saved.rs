//! A saved layout: which tensors a checkpoint has and where each region of them lies. Our own metadata.json is one;
//! so is another tool's checkpoint (`foreign`). A load plan is made from one and knows no other source.

use super::BlockLayout;
use reshard_shard::{DType, Dims, Region, RegionError, Split, StateGroup};
use std::collections::BTreeMap;

/// Where everything of one checkpoint lies.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SavedLayout {
    /// The data files; chunks name them by index.
    pub files: Vec<SavedFile>,
    /// The tensors by key.
    pub tensors: BTreeMap<String, SavedTensor>,
    /// Per-rank byte objects (RNG state, data loader) by name, then by the rank that saved them.
    pub objects: BTreeMap<String, BTreeMap<u32, SavedObject>>,
}

/// A data file.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedFile {
    /// Path relative to the directory of the metadata that names it.
    pub path: String,
    /// Length in bytes.
    pub length: u64,
    /// How the file is cut into checksummed blocks; `None` for other tools' files, which carry no checksums.
    pub blocks: Option<BlockLayout>,
}

/// A tensor as it was saved.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedTensor {
    /// Element type.
    pub dtype: DType,
    /// Shape in elements, padding included.
    pub global_shape: Dims,
    /// Shape without padding, where the writer knew it.
    pub logical_shape: Option<Dims>,
    /// The declared split, kept so that tools and later saves know it.
    pub split: Option<Split>,
    /// The key under which the bytes are stored, for tied weights; such a tensor has no chunks.
    pub alias_of: Option<String>,
    /// Model or optimizer.
    pub group: StateGroup,
    /// The stored regions. In our own format they tile the tensor exactly once; another tool may store replicas.
    pub chunks: ChunkTable,
}

/// One rank's bytes under one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedObject {
    /// Index into [`SavedLayout::files`].
    pub file: u32,
    /// Where the bytes begin in the file.
    pub offset: u64,
    /// Number of bytes, possibly 0.
    pub length: u64,
}

/// A stored region: dense, row-major, at one place of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The box in global coordinates.
    pub region: Region,
    /// Index into [`SavedLayout::files`].
    pub file: u32,
    /// Where its bytes begin in the file.
    pub offset: u64,
}

/// The chunks of one tensor as one flat array of words, because a large job has millions:
/// `[file, offset, region offset per axis.., region size per axis..]` per chunk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkTable {
    ndim: usize,
    words: Vec<u64>,
}

impl ChunkTable {
    /// No chunks yet, of a tensor with `ndim` axes.
    pub fn new(ndim: usize) -> Self {
        Self { ndim, words: Vec::new() }
    }

    /// Takes words as they lie in metadata.json.
    ///
    /// # Errors
    /// [`RegionError`] where a chunk is not a valid region or its number does not fit; the words are not a whole
    /// number of chunks ([`RegionError::Rank`]).
    pub fn from_words(ndim: usize, words: Vec<u64>) -> Result<Self, RegionError> {
        let table = Self { ndim, words };
        if !table.words.len().is_multiple_of(table.stride()) {
            return Err(RegionError::Rank { offset: table.words.len() % table.stride(), shape: ndim });
        }
        for row in table.words.chunks_exact(table.stride()) {
            u32::try_from(row[0]).map_err(|_| RegionError::Overflow)?;
            Region::new(&row[2..2 + ndim], &row[2 + ndim..])?;
        }
        Ok(table)
    }

    /// The words as they lie in metadata.json.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Adds a chunk. Its region must have the table's number of axes.
    pub fn push(&mut self, chunk: &Chunk) {
        debug_assert_eq!(chunk.region.ndim(), self.ndim);
        self.words.extend([u64::from(chunk.file), chunk.offset]);
        self.words.extend_from_slice(chunk.region.offset());
        self.words.extend_from_slice(chunk.region.shape());
    }

    /// Adds all chunks of another table of the same number of axes, with its file indices moved up by `files`.
    pub fn append(&mut self, other: &ChunkTable, files: u32) {
        debug_assert_eq!(other.ndim, self.ndim);
        let start = self.words.len();
        self.words.extend_from_slice(&other.words);
        for row in self.words[start..].chunks_exact_mut(2 + 2 * other.ndim) {
            row[0] += u64::from(files);
        }
    }

    /// Number of axes.
    pub fn ndim(&self) -> usize {
        self.ndim
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.words.len() / self.stride()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The chunks in order. All are valid: [`ChunkTable::from_words`] and [`ChunkTable::push`] let no other in.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Chunk> + '_ {
        self.words.chunks_exact(self.stride()).map(|row| self.chunk(row))
    }

    /// The file of each chunk, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.words.chunks_exact(self.stride()).map(|row| row[0] as u32)
    }

    /// The chunk at `index`; `None` past the end.
    pub fn get(&self, index: usize) -> Option<Chunk> {
        let start = index.checked_mul(self.stride())?;
        self.words.get(start..start + self.stride()).map(|row| self.chunk(row))
    }

    fn chunk(&self, row: &[u64]) -> Chunk {
        let (offset, shape) = row[2..].split_at(self.ndim);
        Chunk { region: Region::from_valid(offset, shape), file: row[0] as u32, offset: row[1] }
    }

    fn stride(&self) -> usize {
        2 + 2 * self.ndim
    }
}
