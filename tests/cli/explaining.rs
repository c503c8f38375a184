//! `explain`: the bytes that it names are the tensor's.

use crate::command::{fails, json, text};
use crate::run::{Run, bound, content, topology};
use reshard::shard::{DType, Region};
use serde_json::Value;

fn dims(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect()
}

fn region(row: &Value, offset: &str, shape: &str) -> Region {
    Region::new(dims(&row[offset]), dims(&row[shape])).unwrap()
}

/// The bytes of a region of a matrix, row by row.
fn rows(full: &[u8], columns: u64, element: u64, region: &Region) -> Vec<u8> {
    let row = |row: u64| {
        let start = ((row * columns + region.offset()[1]) * element) as usize;
        &full[start..start + (region.shape()[1] * element) as usize]
    };
    (region.offset()[0]..region.end(0)).flat_map(row).copied().collect()
}

#[test]
fn extents_hold_the_regions_and_requests_the_extents() {
    let run = Run::with(&[5]);
    let target = bound(&topology(4, 1, 1));
    for (key, dtype) in [
        ("transformer.h.1.attn.c_attn.weight", DType::BF16),
        ("transformer.h.1.attn.c_proj.weight", DType::BF16),
        ("adam.m.transformer.h.3.mlp.c_proj.weight", DType::F32),
        ("transformer.wte.weight", DType::BF16),
    ] {
        let (code, answer) = json(&["explain", run.uri(), key, "--tp", "4", "--rank", "3"]);
        assert_eq!((code, &answer["rank"]), (0, &3.into()));
        let dict = target.rank(3).unwrap();
        let owner = dict.get(key).unwrap().alias_of().unwrap_or(key);
        let wanted = dict.get(owner).unwrap();
        let regions: Vec<Region> =
            answer["regions"].as_array().unwrap().iter().map(|row| region(row, "offset", "shape")).collect();
        let placed: Vec<Region> =
            wanted.placements().iter().map(|placement| placement.region.clone()).collect();
        assert_eq!(regions, placed);
        assert_eq!(answer["bytes"], wanted.local_bytes());
        let shape = dims(&answer["global_shape"]);
        let full = content(key, dtype, &shape);
        let requests = answer["requests"].as_array().unwrap();
        let mut volume = 0;
        for piece in answer["pieces"].as_array().unwrap() {
            let common = region(piece, "offset", "shape");
            volume += common.volume();
            assert!(regions.iter().any(|region| region.contains(&common)));
            assert!(region(piece, "chunk_offset", "chunk_shape").contains(&common));
            let name = piece["file"].as_str().unwrap();
            let file = std::fs::read(run.attempt(5).join(name)).unwrap();
            let extents: Vec<_> = piece["extents"].as_array().unwrap().iter().map(dims).collect();
            let found: Vec<u8> = extents
                .iter()
                .flat_map(|extent| &file[extent[0] as usize..extent[1] as usize])
                .copied()
                .collect();
            assert_eq!(found, rows(&full, shape[1], dtype.bits() / 8, &common), "{key} {common}");
            // Its requests, in order of the file, reach from its first byte to its last without a hole.
            let numbers = dims(&piece["requests"]);
            let fetched: Vec<_> = requests
                .iter()
                .filter(|request| numbers.contains(&request["number"].as_u64().unwrap()))
                .collect();
            assert_eq!(fetched.len(), numbers.len());
            assert!(fetched.iter().all(|request| request["file"] == name));
            let covered = |at: u64| {
                fetched
                    .iter()
                    .any(|row| row["start"].as_u64().unwrap() <= at && at < row["end"].as_u64().unwrap())
            };
            assert!(extents.iter().all(|extent| covered(extent[0]) && covered(extent[1] - 1)));
        }
        assert_eq!(volume, regions.iter().map(Region::volume).sum::<u64>());
        let shown = text(&["explain", run.uri(), key, "--tp", "4", "--rank", "3"]);
        for part in [&regions[0].to_string(), "offset in the buffer", "request", "#"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}

#[test]
fn a_rank_may_hold_nothing_or_share() {
    let run = Run::with(&[5]);
    let key = "transformer.h.0.ln_1.weight";
    let (_, answer) = json(&["explain", run.uri(), key, "--tp", "2", "--pp", "2", "--rank", "3"]);
    assert_eq!((&answer["regions"], &answer["requests"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(answer["elsewhere"], serde_json::json!([1]));
    let shown = text(&["explain", run.uri(), key, "--tp", "2", "--pp", "2", "--rank", "3"]);
    assert!(shown.contains("nothing; of the other pipeline stages: rank 1"), "{shown}");
    // On one stage embedding and head are one tensor.
    let (_, answer) = json(&["explain", run.uri(), "transformer.wte.weight"]);
    assert_eq!(answer["tied_to"], "lm_head.weight");
    let (_, answer) = json(&["explain", run.uri(), "transformer.wte.weight", "--pp", "2"]);
    assert_eq!(answer["tied_to"], Value::Null);
    let message = fails(3, &["explain", run.uri(), "transformer.wte.weigth"]);
    assert!(message.contains("did you mean `transformer.wte.weight`"), "{message}");
    fails(2, &["explain", run.uri(), key, "--rank", "1"]);
}
