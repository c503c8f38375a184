//! Proves that a layout is whole: every tensor is there once, every byte belongs to one owner.

use super::{FileFault, Metadata, MetadataFault, ObjectFault, PlaceFault, TensorFault, tiling};
use crate::format::{Chunk, SavedFile, SavedLayout, SavedTensor};
use reshard_shard::{CoverageFault, DType, FaultKind, MAX_AXES, Region, RegionError, volume_of};
use std::collections::HashSet;

pub(super) fn check(metadata: &Metadata) -> Result<(), MetadataFault> {
    let layout = &metadata.layout;
    if !is_plain_path(&metadata.trainer_state.path) {
        return Err(MetadataFault::TrainerStatePath { path: metadata.trainer_state.path.clone() });
    }
    check_files(&layout.files)?;
    let mut owned = Vec::new();
    for (index, (key, tensor)) in layout.tensors.iter().enumerate() {
        let fault = |fault| MetadataFault::Tensor { key: key.clone(), fault: Box::new(fault) };
        check_shape(tensor).map_err(fault)?;
        check_alias(layout, tensor).map_err(fault)?;
        for chunk in tensor.chunks.iter() {
            let (start, end) = check_chunk(&layout.files, tensor, &chunk).map_err(fault)?;
            owned.push(Owned { file: chunk.file, start, end, owner: index });
        }
        check_tiling(&layout.files, tensor).map_err(fault)?;
    }
    for (index, (name, ranks)) in layout.objects.iter().enumerate() {
        for (&rank, object) in ranks {
            let fault = |fault| MetadataFault::Object { name: name.clone(), rank: Some(rank), fault };
            let place = check_place(&layout.files, object.file, object.offset, object.length);
            let (start, end) = place.map_err(|place| fault(ObjectFault::Place(place)))?;
            if object.length > 0 {
                owned.push(Owned { file: object.file, start, end, owner: layout.tensors.len() + index });
            }
        }
    }
    check_owners(layout, owned)
}

/// One plain relative path: it stays inside the directory that it is relative to, on any store.
fn is_plain_path(path: &str) -> bool {
    let plain = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    path.split('/').all(plain) && !path.contains(|c: char| c == '\\' || c.is_control())
}

fn check_files(files: &[SavedFile]) -> Result<(), MetadataFault> {
    let mut paths = HashSet::with_capacity(files.len());
    for file in files {
        let fault = |fault| Err(MetadataFault::File { path: file.path.clone(), fault });
        if !is_plain_path(&file.path) {
            return fault(FileFault::Path);
        }
        if !paths.insert(file.path.as_str()) {
            return fault(FileFault::Twice);
        }
        let Some(blocks) = &file.blocks else {
            return fault(FileFault::NoBlocks);
        };
        let table_end = blocks.table().end;
        if file.length != table_end {
            return fault(FileFault::Length { length: file.length, table_end });
        }
    }
    Ok(())
}

fn check_shape(tensor: &SavedTensor) -> Result<(), TensorFault> {
    let global = &tensor.global_shape;
    let wrong = |source| TensorFault::GlobalShape { shape: global.clone(), source };
    if global.len() > MAX_AXES {
        return Err(wrong(RegionError::TooManyAxes(global.len())));
    }
    let bits = volume_of(global)
        .and_then(|volume| volume.checked_mul(tensor.dtype.bits()).ok_or(RegionError::Overflow));
    let bits = bits.map_err(wrong)?;
    if let Some(logical) = &tensor.logical_shape {
        let inside = logical.len() == global.len() && logical.iter().zip(global).all(|(l, g)| l <= g);
        if !inside {
            return Err(TensorFault::LogicalShape { logical: logical.clone(), global: global.clone() });
        }
    }
    if let Some(split) = &tensor.split
        && split.spans(global).is_none()
    {
        return Err(TensorFault::Split { split: split.clone(), global: global.clone() });
    }
    if tensor.dtype.is_opaque() && (tensor.chunks.len() > 1 || bits % 8 != 0) {
        return Err(TensorFault::Packed(tensor.dtype));
    }
    Ok(())
}

fn check_alias(layout: &SavedLayout, tensor: &SavedTensor) -> Result<(), TensorFault> {
    let Some(key) = &tensor.alias_of else { return Ok(()) };
    let target = layout.tensors.get(key).ok_or_else(|| TensorFault::AliasMissing(key.clone()))?;
    if target.alias_of.is_some() {
        return Err(TensorFault::AliasOfAlias(key.clone()));
    }
    if (target.dtype, &target.global_shape) != (tensor.dtype, &tensor.global_shape) {
        return Err(TensorFault::AliasDiffers(key.clone()));
    }
    if tensor.chunks.is_empty() { Ok(()) } else { Err(TensorFault::AliasWithChunks) }
}

fn check_chunk(files: &[SavedFile], tensor: &SavedTensor, chunk: &Chunk) -> Result<(u64, u64), TensorFault> {
    chunk.region.check_within(&tensor.global_shape).map_err(TensorFault::ChunkOutside)?;
    let bytes = bytes_of(&chunk.region, tensor.dtype);
    check_place(files, chunk.file, chunk.offset, bytes)
        .map_err(|fault| TensorFault::Place { region: chunk.region.clone(), fault })
}

/// The region lies in a shape whose size in bits fits.
fn bytes_of(region: &Region, dtype: DType) -> u64 {
    region.volume() * dtype.bits() / 8
}

fn check_place(files: &[SavedFile], file: u32, offset: u64, bytes: u64) -> Result<(u64, u64), PlaceFault> {
    let no_file = || PlaceFault::NoSuchFile { file: file.into(), files: files.len() };
    let saved = files.get(file as usize).ok_or_else(no_file)?;
    let data = match &saved.blocks {
        Some(blocks) => blocks.runs().first().copied().unwrap_or(blocks.end())..blocks.end(),
        None => 0..saved.length,
    };
    match offset.checked_add(bytes) {
        Some(end) if offset >= data.start && end <= data.end => Ok((offset, end)),
        _ => Err(PlaceFault::Outside { path: saved.path.clone(), offset, bytes }),
    }
}

fn check_tiling(files: &[SavedFile], tensor: &SavedTensor) -> Result<(), TensorFault> {
    if tensor.alias_of.is_some() {
        return Ok(());
    }
    // Checked with the shape.
    let whole = Region::whole(&tensor.global_shape).ok().flatten();
    tiling::prove(&tensor.global_shape, whole.as_ref(), &tensor.chunks)
        .map_err(|fault| tiling_fault(files, tensor, fault))
}

/// Names the files that hold the point, which name the ranks that wrote them.
fn tiling_fault(files: &[SavedFile], tensor: &SavedTensor, fault: CoverageFault) -> TensorFault {
    let holders = tensor.chunks.iter().filter(|chunk| chunk.region.contains_point(&fault.point));
    let paths = holders.filter_map(|chunk| Some(files.get(chunk.file as usize)?.path.clone()));
    let files = if fault.kind == FaultKind::Overlap { paths.collect() } else { Vec::new() };
    TensorFault::Tiling { fault, files }
}

/// Bytes of a file and the index of who owns them: tensors first, then objects.
struct Owned {
    file: u32,
    start: u64,
    end: u64,
    owner: usize,
}

fn check_owners(layout: &SavedLayout, mut owned: Vec<Owned>) -> Result<(), MetadataFault> {
    owned.sort_unstable_by_key(|owned| (owned.file, owned.start));
    let name = |owner: usize| match owner.checked_sub(layout.tensors.len()) {
        None => layout.tensors.keys().nth(owner).cloned().unwrap_or_default(),
        Some(object) => layout.objects.keys().nth(object).cloned().unwrap_or_default(),
    };
    for (a, b) in owned.iter().zip(owned.iter().skip(1)) {
        if a.file == b.file && b.start < a.end {
            let path = layout.files.get(a.file as usize).map(|file| file.path.clone()).unwrap_or_default();
            let (start, end) = (b.start, a.end.min(b.end));
            return Err(MetadataFault::BytesOverlap {
                path,
                start,
                end,
                first: name(a.owner),
                second: name(b.owner),
            });
        }
    }
    Ok(())
}
