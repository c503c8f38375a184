//! How fast the store is: the time to the first byte, and MB/s with more and more requests at once.

use super::access::ProbeObject;
use super::check::{Bad, Checks};
use super::{Probe, Throughput};
use futures::StreamExt;
use reshard_storage::Slot;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Reads whose median counts.
const READS: usize = 11;
/// Requests at once, one after the other.
const LEVELS: [usize; 4] = [1, 4, 16, 64];
/// Bytes of one timed request.
const REQUEST_BYTES: u64 = 2 << 20;
/// No request of a level begins later than this after its first.
const LEVEL_TIME: Duration = Duration::from_millis(1500);
/// Nor after so many requests.
const LEVEL_REQUESTS: u64 = 128;
/// More requests at once must bring more than this to be worth it.
const ENOUGH: f64 = 0.9;

/// The median time of a read of one byte, in milliseconds.
pub(super) async fn latency(probe: &Probe, object: &ProbeObject, checks: &mut Checks<'_>) -> Option<f64> {
    let work = async {
        let mut times = Vec::with_capacity(READS);
        for number in 0..READS as u64 {
            let start = Instant::now();
            read(probe, object, number..number + 1).await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let median = times.get(READS / 2).copied().unwrap_or_default();
        Ok((median, format!("{median:.1} ms to the first byte, median of {READS}")))
    };
    checks.attempt("latency", "", work).await
}

/// Reading speed at each level.
pub(super) async fn throughput(
    probe: &Probe,
    object: &ProbeObject,
    checks: &mut Checks<'_>,
) -> Vec<Throughput> {
    let work = async {
        let mut levels = Vec::with_capacity(LEVELS.len());
        for concurrency in LEVELS {
            levels.push(Throughput { concurrency, mb_per_second: level(probe, object, concurrency).await? });
        }
        let best = levels.iter().map(|level| level.mb_per_second).fold(0.0, f64::max);
        Ok((levels, format!("{best:.1} MB/s at best, reads of {} MiB", REQUEST_BYTES >> 20)))
    };
    checks.attempt("throughput", "", work).await.unwrap_or_default()
}

async fn level(probe: &Probe, object: &ProbeObject, concurrency: usize) -> Result<f64, Bad> {
    let start = Instant::now();
    let length = object.bytes.len() as u64;
    let numbers = (0..LEVEL_REQUESTS).take_while(|&number| number == 0 || start.elapsed() < LEVEL_TIME);
    let mut reads = futures::stream::iter(numbers)
        .map(|number| read(probe, object, range_of(number, length, REQUEST_BYTES)))
        .buffer_unordered(concurrency);
    let mut bytes = 0;
    while let Some(read) = reads.next().await {
        bytes += read?;
    }
    Ok(bytes as f64 / 1e6 / start.elapsed().as_secs_f64())
}

async fn read(probe: &Probe, object: &ProbeObject, range: Range<u64>) -> Result<u64, Bad> {
    let bytes = range.end - range.start;
    let slot: Slot = Box::new(vec![0u8; bytes as usize]);
    let (_, result) = probe.storage.read(&object.path, range, slot).await;
    result?;
    Ok(bytes)
}

/// The range of request `number` when an object of `length` bytes is read again and again.
fn range_of(number: u64, length: u64, bytes: u64) -> Range<u64> {
    let start = number.saturating_mul(bytes) % length.max(1);
    start..(start + bytes).min(length)
}

/// The fewest requests at once that come near the best speed.
pub(super) fn suggestion(levels: &[Throughput]) -> Option<usize> {
    let best = levels.iter().map(|level| level.mb_per_second).fold(0.0, f64::max);
    levels.iter().find(|level| level.mb_per_second >= ENOUGH * best).map(|level| level.concurrency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_requests_than_help() {
        let levels = |speeds: [f64; 4]| {
            LEVELS
                .iter()
                .zip(speeds)
                .map(|(&concurrency, mb_per_second)| Throughput { concurrency, mb_per_second })
                .collect::<Vec<_>>()
        };
        assert_eq!(suggestion(&levels([50.0, 190.0, 700.0, 760.0])), Some(16));
        assert_eq!(suggestion(&levels([50.0, 190.0, 700.0, 2000.0])), Some(64));
        assert_eq!(suggestion(&levels([1000.0, 900.0, 800.0, 700.0])), Some(1));
        assert_eq!(suggestion(&[]), None);
    }
}
