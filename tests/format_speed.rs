//! The format at the size of large jobs. Times are compared with each other on the same machine, never with a clock.

#![allow(clippy::unwrap_used, clippy::panic, reason = "functions that only tests call are tests too")]

use reshard::format::{
    BlockLayout, Chunk, ChunkTable, DataFileName, Metadata, ObjectDigest, SavedTensor, WriterManifest,
    WrittenFile, merge,
};
use reshard::shard::{DType, Region, Split, StateGroup};
use std::time::{Duration, Instant};

/// The shortest of three runs: what the work takes when nothing else disturbs it.
fn shortest<T>(mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut run = || {
        let start = Instant::now();
        let result = work();
        (start.elapsed(), result)
    };
    let (first, result) = run();
    ((0..2).map(|_| run().0).fold(first, Duration::min), result)
}

/// A job of `dp` x `tp` ranks that each hold the same `tensors` keys: a matrix cut in columns over tp, and its rows
/// cut over dp, four chunks each.
fn manifests(dp: u64, tp: u64, tensors: u64) -> Vec<Vec<u8>> {
    let ranks = dp * tp;
    (0..ranks)
        .map(|rank| {
            let (d, t) = (rank / tp, rank % tp);
            let mut manifest = WriterManifest::default();
            let mut at = 64;
            for index in 0..tensors {
                let mut chunks = ChunkTable::new(2);
                for part in 0..4 {
                    let region = Region::new([d * 8 + part * 2, t * 512], [2, 512]).unwrap();
                    chunks.push(&Chunk { region, file: 0, offset: at });
                    at += 2 * 512 * 4;
                }
                let tensor = SavedTensor {
                    dtype: DType::F32,
                    global_shape: [dp * 8, tp * 512].as_slice().into(),
                    logical_shape: None,
                    split: Some(Split::axis(1)),
                    alias_of: None,
                    group: StateGroup::Optimizer,
                    chunks,
                };
                let (layer, state) = (index / 30, index % 30);
                let key = format!("model.layers.{layer}.self_attn.some_projection.{state}.weight.exp_avg_sq");
                manifest.tensors.insert(key, tensor);
            }
            let name = DataFileName::new(StateGroup::Optimizer, rank as u32, ranks as u32, 0).unwrap();
            let blocks = BlockLayout::new(64 << 10, vec![64], at, at, 0).unwrap();
            manifest.files.push(WrittenFile { name, blocks });
            manifest.encode()
        })
        .collect()
}

fn merge_all(gathered: &[Vec<u8>]) -> Metadata {
    let gathered = gathered.iter().enumerate().map(|(rank, bytes)| (rank as u32, bytes.as_slice()));
    merge(gathered, ObjectDigest::of("trainer_state.json", b"")).unwrap()
}

#[test]
fn a_million_chunks_are_read_and_proven_in_the_time_of_reading_json() {
    let gathered = manifests(64, 8, 500);
    let start = Instant::now();
    let metadata = merge_all(&gathered);
    let merge_time = start.elapsed();
    let chunks: usize = metadata.layout.tensors.values().map(|tensor| tensor.chunks.len()).sum();
    assert_eq!(chunks, 1_024_000);
    let (write_time, bytes) = shortest(|| metadata.to_bytes().unwrap());
    assert!(bytes.len() / chunks < 40, "{} bytes a chunk", bytes.len() / chunks);
    let (json_time, value) = shortest(|| serde_json::from_slice::<serde_json::Value>(&bytes).unwrap());
    drop(value);
    let (parse_time, parsed) = shortest(|| Metadata::parse("m", &bytes).unwrap());
    assert_eq!(parsed, metadata);
    println!(
        "{chunks} chunks, {} bytes: merge {merge_time:?}, write {write_time:?}, parse {parse_time:?}, as plain JSON {json_time:?}",
        bytes.len()
    );
    assert!(parse_time < 4 * json_time, "{parse_time:?} against {json_time:?}");
}

#[test]
fn merging_takes_time_in_proportion_to_the_ranks() {
    let time_of = |dp| {
        let gathered = manifests(dp, 8, 10);
        let bytes: usize = gathered.iter().map(Vec::len).sum();
        let (time, _) = shortest(|| merge_all(&gathered));
        println!("{} ranks, {bytes} bytes gathered: {time:?}", dp * 8);
        time
    };
    let (few, many) = (time_of(256), time_of(2048));
    assert!(many < 24 * few, "8 times the ranks took {few:?} and then {many:?}");
}
