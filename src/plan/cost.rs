/// What a request costs and how far it may reach: decides which neighbouring extents are fetched as one.
///
/// Two extents with a gap between them are merged when reading the gap is cheaper than another request, that is
/// when `gap / bytes_per_second < request_seconds`, as long as all gaps together stay below `max_over_read` of the
/// needed bytes; gaps up to `small_gap` are always read, since a request that saves so little is never worth it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostModel {
    /// Time to the first byte of a request, in seconds.
    pub request_seconds: f64,
    /// Bandwidth of one connection, in bytes per second.
    pub bytes_per_second: f64,
    /// Gaps up to this many bytes are always read.
    pub small_gap: u64,
    /// Bytes of larger gaps that may be read, as a fraction of the needed bytes.
    pub max_over_read: f64,
    /// Most bytes of one request; a longer extent is split.
    pub request_bytes: u64,
}

/// An object store in the same region: 30 ms to the first byte, 50 MB/s a connection, requests of 8 MiB.
impl Default for CostModel {
    fn default() -> Self {
        Self {
            request_seconds: 0.030,
            bytes_per_second: 50e6,
            small_gap: 64 << 10,
            max_over_read: 1.0 / 128.0,
            request_bytes: 8 << 20,
        }
    }
}

impl CostModel {
    /// Nothing is ever read that is not needed: one request for every contiguous extent.
    pub fn exact() -> Self {
        Self { small_gap: 0, max_over_read: 0.0, ..Self::default() }
    }

    /// The longest gap that is cheaper to read than to skip.
    pub(crate) fn break_even_gap(&self) -> u64 {
        if self.max_over_read <= 0.0 {
            return self.small_gap;
        }
        // Saturates for absurd models; a NaN becomes 0.
        ((self.request_seconds * self.bytes_per_second) as u64).max(self.small_gap)
    }
}
