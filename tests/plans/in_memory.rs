//! Carries plans out in memory, byte by byte, as the simplest thing that follows them.

use reshard::format::{
    AttemptId, Chunk, ChunkTable, FileHeader, Iteration, Limits, SavedFile, SavedLayout, SavedObject,
    SavedTensor,
};
use reshard::plan::{LoadPlan, LocalPattern, ObjectLengths, SavePlan, SavePlanner, WriteSource};
use reshard_shard::ShardedStateDict;
use std::collections::BTreeMap;

/// The files of a saved state and their layout.
#[derive(Default)]
pub struct Saved {
    pub layout: SavedLayout,
    pub files: Vec<Vec<u8>>,
    pub written: Vec<u64>,
}

/// Saves all ranks: `local(rank, key)` gives the bytes of a rank's local buffer.
pub fn save(dicts: &[ShardedStateDict], block_bytes: u64, local: impl Fn(usize, &str) -> Vec<u8>) -> Saved {
    let attempt = AttemptId::draw().unwrap();
    let mut saved = Saved::default();
    for (rank, dict) in dicts.iter().enumerate() {
        let header = FileHeader {
            attempt: &attempt,
            iteration: Iteration(7),
            rank: rank as u32,
            world_size: dicts.len() as u32,
        };
        let limits = Limits { block_bytes: Some(block_bytes), ..Limits::default() };
        let objects: ObjectLengths = [("rng".to_owned(), rank as u64 * 3)].into();
        let plan = SavePlanner::new(header, limits).plan(dict, &objects).unwrap();
        saved.written.push(plan.bytes);
        add(&mut saved, rank, dict, &plan, &local);
    }
    saved
}

fn add(
    saved: &mut Saved,
    rank: usize,
    dict: &ShardedStateDict,
    plan: &SavePlan,
    local: &impl Fn(usize, &str) -> Vec<u8>,
) {
    for (key, tensor) in dict.iter() {
        saved.layout.tensors.entry(key.to_owned()).or_insert_with(|| SavedTensor {
            dtype: tensor.dtype(),
            global_shape: tensor.global_shape().clone(),
            logical_shape: tensor.logical_shape().cloned(),
            split: tensor.split().cloned(),
            alias_of: tensor.alias_of().map(str::to_owned),
            group: tensor.group(),
            chunks: ChunkTable::new(tensor.global_shape().len()),
        });
    }
    for file in &plan.files {
        let index = saved.files.len() as u32;
        let mut bytes = vec![0xa5; file.layout.length() as usize];
        let header = file.layout.header();
        bytes[..header.len()].copy_from_slice(header);
        let mut buffers: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
        for write in &file.writes {
            let to = write.range.start as usize..write.range.end as usize;
            match (&write.source, &write.region) {
                (WriteSource::Tensor(key), Some(region)) => {
                    let buffer = buffers.entry(key).or_insert_with(|| local(rank, key));
                    let gathered: Vec<u8> =
                        places(&write.pattern).flat_map(|row| buffer[row].to_vec()).collect();
                    bytes[to].copy_from_slice(&gathered);
                    let chunk = Chunk { region: region.clone(), file: index, offset: write.range.start };
                    saved.layout.tensors.get_mut(key.as_str()).unwrap().chunks.push(&chunk);
                }
                (WriteSource::Object(name), _) => {
                    bytes[to].fill(rank as u8);
                    let object = SavedObject {
                        file: index,
                        offset: write.range.start,
                        length: write.range.end - write.range.start,
                    };
                    saved.layout.objects.entry(name.clone()).or_default().insert(rank as u32, object);
                }
                other => panic!("{other:?}"),
            }
        }
        saved.layout.files.push(SavedFile {
            path: file.name.to_string(),
            length: file.layout.length(),
            blocks: Some(file.layout.block_layout(0).unwrap()),
        });
        saved.files.push(bytes);
    }
}

/// The rows of a pattern as ranges of a local buffer.
fn places(pattern: &LocalPattern) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut starts = vec![pattern.offset];
    for &(count, stride) in &pattern.axes {
        starts = starts.iter().flat_map(|&start| (0..count).map(move |step| start + step * stride)).collect();
    }
    let length = pattern.row_bytes as usize;
    starts.into_iter().map(move |start| start as usize..start as usize + length)
}

/// Carries out a load: each destination's buffer, filled with 0xEE where the plan writes nothing. Only bytes of the
/// plan's requests are read, and each copy only from requests that list it.
pub fn load(plan: &LoadPlan, saved: &Saved) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> =
        plan.tensors.iter().map(|tensor| vec![0xee; tensor.local_bytes as usize]).collect();
    let mut bytes_copied = vec![0; plan.copies.len()];
    for fill in &plan.zeros {
        places(&fill.pattern).for_each(|row| out[fill.tensor as usize][row].fill(0));
    }
    for request in &plan.requests {
        let fetched =
            &saved.files[request.file as usize][request.range.start as usize..request.range.end as usize];
        for &index in &request.copies {
            let copy = &plan.copies[index as usize];
            let mut starts = vec![(copy.file_offset, copy.local_offset)];
            for axis in &copy.axes {
                starts = starts
                    .iter()
                    .flat_map(|&(from, to)| {
                        (0..axis.count)
                            .map(move |i| (from + i * axis.file_stride, to + i * axis.local_stride))
                    })
                    .collect();
            }
            assert_eq!(copy.file_element, copy.local_element);
            for (from, to) in starts {
                for byte in 0..copy.row_elements * copy.file_element {
                    let at = from + byte;
                    if request.range.contains(&at) {
                        out[copy.tensor as usize][(to + byte) as usize] =
                            fetched[(at - request.range.start) as usize];
                        bytes_copied[index as usize] += 1;
                    }
                }
            }
        }
    }
    for (copy, bytes) in plan.copies.iter().zip(bytes_copied) {
        assert_eq!(copy.file_bytes(), bytes, "every byte of a copy is copied once");
    }
    out
}
