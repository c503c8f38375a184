use crate::harness::{Mode, load_and_check, memory, save_all, trainer_state};
use proptest::prelude::*;
use reshard::plan::ObjectChoice;
use reshard::storage::{OpenOptions, open};
use reshard_oracle::{Random, cases, layouts};

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(24), ..ProptestConfig::default() })]

    /// Any layout to any other through the store, in every commit mode.
    #[test]
    fn any_layout_to_any_other(seed: u64, ranks in 1u64..6, new_ranks in 1u64..6, mode in 0usize..3) {
        let random = &mut Random::new(seed);
        let tensors = layouts::tensors(random);
        let source = layouts::shard(random, &tensors, ranks);
        let target = layouts::shard(random, &tensors, new_ranks);
        let storage = memory();
        let mode = [Mode::Allocate, Mode::InPlace, Mode::Staged][mode];
        for report in save_all(&storage, 12, &tensors, &source) {
            let report = report.unwrap();
            prop_assert_eq!((report.iteration, report.world_size as u64), (12, ranks));
        }
        let loaded = load_and_check(&storage, mode, &tensors, &target, |request| {
            request.objects = ObjectChoice::All;
        });
        for loaded in loaded {
            let loaded = loaded.unwrap();
            prop_assert_eq!(loaded.trainer_state.as_ref(), Some(&trainer_state(12)));
            prop_assert_eq!(loaded.objects.len() as u64, ranks);
            for ((name, rank), bytes) in &loaded.objects {
                prop_assert_eq!((name.as_str(), bytes.to_vec()), ("rng", vec![*rank as u8; *rank as usize * 7]));
            }
        }
    }
}

#[test]
fn on_disk_too() {
    let directory = tempfile::tempdir().unwrap();
    let storage = open(directory.path().to_str().unwrap(), &OpenOptions::new()).unwrap();
    let random = &mut Random::new(5);
    let tensors = layouts::tensors(random);
    let dicts = layouts::shard(random, &tensors, 4);
    for report in save_all(&storage, 3, &tensors, &dicts) {
        report.unwrap();
    }
    let target = layouts::shard(random, &tensors, 3);
    for loaded in load_and_check(&storage, Mode::Allocate, &tensors, &target, |request| {
        request.objects = ObjectChoice::Fresh;
    }) {
        loaded.unwrap();
    }
}
