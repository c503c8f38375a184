//! One entry of metadata.json: a shard of a tensor, checked on its own.

use super::OPTIMIZER_FILE;
use crate::foreign::{ForeignError, ShardFault};
use reshard_shard::{DType, Dims, Region, RegionError, StateGroup, volume_of};
use reshard_storage::StoragePath;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::ops::Range;

/// An entry as it stands. Every field is optional here, so that a missing one is an error that names the tensor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEntry {
    key: Option<String>,
    dtype: Option<String>,
    global_shape: Option<Vec<i64>>,
    local_shape: Option<Vec<i64>>,
    global_offset: Option<Vec<i64>>,
    axis_fragmentations: Option<Vec<i64>>,
    segment_global_offsets: Option<Vec<i64>>,
    segment_local_offsets: Option<Vec<i64>>,
    segment_lengths: Option<Vec<i64>>,
    file: Option<String>,
    offset: Option<i64>,
    byte_size: Option<i64>,
    /// Where a tensor belongs in a pipeline follows from its key.
    #[serde(rename = "pp_rank")]
    _pp_rank: Option<IgnoredAny>,
    stored_on_ranks: Option<Vec<i64>>,
}

/// A valid shard.
pub(super) struct Shard {
    pub(super) key: String,
    pub(super) dtype: DType,
    pub(super) group: StateGroup,
    pub(super) global_shape: Dims,
    /// The rank that stored it.
    pub(super) rank: u32,
    /// Relative to the checkpoint's directory.
    pub(super) file: String,
    /// All its bytes in the file.
    pub(super) bytes: Range<u64>,
    /// Its regions and where each begins in the file.
    pub(super) regions: Vec<(Region, u64)>,
    pub(super) cut: Cut,
}

/// How the writer says that the tensor is cut.
pub(super) enum Cut {
    /// Not at all.
    Whole,
    /// Along these axes.
    Axes(Vec<usize>),
    /// Along axis 0, each segment on its own; start and length of this shard's part of each.
    Segments(Vec<(u64, u64)>),
}

impl RawEntry {
    /// Checks everything that does not need other entries. `lengths` are those of the files that are there.
    pub(super) fn check(
        self,
        metadata: &str,
        lengths: &BTreeMap<String, u64>,
    ) -> Result<Shard, ForeignError> {
        let key = self.key.clone().unwrap_or_default();
        let writer = match (&self.file, self.stored_on_ranks.as_deref()) {
            (Some(file), _) => format!("`{file}`"),
            (None, Some([rank])) => format!("rank {rank}"),
            _ => "an unnamed file".to_owned(),
        };
        if let Some(file) = &self.file {
            StoragePath::parse(file.as_str())
                .map_err(|source| ForeignError::Path { named_by: metadata.to_owned(), source })?;
            if !lengths.contains_key(file) {
                return Err(ForeignError::MissingFile { named_by: metadata.to_owned(), file: file.clone() });
            }
        }
        self.shard(lengths).map_err(|fault| ForeignError::Shard {
            file: metadata.to_owned(),
            key,
            writer,
            fault: Box::new(fault),
        })
    }

    fn shard(self, lengths: &BTreeMap<String, u64>) -> Result<Shard, ShardFault> {
        let key = self.key.filter(|key| !key.is_empty()).ok_or(ShardFault::Missing("key"))?;
        let dtype = self.dtype.ok_or(ShardFault::Missing("dtype"))?;
        let (dtype, element_bytes) = dtype_named(&dtype).ok_or(ShardFault::DType(dtype))?;
        let global_shape = dims("global_shape", self.global_shape)?;
        let axes = global_shape.len();
        let local_shape = of_length("local_shape", axes, dims("local_shape", self.local_shape)?)?;
        let global_offset = of_length("global_offset", axes, dims("global_offset", self.global_offset)?)?;
        let fragments = dims("axis_fragmentations", self.axis_fragmentations)?;
        let fragments = of_length("axis_fragmentations", axes, fragments)?;
        for (field, sizes) in [
            ("global_shape", &global_shape),
            ("local_shape", &local_shape),
            ("axis_fragmentations", &fragments),
        ] {
            if sizes.contains(&0) {
                return Err(ShardFault::Zero(field));
            }
        }
        volume_of(&global_shape)?;
        let segments = segments(
            dims("segment_global_offsets", self.segment_global_offsets)?,
            dims("segment_local_offsets", self.segment_local_offsets)?,
            dims("segment_lengths", self.segment_lengths)?,
        )?;

        let file = self.file.ok_or(ShardFault::Missing("file"))?;
        let offset = number("offset", self.offset)?;
        if offset == 0 {
            return Err(ShardFault::Zero("offset"));
        }
        let byte_size = number("byte_size", self.byte_size)?;
        let expected = volume_of(&local_shape)?.checked_mul(element_bytes).ok_or(RegionError::Overflow)?;
        if byte_size != expected {
            return Err(ShardFault::ByteSize { found: byte_size, dtype, local_shape });
        }
        let end = offset.checked_add(byte_size).ok_or(RegionError::Overflow)?;
        let length = lengths.get(&file).copied().unwrap_or(0);
        if end > length {
            return Err(ShardFault::CutOff { end, length });
        }
        let ranks = of_length("stored_on_ranks", 1, dims("stored_on_ranks", self.stored_on_ranks)?)?;
        let rank = ranks.first().and_then(|&rank| u32::try_from(rank).ok()).ok_or(RegionError::Overflow)?;

        let whole = Region::new(&global_offset, &local_shape)?;
        let (regions, cut) = if segments.is_empty() {
            let cut: Vec<usize> = (0..axes).filter(|&axis| fragments[axis] > 1).collect();
            (vec![(whole, offset)], if cut.is_empty() { Cut::Whole } else { Cut::Axes(cut) })
        } else {
            let row_bytes = byte_size / local_shape.first().copied().unwrap_or(1).max(1);
            let regions = segment_regions(&segments, &whole, offset, row_bytes)?;
            let parts = segments.iter().map(|segment| (segment.global, segment.length)).collect();
            (regions, Cut::Segments(parts))
        };
        for (region, _) in &regions {
            region.check_within(&global_shape)?;
        }
        let group = match file.rsplit('/').next() {
            Some(OPTIMIZER_FILE) => StateGroup::Optimizer,
            _ => StateGroup::Model,
        };
        Ok(Shard { key, dtype, group, global_shape, rank, file, bytes: offset..end, regions, cut })
    }
}

/// A run of rows of axis 0.
struct Segment {
    global: u64,
    local: u64,
    length: u64,
}

fn segments(global: Dims, local: Dims, lengths: Dims) -> Result<Vec<Segment>, ShardFault> {
    let local = of_length("segment_local_offsets", global.len(), local)?;
    let lengths = of_length("segment_lengths", global.len(), lengths)?;
    if lengths.contains(&0) {
        return Err(ShardFault::Zero("segment_lengths"));
    }
    let rows = global.into_iter().zip(local).zip(lengths);
    Ok(rows.map(|((global, local), length)| Segment { global, local, length }).collect())
}

/// The region of each segment of a shard whose rows lie at `offset` of its file. `whole` has the shard's local shape, and
/// its offset on all axes but 0.
fn segment_regions(
    segments: &[Segment],
    whole: &Region,
    offset: u64,
    row_bytes: u64,
) -> Result<Vec<(Region, u64)>, ShardFault> {
    let (Some(&rows), Some(&start)) = (whole.shape().first(), whole.offset().first()) else {
        return Err(ShardFault::Segments("a tensor without axes has none"));
    };
    if start != 0 {
        return Err(ShardFault::Segments("beside them, global_offset on axis 0 must be 0"));
    }
    let mut order: Vec<&Segment> = segments.iter().collect();
    order.sort_by_key(|segment| segment.local);
    let mut covered = 0u64;
    let mut regions = Vec::with_capacity(segments.len());
    for segment in order {
        if segment.local != covered {
            return Err(ShardFault::Segments("their local ranges have a gap or an overlap"));
        }
        covered = covered.checked_add(segment.length).ok_or(RegionError::Overflow)?;
        if covered > rows {
            break;
        }
        let (mut first, mut shape) = (Dims::from_slice(whole.offset()), Dims::from_slice(whole.shape()));
        (first[0], shape[0]) = (segment.global, segment.length);
        // Inside the shard, whose end in the file was checked.
        regions.push((Region::new(first, shape)?, offset + segment.local * row_bytes));
    }
    if covered != rows {
        return Err(ShardFault::Segments("their lengths do not add up to local_shape on axis 0"));
    }
    Ok(regions)
}

fn dims(field: &'static str, numbers: Option<Vec<i64>>) -> Result<Dims, ShardFault> {
    let numbers = numbers.ok_or(ShardFault::Missing(field))?;
    numbers.into_iter().map(|value| number(field, Some(value))).collect()
}

fn number(field: &'static str, value: Option<i64>) -> Result<u64, ShardFault> {
    let value = value.ok_or(ShardFault::Missing(field))?;
    u64::try_from(value).map_err(|_| ShardFault::Negative { field, value })
}

fn of_length(field: &'static str, expected: usize, items: Dims) -> Result<Dims, ShardFault> {
    let found = items.len();
    if found == expected { Ok(items) } else { Err(ShardFault::Items { field, found, expected }) }
}

/// The dtype and its size in bytes. The long names of floats are those of older writers.
fn dtype_named(name: &str) -> Option<(DType, u64)> {
    let dtype = match name {
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "uint16" => DType::U16,
        "int16" => DType::I16,
        "uint32" => DType::U32,
        "int32" => DType::I32,
        "uint64" => DType::U64,
        "int64" => DType::I64,
        "bf16" | "bfloat16" => DType::BF16,
        "fp16" | "float16" => DType::F16,
        "fp32" | "float32" => DType::F32,
        "fp64" | "float64" => DType::F64,
        _ => return None,
    };
    Some((dtype, dtype.element_bytes()?))
}
