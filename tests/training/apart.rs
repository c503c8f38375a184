//! Ranks that part ways: one is wrong, interrupted, elsewhere or gone. All of them return, and say which rank it was.

use crate::harness::*;
use crate::hooked::Hooked;
use reshard::checkpoint::{CheckpointError, CommitState, ErrorKind, MeetingRules};
use reshard::collective::{Collective, CollectiveError, Departure, ThreadRank};
use reshard::shard::{DType, Region, ShardedTensor};
use reshard::storage::Operation;
use reshard::training::{ResumeRequest, Retention, TrainingRun};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn failed_on(error: &CheckpointError, failing: usize, kind: ErrorKind) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(matches!(error, CheckpointError::RankFailed { rank, .. } if *rank == failing), "{error}");
}

#[test]
fn a_buffer_of_the_wrong_length_on_one_rank() {
    let storage = memory();
    on_ranks(3, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let error = save_with(&mut run, &rank, 1, 1, |request| {
            if rank.rank() == 1 {
                request.data.insert("norm", &[0; 3]);
            }
        })
        .unwrap_err();
        assert_eq!(error.state, CommitState::NotCommitted);
        assert!(error.to_string().contains("`norm`: its local buffer has 3 bytes"), "{error}");
        if rank.rank() != 1 {
            failed_on(&error.source, 1, ErrorKind::Invalid);
        }
        save(&mut run, &rank, 1).unwrap();
        resume_and_check(&mut run, &rank, 1);
    });
}

#[test]
fn a_model_tensor_that_the_sharding_forgot() {
    let storage = memory();
    let keys = ["h.0.w", "h.1.w", "norm"].map(str::to_owned);
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let error = save_with(&mut run, &rank, 1, 1, |request| {
            if rank.rank() == 1 {
                // Static for the request's sake.
                request.model_keys = Box::leak(Box::new(keys.clone()));
            }
        })
        .unwrap_err();
        assert!(error.to_string().contains("`h.1.w`"), "{error}");
        if rank.rank() == 0 {
            failed_on(&error.source, 1, ErrorKind::Invalid);
        }
    });
    assert_eq!(paths(&storage, ""), Vec::<String>::new());
}

#[test]
fn a_wanted_tensor_that_is_not_there_on_one_rank() {
    let storage = memory();
    saved(&storage, &[1]);
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let mut target = dict(rank.rank(), 2);
        if rank.rank() == 1 {
            let builder = ShardedTensor::builder(DType::F32, [4]).regions(Region::whole(&[4]).unwrap());
            target.insert("extra", builder.build("extra").unwrap()).unwrap();
        }
        let error = run.resume_from_checkpoint(&rank, ResumeRequest::new(&target)).unwrap_err();
        assert!(error.to_string().contains("`extra`"), "{error}");
        if rank.rank() == 0 {
            failed_on(&error, 1, ErrorKind::Incompatible);
        }
        resume_and_check(&mut run, &rank, 1);
    });
}

#[test]
fn another_trainer_state_than_the_runs_own() {
    let storage = memory();
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let mut other = run.trainer_state(1, 8);
        other.ran_with = sizes(7);
        let other = &*Box::leak(Box::new(other));
        let error = save_with(&mut run, &rank, 1, 1, |request| request.trainer_state = other).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn one_rank_is_interrupted() {
    let inner = memory();
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupt);
    // In the middle of the save: at the first byte that is written.
    let storage = Hooked::before(&inner, move |operation, _| {
        flag.fetch_or(operation == Operation::Put, Ordering::SeqCst);
        Box::pin(async {})
    });
    on_ranks(2, |rank| {
        let flag = (rank.rank() == 1).then(|| Arc::clone(&interrupt));
        let rules = MeetingRules { interrupt: flag, ..meetings() };
        let checkpoint = checkpoint(&storage, rules);
        let mut run = TrainingRun::new(checkpoint, model(), sizes(2), Retention::All).unwrap();
        let error = save(&mut run, &rank, 1).unwrap_err();
        assert_eq!((error.state, error.source.kind()), (CommitState::NotCommitted, ErrorKind::Interrupted));
        match rank.rank() {
            1 => assert!(matches!(error.source, CheckpointError::Interrupted), "{error}"),
            _ => failed_on(&error.source, 1, ErrorKind::Interrupted),
        }
        if rank.rank() == 0 {
            assert_eq!(paths(&inner, ""), Vec::<String>::new());
        }
        let error = resume(&mut run, &rank).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    });
    // The flag is the caller's to take back.
    on_ranks(2, |rank| {
        let mut run = run(&inner, &rank, Retention::All);
        save(&mut run, &rank, 1).unwrap();
        resume_and_check(&mut run, &rank, 1);
    });
}

#[test]
fn one_rank_resumes_while_the_others_save() {
    let storage = memory();
    saved(&storage, &[1]);
    on_ranks(3, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let error = match rank.rank() {
            2 => resume(&mut run, &rank).unwrap_err(),
            _ => save(&mut run, &rank, 2).unwrap_err().source,
        };
        let text = error.to_string();
        assert!(matches!(error, CheckpointError::Disagreement { rank: 0, other_rank: 2, .. }), "{text}");
        assert!(text.contains("save_checkpoint") && text.contains("resume_from_checkpoint"), "{text}");
        // Together again.
        save(&mut run, &rank, 2).unwrap();
        resume_and_check(&mut run, &rank, 2);
    });
}

#[test]
fn ranks_want_different_iterations() {
    let storage = memory();
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let error = save(&mut run, &rank, 5 + rank.rank() as u64).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("iter_0000005") && text.contains("iter_0000006"), "{text}");
    });
    assert_eq!(paths(&storage, ""), Vec::<String>::new());
}

fn gone(error: &CheckpointError, departed: Departure) {
    let CheckpointError::Collective(CollectiveError::PeerGone { rank, cause }) = error else {
        panic!("{error}");
    };
    assert_eq!((*rank, *cause), (2, departed));
}

#[test]
fn a_rank_that_is_dropped_fails_the_others_now_and_later() {
    let storage = memory();
    on_ranks(3, |rank| {
        if rank.rank() == 2 {
            return;
        }
        let mut run = run(&storage, &rank, newest(1, 0));
        let error = save(&mut run, &rank, 1).unwrap_err();
        assert_eq!(error.state, CommitState::NotCommitted);
        gone(&error.source, Departure::Dropped);
        gone(&save(&mut run, &rank, 1).unwrap_err().source, Departure::Dropped);
        gone(&resume(&mut run, &rank).unwrap_err(), Departure::Dropped);
    });
}

#[test]
fn a_rank_that_panics_midway_fails_the_others_now_and_later() {
    let storage = memory();
    saved(&storage, &[1]);
    let resume_on = |rank: &ThreadRank, run: &mut TrainingRun| {
        let target = dict(rank.rank(), 3);
        let mut request = ResumeRequest::new(&target);
        let panics = rank.rank() == 2;
        let check = |_, _: Option<&_>| if panics { panic!("on purpose") } else { Ok(()) };
        request.load.check = Some(&check);
        run.resume_from_checkpoint(rank, request).map(drop)
    };
    on_ranks(3, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        if rank.rank() == 2 {
            assert!(catch_unwind(AssertUnwindSafe(move || resume_on(&rank, &mut run))).is_err());
            return;
        }
        gone(&resume_on(&rank, &mut run).unwrap_err(), Departure::Panicked);
        gone(&save(&mut run, &rank, 2).unwrap_err().source, Departure::Panicked);
    });
    assert_eq!(committed(&storage), [1]);
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    let storage = memory();
    let others_are_done = Barrier::new(3);
    on_ranks(3, |rank| {
        if rank.rank() == 1 {
            others_are_done.wait();
            return;
        }
        let rules = MeetingRules { deadline: Duration::from_millis(300), ..meetings() };
        let checkpoint = checkpoint(&storage, rules);
        let mut run = TrainingRun::new(checkpoint, model(), sizes(3), Retention::All).unwrap();
        let error = save(&mut run, &rank, 1).unwrap_err().source;
        let CheckpointError::Collective(CollectiveError::Deadline { missing, .. }) = &error else {
            panic!("{error}");
        };
        assert_eq!(missing[..], [1], "{error}");
        others_are_done.wait();
    });
}
