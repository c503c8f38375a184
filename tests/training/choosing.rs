//! Which iteration a run resumes from, and whether it may.

use crate::harness::*;
use crate::hooked::Hooked;
use reshard::checkpoint::{CheckpointError, CommitMode, CommitState, ErrorKind};
use reshard::collective::{Collective, ThreadRank};
use reshard::format::{Commit, DeletedCheckpoint, Iteration, ModelConfig};
use reshard::plan::ObjectChoice;
use reshard::storage::{Fault, Faulty, OpenOptions, Operation, Rule, StoragePath, When, open};
use reshard::training::{ResumeRequest, Retention, TrainingRun};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn the_newest_of_several_also_past_ten_million() {
    let directory = tempfile::tempdir().unwrap();
    let disk = open(directory.path().to_str().unwrap(), &OpenOptions::new()).unwrap();
    for storage in [memory(), disk] {
        saved(&storage, &[9_999_998, 9_999_999, 10_000_001]);
        assert_eq!(committed(&storage), [10_000_001, 9_999_999, 9_999_998]);
        on_ranks(3, |rank| {
            let mut run = run(&storage, &rank, Retention::All);
            let resumed = resume_and_check(&mut run, &rank, 10_000_001);
            assert_eq!((resumed.iteration.0, resumed.state.global_step), (10_000_001, 10_000_001));
            assert_eq!(resumed.report.notes, Vec::<String>::new());
            // The sizes of this run, not of the one that saved.
            assert_eq!((resumed.state.ran_with, resumed.saved_sizes), (sizes(3), sizes(2)));
            save(&mut run, &rank, 10_000_002).unwrap();
        });
        assert_eq!(committed(&storage).first(), Some(&10_000_002));
    }
}

#[test]
fn no_checkpoint_is_a_fresh_start_on_all_ranks() {
    let storage = memory();
    on_ranks(3, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        assert!(resume(&mut run, &rank).unwrap().is_none());
        let named = resume_with(&mut run, &rank, |request| request.load.iteration = Some(Iteration(4)));
        assert_eq!(named.unwrap_err().kind(), ErrorKind::NotFound);
        save(&mut run, &rank, 1).unwrap();
        assert_eq!(resume_and_check(&mut run, &rank, 1).iteration.0, 1);
    });
}

fn at(run: &mut TrainingRun, rank: &ThreadRank, iteration: u64, discard: bool) -> Vec<String> {
    let resumed = resume_with(run, rank, |request| {
        request.load.iteration = Some(Iteration(iteration));
        request.discard_newer = discard;
    });
    let resumed = resumed.unwrap().unwrap();
    check(&resumed, rank, iteration);
    resumed.report.notes
}

#[test]
fn an_older_iteration_needs_at_and_names_the_newer_ones() {
    let storage = memory();
    saved(&storage, &[100, 200, 300]);
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, newest(1, 0));
        let notes = at(&mut run, &rank, 100, false);
        assert!(notes.len() == 1 && notes[0].contains("300, 200"), "{notes:?}");
        // A save would be passed over by the next resume, so it is refused, and nothing is lost.
        let error = save(&mut run, &rank, 110).unwrap_err();
        assert_eq!(error.state, CommitState::NotCommitted);
        let text = error.to_string();
        assert!(text.contains("300, 200") && text.contains("discard_newer"), "{text}");
        match (rank.rank(), error.source) {
            (0, CheckpointError::NewerExist { iteration, newer }) => {
                assert_eq!((iteration, newer), (110, vec![300, 200]));
            }
            (1, CheckpointError::RankFailed { rank: 0, kind: ErrorKind::Conflict, .. }) => {}
            (rank, other) => panic!("rank {rank}: {other}"),
        }
    });
    assert_eq!(committed(&storage), [300, 200, 100]);
    assert!(paths(&storage, "iter_0000110").is_empty());
}

#[test]
fn discarded_iterations_go_after_the_first_save() {
    let storage = memory();
    saved(&storage, &[100, 200, 300]);
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let notes = at(&mut run, &rank, 100, true);
        assert!(notes.len() == 1 && notes[0].contains("removed after the first save"), "{notes:?}");
        // Nothing happens before there is something newer to resume from.
        assert_eq!(committed(&storage), [300, 200, 100]);
        let report = save(&mut run, &rank, 110).unwrap();
        if rank.rank() == 0 {
            assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
            assert_eq!(committed(&storage), [110, 100]);
        }
        // The numbers are free again.
        save(&mut run, &rank, 200).unwrap();
    });
    assert_eq!(committed(&storage), [200, 110, 100]);
    assert_eq!(paths(&storage, "iter_0000300"), ["iter_0000300/commit.json"]);
    on_ranks(1, |rank| {
        resume_and_check(&mut run(&storage, &rank, Retention::All), &rank, 200);
    });
}

#[test]
fn a_discard_that_fails_is_tried_again_and_stops_no_save() {
    let inner = memory();
    saved(&inner, &[100, 200, 300]);
    let rule = Rule::on(Operation::PutIf, When::First(1), Fault::Refused).path("iter_0000300");
    let storage: Store = Arc::new(Faulty::new(Arc::clone(&inner), 0, [rule]));
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        at(&mut run, &rank, 100, true);
        for (step, told, left) in [
            (110, "iteration 300 was not pruned", [300, 110, 100].as_slice()),
            (120, "pruned iteration 300:", &[120, 110, 100]),
        ] {
            let notes = save(&mut run, &rank, step).unwrap().notes;
            if rank.rank() == 0 {
                assert!(notes.iter().any(|note| note.contains(told)), "{notes:?}");
                assert_eq!(committed(&inner), left);
            }
        }
    });
}

#[test]
fn a_first_save_goes_over_a_discarded_iteration() {
    let storage = memory();
    saved(&storage, &[100, 200, 300]);
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, newest(2, 0));
        at(&mut run, &rank, 100, true);
        save_with(&mut run, &rank, 200, 2, |_| {}).unwrap();
        let resumed = resume(&mut run, &rank).unwrap().unwrap();
        assert_eq!(resumed.iteration.0, 200);
        check(&resumed, &rank, 2);
    });
    assert_eq!(committed(&storage), [200, 100]);
}

#[test]
fn a_pinned_iteration_is_neither_discarded_nor_replaced() {
    let storage = memory();
    saved(&storage, &[100, 200]);
    checkpoint(&storage, meetings()).pin(Iteration(200), "best").unwrap();
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let refused = resume_with(&mut run, &rank, |request| {
            request.load.iteration = Some(Iteration(100));
            request.discard_newer = true;
        });
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Conflict && error.to_string().contains("200"), "{error}");
        let replaced = save_with(&mut run, &rank, 200, 7, |request| request.replace = true);
        assert!(replaced.unwrap_err().to_string().contains("pinned"));
        resume_and_check(&mut run, &rank, 200);
    });
    let checkpoint = checkpoint(&storage, meetings());
    checkpoint.unpin(Iteration(200), "best").unwrap();
    checkpoint.unpin(Iteration(200), "best").unwrap();
    assert_eq!(checkpoint.pin(Iteration(3), "x").unwrap_err().kind(), ErrorKind::NotFound);
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        save_with(&mut run, &rank, 200, 7, |request| request.replace = true).unwrap();
        resume_and_check(&mut run, &rank, 7);
    });
}

/// A moment of a load at which its checkpoint may vanish.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    Metadata,
    FirstData,
}

impl Moment {
    fn is(self, operation: Operation, path: &StoragePath) -> bool {
        match self {
            Self::Metadata => operation == Operation::ReadAll && path.name() == "metadata.json",
            Self::FirstData => operation == Operation::Read,
        }
    }
}

/// What a pruning job would do, at the worst moment: the checkpoint that is loaded vanishes, that many times.
fn vanishing(storage: &Store, times: u64, moment: Moment) -> (Store, Arc<AtomicU64>) {
    let (inner, vanished) = (Arc::clone(storage), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&vanished);
    let hooked = Hooked::before(storage, move |operation, path| {
        let iteration = StoragePath::parse(path.segments().next().unwrap()).unwrap();
        let first = moment.is(operation, path) && count.load(Ordering::SeqCst) < times;
        let (inner, count) = (Arc::clone(&inner), Arc::clone(&count));
        Box::pin(async move {
            if first {
                count.fetch_add(1, Ordering::SeqCst);
                inner.delete_prefix(&iteration).await.unwrap();
                let mark = Commit::Deleted(DeletedCheckpoint::new().unwrap()).to_bytes();
                inner.put(&iteration.join("commit.json").unwrap(), mark.into()).await.unwrap();
            }
        })
    });
    (hooked, vanished)
}

#[test]
fn a_checkpoint_removed_while_loading_makes_it_start_over_once() {
    for moment in [Moment::Metadata, Moment::FirstData] {
        let storage = memory();
        saved(&storage, &[10, 20]);
        let (hooked, vanished) = vanishing(&storage, 1, moment);
        on_ranks(2, |rank| {
            let resumed = resume_and_check(&mut run(&hooked, &rank, Retention::All), &rank, 10);
            let notes = resumed.report.notes;
            assert_eq!(resumed.iteration.0, 10);
            assert!(notes.len() == 1 && notes[0].contains("iteration 20 was removed"), "{notes:?}");
        });
        assert_eq!(vanished.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_second_removal_and_that_of_a_named_iteration_are_errors() {
    for moment in [Moment::Metadata, Moment::FirstData] {
        let storage = memory();
        saved(&storage, &[10, 20, 30]);
        let (hooked, _) = vanishing(&storage, u64::MAX, moment);
        on_ranks(1, |rank| {
            let named = resume_with(&mut run(&hooked, &rank, Retention::All), &rank, |request| {
                request.load.iteration = Some(Iteration(30));
            });
            assert!(matches!(named.unwrap_err(), CheckpointError::RemovedWhileLoading { iteration: 30 }));
            let dict = dict(0, 1);
            let mut own: BTreeMap<String, Vec<u8>> = buffers(&dict, 0);
            let mut request = ResumeRequest::new(&dict);
            request.load.objects = ObjectChoice::Fresh;
            request.load.mode = CommitMode::InPlace(
                own.iter_mut().map(|(key, bytes)| (key.as_str(), bytes.as_mut_slice())).collect(),
            );
            let mut run = run(&hooked, &rank, Retention::All);
            let cause = match run.resume_from_checkpoint(&rank, request).unwrap_err() {
                // Only where bytes may have gone into the caller's tensors.
                CheckpointError::ContentsUndefined { cause } if moment == Moment::FirstData => *cause,
                error if moment == Moment::Metadata => error,
                error => panic!("{error}"),
            };
            assert!(matches!(cause, CheckpointError::RemovedWhileLoading { iteration: 10 }), "{cause}");
        });
    }
}

#[test]
fn another_model_is_refused_with_both_values_before_any_data_is_read() {
    let storage = memory();
    saved(&storage, &[5]);
    let reads = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reads);
    let watched = Hooked::before(&storage, move |operation, _| {
        count.fetch_add(u64::from(operation == Operation::Read), Ordering::SeqCst);
        Box::pin(async {})
    });
    let resume_as = |rank: &ThreadRank, model: ModelConfig| {
        let checkpoint = checkpoint(&watched, meetings());
        let mut run = TrainingRun::new(checkpoint, model, sizes(3), Retention::All).unwrap();
        resume(&mut run, rank)
    };
    on_ranks(3, |rank| {
        let other = ModelConfig { n_layer: Some(24), n_head: Some(4), ..model() };
        let error = resume_as(&rank, other).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        let text = error.to_string();
        assert!(text.contains("n_layer is 2 in the checkpoint and 24 here"), "{text}");
        assert!(!text.contains("n_head"), "{text}");
    });
    assert_eq!(reads.load(Ordering::SeqCst), 0);
    on_ranks(3, |rank| {
        // The padding may differ, and what only one side states.
        let padded = ModelConfig { padded_vocab_size: Some(96), n_embd: Some(16), ..model() };
        let resumed = resume_as(&rank, padded.clone()).unwrap().unwrap();
        check(&resumed, &rank, 5);
        assert_eq!(resumed.state.model, padded);
    });
}

#[test]
fn consumed_samples_must_be_whole_batches() {
    let storage = memory();
    on_ranks(1, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        save(&mut run, &rank, 50).unwrap(); // 400 samples
    });
    let skip = |dp: usize, local_batch: u64| {
        on_ranks(1, |rank| {
            let checkpoint = checkpoint(&storage, meetings());
            let mut run = TrainingRun::new(checkpoint, model(), sizes(dp), Retention::All).unwrap();
            resume(&mut run, &rank).unwrap().unwrap().batches_to_skip(local_batch)
        })
        .remove(0)
    };
    assert_eq!(skip(2, 4).unwrap(), 50);
    assert_eq!(skip(2, 8).unwrap(), 25);
    for (dp, local_batch) in [(4, 6), (1, 0), (2, u64::MAX)] {
        let error = skip(dp, local_batch).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        let text = error.to_string();
        assert!(text.contains("400") && text.contains(&local_batch.to_string()), "{text}");
    }
}
