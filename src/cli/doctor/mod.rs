mod access;
mod check;
mod conditions;
mod footprint;
mod speed;

use super::Global;
use super::answer::Answer;
use super::exit::{Exit, Failure};
use super::place::{Place, on_disk};
use super::progress::Bar;
use super::text::{Table, visible};
use crate::transfer::{Job, TransferError};
use check::{Check, Checks, Status};
use clap::Args;
use footprint::Footprint;
use reshard_storage::{Deadline, RetryPolicy, StorageBackend, StoragePath};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Find out whether a bucket or a disk does what checkpoints need, and how fast it is
///
/// Tries credentials, endpoint and bucket, then to list, write, read and delete, uploads in parts, the two conditional
/// writes that keep a commit safe (create only where nothing is, update only what has not changed; also with several
/// writers at once), the clock, the time to the first byte, and MB/s with more and more requests at once. It writes about
/// 17 MB below a fresh prefix of the URI and deletes them again. Exits with 1 where something is wrong; each fault comes
/// with its fix.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  reshard doctor s3://bucket/run
  reshard doctor s3://bucket --set aws_endpoint=http://minio:9000 --set allow_http=true
  reshard doctor /mnt/shared/run --json | jq .suggested_concurrency")]
pub(super) struct Doctor {
    /// Where runs will lie
    uri: String,
}

/// What was found.
#[derive(Serialize, Default)]
struct Findings {
    uri: String,
    healthy: bool,
    checks: Vec<Check>,
    /// Median time of a read of one byte.
    latency_ms: Option<f64>,
    throughput: Vec<Throughput>,
    suggested_concurrency: Option<usize>,
}

/// Reading speed with so many requests at once.
#[derive(Serialize, Clone, Copy)]
struct Throughput {
    concurrency: usize,
    mb_per_second: f64,
}

/// A store, and the prefix that belongs to this examination.
struct Probe {
    storage: Arc<dyn StorageBackend>,
    prefix: StoragePath,
}

impl Probe {
    /// A fresh prefix, so that nothing of anyone else is ever touched.
    fn new(storage: Arc<dyn StorageBackend>) -> Result<Self, Failure> {
        let random = getrandom::u64()
            .map_err(|error| Failure::new(Exit::Defect, format!("no random numbers: {error}")))?;
        let prefix = StoragePath::parse(format!("reshard-doctor-{random:016x}"));
        Ok(Self { storage, prefix: prefix.map_err(TransferError::from)? })
    }

    /// An object below the prefix.
    fn path(&self, name: &str) -> Result<StoragePath, TransferError> {
        Ok(self.prefix.join(name)?)
    }
}

impl Doctor {
    pub(super) fn run(&self, global: &Global) -> Result<Answer, Failure> {
        // Whoever waits for a diagnosis wants it soon: few retries, short deadlines.
        let retry = RetryPolicy {
            budget: Duration::from_secs(10),
            tries: 3,
            tries_unreachable: 2,
            longest_wait: Duration::from_secs(2),
            ..RetryPolicy::default()
        };
        let deadline = Deadline { base: Duration::from_secs(10), ..Deadline::default() };
        let options = global.open_options()?.retry(retry).deadline(deadline);
        let place = Place::parse(&self.uri);
        place.check_scheme()?;
        let storage = reshard_storage::open(place.run(), &options)?;
        let footprint = on_disk(place.run(), &*storage).map(Footprint::before);
        let probe = Probe::new(storage)?;
        let bar = Bar::of_steps(global);
        let findings = Job::start(async move { examine(&probe, footprint, &bar).await })?.finish()??;
        let exit = if findings.healthy { Exit::Ok } else { Exit::Fault };
        let text = findings.text();
        Answer::new(exit, &findings, text)
    }
}

async fn examine(probe: &Probe, footprint: Option<Footprint>, bar: &Bar) -> Result<Findings, Failure> {
    let mut findings = Findings { uri: probe.storage.to_string(), ..Findings::default() };
    let mut checks = Checks::new(bar, footprint.is_some());
    let writable = access::reach(probe, &mut checks).await && access::write(probe, &mut checks).await?;
    if writable && access::read(probe, &mut checks).await? {
        conditions::create(probe, &mut checks).await?;
        conditions::update(probe, &mut checks).await?;
        if let Some(object) = access::multipart(probe, &mut checks).await? {
            findings.latency_ms = speed::latency(probe, &object, &mut checks).await;
            findings.throughput = speed::throughput(probe, &object, &mut checks).await;
            findings.suggested_concurrency = speed::suggestion(&findings.throughput);
        }
    }
    match writable {
        true => access::clean_up(probe, &mut checks).await,
        // A write whose answer was lost may be there all the same; where it was refused there is nothing to delete.
        false => drop(probe.storage.delete_prefix(&probe.prefix).await),
    }
    if let Some(footprint) = footprint {
        footprint.remove(&mut checks);
    }
    findings.checks = checks.done();
    findings.healthy = findings.checks.iter().all(|check| check.status != Status::Fault);
    Ok(findings)
}

impl Findings {
    fn text(&self) -> String {
        let mut text = format!("{}\n", visible(&self.uri));
        for Check { name, status, detail, fix } in &self.checks {
            let line = format!("{:8}{name:21}{detail}", status.label());
            text.push_str(visible(&line).trim_end());
            text.push('\n');
            if let Some(fix) = fix {
                text.push_str(&visible(&format!("{:8}fix: {fix}\n", "")));
            }
        }
        if !self.throughput.is_empty() {
            let mut table = Table::new(["requests at once", "MB/s"]);
            for row in &self.throughput {
                table.row([row.concurrency.to_string(), format!("{:.1}", row.mb_per_second)]);
            }
            text.push_str(&format!("\n{}", table.text()));
        }
        if let Some(concurrency) = self.suggested_concurrency {
            text.push_str(&format!("\nsuggested concurrency: {concurrency}\n"));
        }
        text
    }
}
