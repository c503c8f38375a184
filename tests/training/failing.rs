//! A save that fails leaves the last checkpoint, nothing of its own, and a run that can save again.

use crate::harness::*;
use reshard::checkpoint::{CheckpointError, CommitState, ErrorKind, Options, SaveError};
use reshard::collective::{Collective, ThreadRank};
use reshard::storage::{Fault, Faulty, Operation, Rule, When};
use reshard::training::{Retention, TrainingRun};
use std::sync::Arc;
use std::time::Duration;

/// A run with so little staging memory that files are uploaded in parts.
fn in_parts(storage: &Store, rank: &ThreadRank) -> TrainingRun {
    let options = Options { staging_bytes: 1 << 20, meetings: meetings(), ..Options::default() };
    let checkpoint = reshard::checkpoint::Checkpoint::new(Arc::clone(storage), options);
    TrainingRun::new(checkpoint, model(), sizes(rank.size()), Retention::All).unwrap()
}

fn names_rank(error: &SaveError, failing: usize, own: usize) {
    match &error.source {
        CheckpointError::RankFailed { rank, cause, .. } => {
            assert_ne!(own, failing, "{error}");
            assert_eq!(*rank, failing, "{error}");
            assert!(cause.contains("fault injection"), "{error}");
        }
        other => assert!(own == failing && other.to_string().contains("fault injection"), "{error}"),
    }
}

#[test]
fn at_whatever_request_a_save_fails() {
    const PHASES: [(Operation, &str, usize); 10] = [
        (Operation::ReadAll, "iter_0000002/commit.json", 0),
        (Operation::StartUpload, "model-00001", 1),
        (Operation::PutPart, "model-00000", 0),
        (Operation::PutPart, "model-00001", 1),
        (Operation::CompleteUpload, "optimizer-00001", 1),
        (Operation::Put, "trainer_state.json", 0),
        (Operation::Put, "metadata.json", 0),
        (Operation::List, "iter_0000002/attempt-", 0),
        (Operation::PutIf, "iter_0000002/commit.json", 0),
        (Operation::List, "", 0),
    ];
    for (operation, path, failing) in PHASES {
        let inner = memory();
        saved(&inner, &[1]);
        let rule = Rule::on(operation, When::Nth(1), Fault::Refused).path(path);
        let storage: Store = Arc::new(Faulty::new(Arc::clone(&inner), 0, [rule]));
        on_ranks(2, |rank| {
            let mut run = in_parts(&storage, &rank);
            let error = save(&mut run, &rank, 2).unwrap_err();
            assert_eq!(error.state, CommitState::NotCommitted, "{operation} {path}: {error}");
            names_rank(&error, failing, rank.rank());
            // Rank 0 clears up before it returns; the others meet it in the next call.
            if rank.rank() == 0 {
                let left = paths(&inner, "iter_0000002");
                assert_eq!(left, Vec::<String>::new(), "{operation} {path}: {error}");
            }
            resume_and_check(&mut run, &rank, 1);
            save(&mut run, &rank, 2).unwrap();
            resume_and_check(&mut run, &rank, 2);
        });
    }
}

#[test]
fn a_lost_answer_to_the_commit_is_settled() {
    for fault in [Fault::LostRequest, Fault::LostAnswer] {
        let rule = Rule::on(Operation::PutIf, When::Nth(1), fault);
        let storage: Store = Arc::new(Faulty::new(memory(), 0, [rule]));
        on_ranks(2, |rank| {
            let mut run = run(&storage, &rank, Retention::All);
            save(&mut run, &rank, 2).unwrap();
            resume_and_check(&mut run, &rank, 2);
        });
    }
}

#[test]
fn a_commit_without_any_answer_is_unknown_on_all_ranks() {
    let inner = memory();
    saved(&inner, &[1]);
    let rule = Rule::on(Operation::PutIf, When::Always, Fault::LostRequest);
    let storage: Store = Arc::new(Faulty::new(Arc::clone(&inner), 0, [rule]));
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        let error = save_with(&mut run, &rank, 2, 2, |request| {
            request.commit_within = Duration::from_millis(200);
        })
        .unwrap_err();
        assert_eq!(error.state, CommitState::Unknown, "{error}");
        assert_eq!(error.source.kind(), ErrorKind::Unavailable, "{error}");
        // The put may still arrive, so what it names must stay.
        assert!(!paths(&inner, "iter_0000002").is_empty());
        resume_and_check(&mut run, &rank, 1);
    });
}
