//! The requests that reach the store, against the overlaps computed element by element.

use crate::harness::{load, memory, save_all};
use proptest::prelude::*;
use reshard::checkpoint::LoadRequest;
use reshard::format::{Commit, Metadata, SavedLayout};
use reshard::plan::CostModel;
use reshard::shard::ShardedStateDict;
use reshard::storage::{Depth, Meter, Metered, OpenOptions, Operation, StorageBackend, open};
use reshard_oracle::{Random, layouts};
use reshard_storage_testing::{Identity, SeaweedFs};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Requests of one rank by file.
type Ranges = BTreeMap<String, Vec<Range<u64>>>;

/// The metadata of the only committed iteration, read by hand.
fn layout(storage: &dyn StorageBackend) -> SavedLayout {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let objects = runtime.block_on(storage.list(None, Depth::All)).unwrap().objects;
    let read = |name: &str| {
        let object = objects.iter().find(|object| object.path.name() == name).unwrap();
        runtime.block_on(storage.read_all(&object.path, 1 << 20)).unwrap().0
    };
    assert!(Commit::parse("commit.json", &read("commit.json")).is_ok());
    Metadata::parse("metadata.json", &read("metadata.json")).unwrap().layout
}

/// Which bytes of which file hold the elements that `dict` wants: one element at a time, then neighbours joined.
fn overlaps(layout: &SavedLayout, dict: &ShardedStateDict) -> Ranges {
    let mut bytes: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for (key, shard) in dict.iter() {
        let saved = &layout.tensors[key];
        for chunk in saved.chunks.iter() {
            let file = bytes.entry(layout.files[chunk.file as usize].path.clone()).or_default();
            let Some(size) = saved.dtype.element_bytes() else {
                // An opaque tensor is wanted whole or not at all.
                let length = chunk.region.volume() * saved.dtype.bits() / 8;
                if !shard.placements().is_empty() {
                    file.extend(chunk.offset..chunk.offset + length);
                }
                continue;
            };
            let shape = chunk.region.shape();
            for element in 0..chunk.region.volume() {
                let mut rest = element;
                let mut point = chunk.region.offset().to_vec();
                for axis in (0..shape.len()).rev() {
                    point[axis] += rest % shape[axis];
                    rest /= shape[axis];
                }
                if shard.placements().iter().any(|placed| placed.region.contains_point(&point)) {
                    let start = chunk.offset + element * size;
                    file.extend(start..start + size);
                }
            }
        }
    }
    let joined = bytes.into_iter().map(|(file, bytes)| {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for byte in bytes {
            match ranges.last_mut() {
                Some(last) if last.end == byte => last.end += 1,
                _ => ranges.push(byte..byte + 1),
            }
        }
        (file, ranges)
    });
    joined.filter(|(_, ranges)| !ranges.is_empty()).collect()
}

/// Loads each rank's part alone and compares the requests.
fn check(storage: &Arc<dyn StorageBackend>, dicts: &[ShardedStateDict]) {
    let layout = layout(&**storage);
    for dict in dicts {
        let meter = Meter::recording();
        let metered: Arc<dyn StorageBackend> =
            Arc::new(Metered::new(Arc::clone(storage), Arc::clone(&meter)));
        let exact = |request: &mut LoadRequest<'_>| {
            request.rules.verify = false;
            request.rules.cost = CostModel::exact();
            request.allow_unexpected = true;
        };
        let report = load(&metered, std::slice::from_ref(dict), exact).pop().unwrap().unwrap().report;
        let mut found = Ranges::new();
        let mut requests = 0;
        for record in meter.take_records().into_iter().filter(|record| record.operation == Operation::Read) {
            requests += 1;
            found.entry(record.path.unwrap().name().to_owned()).or_default().push(record.range.unwrap());
        }
        found.values_mut().for_each(|ranges| ranges.sort_by_key(|range| range.start));
        let expected = overlaps(&layout, dict);
        assert_eq!(found, expected);
        let bytes = expected.values().flatten().map(|range| range.end - range.start).sum();
        assert_eq!(
            (report.own.bytes_needed, report.own.bytes_fetched, report.own.requests),
            (bytes, bytes, requests)
        );
    }
}

/// Tensors small enough to go through element by element, cut in any way.
fn case(seed: u64, ranks: u64, new_ranks: u64) -> (Vec<layouts::Tensor>, [Vec<ShardedStateDict>; 2]) {
    let random = &mut Random::new(seed);
    let mut tensors = layouts::tensors(random);
    tensors.retain(|tensor| tensor.shape.iter().product::<u64>() < 20_000);
    let source = layouts::shard(random, &tensors, ranks);
    let target = layouts::shard(random, &tensors, new_ranks);
    (tensors, [source, target])
}

fn save(storage: &Arc<dyn StorageBackend>, tensors: &[layouts::Tensor], dicts: &[ShardedStateDict]) {
    save_all(storage, 1, tensors, dicts).into_iter().for_each(|report| drop(report.unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whole_chunk_reads(seed: u64, ranks in 1u64..5, new_ranks in 1u64..6) {
        let (tensors, [source, target]) = case(seed, ranks, new_ranks);
        let storage = memory();
        save(&storage, &tensors, &source);
        check(&storage, &target);
    }
}

#[test]
fn on_an_s3_server_too() {
    let server = SeaweedFs::shared();
    let options = server.options(Identity::Admin);
    let options = options
        .into_iter()
        .fold(OpenOptions::new().without_environment(), |options, (key, value)| options.set(key, value));
    for seed in [3, 8, 21] {
        let (tensors, [source, target]) = case(seed, 4, 3);
        let uri = format!("s3://{}/run", server.bucket());
        let storage = open(&uri, &options.clone().set("allow_http", "true")).unwrap();
        save(&storage, &tensors, &source);
        check(&storage, &target);
    }
}
