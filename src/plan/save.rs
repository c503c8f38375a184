use super::PlanError;
use super::declaration::{Declaration, declare, group_key};
use super::load::bytes_of;
use super::natural::natural_order;
use super::pattern::LocalPattern;
use super::shares::{Piece, share};
use super::slots::{Run, Slots};
use crate::format::{DataFileLayout, DataFileName, Entry, EntrySlice, FileHeader, Limits, lay_out};
use reshard_shard::{Region, ShardedStateDict, StateGroup};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a rank saves beside its tensors: byte objects by name (RNG state, data-loader position), with their lengths.
pub type ObjectLengths = BTreeMap<String, u64>;

/// What a [`ChunkWrite`] takes its bytes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WriteSource {
    /// The tensor of this key.
    Tensor(String),
    /// The per-rank object of this name.
    Object(String),
}

/// One stored region: what it is, and where its bytes come from and go to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkWrite {
    /// Tensor or object.
    pub source: WriteSource,
    /// The region in global coordinates; an object is a 1-d array of its bytes, and none where it is empty.
    pub region: Option<Region>,
    /// The bytes of the file.
    pub range: Range<u64>,
    /// Where the bytes lie in the local buffer.
    pub pattern: LocalPattern,
}

/// One data file of this rank.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannedFile {
    /// Its name, relative to the attempt.
    pub name: DataFileName,
    /// Header, runs, blocks and length.
    pub layout: DataFileLayout,
    /// What it holds, in ascending order of place.
    pub writes: Vec<ChunkWrite>,
}

/// Everything that one rank writes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SavePlan {
    /// The files; none where the rank's share is empty.
    pub files: Vec<PlannedFile>,
    /// What the rank declares of its replica groups, for rank 0 to check.
    pub declarations: Vec<Declaration>,
    /// Bytes of tensors and objects that this rank writes.
    pub bytes: u64,
}

/// Plans the save of one rank: pure, deterministic, and without talking to the other ranks.
pub struct SavePlanner<'a> {
    header: FileHeader<'a>,
    limits: Limits,
}

/// A part of a tensor that this rank holds, in the order of a file.
struct Held<'a> {
    key: &'a str,
    /// Place of the tensor in natural order.
    order: usize,
    group: StateGroup,
    run: Run,
    region: Region,
    placement: usize,
}

impl<'a> SavePlanner<'a> {
    /// A planner for one rank's part of one attempt.
    pub fn new(header: FileHeader<'a>, limits: Limits) -> Self {
        Self { header, limits }
    }

    /// Plans what this rank writes of `dict` and of its own `objects`.
    ///
    /// # Errors
    /// [`PlanError::Shard`] for aliases that do not hold; [`PlanError::Format`] where a file cannot be laid out.
    pub fn plan(&self, dict: &ShardedStateDict, objects: &ObjectLengths) -> Result<SavePlan, PlanError> {
        dict.check_aliases()?;
        let written = self.shares(dict);
        let mut plan = SavePlan { declarations: declare(dict), ..SavePlan::default() };
        for group in [StateGroup::Model, StateGroup::Optimizer] {
            let of_group: Vec<&Held<'_>> = written.iter().filter(|held| held.group == group).collect();
            let objects = if group == StateGroup::Model { Some(objects) } else { None };
            self.add_files(&mut plan, dict, group, &of_group, objects)?;
        }
        Ok(plan)
    }

    /// What this rank writes: its share of every group's pieces, in the order of a file.
    fn shares<'d>(&self, dict: &'d ShardedStateDict) -> Vec<Held<'d>> {
        let mut groups: BTreeMap<u64, Vec<Held<'d>>> = BTreeMap::new();
        for held in pieces(dict) {
            if let Some(tensor) = dict.get(held.key) {
                groups.entry(group_key(held.key, tensor)).or_default().push(held);
            }
        }
        let mut written = Vec::new();
        for pieces in groups.into_values() {
            let Some(tensor) = pieces.first().and_then(|held| dict.get(held.key)) else { continue };
            let sizes: Vec<Piece<'_>> = pieces
                .iter()
                .filter_map(|held| {
                    let dtype = dict.get(held.key)?.dtype();
                    let bytes = bytes_of(dtype, &held.region)?;
                    Some(Piece { region: &held.region, bytes, divisible: !dtype.is_opaque() })
                })
                .collect();
            for (index, region) in share(&sizes, tensor.replica()) {
                let piece = &pieces[index];
                written.push(Held { region, ..*piece });
            }
        }
        sort(&mut written);
        written
    }

    fn add_files(
        &self,
        plan: &mut SavePlan,
        dict: &ShardedStateDict,
        group: StateGroup,
        held: &[&Held<'_>],
        objects: Option<&ObjectLengths>,
    ) -> Result<(), PlanError> {
        let mut writes: Vec<Vec<ChunkWrite>> = Vec::new();
        let mut runs: Vec<Vec<Entry<'_>>> = Vec::new();
        let lengths: Vec<[u64; 1]> =
            objects.into_iter().flat_map(BTreeMap::values).map(|&length| [length]).collect();
        if let Some(objects) = objects.filter(|objects| !objects.is_empty()) {
            let mut run = Vec::with_capacity(objects.len());
            let mut run_writes = Vec::with_capacity(objects.len());
            for ((name, &bytes), shape) in objects.iter().zip(&lengths) {
                let slice = EntrySlice::Object { rank: self.header.rank };
                run.push(Entry { key: name, slice, dtype: reshard_shard::DType::U8, shape, bytes });
                run_writes.push(ChunkWrite {
                    source: WriteSource::Object(name.clone()),
                    region: Region::new([0], shape).ok(),
                    range: 0..bytes,
                    pattern: LocalPattern::contiguous(bytes),
                });
            }
            runs.push(run);
            writes.push(run_writes);
        }
        let mut last = None;
        for piece in held {
            let Some(tensor) = dict.get(piece.key) else { continue };
            let Some(placement) = tensor.placements().get(piece.placement) else { continue };
            let Some(bytes) = bytes_of(tensor.dtype(), &piece.region) else { continue };
            if last.replace(piece.run) != Some(piece.run) {
                runs.push(Vec::new());
                writes.push(Vec::new());
            }
            let pattern = match tensor.dtype().element_bytes() {
                Some(element) => LocalPattern::of(placement, &piece.region, element),
                None => LocalPattern::contiguous(bytes),
            };
            let entry = Entry {
                key: piece.key,
                slice: EntrySlice::Chunk(&piece.region),
                dtype: tensor.dtype(),
                shape: piece.region.shape(),
                bytes,
            };
            let write = ChunkWrite {
                source: WriteSource::Tensor(piece.key.to_owned()),
                region: Some(piece.region.clone()),
                range: 0..bytes,
                pattern,
            };
            if let (Some(run), Some(run_writes)) = (runs.last_mut(), writes.last_mut()) {
                run.push(entry);
                run_writes.push(write);
            }
            plan.bytes += bytes;
        }
        plan.bytes += lengths.iter().map(|[length]| length).sum::<u64>();
        if runs.is_empty() {
            return Ok(());
        }
        let FileHeader { rank, world_size, .. } = self.header;
        for (piece, layout) in lay_out(&self.header, &runs, &self.limits)?.into_iter().enumerate() {
            let name = DataFileName::new(group, rank, world_size, piece as u32)?;
            let writes = layout
                .entries()
                .iter()
                .filter_map(|placed| {
                    let mut write = writes.get(placed.run)?.get(placed.index)?.clone();
                    write.range = placed.offset..placed.offset + placed.bytes;
                    Some(write)
                })
                .collect();
            plan.files.push(PlannedFile { name, layout, writes });
        }
        Ok(())
    }
}

/// All parts that a rank holds and that are stored under their own key, cut at slots, in the order of a file.
fn pieces(dict: &ShardedStateDict) -> Vec<Held<'_>> {
    let mut keys: Vec<(&str, &str)> =
        dict.iter().map(|(key, tensor)| (tensor.parameter().unwrap_or(key), key)).collect();
    // A state comes behind its parameter's other states: model and optimizer have files of their own, so the
    // parameter orders both alike.
    keys.sort_by(|a, b| natural_order(a.0, b.0).then_with(|| natural_order(a.1, b.1)));
    let mut held = Vec::new();
    for (order, (_, key)) in keys.into_iter().enumerate() {
        let Some(tensor) = dict.get(key).filter(|tensor| tensor.alias_of().is_none()) else { continue };
        let slots = Slots::of(tensor.dtype(), tensor.global_shape(), tensor.split());
        for (placement, placed) in tensor.placements().iter().enumerate() {
            let parts = if tensor.dtype().is_opaque() {
                vec![(Run::Whole, placed.region.clone())]
            } else {
                slots.cut(&placed.region)
            };
            held.extend(parts.into_iter().map(|(run, region)| Held {
                key,
                order,
                group: tensor.group(),
                run,
                region,
                placement,
            }));
        }
    }
    sort(&mut held);
    held
}

/// The order of a file: run, then tensor, then place in the tensor.
fn sort(held: &mut [Held<'_>]) {
    held.sort_by(|a, b| {
        (a.group, a.run, a.order)
            .cmp(&(b.group, b.run, b.order))
            .then_with(|| a.region.offset().cmp(b.region.offset()))
    });
}
