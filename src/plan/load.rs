use super::box_tree::BoxTree;
use super::coalesce::{FileExtents, coalesce};
use super::copy::{Copy, CopyKind};
use super::lookup::{Known, SavedTies, TieWinners, aliases, check_ties, resolve_tie};
use super::padding::{filled_shape, split_at_padding};
use super::pattern::LocalPattern;
use super::{CostModel, DTypeContract, PlanError, Select};
use crate::format::{Chunk, SavedLayout, SavedTensor};
use reshard_shard::{DType, Dims, Placement, Region, ShardedStateDict, ShardedTensor, prove_tiling};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a caller may say about a load before it is planned.
#[derive(Clone, Debug, Default)]
pub struct LoadRules {
    /// Which part of the checkpoint is wanted.
    pub select: Select,
    /// How dtypes may differ.
    pub contract: DTypeContract,
    /// What requests cost.
    pub cost: CostModel,
    /// Whether blocks are read whole and their checksums compared. Files without checksums are read as they are.
    pub verify: bool,
    /// Which saved key fills a tensor that is tied here and was not when it was saved.
    pub tie_winners: TieWinners,
    /// Which names shared one storage when they were saved, where the checkpoint does not say so.
    pub saved_ties: SavedTies,
}

/// What a rank wants of the per-rank objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ObjectChoice {
    /// Each rank its own; an error on another number of ranks.
    #[default]
    Own,
    /// Every rank gets all ranks' objects.
    All,
    /// None: the caller starts them anew.
    Fresh,
}

/// One GET.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Index of the file in the saved layout.
    pub file: u32,
    /// The bytes.
    pub range: Range<u64>,
    /// The copies that take something from it, as indices into [`LoadPlan::copies`].
    pub copies: Vec<u32>,
}

/// A part of a destination that has no saved data and becomes zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZeroFill {
    /// Index of the tensor in the plan.
    pub tensor: u32,
    /// The bytes.
    pub pattern: LocalPattern,
}

/// What a destination of the plan is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Destination {
    /// The wanted tensor of this key.
    Tensor(String),
    /// The object of this name that `rank` saved.
    Object {
        /// Its name.
        name: String,
        /// The rank that saved it.
        rank: u32,
    },
}

/// A destination and the dtypes on both sides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedTensor {
    /// What is filled.
    pub destination: Destination,
    /// The dtype in the checkpoint.
    pub saved_dtype: DType,
    /// The dtype of the destination.
    pub dtype: DType,
    /// Size of the destination's buffer in bytes.
    pub local_bytes: u64,
}

/// Bytes and requests of a load, known before any I/O. Block tables are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LoadCost {
    /// Bytes of the elements that the destinations need.
    pub bytes_needed: u64,
    /// Bytes of the requests.
    pub bytes_to_fetch: u64,
    /// Of these, bytes read only because blocks are verified whole.
    pub verify_over_read: u64,
    /// Of these, bytes read only to save requests.
    pub coalesce_over_read: u64,
    /// Number of requests for data.
    pub requests: u64,
    /// Bytes of the block tables, one request each.
    pub table_bytes: u64,
    /// Number of files touched.
    pub files: u64,
}

/// Everything that one rank reads and where it goes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadPlan {
    /// The destinations; copies and fills name them by index.
    pub tensors: Vec<PlannedTensor>,
    /// The copies from files to destinations.
    pub copies: Vec<Copy>,
    /// The parts without saved data.
    pub zeros: Vec<ZeroFill>,
    /// The requests, by file and offset.
    pub requests: Vec<Request>,
    /// Files whose block tables are needed, ascending.
    pub tables: Vec<u32>,
    /// What the requests cost.
    pub cost: LoadCost,
    /// Wanted keys that the checkpoint does not have.
    pub missing: Vec<String>,
    /// Saved keys that this rank reads or accounts for.
    pub used: BTreeSet<String>,
    /// Saved copies of tied tensors that must turn out equal to what was loaded: a plan whose copies compare with
    /// the destinations instead of writing to them.
    pub ties: Option<Box<LoadPlan>>,
}

/// Plans the load of one rank: pure and deterministic.
pub struct LoadPlanner<'a> {
    saved: &'a SavedLayout,
    rules: &'a LoadRules,
}

impl<'a> LoadPlanner<'a> {
    /// A planner for one checkpoint.
    pub fn new(saved: &'a SavedLayout, rules: &'a LoadRules) -> Self {
        Self { saved, rules }
    }

    /// Plans what this rank, which wants `target`, reads. Keys that the checkpoint lacks are listed, not refused.
    ///
    /// # Errors
    /// [`PlanError`] for a dtype, a shape or a tie that the rules do not allow, and for stored chunks that do not
    /// cover what is wanted exactly once.
    pub fn plan(&self, target: &ShardedStateDict) -> Result<LoadPlan, PlanError> {
        self.plan_with_objects(target, &BTreeSet::new())
    }

    /// As [`LoadPlanner::plan`], and the given objects `(name, rank)` too.
    ///
    /// # Errors
    /// As [`LoadPlanner::plan`].
    pub fn plan_with_objects(
        &self,
        target: &ShardedStateDict,
        objects: &BTreeSet<(String, u32)>,
    ) -> Result<LoadPlan, PlanError> {
        let known = Known { saved: self.saved, ties: &self.rules.saved_ties };
        check_ties(known)?;
        let aliases = aliases(target);
        let mut main = Draft::default();
        let mut ties = Draft::default();
        for (key, wanted) in target.iter() {
            if !self.rules.select.wants(key, wanted.group()) {
                continue;
            }
            let owner_here = wanted.alias_of().is_some_and(|owner| target.get(owner).is_some());
            if owner_here {
                continue; // its bytes are the owner's
            }
            let Some(tie) = resolve_tie(known, &aliases, &self.rules.tie_winners, key, wanted)? else {
                main.plan.missing.push(key.to_owned());
                continue;
            };
            self.add_tensor(&mut main, key, wanted, &tie.source, true)?;
            for other in &tie.equals {
                self.add_tensor(&mut ties, key, wanted, other, false)?;
                main.plan.used.insert(other.clone());
            }
            main.plan.used.extend(tie.dropped);
            main.plan.used.insert(tie.source);
        }
        for (key, tensor) in &self.saved.tensors {
            if tensor.alias_of.as_ref().is_some_and(|owner| main.plan.used.contains(owner)) {
                main.plan.used.insert(key.clone());
            }
        }
        for (name, rank) in objects {
            self.add_object(&mut main, name, *rank)?;
        }
        let mut plan = self.finish(main);
        if !ties.plan.tensors.is_empty() {
            plan.ties = Some(Box::new(self.finish(ties)));
        }
        Ok(plan)
    }

    fn add_tensor(
        &self,
        draft: &mut Draft,
        key: &str,
        wanted: &ShardedTensor,
        source: &str,
        fill: bool,
    ) -> Result<(), PlanError> {
        let Some(saved) = self.saved.tensors.get(source) else { return Ok(()) };
        self.rules.contract.check(key, saved.dtype, wanted.dtype())?;
        let filled = filled_shape(key, saved, wanted)?;
        let tensor = draft.plan.tensors.len() as u32;
        draft.plan.tensors.push(PlannedTensor {
            destination: Destination::Tensor(key.to_owned()),
            saved_dtype: saved.dtype,
            dtype: wanted.dtype(),
            local_bytes: wanted.local_bytes(),
        });
        let kind = CopyKind {
            tensor,
            file_element: saved.dtype.element_bytes().unwrap_or(1),
            local_element: wanted.dtype().element_bytes().unwrap_or(1),
        };
        let index = ChunkIndex::new(saved, wanted.placements().len());
        for placement in wanted.placements() {
            let (inside, outside) = split_at_padding(&placement.region, &filled);
            if fill {
                draft.plan.zeros.extend(outside.iter().map(|part| ZeroFill {
                    tensor,
                    pattern: LocalPattern::of(placement, part, kind.local_element),
                }));
            }
            let Some(inside) = inside else { continue };
            let hits = index.hits(&inside);
            prove_tiling([&inside], hits.iter().map(|(_, common)| common)).map_err(|fault| {
                PlanError::Coverage { key: key.to_owned(), region: inside.clone(), fault }
            })?;
            for (chunk, common) in hits {
                self.check_chunk(key, saved.dtype, &chunk)?;
                draft.add_copy(saved.dtype, kind, &chunk, placement, &common);
            }
        }
        Ok(())
    }

    fn add_object(&self, draft: &mut Draft, name: &str, rank: u32) -> Result<(), PlanError> {
        let Some(object) = self.saved.objects.get(name).and_then(|ranks| ranks.get(&rank)) else {
            return Ok(());
        };
        let tensor = draft.plan.tensors.len() as u32;
        draft.plan.tensors.push(PlannedTensor {
            destination: Destination::Object { name: name.to_owned(), rank },
            saved_dtype: DType::U8,
            dtype: DType::U8,
            local_bytes: object.length,
        });
        let Ok(region) = Region::new([0], [object.length]) else { return Ok(()) }; // no bytes
        let chunk = Chunk { region: region.clone(), file: object.file, offset: object.offset };
        self.check_chunk(name, DType::U8, &chunk)?;
        let kind = CopyKind { tensor, file_element: 1, local_element: 1 };
        if let Ok(placement) = Placement::dense(region.clone(), 0) {
            draft.add_copy(DType::U8, kind, &chunk, &placement, &region);
        }
        Ok(())
    }

    /// A chunk that reaches past its file can only come from a layout that nobody validated.
    fn check_chunk(&self, key: &str, dtype: DType, chunk: &Chunk) -> Result<(), PlanError> {
        let file = self.saved.files.get(chunk.file as usize);
        let end = bytes_of(dtype, &chunk.region).and_then(|bytes| bytes.checked_add(chunk.offset));
        match (file, end) {
            (Some(file), Some(end)) if end <= file.length => Ok(()),
            _ => Err(PlanError::ChunkOutsideFile {
                key: key.to_owned(),
                region: chunk.region.clone(),
                file: file.map_or_else(|| format!("number {}", chunk.file), |file| file.path.clone()),
            }),
        }
    }

    /// Turns the copies into requests.
    fn finish(&self, draft: Draft) -> LoadPlan {
        let Draft { mut plan, chunks } = draft;
        let cost = &self.rules.cost;
        plan.copies.sort_by_key(|copy| (copy.file, copy.file_offset, copy.tensor, copy.local_offset));
        let mut files: BTreeMap<u32, FileExtents<'_>> = BTreeMap::new();
        for copy in &plan.copies {
            let blocks = self.saved.files.get(copy.file as usize).and_then(|file| file.blocks.as_ref());
            let blocks = blocks.filter(|_| self.rules.verify);
            // A gap shorter than a block is fetched with its block in any case; naming its rows one by one would
            // only cost time.
            let max_gap = blocks.map_or(cost.small_gap, |blocks| blocks.block_bytes().max(cost.small_gap));
            let file = files.entry(copy.file).or_insert_with(|| FileExtents {
                extents: Vec::new(),
                blocks,
                elements: Vec::new(),
            });
            file.extents.extend(copy.extents(max_gap));
            plan.cost.bytes_needed += copy.file_bytes();
        }
        for ((file, start), (end, element)) in chunks {
            if let Some(file) = files.get_mut(&file) {
                file.elements.push((start, end, element));
            }
        }
        let indices: Vec<u32> = files.keys().copied().collect();
        plan.tables =
            files.iter().filter(|(_, file)| file.blocks.is_some()).map(|(&index, _)| index).collect();
        let reads = coalesce(files.into_values().collect(), cost, plan.cost.bytes_needed);
        plan.cost.files = indices.len() as u64;
        for (file, read) in indices.into_iter().zip(reads) {
            plan.cost.verify_over_read += read.verify_over_read;
            plan.requests.extend(read.requests.into_iter().map(|range| Request {
                file,
                range,
                copies: Vec::new(),
            }));
        }
        plan.cost.requests = plan.requests.len() as u64;
        plan.cost.bytes_to_fetch =
            plan.requests.iter().map(|request| request.range.end - request.range.start).sum();
        plan.cost.coalesce_over_read = plan
            .cost
            .bytes_to_fetch
            .saturating_sub(plan.cost.bytes_needed)
            .saturating_sub(plan.cost.verify_over_read);
        for &file in &plan.tables {
            let blocks = self.saved.files.get(file as usize).and_then(|file| file.blocks.as_ref());
            plan.cost.table_bytes += blocks.map_or(0, |blocks| blocks.table().end - blocks.table().start);
        }
        assign_copies(&mut plan);
        plan
    }
}

/// A plan under construction.
#[derive(Default)]
struct Draft {
    plan: LoadPlan,
    /// `(file, start)` -> `(end, element bytes)` of the chunks that copies touch.
    chunks: BTreeMap<(u32, u64), (u64, u64)>,
}

impl Draft {
    fn add_copy(
        &mut self,
        dtype: DType,
        kind: CopyKind,
        chunk: &Chunk,
        placement: &Placement,
        common: &Region,
    ) {
        let bytes = bytes_of(dtype, &chunk.region).unwrap_or(0);
        self.chunks.insert((chunk.file, chunk.offset), (chunk.offset + bytes, kind.file_element));
        let copy = match Region::new([0], [bytes]) {
            // An opaque tensor is one run of bytes.
            Ok(whole) if dtype.is_opaque() => {
                let placed =
                    Placement { region: whole.clone(), local_offset: 0, strides: Dims::from_elem(1, 1) };
                Copy::between(kind, chunk.file, &whole, chunk.offset, &placed, &whole)
            }
            _ => Copy::between(kind, chunk.file, &chunk.region, chunk.offset, placement, common),
        };
        self.plan.copies.push(copy);
    }
}

/// Bytes of a region of a tensor; `None` on overflow.
pub(crate) fn bytes_of(dtype: DType, region: &Region) -> Option<u64> {
    region.volume().checked_mul(dtype.bits()).map(|bits| bits / 8)
}

/// Lists for every request the copies that reach into it. Both are sorted by file and offset.
fn assign_copies(plan: &mut LoadPlan) {
    let mut next = 0;
    let mut active: Vec<u32> = Vec::new();
    for request in &mut plan.requests {
        while let Some(copy) = plan.copies.get(next)
            && (copy.file, copy.file_offset) < (request.file, request.range.end)
        {
            active.push(next as u32);
            next += 1;
        }
        active.retain(|&index| {
            let copy = &plan.copies[index as usize];
            copy.file == request.file && copy.file_end() > request.range.start
        });
        request.copies.clone_from(&active);
    }
}

/// The chunks of a saved tensor, indexed where that pays.
enum ChunkIndex<'a> {
    Scan(&'a SavedTensor),
    Tree(&'a SavedTensor, BoxTree),
}

impl<'a> ChunkIndex<'a> {
    fn new(saved: &'a SavedTensor, queries: usize) -> Self {
        if queries < 2 || saved.chunks.len() < 16 {
            return Self::Scan(saved);
        }
        Self::Tree(saved, BoxTree::new(saved.chunks.iter().map(|chunk| chunk.region).collect()))
    }

    fn hits(&self, region: &Region) -> Vec<(Chunk, Region)> {
        match self {
            Self::Scan(saved) => saved
                .chunks
                .iter()
                .filter_map(|chunk| chunk.region.intersect(region).map(|common| (chunk, common)))
                .collect(),
            Self::Tree(saved, tree) => tree
                .hits(region)
                .into_iter()
                .filter_map(|(index, common)| saved.chunks.get(index).map(|chunk| (chunk, common)))
                .collect(),
        }
    }
}
