//! Two jobs that save one iteration at once, and saves that go over a live one.

use crate::harness::*;
use crate::hooked::Hooked;
use reshard::checkpoint::{CheckpointError, CommitState, ErrorKind, SaveError, SaveReport};
use reshard::collective::Collective;
use reshard::storage::Operation;
use reshard::training::Retention;
use std::sync::{Arc, Barrier};
use tokio::sync::watch;

type Results = Vec<Result<SaveReport, SaveError>>;

/// A job of two ranks that saves iteration 5.
fn job(storage: &Store, content: u64, replace: bool) -> Results {
    on_ranks(2, |rank| {
        let mut run = run(storage, &rank, Retention::All);
        save_with(&mut run, &rank, 5, content, |request| request.replace = replace)
    })
}

fn loads(storage: &Store, content: u64) {
    on_ranks(3, |rank| {
        resume_and_check(&mut run(storage, &rank, Retention::All), &rank, content);
    });
}

#[test]
fn of_two_jobs_at_once_one_wins() {
    for _ in 0..8 {
        let storage = memory();
        let start = Barrier::new(2);
        let results: Vec<(u64, Results)> = std::thread::scope(|scope| {
            let start_job = |content: u64| {
                let (storage, start) = (&storage, &start);
                scope.spawn(move || {
                    start.wait();
                    (content, job(storage, content, false))
                })
            };
            [start_job(100), start_job(200)].map(|thread| thread.join().unwrap()).into()
        });
        let winners: Vec<u64> = results
            .iter()
            .filter(|(_, results)| {
                let won = results.iter().filter(|result| result.is_ok()).count();
                assert!(won == 0 || won == 2, "all ranks of a job say the same: {results:?}");
                for error in results.iter().filter_map(|result| result.as_ref().err()) {
                    assert_eq!(error.state, CommitState::NotCommitted);
                    assert_eq!(error.source.kind(), ErrorKind::Conflict, "{error}");
                }
                won == 2
            })
            .map(|(content, _)| *content)
            .collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        loads(&storage, winners[0]);
        // The loser cleared up after itself.
        assert_eq!(paths(&storage, "iter_0000005").len(), 7);
    }
}

/// A store for a job whose commit comes only after the other job is done.
fn late(storage: &Store) -> (Store, watch::Sender<bool>) {
    let (done, is_done) = watch::channel(false);
    let hooked = Hooked::before(storage, move |operation, _| {
        let mut is_done = is_done.clone();
        Box::pin(async move {
            if operation == Operation::PutIf {
                is_done.wait_for(|done| *done).await.unwrap();
            }
        })
    });
    (hooked, done)
}

#[test]
fn a_commit_that_comes_late_is_lost_on_all_ranks() {
    for replace in [false, true] {
        let storage = memory();
        if replace {
            job(&storage, 1, false).into_iter().for_each(|result| drop(result.unwrap()));
        }
        let (slow, done) = late(&storage);
        // The slow job opens its attempt before the fast one commits.
        let opened = Arc::new(Barrier::new(2));
        let meet = Arc::clone(&opened);
        let slow = Hooked::before(&slow, move |operation, path| {
            let first = operation == Operation::Put && path.name().starts_with("model-00000");
            let meet = Arc::clone(&meet);
            Box::pin(async move {
                if first {
                    tokio::task::spawn_blocking(move || meet.wait()).await.unwrap();
                }
            })
        });
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| job(&slow, 100, replace));
            opened.wait();
            job(&storage, 200, replace).into_iter().for_each(|result| drop(result.unwrap()));
            done.send(true).unwrap();
            for (rank, result) in slow.join().unwrap().into_iter().enumerate() {
                let error = result.unwrap_err();
                assert_eq!(error.state, CommitState::NotCommitted, "{error}");
                match error.source {
                    CheckpointError::Lost { iteration: 5 } if rank == 0 => {}
                    CheckpointError::RankFailed { rank: 0, kind: ErrorKind::Conflict, .. } if rank == 1 => {}
                    other => panic!("rank {rank}: {other}"),
                }
            }
        });
        loads(&storage, 200);
    }
}

#[test]
fn a_live_iteration_is_replaced_only_when_asked() {
    let storage = memory();
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, Retention::All);
        save_with(&mut run, &rank, 5, 1, |_| {}).unwrap();
        let error = save_with(&mut run, &rank, 5, 2, |_| {}).unwrap_err();
        if rank.rank() == 0 {
            assert!(matches!(error.source, CheckpointError::Exists { iteration: 5 }), "{error}");
        }
        assert_eq!(error.source.kind(), ErrorKind::Conflict);
        resume_and_check(&mut run, &rank, 1);
        save_with(&mut run, &rank, 5, 2, |request| request.replace = true).unwrap();
        resume_and_check(&mut run, &rank, 2);
    });
}
