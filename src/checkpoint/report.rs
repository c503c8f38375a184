use serde::Serialize;
use std::fmt;

/// Bytes and requests of a load, of one rank or summed over all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LoadFigures {
    /// Bytes that the destinations need.
    pub bytes_needed: u64,
    /// Bytes of data that were fetched.
    pub bytes_fetched: u64,
    /// Of these, bytes fetched only because blocks are verified whole.
    pub verify_over_read: u64,
    /// Of these, bytes fetched only to save requests.
    pub coalesce_over_read: u64,
    /// Bytes of block tables that were fetched.
    pub table_bytes: u64,
    /// Requests for data and block tables.
    pub requests: u64,
}

/// Seconds of the phases of a call.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct PhaseSeconds {
    /// Finding the checkpoint, reading metadata, planning.
    pub plan: f64,
    /// Moving data.
    pub data: f64,
    /// Meeting, publishing, swapping.
    pub commit: f64,
}

/// How far the loaded bytes are known to be what was saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verification {
    /// Every block that was read has the checksum that its writer computed.
    Verified,
    /// The checkpoint carries no checksums (another tool's).
    Unverified,
    /// The caller turned verification off.
    Off,
}

/// What a load did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadReport {
    /// The iteration that was loaded; `None` for safetensors files, which don't say one.
    pub iteration: Option<u64>,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// This rank's own figures.
    pub own: LoadFigures,
    /// All ranks' together.
    pub total: LoadFigures,
    /// Requests that this process repeated.
    pub retries: u64,
    /// Seconds.
    pub seconds: PhaseSeconds,
    /// Most staging memory that was reserved at once on this rank, in bytes: whole slots, of which only what bytes must
    /// wait in is ever touched.
    pub peak_staging_bytes: usize,
    /// How far the bytes are verified.
    pub verification: Verification,
    /// Values that became infinite in conversions on this rank.
    pub overflowed: u64,
    /// Keys that some rank wanted and that were not there, where that was allowed.
    pub missing: Vec<String>,
    /// Saved keys that no rank wanted, where that was allowed.
    pub unexpected: Vec<String>,
    /// Other things worth knowing, one sentence each.
    pub notes: Vec<String>,
}

/// What a save did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SaveReport {
    /// The iteration that was saved.
    pub iteration: u64,
    /// The attempt that was committed.
    pub attempt: String,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Bytes of tensors and objects that this rank wrote.
    pub bytes: u64,
    /// All ranks' together.
    pub total_bytes: u64,
    /// Data files that this rank wrote.
    pub files: u64,
    /// Requests that this rank's data took.
    pub requests: u64,
    /// Requests that this process repeated.
    pub retries: u64,
    /// Size of metadata.json in bytes.
    pub metadata_bytes: u64,
    /// Seconds.
    pub seconds: PhaseSeconds,
    /// Most staging memory that was reserved at once on this rank, in bytes: whole slots, of which only what bytes must
    /// wait in is ever touched.
    pub peak_staging_bytes: usize,
    /// Other things worth knowing, one sentence each.
    pub notes: Vec<String>,
}

/// Bytes as people read them.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// One line.
impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verification = match self.verification {
            Verification::Verified => "verified",
            Verification::Unverified => "unverified: the checkpoint has no checksums",
            Verification::Off => "not verified",
        };
        write!(
            f,
            "loaded {} on {} rank(s): {} needed, {} fetched in {} requests, {:.2} s, {verification}",
            self.iteration
                .map_or_else(|| "safetensors files".to_owned(), |number| format!("iteration {number}")),
            self.world_size,
            human_bytes(self.total.bytes_needed),
            human_bytes(self.total.bytes_fetched + self.total.table_bytes),
            self.total.requests,
            self.seconds.plan + self.seconds.data + self.seconds.commit,
        )
    }
}

/// One line.
impl fmt::Display for SaveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "saved iteration {} from {} rank(s): {} in {:.2} s, metadata {}",
            self.iteration,
            self.world_size,
            human_bytes(self.total_bytes),
            self.seconds.plan + self.seconds.data + self.seconds.commit,
            human_bytes(self.metadata_bytes),
        )
    }
}

/// Rows of a two-column table.
fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

impl LoadReport {
    /// A table of what this rank and all ranks did.
    pub fn table(&self) -> String {
        let both =
            |own: u64, total: u64| format!("{} of {} over all ranks", human_bytes(own), human_bytes(total));
        let (own, total) = (&self.own, &self.total);
        let mut rows = vec![
            ("iteration", self.iteration.map_or_else(|| "none".to_owned(), |number| number.to_string())),
            ("rank", format!("{} of {}", self.rank, self.world_size)),
            ("bytes needed", both(own.bytes_needed, total.bytes_needed)),
            ("bytes fetched", both(own.bytes_fetched, total.bytes_fetched)),
            ("  to verify whole blocks", both(own.verify_over_read, total.verify_over_read)),
            ("  to save requests", both(own.coalesce_over_read, total.coalesce_over_read)),
            ("block tables", both(own.table_bytes, total.table_bytes)),
            ("requests", format!("{} of {} over all ranks", own.requests, total.requests)),
            ("retries", self.retries.to_string()),
            ("seconds", seconds(&self.seconds)),
            ("peak staging", human_bytes(self.peak_staging_bytes as u64)),
            ("verification", format!("{:?}", self.verification).to_lowercase()),
        ];
        if self.overflowed > 0 {
            rows.push(("values that became infinite", self.overflowed.to_string()));
        }
        rows.extend(self.missing.iter().map(|key| ("missing", key.clone())));
        rows.extend(self.unexpected.iter().map(|key| ("unexpected", key.clone())));
        rows.extend(self.notes.iter().map(|note| ("note", note.clone())));
        table(&rows)
    }
}

impl SaveReport {
    /// A table of what this rank and all ranks did.
    pub fn table(&self) -> String {
        let mut rows = vec![
            ("iteration", self.iteration.to_string()),
            ("attempt", self.attempt.clone()),
            ("rank", format!("{} of {}", self.rank, self.world_size)),
            (
                "bytes",
                format!("{} of {} over all ranks", human_bytes(self.bytes), human_bytes(self.total_bytes)),
            ),
            ("files", self.files.to_string()),
            ("requests", self.requests.to_string()),
            ("retries", self.retries.to_string()),
            ("metadata", human_bytes(self.metadata_bytes)),
            ("seconds", seconds(&self.seconds)),
            ("peak staging", human_bytes(self.peak_staging_bytes as u64)),
        ];
        rows.extend(self.notes.iter().map(|note| ("note", note.clone())));
        table(&rows)
    }
}

fn seconds(phases: &PhaseSeconds) -> String {
    format!("{:.2} plan, {:.2} data, {:.2} commit", phases.plan, phases.data, phases.commit)
}
