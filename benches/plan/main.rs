//! Plans of very large jobs, from simulated metadata: LLaMA-3 405B with Adam, TP=8 x PP=16 x DP=128 with ZeRO-1, which
//! is 16,384 ranks. `cargo bench --bench plan`; docs/performance.md explains.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench")]

use reshard::format::{
    AttemptId, FileHeader, Iteration, Limits, Metadata, ObjectDigest, TRAINER_STATE_FILE, merge,
};
use reshard::plan::{LoadPlanner, LoadRules, SavePlanner, check_declarations, manifest};
use reshard::shard::{BoundRules, DType, ModelConfig, Naming, ParallelSizes, Preset};
use std::time::Instant;

fn shardings(tp: u64, pp: u64, dp: u64, zero: bool) -> BoundRules {
    let preset = Preset::new(Naming::HuggingFace, ModelConfig::LLAMA3_405B);
    let mut rules = preset.rules();
    rules.optimizer.zero = u8::from(zero);
    let mut tensors = preset.tensors(DType::BF16);
    tensors.extend(preset.adam_tensors(DType::F32));
    let topology = ParallelSizes { tp, pp, dp, ..ParallelSizes::default() }.topology().unwrap();
    rules.bind(tensors, &topology).unwrap()
}

/// Peak resident memory of this process so far, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn main() {
    println!("LLaMA-3 405B, bf16 weights, Adam in f32, ZeRO-1");
    println!(
        "{:>6} {:>5} {:>5} {:>5} {:>9} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "ranks",
        "tp",
        "pp",
        "dp",
        "chunks",
        "save plan",
        "gathered",
        "merge",
        "metadata",
        "parse",
        "load plan",
        "peak"
    );
    for (tp, pp, dp) in [(8, 8, 1), (8, 16, 2), (8, 16, 8), (8, 16, 32), (8, 16, 128)] {
        let zero = dp > 1;
        let bound = shardings(tp, pp, dp, zero);
        let ranks = bound.topology().world_size();
        let attempt = AttemptId::draw().unwrap();
        let (mut manifests, mut declared, mut planning, mut gathered) = (Vec::new(), Vec::new(), 0.0f64, 0);
        for rank in 0..ranks {
            let dict = bound.rank(rank).unwrap();
            let start = Instant::now();
            let header = FileHeader {
                attempt: &attempt,
                iteration: Iteration(1),
                rank: rank as u32,
                world_size: ranks as u32,
            };
            let plan = SavePlanner::new(header, Limits::default()).plan(&dict, &Default::default()).unwrap();
            planning = planning.max(start.elapsed().as_secs_f64());
            let tables = vec![0; plan.files.len()];
            let bytes = manifest(&plan, &dict, &tables).unwrap().encode();
            gathered += bytes.len() + plan.declarations.len() * 32;
            manifests.push((rank as u32, bytes));
            declared.push(plan.declarations);
        }
        let start = Instant::now();
        check_declarations(declared.iter().map(Vec::as_slice).enumerate()).unwrap();
        let digest = ObjectDigest::of(TRAINER_STATE_FILE, b"{}");
        let metadata =
            merge(manifests.iter().map(|(rank, bytes)| (*rank, bytes.as_slice())), digest).unwrap();
        let merging = start.elapsed().as_secs_f64();
        let text = metadata.to_bytes().unwrap();
        let chunks: usize = metadata.layout.tensors.values().map(|tensor| tensor.chunks.len()).sum();
        drop((metadata, manifests, declared));

        let start = Instant::now();
        let layout = Metadata::parse("metadata.json", &text).unwrap().layout;
        let parsing = start.elapsed().as_secs_f64();
        // One rank of a smaller cluster: half the data-parallel ranks, another pipeline.
        let target = shardings(8, pp / 2, dp.max(2) / 2, dp > 2);
        let dict = target.rank(target.topology().world_size() / 3).unwrap();
        let start = Instant::now();
        let rules = LoadRules { verify: true, ..LoadRules::default() };
        let plan = LoadPlanner::new(&layout, &rules).plan(&dict).unwrap();
        let loading = start.elapsed().as_secs_f64();
        println!(
            "{ranks:6} {tp:5} {pp:5} {dp:5} {chunks:9} {planning:8.3} s {:7.1} MB {merging:8.3} s {:6.1} MB {parsing:7.3} s {loading:7.3} s {:6.0} MB",
            gathered as f64 / 1e6,
            text.len() as f64 / 1e6,
            peak_memory() as f64 / 1e6,
        );
        println!(
            "       one rank's load: {:.1} MB needed, fetched/needed {:.4}, {} requests, {} files",
            plan.cost.bytes_needed as f64 / 1e6,
            plan.cost.bytes_to_fetch as f64 / plan.cost.bytes_needed as f64,
            plan.cost.requests,
            plan.cost.files,
        );
    }
}
