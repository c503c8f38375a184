use super::Global;
use super::answer::Answer;
use super::exit::{Exit, Failure};
use super::inspect::no_such_tensor;
use super::place::Place;
use super::selection::Selection;
use super::target::{Sharded, Target, check_rank, coordinates};
use super::text::{Table, brief, count, fields};
use crate::checkpoint::{Inspection, human_bytes};
use crate::format::{Chunk, SavedTensor};
use crate::plan::{Destination, LoadPlan, LoadPlanner, Request};
use clap::Args;
use reshard_shard::{BoundRules, DType, Dims, Placement, Region, ShardedStateDict, ShardedTensor};
use serde::Serialize;
use std::collections::BTreeMap;

/// Explain where one tensor of one rank of the new topology comes from
///
/// Which regions of the tensor the rank holds and where they go in its buffer; which stored chunks they meet, in which
/// file and at which bytes; and which requests fetch them. Requests are those of the rank's whole load, so neighbouring
/// tensors may share one.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  reshard explain s3://bucket/run transformer.h.0.attn.c_attn.weight --tp 4 --rank 1
  reshard explain /data/run lm_head.weight --tp 2 --pp 2 --rank 3 --json
  reshard explain /data/run model.embed.weight --tp 8 --rules rules.toml")]
pub(super) struct Explain {
    /// A run, or one iteration of it
    uri: String,
    /// The key of a tensor
    key: String,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    selection: Selection,
    /// The rank of the new topology
    #[arg(long, value_name = "R", default_value_t = 0)]
    rank: u64,
    /// The iteration; the newest committed one where neither this nor the URI names one
    #[arg(long, value_name = "N")]
    iteration: Option<u64>,
}

#[derive(Serialize)]
struct ExplainAnswer {
    uri: String,
    iteration: Option<u64>,
    key: String,
    rank: u64,
    world_size: u64,
    coordinates: BTreeMap<String, u64>,
    rules: String,
    /// The key that owns the storage on this rank, for a tied tensor.
    tied_to: Option<String>,
    dtype: DType,
    global_shape: Dims,
    local_shape: Dims,
    bytes: u64,
    /// Where the rank holds nothing of it: the ranks at the same place of the other pipeline stages that do.
    elsewhere: Vec<u64>,
    regions: Vec<RegionRow>,
    pieces: Vec<PieceRow>,
    requests: Vec<RequestRow>,
}

#[derive(Serialize)]
struct RegionRow {
    offset: Dims,
    shape: Dims,
    /// In elements of the rank's buffer.
    local_offset: u64,
    strides: Dims,
}

/// What a region and a chunk have in common.
#[derive(Serialize)]
struct PieceRow {
    offset: Dims,
    shape: Dims,
    chunk_offset: Dims,
    chunk_shape: Dims,
    file: String,
    /// The bytes of the file that hold it.
    extents: Vec<(u64, u64)>,
    /// Numbers of the requests that fetch it.
    requests: Vec<usize>,
}

#[derive(Serialize)]
struct RequestRow {
    number: usize,
    file: String,
    start: u64,
    end: u64,
    /// Tensors that take bytes from it, this one included.
    tensors: usize,
}

impl Explain {
    pub(super) fn run(&self, global: &Global) -> Result<Answer, Failure> {
        let place = Place::parse(&self.uri);
        let checkpoint = place.open(global)?;
        let rules = self.selection.rules()?;
        let inspection = checkpoint.inspect(place.iteration(self.iteration)?)?;
        if !inspection.layout.tensors.contains_key(&self.key) {
            return Err(no_such_tensor(&inspection, &self.key));
        }
        self.selection.check(&inspection, &rules)?;
        let Sharded { bound, rules: source } = self.target.bind(&inspection)?;
        let topology = bound.topology();
        check_rank(topology, self.rank)?;
        let dict = bound.rank(self.rank)?;
        let plan = LoadPlanner::new(&inspection.layout, &rules).plan(&dict)?;
        let (owner, wanted) = owner(&dict, &self.key);
        let saved = stored(&inspection, &owner).ok_or_else(|| no_such_tensor(&inspection, &owner))?;
        let tensor =
            plan.tensors.iter().position(|tensor| tensor.destination == Destination::Tensor(owner.clone()));
        let placements = wanted.filter(|_| tensor.is_some()).map_or(&[][..], ShardedTensor::placements);
        let elsewhere =
            if placements.is_empty() { holders(&bound, self.rank, &self.key)? } else { Vec::new() };
        let traced =
            Traced { inspection: &inspection, plan: &plan, tensor: tensor.unwrap_or_default() as u32 };
        let answer = ExplainAnswer {
            uri: checkpoint.storage().to_string(),
            iteration: inspection.iteration.map(|iteration| iteration.0),
            key: self.key.clone(),
            rank: self.rank,
            world_size: topology.world_size(),
            coordinates: coordinates(topology, self.rank),
            rules: source,
            tied_to: (owner != self.key).then_some(owner),
            dtype: saved.dtype,
            global_shape: saved.global_shape.clone(),
            local_shape: wanted.map(|wanted| wanted.local_shape().clone()).unwrap_or_default(),
            bytes: wanted.map_or(0, ShardedTensor::local_bytes),
            elsewhere,
            regions: placements.iter().map(RegionRow::of).collect(),
            pieces: traced.pieces(saved, placements),
            requests: traced.requests(!placements.is_empty()),
        };
        let text = answer.text();
        Answer::new(Exit::Ok, &answer, text)
    }
}

/// The tensor that has the bytes of `key` on this rank, and its shard; no shard where the rank holds nothing of it.
fn owner<'a>(dict: &'a ShardedStateDict, key: &str) -> (String, Option<&'a ShardedTensor>) {
    let own = dict.get(key);
    match own.and_then(ShardedTensor::alias_of).filter(|owner| dict.get(owner).is_some()) {
        Some(owner) => (owner.to_owned(), dict.get(owner)),
        None => (key.to_owned(), own),
    }
}

/// The saved tensor that has the bytes of `key`.
fn stored<'a>(inspection: &'a Inspection, key: &str) -> Option<&'a SavedTensor> {
    let tensor = inspection.layout.tensors.get(key)?;
    match &tensor.alias_of {
        Some(owner) => inspection.layout.tensors.get(owner),
        None => Some(tensor),
    }
}

/// The ranks that hold a part of `key`, among those that differ from `rank` in their pipeline stage alone.
fn holders(bound: &BoundRules, rank: u64, key: &str) -> Result<Vec<u64>, Failure> {
    let topology = bound.topology();
    let place = |rank| {
        let mut place = coordinates(topology, rank);
        place.remove("pp");
        place
    };
    let mut holders = Vec::new();
    for other in (0..topology.world_size()).filter(|&other| other != rank && place(other) == place(rank)) {
        if bound.rank(other)?.get(key).is_some_and(|tensor| !tensor.placements().is_empty()) {
            holders.push(other);
        }
    }
    Ok(holders)
}

/// A tensor in a plan.
struct Traced<'a> {
    inspection: &'a Inspection,
    plan: &'a LoadPlan,
    tensor: u32,
}

impl Traced<'_> {
    fn pieces(&self, saved: &SavedTensor, placements: &[Placement]) -> Vec<PieceRow> {
        let chunks: Vec<Chunk> = saved.chunks.iter().collect();
        let meets = |placement: &Placement| {
            let region = placement.region.clone();
            chunks.iter().filter_map(move |chunk| Some((chunk, chunk.region.intersect(&region)?)))
        };
        placements
            .iter()
            .flat_map(meets)
            .filter_map(|(chunk, common)| self.piece(saved, chunk, &common))
            .collect()
    }

    fn piece(&self, saved: &SavedTensor, chunk: &Chunk, common: &Region) -> Option<PieceRow> {
        let start = first_byte(saved.dtype, chunk, common);
        let copies = self.plan.copies.iter().enumerate();
        let (number, copy) = copies.into_iter().find(|(_, copy)| {
            (copy.tensor, copy.file, copy.file_offset) == (self.tensor, chunk.file, start)
        })?;
        let fetches = |request: &Request| request.copies.contains(&(number as u32));
        let requests = self.plan.requests.iter().enumerate().filter(|(_, request)| fetches(request));
        Some(PieceRow {
            offset: Dims::from_slice(common.offset()),
            shape: Dims::from_slice(common.shape()),
            chunk_offset: Dims::from_slice(chunk.region.offset()),
            chunk_shape: Dims::from_slice(chunk.region.shape()),
            file: self.file(chunk.file),
            extents: copy.extents(0),
            requests: requests.map(|(number, _)| number).collect(),
        })
    }

    fn requests(&self, wanted: bool) -> Vec<RequestRow> {
        let tensors = |request: &Request| {
            let copies = request.copies.iter().filter_map(|&copy| self.plan.copies.get(copy as usize));
            let mut tensors: Vec<u32> = copies.map(|copy| copy.tensor).collect();
            tensors.sort_unstable();
            tensors.dedup();
            tensors
        };
        let mut rows = Vec::new();
        for (number, request) in self.plan.requests.iter().enumerate().filter(|_| wanted) {
            let tensors = tensors(request);
            if tensors.contains(&self.tensor) {
                let (file, start, end) = (self.file(request.file), request.range.start, request.range.end);
                rows.push(RequestRow { number, file, start, end, tensors: tensors.len() });
            }
        }
        rows
    }

    fn file(&self, file: u32) -> String {
        self.inspection.layout.files.get(file as usize).map(|file| file.path.clone()).unwrap_or_default()
    }
}

/// Where the first element of `common` lies in the chunk's file.
fn first_byte(dtype: DType, chunk: &Chunk, common: &Region) -> u64 {
    // A packed dtype is stored and wanted whole.
    let Some(element) = dtype.element_bytes() else { return chunk.offset };
    let axes = chunk.region.offset().iter().zip(chunk.region.shape()).zip(common.offset());
    let index = axes.fold(0, |index, ((start, size), at)| index * size + (at - start));
    chunk.offset + index * element
}

impl RegionRow {
    fn of(placement: &Placement) -> Self {
        Self {
            offset: Dims::from_slice(placement.region.offset()),
            shape: Dims::from_slice(placement.region.shape()),
            local_offset: placement.local_offset,
            strides: placement.strides.clone(),
        }
    }
}

/// Most extents that are printed for people.
const SHOWN: usize = 3;

impl ExplainAnswer {
    fn text(&self) -> String {
        let at: Vec<String> = self.coordinates.iter().map(|(axis, at)| format!("{axis}{at}")).collect();
        let mut rows = vec![
            ("iteration", self.iteration.map_or_else(|| "-".to_owned(), |number| number.to_string())),
            ("rank", format!("{} of {} {}", self.rank, self.world_size, at.join(" ")).trim_end().to_owned()),
            ("rules", self.rules.clone()),
            ("tensor", format!("{}, {} {:?}", brief(&self.key), self.dtype, self.global_shape)),
        ];
        if let Some(owner) = &self.tied_to {
            rows.push(("tied to", format!("{}, whose bytes it shares on this rank", brief(owner))));
        }
        if self.regions.is_empty() {
            let ranks: Vec<String> = self.elsewhere.iter().map(u64::to_string).collect();
            let holders = match ranks.is_empty() {
                true => "nothing".to_owned(),
                false => format!("nothing; of the other pipeline stages: rank {}", ranks.join(", ")),
            };
            rows.push(("held here", holders));
            return fields(rows);
        }
        rows.push(("held here", format!("{:?}, {}", self.local_shape, human_bytes(self.bytes))));
        let mut regions = Table::new(["region", "offset in the buffer", "strides"]);
        for row in &self.regions {
            let strides = format!("{:?}", row.strides);
            regions.row([region(&row.offset, &row.shape), row.local_offset.to_string(), strides]);
        }
        let mut pieces = Table::new(["needs", "of chunk", "in file", "bytes", "requests"]);
        for row in &self.pieces {
            let mut extents: Vec<String> =
                row.extents.iter().take(SHOWN).map(|(start, end)| format!("{start}..{end}")).collect();
            if row.extents.len() > SHOWN {
                extents.push(format!("and {} more", row.extents.len() - SHOWN));
            }
            let requests: Vec<String> = row.requests.iter().map(|number| format!("#{number}")).collect();
            pieces.row([
                region(&row.offset, &row.shape),
                region(&row.chunk_offset, &row.chunk_shape),
                row.file.clone(),
                extents.join(", "),
                requests.join(" "),
            ]);
        }
        let mut requests = Table::new(["request", "file", "start", "end", "bytes", "serves"]);
        for row in &self.requests {
            requests.row([
                format!("#{}", row.number),
                row.file.clone(),
                row.start.to_string(),
                row.end.to_string(),
                human_bytes(row.end - row.start),
                count(row.tensors as u64, "tensor"),
            ]);
        }
        format!("{}\n{}\n{}\n{}", fields(rows), regions.text(), pieces.text(), requests.text())
    }
}

/// `[0:128, 64:96]`.
fn region(offset: &Dims, shape: &Dims) -> String {
    Region::new(offset, shape).map(|region| region.to_string()).unwrap_or_default()
}
