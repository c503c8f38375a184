//! Speed of whole saves and loads as ratios to a plain client, measured side by side in one run.
//!
//! `cargo bench --bench transfer [-- shaped|unshaped|seaweedfs|disk ...] [--no-saves] [--no-loads] [--runs N]`; docs/performance.md
//! explains.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a bench")]

mod plain;
mod server;
mod state;

use reshard::checkpoint::LoadReport;
use reshard::storage::OpenOptions;
use reshard_storage_testing::{Identity, SeaweedFs};
use server::{Server, Shape};
use std::collections::BTreeMap;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runs = words
        .iter()
        .position(|word| word == "--runs")
        .and_then(|at| words.get(at + 1))
        .map_or(5, |count| count.parse().expect("--runs N"));
    let wanted = |name: &str| {
        let named: Vec<&String> =
            words.iter().filter(|word| !word.starts_with("--") && word.parse::<u32>().is_err()).collect();
        named.is_empty() || named.iter().any(|word| *word == name)
    };
    let only = |name: &str| words.iter().any(|word| word == name);
    let part = Part { runs, saves: !only("--no-saves"), loads: !only("--no-loads") };
    println!("{:34} {:>9} {:>9} {:>7}", "", "reshard s", "plain s", "ratio");
    if wanted("shaped") || wanted("unshaped") {
        in_process(part, wanted("shaped"), wanted("unshaped"));
    }
    if wanted("seaweedfs") {
        seaweedfs(part);
    }
    if wanted("disk") {
        disk(part);
    }
}

/// What is measured, and how often.
#[derive(Clone, Copy)]
struct Part {
    runs: usize,
    saves: bool,
    loads: bool,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Alternates both sides, so that a slow moment of the machine hits both.
fn compare<R>(
    runs: usize,
    mut ours: impl FnMut() -> (f64, R),
    mut plain: impl FnMut() -> f64,
) -> (f64, f64, R) {
    let (mut own, mut theirs, mut last) = (Vec::new(), Vec::new(), None);
    for _ in 0..runs {
        theirs.push(plain());
        let (seconds, result) = ours();
        own.push(seconds);
        last = Some(result);
    }
    (median(own), median(theirs), last.unwrap())
}

fn row(name: &str, own: f64, plain: f64, note: &str) {
    println!("{name:34} {own:9.3} {plain:9.3} {:7.2}  {note}", plain / own);
}

fn figures(reports: &[LoadReport]) -> String {
    let total = reports[0].total;
    let most = reports.iter().map(|report| report.own.requests).max().unwrap_or(0);
    let phase = |of: fn(&LoadReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
    let (plan, data, commit) = (
        phase(|report| report.seconds.plan),
        phase(|report| report.seconds.data),
        phase(|report| report.seconds.commit),
    );
    format!(
        "needed {:.1} MB, fetched/needed {:.4}, tables {:.1} kB, {most} requests a rank at most; seconds {plan:.3} plan, {data:.3} data, {commit:.3} commit",
        total.bytes_needed as f64 / 1e6,
        total.bytes_fetched as f64 / total.bytes_needed as f64,
        total.table_bytes as f64 / 1e3,
    )
}

fn s3_options(endpoint: &str, key: &str, secret: &str) -> OpenOptions {
    OpenOptions::new()
        .without_environment()
        .set("aws_endpoint", endpoint)
        .set("aws_access_key_id", key)
        .set("aws_secret_access_key", secret)
        .set("aws_region", "us-east-1")
        .set("allow_http", "true")
}

fn s3(name: &str, part: Part, endpoint: &str, bucket: &str, (key, secret): (&str, &str), connections: usize) {
    let options = s3_options(endpoint, key, secret);
    let uri = format!("s3://{bucket}/run");
    let client = plain::client(endpoint, bucket, key, secret);
    let (_, reports) = state::save(&uri, &options, 4, connections);
    let (layout, _) = plain::layout(&uri, &options);
    let lengths: Vec<u64> = layout.files.iter().map(|file| file.length).collect();
    if part.saves {
        let (own, theirs, _) = compare(
            part.runs,
            || state::save(&uri, &options, 4, connections),
            || plain::put(&client, "plain", &lengths, connections),
        );
        let bytes: u64 = reports.iter().map(|report| report.bytes).sum();
        row(&format!("{name}: save TP 4"), own, theirs, &format!("{:.1} MB", bytes as f64 / 1e6));
    }
    // The last save replaced the first.
    let (layout, directory) = plain::layout(&uri, &options);
    for tp in part.loads.then_some([2, 8, 3]).into_iter().flatten() {
        // The same on both sides, also where the ranks don't divide them.
        let connections = (connections / tp as usize).max(1) * tp as usize;
        let ranges = plain::ranges(&layout, tp, false);
        let prefix = format!("run/{directory}");
        let (own, theirs, reports) = compare(
            part.runs,
            || state::load(&uri, &options, tp, connections, true),
            || plain::get(&client, &prefix, &layout, &ranges, connections),
        );
        row(&format!("{name}: load TP 4 -> {tp}"), own, theirs, &figures(&reports));
    }
}

fn in_process(part: Part, shaped: bool, unshaped: bool) {
    // The state, the one that replaces it, and the plain client's.
    let server = Server::start(8 << 30);
    for (wanted, name, shape, connections) in
        [(shaped, "30 ms, 50 MB/s", Shape::REMOTE, 8), (unshaped, "unshaped", Shape::NONE, 16)]
    {
        if wanted {
            server.set_shape(shape);
            s3(name, part, &server.endpoint(), "bench", ("key", "secret"), connections);
        }
    }
    println!("{} requests reached the in-process server", server.requests());
}

fn seaweedfs(part: Part) {
    let server = SeaweedFs::shared();
    let options: BTreeMap<&str, String> = server.options(Identity::Admin).into_iter().collect();
    let keys = (options["aws_access_key_id"].as_str(), options["aws_secret_access_key"].as_str());
    s3("SeaweedFS", part, &server.endpoint(), &server.bucket(), keys, 8);
}

fn disk(part: Part) {
    let directory = tempfile::tempdir_in(
        std::env::var("RESHARD_BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").into()),
    )
    .unwrap();
    let uri = directory.path().join("run").to_str().unwrap().to_owned();
    let options = OpenOptions::new();
    state::save(&uri, &options, 4, DISK_READS);
    let (layout, _) = plain::layout(&uri, &options);
    let lengths: Vec<u64> = layout.files.iter().map(|file| file.length).collect();
    if part.saves {
        let ours = || {
            state::fetch_pages();
            state::save(&uri, &options, 4, DISK_READS)
        };
        let plain = || {
            state::fetch_pages();
            plain::pwrite(directory.path(), &lengths)
        };
        let (own, theirs, _) = compare(part.runs, ours, plain);
        row("disk: save TP 4", own, theirs, "against pwrite and fsync, a thread a file");
    }
    let (layout, attempt) = plain::layout(&uri, &options);
    let files = plain::files(&std::path::Path::new(&uri).join(attempt), &layout);
    for tp in part.loads.then_some([2, 8, 3]).into_iter().flatten() {
        let ranges = plain::ranges(&layout, tp, false);
        for (cold, verify) in [(true, false), (true, true), (false, false), (false, true)] {
            let prepare = || {
                if cold {
                    plain::make_cold(&files)
                }
            };
            let ours = || {
                prepare();
                state::load(&uri, &options, tp, DISK_READS, verify)
            };
            let plain = || {
                prepare();
                plain::pread(&files, &ranges, DISK_READS)
            };
            let (own, theirs, reports) = compare(part.runs, ours, plain);
            let how = if verify { "verified" } else { "not verified" };
            let place = if cold { "disk" } else { "page cache" };
            row(&format!("{place}: load TP 4 -> {tp}, {how}"), own, theirs, &figures(&reports));
        }
    }
}

/// Reads of a disk at once, on both sides.
const DISK_READS: usize = 16;
