//! Per-rank objects when the number of ranks changes.

use crate::harness::*;
use reshard::checkpoint::{CheckpointError, ErrorKind};
use reshard::collective::{Collective, ThreadRank};
use reshard::plan::ObjectChoice;
use reshard::training::{Resumed, Retention, TrainingRun};

fn resume_objects(
    run: &mut TrainingRun,
    rank: &ThreadRank,
    choice: ObjectChoice,
) -> Result<Resumed, CheckpointError> {
    resume_with(run, rank, |request| request.load.objects = choice).map(Option::unwrap)
}

/// Data-loader state neither gets lost when a run grows nor comes back stale when it shrinks and grows again.
#[test]
fn eight_to_sixteen_to_eight_ranks() {
    let storage = memory();
    let mut last = 0;
    for (step, ranks) in [(1u64, 8usize), (2, 16), (3, 8), (4, 16)] {
        on_ranks(ranks, |rank| {
            let mut run = run(&storage, &rank, Retention::All);
            if step > 1 {
                let error = resume_objects(&mut run, &rank, ObjectChoice::Own).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Incompatible);
                let text = error.to_string();
                assert!(text.contains(&last.to_string()) && text.contains(&ranks.to_string()), "{text}");
                let fresh = resume_objects(&mut run, &rank, ObjectChoice::Fresh).unwrap();
                check(&fresh, &rank, step - 1);
                assert!(fresh.objects.is_empty());
                let all = resume_objects(&mut run, &rank, ObjectChoice::All).unwrap().objects;
                assert_eq!(all.len(), last + last / 2);
                for ((name, saver), bytes) in all {
                    let expected = match name.as_str() {
                        "odd" => vec![0xab],
                        _ => loader_state(saver as usize, step - 1),
                    };
                    assert!((saver as usize) < last && bytes == expected, "{name} of {saver}");
                }
            }
            save(&mut run, &rank, step).unwrap();
            let own = resume_objects(&mut run, &rank, ObjectChoice::Own).unwrap().objects;
            let index = rank.rank() as u32;
            assert_eq!(own[&("loader".to_owned(), index)], loader_state(rank.rank(), step));
            assert_eq!(own.len(), 1 + rank.rank() % 2);
        });
        last = ranks;
    }
}
