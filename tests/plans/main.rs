//! Plans against the oracle, without any I/O.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod in_memory;

use proptest::prelude::*;
use reshard::plan::{
    CostModel, Destination, LoadPlanner, LoadRules, ObjectChoice, SavePlanner, check_declarations,
    choose_objects,
};
use reshard_oracle::{Random, cases, cut, first_difference, full_tensor, layouts};
use std::collections::BTreeSet;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(64), ..ProptestConfig::default() })]

    /// Saved from any layout, loaded on any other: every local buffer equals the naive cut, bit for bit, and what the
    /// plan says of its cost is what happens.
    #[test]
    fn any_layout_to_any_other(
        seed: u64, ranks in 1u64..9, new_ranks in 1u64..9, verify: bool, exact: bool,
        block_bytes in prop_oneof![Just(64u64), Just(1000), Just(65536)], request_bytes in prop_oneof![Just(100u64), Just(5000), Just(8 << 20)],
    ) {
        let random = &mut Random::new(seed);
        let tensors = layouts::tensors(random);
        let source = layouts::shard(random, &tensors, ranks);
        let target = layouts::shard(random, &tensors, new_ranks);
        let full = |key: &str| {
            let tensor = tensors.iter().find(|tensor| tensor.key == key).unwrap();
            full_tensor(key, tensor.dtype, &tensor.shape)
        };
        let saved = in_memory::save(&source, block_bytes, |rank, key| cut(&full(key), source[rank].get(key).unwrap()));
        let cost = CostModel { request_bytes, ..if exact { CostModel::exact() } else { CostModel::default() } };
        let rules = LoadRules { cost, verify, ..LoadRules::default() };
        for (rank, dict) in target.iter().enumerate() {
            let objects: BTreeSet<(String, u32)> = [("rng".to_owned(), rank as u32 % ranks as u32)].into();
            let plan = LoadPlanner::new(&saved.layout, &rules).plan_with_objects(dict, &objects).unwrap();
            prop_assert_eq!(&plan.missing, &Vec::<String>::new());
            let loaded = in_memory::load(&plan, &saved);
            for (tensor, bytes) in plan.tensors.iter().zip(&loaded) {
                match &tensor.destination {
                    Destination::Tensor(key) => {
                        let shard = dict.get(key).unwrap();
                        let expected = cut(&full(key), shard);
                        // Places that no region fills stay as they are: compare only what the regions fill.
                        let filled = cut(&vec![0xff; full(key).len()], shard);
                        let mut expected = expected;
                        for (byte, filled) in expected.iter_mut().zip(&filled) { if *filled == 0 { *byte = 0xee; } }
                        prop_assert_eq!(first_difference(bytes, &expected), None, "{} of rank {}", key, rank);
                    }
                    Destination::Object { rank, .. } => {
                        prop_assert_eq!(bytes.len() as u32, rank * 3);
                        prop_assert!(bytes.iter().all(|&byte| byte == *rank as u8));
                    }
                }
            }
            let needed: u64 = dict.iter().map(|(_, shard)| shard.placements().iter()
                .map(|placed| placed.region.volume() * shard.dtype().bits() / 8).sum::<u64>()).sum::<u64>()
                + objects.iter().map(|(_, rank)| u64::from(rank * 3)).sum::<u64>();
            prop_assert_eq!(plan.cost.bytes_needed, needed);
            let fetched: u64 = plan.requests.iter().map(|request| request.range.end - request.range.start).sum();
            prop_assert_eq!(plan.cost.bytes_to_fetch, fetched);
            prop_assert_eq!(fetched, needed + plan.cost.verify_over_read + plan.cost.coalesce_over_read);
            if exact && !verify { prop_assert_eq!(fetched, needed); }
            // The same input gives the same plan.
            prop_assert!(plan == LoadPlanner::new(&saved.layout, &rules).plan_with_objects(dict, &objects).unwrap());
        }
    }

    /// The ranks' declarations agree, and every byte is written once over all ranks.
    #[test]
    fn saves_write_every_byte_once(seed: u64, ranks in 1u64..13) {
        let random = &mut Random::new(seed);
        let tensors = layouts::tensors(random);
        let dicts = layouts::shard(random, &tensors, ranks);
        let saved = in_memory::save(&dicts, 65536, |rank, key| vec![0; dicts[rank].get(key).unwrap().local_bytes() as usize]);
        for (key, tensor) in &saved.layout.tensors {
            let whole = reshard_shard::Region::whole(&tensor.global_shape).unwrap();
            let regions: Vec<_> = tensor.chunks.iter().map(|chunk| chunk.region).collect();
            prop_assert!(reshard_shard::prove_tiling(whole.as_ref(), &regions).is_ok(), "{}", key);
        }
        let total: u64 = tensors.iter().map(|tensor| tensor.shape.iter().product::<u64>() * tensor.dtype.bits() / 8).sum();
        let objects: u64 = (0..ranks).map(|rank| rank * 3).sum();
        prop_assert_eq!(saved.written.iter().sum::<u64>(), total + objects);
        let attempt = reshard::format::AttemptId::draw().unwrap();
        let declared: Vec<_> = dicts.iter().enumerate().map(|(rank, dict)| {
            let header = reshard::format::FileHeader { attempt: &attempt, iteration: reshard::format::Iteration(1), rank: rank as u32, world_size: ranks as u32 };
            SavePlanner::new(header, Default::default()).plan(dict, &Default::default()).unwrap().declarations
        }).collect();
        prop_assert_eq!(check_declarations(declared.iter().map(Vec::as_slice).enumerate()), Ok(()));
    }
}

#[test]
fn objects_on_another_world_size_need_a_choice() {
    let dicts = vec![reshard_shard::ShardedStateDict::new(); 8];
    let saved = in_memory::save(&dicts, 65536, |_, _| Vec::new());
    assert_eq!(
        choose_objects(&saved.layout, ObjectChoice::Own, 3, 8).unwrap(),
        [("rng".to_owned(), 3)].into()
    );
    let error = choose_objects(&saved.layout, ObjectChoice::Own, 3, 16).unwrap_err().to_string();
    assert!(error.contains('8') && error.contains("16"), "{error}");
    assert_eq!(choose_objects(&saved.layout, ObjectChoice::All, 3, 16).unwrap().len(), 8);
    assert!(choose_objects(&saved.layout, ObjectChoice::Fresh, 3, 16).unwrap().is_empty());
}
