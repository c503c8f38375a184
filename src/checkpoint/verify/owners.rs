//! Whose bytes lie where in a data file.

use super::Held;
use crate::format::SavedLayout;
use reshard_shard::DType;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A chunk or an object, and its bytes in the file.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) start: u64,
    pub(super) end: u64,
    /// The tensor's key or the object's name.
    name: Arc<str>,
    part: Part,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    /// The tensor's chunk of this number.
    Chunk(usize),
    /// The object of this rank.
    Object(u32),
}

/// The owners in each file, by place.
pub(super) type Owners = Vec<Owner>;

pub(super) fn by_file(layout: &SavedLayout) -> HashMap<u32, Owners> {
    let mut owners: HashMap<u32, Owners> = HashMap::new();
    for (key, tensor) in &layout.tensors {
        let name: Arc<str> = key.as_str().into();
        for (number, chunk) in tensor.chunks.iter().enumerate() {
            let bytes = chunk.region.volume().saturating_mul(tensor.dtype.bits()) / 8;
            let (start, end) = (chunk.offset, chunk.offset.saturating_add(bytes));
            let owner = Owner { start, end, name: Arc::clone(&name), part: Part::Chunk(number) };
            owners.entry(chunk.file).or_default().push(owner);
        }
    }
    for (name, ranks) in &layout.objects {
        let name: Arc<str> = name.as_str().into();
        for (&rank, object) in ranks {
            let (start, end) = (object.offset, object.offset.saturating_add(object.length));
            let owner = Owner { start, end, name: Arc::clone(&name), part: Part::Object(rank) };
            owners.entry(object.file).or_default().push(owner);
        }
    }
    for owners in owners.values_mut() {
        owners.sort_unstable_by_key(|owner| (owner.start, owner.end));
    }
    owners
}

impl Owner {
    /// What it is, and its dtype in the file.
    pub(super) fn held(&self, layout: &SavedLayout) -> Option<(Held, DType)> {
        let name = self.name.to_string();
        match self.part {
            Part::Chunk(number) => {
                let tensor = layout.tensors.get(&*self.name)?;
                let region = tensor.chunks.get(number)?.region;
                Some((Held::Chunk { key: name, region }, tensor.dtype))
            }
            Part::Object(rank) => Some((Held::Object { name, rank }, DType::U8)),
        }
    }
}

/// The owners of which a range holds bytes: the first few of them, and how many more there are.
pub(super) fn held_in(layout: &SavedLayout, owners: &[Owner], range: &Range<u64>) -> (Vec<Held>, u64) {
    const MOST: usize = 8;
    let touching = owners.iter().filter(|owner| owner.start < range.end && owner.end > range.start);
    let count = touching.clone().count();
    let held = touching.take(MOST).filter_map(|owner| owner.held(layout)).map(|(held, _)| held);
    (held.collect(), count.saturating_sub(MOST) as u64)
}
