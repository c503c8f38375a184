//! Host memory beyond the tensors is bounded: the staging budget, 64 MiB, and three times the metadata.
//!
//! Peak memory belongs to a process, so each measurement runs in a child of its own: this binary again, told by the
//! environment what to do.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use reshard::checkpoint::{Checkpoint, CommitMode, LoadRequest, Options, SaveRequest};
use reshard::collective::Single;
use reshard::format::{Iteration, TrainerState};
use reshard::plan::{DTypeContract, DTypeRule};
use reshard::shard::{DType, ShardedStateDict, ShardedTensor, Split};
use reshard::storage::OpenOptions;
use std::process::Command;

const CHILD: &str = "RESHARD_MEMORY_CHILD";
const STAGING: usize = 32 << 20;
/// 8 tensors of 64 MiB: sixteen times the staging budget.
const TENSORS: usize = 8;
const ROWS: u64 = 8192;

fn state(dtype: DType) -> ShardedStateDict {
    let mut dict = ShardedStateDict::new();
    for index in 0..TENSORS {
        let key = format!("h.{index}.w");
        // Cut along the inner axis, so that bytes move row by row.
        let tensor = ShardedTensor::builder(dtype, [ROWS, 2048]).split(Split::axis(1)).build(&key).unwrap();
        dict.insert(key, tensor).unwrap();
    }
    dict
}

fn buffers(dict: &ShardedStateDict) -> Vec<(String, Vec<u8>)> {
    dict.iter().map(|(key, tensor)| (key.to_owned(), vec![7; tensor.local_bytes() as usize])).collect()
}

fn run(uri: &str) -> Checkpoint {
    Checkpoint::open(uri, OpenOptions::new(), Options { staging_bytes: STAGING, ..Options::default() })
        .unwrap()
}

/// A line of /proc/self/status in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Bytes by which `work` raised the peak over what was resident before it.
fn growth(work: impl FnOnce()) -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap(); // the peak begins anew
    let before = status("VmRSS");
    work();
    status("VmHWM").saturating_sub(before)
}

fn bound(metadata: u64) -> u64 {
    STAGING as u64 + (64 << 20) + 3 * metadata
}

fn child(what: &str, uri: &str) {
    let dict = state(if what == "convert" { DType::BF16 } else { DType::F32 });
    let mut own = buffers(&dict);
    let checkpoint = run(uri);
    let mut metadata = 0;
    let grown = match what {
        "save" => {
            let trainer = TrainerState::at_step(1);
            let data = own.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
            let request = SaveRequest::new(Iteration(1), &dict, data, &trainer);
            growth(|| metadata = checkpoint.save(&Single, request).unwrap().metadata_bytes)
        }
        _ => {
            let mut request = LoadRequest::new(&dict);
            request.rules.contract = DTypeContract::new(DTypeRule::Any);
            request.mode = CommitMode::InPlace(
                own.iter_mut().map(|(key, bytes)| (key.as_str(), bytes.as_mut_slice())).collect(),
            );
            growth(|| {
                checkpoint.load(&Single, request).unwrap();
            })
        }
    };
    let bound = bound(metadata);
    println!("{what}: {grown} bytes beyond the tensors, bound {bound}");
    assert!(grown <= bound, "{what} took {grown} bytes beyond the tensors, more than {bound}");
    // The measurement means something: staging is seen where it is used. A load that changes nothing needs none.
    assert!(what == "load" || grown > STAGING as u64 / 4, "{what} grew by {grown} bytes only");
}

#[test]
fn saves_and_loads_keep_to_the_staging_budget() {
    let directory = tempfile::tempdir().unwrap();
    if let Ok(task) = std::env::var(CHILD) {
        let (what, uri) = task.split_once(' ').unwrap();
        return child(what, uri);
    }
    for what in ["save", "load", "convert"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "saves_and_loads_keep_to_the_staging_budget", "--nocapture"])
            .env(CHILD, format!("{what} {}", directory.path().display()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        print!("{text}");
    }
}
