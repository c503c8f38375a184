use super::Global;
use super::alike::Known;
use super::answer::Answer;
use super::exit::{Exit, Failure};
use super::place::Place;
use super::progress::Bar;
use super::selection::Selection;
use super::target::{Sharded, Target, axes, check_rank, coordinates};
use super::text::{Table, count, fields};
use crate::checkpoint::{Inspection, human_bytes};
use crate::plan::{LoadPlan, LoadPlanner, LoadRules, ObjectChoice, choose_objects};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Say what a load onto another topology would cost, without loading
///
/// Each rank's bytes needed, bytes to fetch, over-reads, requests and files follow from the checkpoint's metadata alone;
/// a real load does exactly this. Bytes are fetched beyond those needed because blocks are read whole to verify them, and
/// because a short gap is cheaper to read than another request. Amplification is fetched / needed, block tables apart.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  reshard plan s3://bucket/run --tp 4 --pp 2
  reshard plan s3://bucket/run --tp 8 --dp 16 --zero 1 --rank 5
  reshard plan /data/run --tp 2 --select model --no-verify
  reshard plan /data/run --tp 4 --rules rules.toml --json | jq .total.amplification")]
pub(super) struct Plan {
    /// A run, or one iteration of it
    uri: String,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    selection: Selection,
    /// Only this rank of the new topology
    #[arg(long, value_name = "R")]
    rank: Option<u64>,
    /// Which per-rank objects (random number generators, data loaders) are loaded as well
    #[arg(long, value_enum, default_value_t = Objects::None)]
    objects: Objects,
    /// The iteration; the newest committed one where neither this nor the URI names one
    #[arg(long, value_name = "N")]
    iteration: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Objects {
    /// Each rank its own; only on as many ranks as saved them
    Own,
    /// Every rank those of all ranks
    All,
    /// None: they start anew
    None,
}

#[derive(Serialize)]
struct PlanAnswer {
    uri: String,
    iteration: Option<u64>,
    world_size: u64,
    topology: BTreeMap<String, u64>,
    vpp: u64,
    rules: String,
    verify: bool,
    ranks: Vec<RankCost>,
    total: Cost,
}

#[derive(Serialize)]
struct RankCost {
    rank: u64,
    coordinates: BTreeMap<String, u64>,
    tensors: usize,
    #[serde(flatten)]
    cost: Cost,
}

/// Bytes and requests, tied copies that are compared included.
#[derive(Serialize, Default, Clone, Copy)]
struct Cost {
    bytes_needed: u64,
    bytes_to_fetch: u64,
    verify_over_read: u64,
    coalesce_over_read: u64,
    table_bytes: u64,
    requests: u64,
    table_requests: u64,
    files: u64,
    amplification: Option<f64>,
}

/// Numbers of tensors and costs of ranks that were planned.
type Alike = Known<(usize, Cost)>;

impl Plan {
    pub(super) fn run(&self, global: &Global) -> Result<Answer, Failure> {
        let place = Place::parse(&self.uri);
        let checkpoint = place.open(global)?;
        let rules = self.selection.rules()?;
        let inspection = checkpoint.inspect(place.iteration(self.iteration)?)?;
        self.selection.check(&inspection, &rules)?;
        let Sharded { bound, rules: source } = self.target.bind(&inspection)?;
        let topology = bound.topology();
        let ranks = match self.rank {
            Some(rank) => {
                check_rank(topology, rank)?;
                vec![rank]
            }
            None if topology.world_size() > MOST_AT_ONCE => {
                let ranks = topology.world_size();
                return Err(Failure::usage(format!(
                    "the sizes make {ranks} ranks, and more than {MOST_AT_ONCE} are not planned at once; choose one \
                     with --rank"
                )));
            }
            None => (0..topology.world_size()).collect(),
        };
        let alike = Alike::default();
        let bar = Bar::of_ranks(global, ranks.len() as u64);
        let cost_of = |rank| {
            let planned = self.plan(&inspection, &rules, &bound, rank, &alike);
            bar.step();
            planned
        };
        let ranks = on_all_cores(&ranks, cost_of)?;
        let mut total = Cost::default();
        ranks.iter().for_each(|rank| total.add(&rank.cost));
        let answer = PlanAnswer {
            uri: checkpoint.storage().to_string(),
            iteration: inspection.iteration.map(|iteration| iteration.0),
            world_size: topology.world_size(),
            topology: axes(topology).map(|(axis, size)| (axis.to_owned(), size)).collect(),
            vpp: topology.vpp(),
            rules: source,
            verify: self.selection.verifies(),
            ranks,
            total,
        };
        let sizes: Vec<String> = axes(topology).map(|(axis, size)| format!("{axis}={size}")).collect();
        let (count, vpp) = (count(answer.world_size, "rank"), answer.vpp);
        let text = answer.text(format!("{count} ({} vpp={vpp})", sizes.join(" ")));
        Answer::new(Exit::Ok, &answer, text)
    }

    /// As `Checkpoint::load` plans it.
    fn plan(
        &self,
        inspection: &Inspection,
        rules: &LoadRules,
        bound: &reshard_shard::BoundRules,
        rank: u64,
        alike: &Alike,
    ) -> Result<RankCost, Failure> {
        let choice = match self.objects {
            _ if !rules.select.wants_objects() => ObjectChoice::Fresh,
            Objects::Own => ObjectChoice::Own,
            Objects::All => ObjectChoice::All,
            Objects::None => ObjectChoice::Fresh,
        };
        let topology = bound.topology();
        // Both fit: a world has at most `u32::MAX` ranks.
        let objects = choose_objects(&inspection.layout, choice, rank as u32, topology.world_size() as u32)?;
        let target = bound.rank(rank)?;
        let plan = || {
            let plan = LoadPlanner::new(&inspection.layout, rules).plan_with_objects(&target, &objects)?;
            let mut cost = Cost::of(&plan);
            if let Some(ties) = &plan.ties {
                cost.add(&Cost::of(ties));
            }
            Ok((plan.tensors.len(), cost))
        };
        let coordinates = coordinates(topology, rank);
        // A rank's own objects are those of no other.
        let (tensors, cost) = match choice {
            ObjectChoice::Own => plan()?,
            _ => alike.or_plan(&target, plan)?,
        };
        Ok(RankCost { rank, coordinates, tensors, cost })
    }
}

/// More rows than anyone reads; each takes memory and time.
const MOST_AT_ONCE: u64 = 1 << 16;

/// The work for all ranks, in their order; the first rank's error where some fail.
fn on_all_cores<T: Send>(
    ranks: &[u64],
    work: impl Fn(u64) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(ranks.len());
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let index = next.fetch_add(1, Ordering::Relaxed)
                    && index < failed.load(Ordering::Relaxed)
                    && let Some(&rank) = ranks.get(index as usize)
                {
                    let result = work(rank);
                    if result.is_err() {
                        failed.fetch_min(index, Ordering::Relaxed);
                    }
                    results.lock().unwrap_or_else(|poison| poison.into_inner()).insert(index, result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|poison| poison.into_inner()).into_values().collect()
}

impl Cost {
    fn of(plan: &LoadPlan) -> Self {
        let (cost, table_requests) = (&plan.cost, plan.tables.len() as u64);
        Self {
            bytes_needed: cost.bytes_needed,
            bytes_to_fetch: cost.bytes_to_fetch,
            verify_over_read: cost.verify_over_read,
            coalesce_over_read: cost.coalesce_over_read,
            table_bytes: cost.table_bytes,
            requests: cost.requests + table_requests,
            table_requests,
            files: cost.files,
            amplification: None,
        }
        .amplified()
    }

    fn add(&mut self, other: &Self) {
        *self = Self {
            bytes_needed: self.bytes_needed + other.bytes_needed,
            bytes_to_fetch: self.bytes_to_fetch + other.bytes_to_fetch,
            verify_over_read: self.verify_over_read + other.verify_over_read,
            coalesce_over_read: self.coalesce_over_read + other.coalesce_over_read,
            table_bytes: self.table_bytes + other.table_bytes,
            requests: self.requests + other.requests,
            table_requests: self.table_requests + other.table_requests,
            files: self.files + other.files,
            amplification: None,
        }
        .amplified();
    }

    fn amplified(self) -> Self {
        let ratio = self.bytes_to_fetch as f64 / self.bytes_needed as f64;
        Self { amplification: (self.bytes_needed > 0).then_some(ratio), ..self }
    }
}

impl PlanAnswer {
    fn text(&self, topology: String) -> String {
        let mut table = Table::new([
            "rank",
            "coordinates",
            "needed",
            "fetched",
            "to verify",
            "to save requests",
            "tables",
            "requests",
            "files",
            "amplification",
        ]);
        for RankCost { rank, coordinates, cost, .. } in &self.ranks {
            let at: Vec<String> = coordinates.iter().map(|(axis, at)| format!("{axis}{at}")).collect();
            table.row(cost.cells(rank.to_string(), at.join(" ")));
        }
        table.row(self.total.cells("all".to_owned(), String::new()));
        let head = fields([
            ("iteration", self.iteration.map_or_else(|| "-".to_owned(), |number| number.to_string())),
            ("topology", topology),
            ("rules", self.rules.clone()),
            ("checksums", if self.verify { "compared" } else { "not compared" }.to_owned()),
        ]);
        format!("{head}\n{}", table.text())
    }
}

impl Cost {
    fn cells(&self, rank: String, coordinates: String) -> [String; 10] {
        [
            rank,
            coordinates,
            human_bytes(self.bytes_needed),
            human_bytes(self.bytes_to_fetch),
            human_bytes(self.verify_over_read),
            human_bytes(self.coalesce_over_read),
            human_bytes(self.table_bytes),
            self.requests.to_string(),
            self.files.to_string(),
            self.amplification.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}")),
        ]
    }
}
