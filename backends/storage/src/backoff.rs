//! Waiting between tries: exponential, with full jitter so that ranks which failed together don't return
//! together.

use std::time::Duration;

#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    ceiling: Duration,
    longest: Duration,
}

impl Backoff {
    /// Delays up to `first`, then up to twice that, and so on up to `longest`.
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { ceiling: first, longest }
    }

    /// A uniformly drawn part of the current ceiling, which then doubles.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let ceiling = self.ceiling.min(self.longest);
        self.ceiling = ceiling.saturating_mul(2);
        // Without randomness the full ceiling is a correct delay, only a less spread one.
        let fraction = getrandom::u32().map_or(1.0, |bits| f64::from(bits) / f64::from(u32::MAX));
        ceiling.mul_f64(fraction)
    }
}
