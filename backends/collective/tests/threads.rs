//! Threads of one process: the conformance suite, and how a group fails.

#![allow(clippy::unwrap_used, reason = "functions that only tests call are tests too")]

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use reshard_collective::{
    Collective, CollectiveError, Deadline, Departure, Operation, Reduce, Single, ThreadRank, Threads,
    conformance,
};

/// Long enough that only a hang reaches it.
fn ample() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

fn past() -> Deadline {
    Deadline::after(Duration::ZERO)
}

/// Runs `program` on every rank of a new group; the results are in the order of ranks.
fn on_ranks<T: Send>(size: usize, program: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
    let program = &program;
    std::thread::scope(|scope| {
        let ranks = Threads::new(size).unwrap().into_iter();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || program(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn barrier_error(rank: &ThreadRank) -> CollectiveError {
    rank.barrier(ample()).unwrap_err()
}

#[test]
fn conforms() {
    conformance::run_rank(&Single, ample()).unwrap();
    for size in [1, 2, 3, 4, 7] {
        for result in on_ranks(size, |rank| conformance::run_rank(&rank, ample())) {
            result.unwrap();
        }
    }
}

#[test]
fn messages_are_shared_and_not_copied() {
    let message = Bytes::from(vec![7; 1 << 20]);
    let at = message.as_ptr() as usize;
    for got in on_ranks(3, |rank| rank.broadcast(0, message.clone(), ample()).unwrap().as_ptr() as usize) {
        assert_eq!(got, at);
    }
}

#[test]
fn a_dropped_handle_fails_the_call_under_way_and_every_later_one() {
    let mut ranks = Threads::new(3).unwrap();
    let leaver = ranks.remove(1);
    let gone = CollectiveError::PeerGone { rank: 1, cause: Departure::Dropped };
    std::thread::scope(|scope| {
        let waiting: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                scope.spawn(move || (barrier_error(&rank), rank.all_gather(Bytes::new(), ample()), rank))
            })
            .collect();
        drop(leaver);
        for thread in waiting {
            let (current, next, _rank) = thread.join().unwrap();
            assert_eq!(current, gone);
            assert_eq!(next.unwrap_err(), gone);
        }
    });
}

#[test]
fn a_meeting_that_was_complete_counts_though_a_rank_left_right_after() {
    for _ in 0..200 {
        for sum in on_ranks(3, |rank| rank.all_reduce(&[1], Reduce::Sum, ample())) {
            assert_eq!(sum.unwrap(), [3]);
        }
    }
}

#[test]
fn a_panic_names_the_rank() {
    let mut ranks = Threads::new(2).unwrap();
    let panics = ranks.pop().unwrap();
    let stays = ranks.pop().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let _held = panics;
            std::panic::resume_unwind(Box::new("out of luck"));
        });
        let gone = CollectiveError::PeerGone { rank: 1, cause: Departure::Panicked };
        assert_eq!(barrier_error(&stays), gone);
        assert!(thread.join().is_err());
        assert_eq!(barrier_error(&stays), gone);
    });
}

#[test]
fn a_deadline_names_the_laggards_and_they_learn_of_it() {
    let ranks = Threads::new(3).unwrap();
    let operation = Operation::Gather { root: 2 };
    let late = CollectiveError::Deadline { operation, rank: 1, missing: vec![0, 2] };
    assert_eq!(ranks[1].gather(2, Bytes::new(), past()).unwrap_err(), late);
    for rank in &ranks {
        assert_eq!(barrier_error(rank), late);
    }
}

#[test]
fn ranks_that_ran_apart_all_learn_who_called_what() {
    let errors = on_ranks(3, |rank| {
        let error = if rank.rank() == 1 {
            rank.broadcast(2, Bytes::new(), ample()).unwrap_err()
        } else {
            rank.all_reduce(&[1, 2], Reduce::Min, ample()).unwrap_err()
        };
        // It stays until the others have failed, so that none of them sees a departure.
        assert_eq!(barrier_error(&rank), error);
        (error, rank)
    });
    let reduce = Operation::AllReduce { reduce: Reduce::Min, words: 2 };
    let broadcast = Operation::Broadcast { root: 2 };
    let CollectiveError::Mismatch { rank, called, other_rank, other_called } = errors[0].0 else {
        panic!("{}", errors[0].0)
    };
    assert!(errors.iter().all(|(error, _)| *error == errors[0].0));
    if rank == 1 {
        assert_eq!((called, other_called), (broadcast, reduce));
        assert_ne!(other_rank, 1);
    } else {
        assert_eq!((called, other_called, other_rank), (reduce, broadcast, 1));
    }
}

#[test]
fn lengths_reductions_and_roots_must_agree() {
    type Call = fn(&ThreadRank) -> Result<(), CollectiveError>;
    let pairs: [(Call, Call); 4] = [
        (
            |rank| rank.all_reduce(&[1], Reduce::Sum, ample()).map(drop),
            |rank| rank.all_reduce(&[1, 2], Reduce::Sum, ample()).map(drop),
        ),
        (
            |rank| rank.all_reduce(&[1], Reduce::Sum, ample()).map(drop),
            |rank| rank.all_reduce(&[1], Reduce::Max, ample()).map(drop),
        ),
        (
            |rank| rank.broadcast(0, Bytes::new(), ample()).map(drop),
            |rank| rank.broadcast(1, Bytes::new(), ample()).map(drop),
        ),
        (
            |rank| rank.gather(0, Bytes::new(), ample()).map(drop),
            |rank| rank.gather(1, Bytes::new(), ample()).map(drop),
        ),
    ];
    for (first, second) in pairs {
        let results = on_ranks(2, |rank| {
            let call = if rank.rank() == 0 { first } else { second };
            (call(&rank).unwrap_err(), rank)
        });
        assert!(results.iter().all(|(error, _)| matches!(error, CollectiveError::Mismatch { .. })));
        assert_eq!(results[0].0, results[1].0);
    }
}

#[test]
fn a_call_that_is_wrong_by_itself_fails_all() {
    let ranks = Threads::new(2).unwrap();
    let operation = Operation::Broadcast { root: 2 };
    let wrong = CollectiveError::NoSuchRoot { rank: 0, operation, size: 2 };
    assert_eq!(ranks[0].broadcast(2, Bytes::new(), ample()).unwrap_err(), wrong);
    assert_eq!(barrier_error(&ranks[1]), wrong);

    let ranks = Threads::new(2).unwrap();
    let wrong = CollectiveError::WrongMessageCount { rank: 1, messages: 3, size: 2 };
    assert_eq!(ranks[1].all_to_all(vec![Bytes::new(); 3], ample()).unwrap_err(), wrong);
    assert_eq!(barrier_error(&ranks[0]), wrong);

    assert_eq!(Threads::new(0).unwrap_err(), CollectiveError::EmptyGroup);
    assert!(Single.gather(1, Bytes::new(), ample()).is_err());
    assert!(Single.all_to_all(vec![], ample()).is_err());
}

#[test]
fn the_first_failure_stands() {
    let mut ranks = Threads::new(3).unwrap();
    let operation = Operation::Barrier;
    let late = CollectiveError::Deadline { operation, rank: 2, missing: vec![0, 1] };
    assert_eq!(ranks[2].barrier(past()).unwrap_err(), late);
    ranks.remove(0);
    assert_eq!(ranks[0].all_gather(Bytes::new(), ample()).unwrap_err(), late);
}

#[test]
fn a_subgroup_names_ranks_of_the_first_group_and_leaves_the_whole_alone() {
    on_ranks(4, |rank| {
        let color = rank.rank() as u64 % 2;
        let part = rank.split(color, 0, ample()).unwrap();
        if rank.rank() == 3 {
            drop(part);
        } else if rank.rank() == 1 {
            let gone = CollectiveError::PeerGone { rank: 3, cause: Departure::Dropped };
            assert_eq!(part.barrier(ample()).unwrap_err(), gone);
        } else {
            part.barrier(ample()).unwrap();
        }
        rank.barrier(ample()).unwrap();
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whichever rank breaks off, after however many rounds: all return, all with the same cause.
    #[test]
    fn one_rank_breaking_off_ends_all(size in 2usize..6, breaker in 0usize..6, rounds in 0usize..20, panics: bool) {
        let breaker = breaker % size;
        let ends = on_ranks(size, |rank| {
            for round in 0.. {
                if rank.rank() == breaker && round == rounds {
                    if panics {
                        let _ = std::thread::scope(|scope| {
                            let thread = scope.spawn(move || {
                                let _held = rank;
                                std::panic::resume_unwind(Box::new(()));
                            });
                            thread.join()
                        });
                    }
                    return None;
                }
                if let Err(error) = rank.all_gather(Bytes::from(vec![0; round]), ample()) {
                    return Some((round, error));
                }
            }
            None
        });
        let cause = if panics { Departure::Panicked } else { Departure::Dropped };
        for (rank, end) in ends.into_iter().enumerate() {
            let want = (rank != breaker).then_some((rounds, CollectiveError::PeerGone { rank: breaker, cause }));
            prop_assert_eq!(end, want);
        }
    }
}
