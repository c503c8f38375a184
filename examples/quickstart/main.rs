//! Saves GPT-2 124M with Adam from TP=2 x PP=2 x DP=2, resumes it on TP=4 and on one rank, and checks every byte.
//!
//! ```text
//! cargo run --release --example quickstart                      # an S3 server inside this process
//! cargo run --release --example quickstart -- --uri s3://bucket/run
//! cargo run --release --example quickstart -- --uri /tmp/run --model small --json
//! ```

mod server;
mod state;

use reshard::checkpoint::{Checkpoint, CheckpointError, LoadRequest, Options, SaveRequest};
use reshard::collective::{Collective, ThreadRank, Threads};
use reshard::format::{self, Iteration, TrainerState};
use reshard::shard::{BoundRules, ModelConfig, ParallelSizes};
use reshard::storage::OpenOptions;
use serde::Serialize;
use std::error::Error;
use std::io::{ErrorKind, Write};
use std::num::NonZeroU32;
use std::time::Instant;

const USAGE: &str = "\
Saves a GPT-2 with Adam on one topology and resumes it on two others, checking every byte.

usage: quickstart [--uri URI] [--model gpt2|small] [--json]

  --uri URI      a directory, s3://, gs:// or az://; without it an S3 server is started inside this process
  --model MODEL  gpt2 (124M parameters, about 1.5 GB with Adam; needs 8 GB of memory) or small
  --json         one JSON object a step on standard output";

/// One line of the output.
#[derive(Serialize)]
struct Step {
    step: String,
    bytes_needed: u64,
    bytes_fetched: u64,
    bytes_written: u64,
    requests: u64,
    retries: u64,
    seconds: f64,
    peak_staging_bytes: usize,
    verified: bool,
}

struct Arguments {
    uri: Option<String>,
    config: ModelConfig,
    json: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { uri: None, config: ModelConfig::GPT2_124M, json: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--uri" => parsed.uri = Some(value()?),
            "--model" => {
                parsed.config = match value()?.as_str() {
                    "gpt2" => ModelConfig::GPT2_124M,
                    "small" => state::small(),
                    other => return Err(format!("unknown model `{other}`: gpt2 or small")),
                }
            }
            "--json" => parsed.json = true,
            "--help" | "-h" => {
                let _ = say(USAGE); // Whoever reads only its head has read enough.
                std::process::exit(0);
            }
            other => return Err(format!("unknown argument `{other}`\n\n{USAGE}")),
        }
    }
    Ok(parsed)
}

fn main() {
    match arguments() {
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
        Ok(arguments) => {
            if let Err(error) = run(arguments) {
                // A reader that has seen enough (`| head`) is no failure.
                let pipe = error.downcast_ref::<std::io::Error>();
                if pipe.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                    return;
                }
                eprintln!("quickstart failed: {error}");
                std::process::exit(1);
            }
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { uri, config, json } = arguments;
    let server = if uri.is_none() { Some(server::Server::start()?) } else { None };
    let (uri, storage) = match (uri, &server) {
        (Some(uri), _) => (uri, OpenOptions::new()),
        (None, Some(server)) => (server.uri(), server.options()),
        (None, None) => return Err("no storage".into()),
    };
    if !json {
        say(&format!("storage: {uri}"))?;
    }
    // An iteration that is not there yet, so that a second run into the same place works.
    let first = Checkpoint::open(&uri, storage.clone(), Options::default())?;
    let iteration = Iteration(first.iterations()?.first().map_or(100, |newest| newest.0 + 100));

    let from = ParallelSizes { tp: 2, pp: 2, dp: 2, ..ParallelSizes::default() };
    print(&save(&uri, &storage, &config, from, iteration)?, json)?;
    for to in [ParallelSizes { tp: 4, ..ParallelSizes::default() }, ParallelSizes::default()] {
        let step = load(&uri, &storage, &config, to, iteration)?;
        print(&step, json)?;
        if !step.verified {
            return Err("the loaded bytes are not those that were saved".into());
        }
    }
    Ok(())
}

/// Runs `work` on a rank for each thread.
fn on_ranks<T: Send>(
    ranks: u64,
    work: impl Fn(&ThreadRank) -> Result<T, String> + Sync,
) -> Result<Vec<T>, Box<dyn Error>> {
    let handles = Threads::new(ranks as usize)?;
    let results: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = handles
            .into_iter()
            .map(|handle| {
                let work = &work;
                scope.spawn(move || work(&handle))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a rank panicked".into())))
            .collect()
    });
    results.into_iter().map(|result| result.map_err(Into::into)).collect()
}

fn name(verb: &str, sizes: ParallelSizes) -> String {
    format!("{verb} TP={} PP={} DP={}", sizes.tp, sizes.pp, sizes.dp)
}

fn trainer_state(config: &ModelConfig, sizes: ParallelSizes, iteration: Iteration) -> TrainerState {
    let size = |size: u64| NonZeroU32::new(size as u32).unwrap_or(NonZeroU32::MIN);
    TrainerState {
        global_step: iteration.0,
        consumed_train_samples: iteration.0 * 512,
        model: format::ModelConfig {
            n_layer: Some(config.n_layer),
            n_head: Some(config.n_head),
            n_kv_head: Some(config.n_kv_head),
            n_embd: Some(config.n_embd),
            original_vocab_size: Some(config.original_vocab_size),
            padded_vocab_size: Some(config.padded_vocab_size),
            ..format::ModelConfig::default()
        },
        ran_with: format::ParallelSizes {
            tp: size(sizes.tp),
            pp: size(sizes.pp),
            dp: size(sizes.dp),
            sp: size(1),
            vpp: size(sizes.vpp),
        },
        lr_scheduler: serde_json::Value::Null,
        user: serde_json::Value::Null,
    }
}

fn save(
    uri: &str,
    storage: &OpenOptions,
    config: &ModelConfig,
    sizes: ParallelSizes,
    iteration: Iteration,
) -> Result<Step, Box<dyn Error>> {
    let shardings: BoundRules = state::shardings(config, sizes)?;
    let trainer_state = trainer_state(config, sizes, iteration);
    let reports = on_ranks(shardings.topology().world_size(), |rank| {
        let dict = shardings.rank(rank.rank() as u64).map_err(|error| error.to_string())?;
        let buffers = state::expected(&dict);
        let data = buffers.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
        let checkpoint =
            Checkpoint::open(uri, storage.clone(), Options::default()).map_err(|error| error.to_string())?;
        // The clock starts when all ranks have made their state.
        rank.barrier(reshard::collective::Deadline::after(std::time::Duration::from_secs(600)))
            .map_err(|error| error.to_string())?;
        let request = SaveRequest::new(iteration, &dict, data, &trainer_state);
        checkpoint.save(rank, request).map_err(|error| error.to_string())
    })?;
    let seconds = |report: &reshard::checkpoint::SaveReport| {
        report.seconds.plan + report.seconds.data + report.seconds.commit
    };
    Ok(Step {
        step: name("save", sizes),
        bytes_needed: reports.first().map_or(0, |report| report.total_bytes),
        bytes_fetched: 0,
        bytes_written: reports.iter().map(|report| report.bytes).sum(),
        requests: reports.iter().map(|report| report.requests).sum(),
        retries: reports.iter().map(|report| report.retries).sum(),
        seconds: reports.iter().map(seconds).fold(0.0, f64::max),
        peak_staging_bytes: reports.iter().map(|report| report.peak_staging_bytes).sum(),
        verified: true,
    })
}

fn load(
    uri: &str,
    storage: &OpenOptions,
    config: &ModelConfig,
    sizes: ParallelSizes,
    iteration: Iteration,
) -> Result<Step, Box<dyn Error>> {
    let shardings = state::shardings(config, sizes)?;
    let loaded = on_ranks(shardings.topology().world_size(), |rank| {
        let dict = shardings.rank(rank.rank() as u64).map_err(|error| error.to_string())?;
        let checkpoint =
            Checkpoint::open(uri, storage.clone(), Options::default()).map_err(|error| error.to_string())?;
        let start = Instant::now();
        let mut request = LoadRequest::new(&dict);
        request.iteration = Some(iteration);
        let loaded = checkpoint.load(rank, request).map_err(|error: CheckpointError| error.to_string())?;
        let seconds = start.elapsed().as_secs_f64();
        let expected = state::expected(&dict);
        let equal = expected.len() == loaded.tensors.len()
            && expected
                .iter()
                .all(|(key, bytes)| loaded.tensors.get(key).is_some_and(|found| found.as_ref() == bytes));
        Ok((loaded.report, seconds, equal))
    })?;
    let Some((report, ..)) = loaded.first() else { return Err("no ranks".into()) };
    Ok(Step {
        step: name("load", sizes),
        bytes_needed: report.total.bytes_needed,
        bytes_fetched: report.total.bytes_fetched + report.total.table_bytes,
        bytes_written: 0,
        requests: report.total.requests,
        retries: loaded.iter().map(|(report, ..)| report.retries).sum(),
        seconds: loaded.iter().map(|&(_, seconds, _)| seconds).fold(0.0, f64::max),
        peak_staging_bytes: loaded.iter().map(|(report, ..)| report.peak_staging_bytes).sum(),
        verified: loaded.iter().all(|&(.., equal)| equal),
    })
}

fn print(step: &Step, json: bool) -> Result<(), Box<dyn Error>> {
    if json {
        return Ok(say(&serde_json::to_string(step)?)?);
    }
    const MB: f64 = 1e6;
    let line = format!(
        "{:22} needed {:8.1} MB  fetched {:8.1} MB  {:5} requests  {:2} retries  {:6.2} s  staging {:5.1} MB  {}",
        step.step,
        step.bytes_needed as f64 / MB,
        step.bytes_fetched as f64 / MB,
        step.requests,
        step.retries,
        step.seconds,
        step.peak_staging_bytes as f64 / MB,
        if step.bytes_fetched == 0 {
            "committed"
        } else if step.verified {
            "every byte right"
        } else {
            "WRONG BYTES"
        },
    );
    Ok(say(&line)?)
}

/// One line on standard output.
fn say(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")
}
