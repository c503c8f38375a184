//! What is kept, and in what order the rest goes.

use crate::harness::*;
use crate::hooked::Hooked;
use reshard::checkpoint::ErrorKind;
use reshard::collective::Collective;
use reshard::format::{Commit, DeletedCheckpoint, Iteration};
use reshard::storage::{
    Fault, Faulty, Meter, Metered, OpenOptions, Operation, Rule, StoragePath, When, open,
};
use reshard::training::{Retention, TrainingRun};
use std::sync::Arc;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(60);

/// Saves from two ranks and waits for the pruning each time; all notes and lines of rank 0, save by save.
fn save_and_settle(storage: &Store, retention: Retention, iterations: &[u64]) -> Vec<Vec<String>> {
    let mut lines = on_ranks(2, |rank| {
        let mut run = run(storage, &rank, retention);
        let mut lines = Vec::new();
        for &iteration in iterations {
            let mut of_save = save(&mut run, &rank, iteration).unwrap().notes;
            of_save.extend(run.finish(BOUND));
            lines.push(of_save);
        }
        lines
    });
    assert!(lines[1].iter().all(Vec::is_empty), "only rank 0 prunes");
    lines.remove(0)
}

#[test]
fn the_newest_two_and_every_thirtieth_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let disk = open(directory.path().to_str().unwrap(), &OpenOptions::new()).unwrap();
    for storage in [memory(), disk] {
        let lines = save_and_settle(&storage, newest(2, 30), &[10, 20, 30, 40, 50, 60, 70]);
        assert_eq!(committed(&storage), [70, 60, 30]);
        let pruned = |save: usize| lines[save].iter().map(String::as_str).collect::<Vec<_>>().join(" ");
        assert_eq!((pruned(0), pruned(1)), (String::new(), String::new()));
        assert!(lines[2].len() == 1 && pruned(2).contains("pruned iteration 10"), "{lines:?}");
        assert_eq!((pruned(4), pruned(5)), (String::new(), pruned(6).replace("50", "40")));
        assert!(pruned(6).contains("pruned iteration 50:"), "30 stays, 40 goes, then 50: {lines:?}");
        for gone in ["iter_0000010", "iter_0000020", "iter_0000040", "iter_0000050"] {
            assert_eq!(paths(&storage, gone), [format!("{gone}/commit.json")]);
        }
        on_ranks(2, |rank| {
            let mut run = run(&storage, &rank, Retention::All);
            resume_and_check(&mut run, &rank, 70);
            let resumed =
                resume_with(&mut run, &rank, |request| request.load.iteration = Some(Iteration(30)));
            check(&resumed.unwrap().unwrap(), &rank, 30);
        });
    }
}

#[test]
fn notes_come_with_the_next_save_where_nobody_waits() {
    let storage = memory();
    on_ranks(1, |rank| {
        let mut run = run(&storage, &rank, newest(1, 0));
        let mut all = Vec::new();
        for step in 1..=5 {
            all.extend(save(&mut run, &rank, step).unwrap().notes);
        }
        all.extend(run.finish(BOUND));
        // A pruning that a save found still under way is made up for by a later one; none is told of twice.
        for step in 1..=3 {
            let told =
                all.iter().filter(|line| line.starts_with(&format!("pruned iteration {step}:"))).count();
            assert!(told <= 1, "{all:?}");
        }
        save(&mut run, &rank, 6).unwrap();
        run.finish(BOUND);
        assert_eq!(committed(&storage), [6]);
    });
}

/// The mark comes before the first delete, the proof of the newer checkpoint before the mark, and siblings whose names
/// begin alike are not touched.
#[test]
fn a_commit_is_marked_before_anything_is_deleted() {
    let inner = memory();
    // Nine digits beside eight: one directory's name is the other's beginning.
    let (old, new) = (12_345_678, 123_456_789);
    saved(&inner, &[old]);
    let sibling = "iter_123456789";
    let meter = Meter::recording();
    let storage: Store = Arc::new(Metered::new(Arc::clone(&inner), Arc::clone(&meter)));
    let foreign = StoragePath::parse("iter_12345678/notes.txt").unwrap();
    wait(inner.put(&foreign, bytes::Bytes::from_static(b"mine").into())).unwrap();
    let before: Vec<String> = paths(&inner, "iter_12345678");
    save_and_settle(&storage, newest(1, 0), &[new]);

    let records = meter.take_records();
    let position = |what: &str, found: &dyn Fn(&reshard::storage::Record, &str) -> bool| {
        let path = |record: &reshard::storage::Record| {
            record.path.as_ref().map(ToString::to_string).unwrap_or_default()
        };
        records.iter().position(|record| found(record, &path(record))).unwrap_or_else(|| panic!("no {what}"))
    };
    let committed_at = position("commit", &|record, path| {
        record.operation == Operation::PutIf && path == format!("{sibling}/commit.json")
    });
    let marked = position("mark", &|record, path| {
        record.operation == Operation::PutIf && path == "iter_12345678/commit.json"
    });
    let deleted = position("delete", &|record, _| record.operation == Operation::Delete);
    let verified = records
        .iter()
        .skip(committed_at)
        .position(|record| {
            record.operation == Operation::List
                && record
                    .path
                    .as_ref()
                    .is_some_and(|path| path.as_str().starts_with(&format!("{sibling}/attempt-")))
        })
        .unwrap()
        + committed_at;
    assert!(committed_at < verified && verified < marked && marked < deleted);
    for record in &records {
        if record.operation == Operation::Delete {
            let path = record.path.as_ref().unwrap().as_str();
            assert!(path.starts_with("iter_12345678/attempt-"), "{path}");
        }
    }
    assert!(before.len() > 3);
    assert_eq!(paths(&inner, "iter_12345678"), ["iter_12345678/commit.json", "iter_12345678/notes.txt"]);
    on_ranks(1, |rank| {
        resume_and_check(&mut run(&inner, &rank, Retention::All), &rank, new);
    });
}

#[test]
fn a_failed_prune_is_a_note_and_the_next_save_finishes_it() {
    for (operation, path) in [
        (Operation::Delete, "iter_0000001"),
        (Operation::PutIf, "iter_0000001/commit"),
        (Operation::ReadAll, "iter_0000001/commit"),
        (Operation::List, "iter_0000001"),
    ] {
        let inner = memory();
        saved(&inner, &[1, 2]);
        let rule = Rule::on(operation, When::First(1), Fault::Refused).path(path);
        let storage: Store = Arc::new(Faulty::new(Arc::clone(&inner), 0, [rule]));
        let lines = save_and_settle(&storage, newest(2, 0), &[3, 4]);
        assert!(
            lines[0].len() == 1 && lines[0][0].contains("iteration 1 was not pruned"),
            "{operation}: {lines:?}"
        );
        assert!(lines[1].iter().any(|line| line.contains("pruned iteration 1:")), "{operation}: {lines:?}");
        assert_eq!(committed(&inner), [4, 3]);
        assert_eq!(paths(&inner, "iter_0000001"), ["iter_0000001/commit.json"]);
        assert_eq!(paths(&inner, "iter_0000002"), ["iter_0000002/commit.json"]);
    }
}

/// Whatever request is the last one before the process dies, what remains is whole or marked, and a later run finishes.
#[test]
fn an_interrupted_prune_leaves_a_whole_checkpoint_or_a_mark() {
    for last in 1.. {
        let inner = memory();
        saved(&inner, &[1, 2, 3]);
        let saves = Rule::on_any(When::Nth(last), Fault::Stop).path("iter_0000001");
        let storage: Store = Arc::new(Faulty::new(Arc::clone(&inner), 0, [saves]));
        let lines = save_and_settle(&storage, newest(2, 0), &[4]);
        let finished = lines[0].iter().any(|line| line.contains("pruned iteration 1:"));
        let expected: &[u64] = match (paths(&inner, "iter_0000001").len(), finished) {
            (1, _) => &[4, 3],
            _ if committed(&inner).contains(&1) => &[4, 3, 2, 1],
            _ => &[4, 3, 2],
        };
        if !finished {
            assert_eq!(committed(&inner), expected, "after request {last}");
            for iteration in expected {
                on_ranks(1, |rank| {
                    let mut run = run(&inner, &rank, Retention::All);
                    let resumed = resume_with(&mut run, &rank, |request| {
                        request.load.iteration = Some(Iteration(*iteration));
                    });
                    check(&resumed.unwrap().unwrap(), &rank, *iteration);
                });
            }
        }
        save_and_settle(&inner, newest(2, 0), &[5]);
        assert_eq!(committed(&inner), [5, 4]);
        for gone in ["iter_0000001", "iter_0000002", "iter_0000003"] {
            assert_eq!(paths(&inner, gone), [format!("{gone}/commit.json")], "after request {last}");
        }
        if finished {
            assert!(last > 4, "the sweep has to meet every request");
            return;
        }
    }
}

#[test]
fn pinned_and_resumed_iterations_stay() {
    let storage = memory();
    saved(&storage, &[1, 2, 3, 4]);
    checkpoint(&storage, meetings()).pin(Iteration(2), "best").unwrap();
    on_ranks(2, |rank| {
        let mut run = run(&storage, &rank, newest(1, 0));
        assert_eq!(resume_and_check(&mut run, &rank, 4).iteration.0, 4);
        for step in [5, 6] {
            save(&mut run, &rank, step).unwrap();
            assert!(run.finish(BOUND).iter().all(|line| line.starts_with("pruned iteration")));
        }
    });
    assert_eq!(committed(&storage), [6, 4, 2]);
    checkpoint(&storage, meetings()).unpin(Iteration(2), "best").unwrap();
    save_and_settle(&storage, newest(1, 0), &[7]);
    assert_eq!(committed(&storage), [7]);
}

/// A pin and a prune cannot cross: whichever moves the commit second sees the other.
#[test]
fn a_pin_that_comes_between_wins() {
    let inner = memory();
    saved(&inner, &[1]);
    let store = Arc::clone(&inner);
    let hooked = Hooked::before(&inner, move |operation, path| {
        let marking = operation == Operation::PutIf && path.as_str() == "iter_0000001/commit.json";
        let (inner, path) = (Arc::clone(&store), path.clone());
        Box::pin(async move {
            if marking {
                let (bytes, _) = inner.read_all(&path, 1 << 20).await.unwrap();
                let commit = Commit::parse("c", &bytes).unwrap().committed("c").unwrap();
                let pinned = commit.with_pins(["best".to_owned()].into()).unwrap();
                inner.put(&path, Commit::Committed(pinned).to_bytes().into()).await.unwrap();
            }
        })
    });
    let lines = save_and_settle(&hooked, newest(1, 0), &[2, 3]);
    assert!(lines[0].len() == 1 && lines[0][0].contains("changed by another writer"), "{lines:?}");
    assert!(lines[1].len() == 1 && lines[1][0].contains("pruned iteration 2:"), "{lines:?}");
    assert_eq!(committed(&inner), [3, 1]);
    on_ranks(1, |rank| {
        let mut run = run(&inner, &rank, Retention::All);
        let resumed = resume_with(&mut run, &rank, |request| request.load.iteration = Some(Iteration(1)));
        check(&resumed.unwrap().unwrap(), &rank, 1);
    });
}

#[test]
fn nothing_is_pruned_behind_a_checkpoint_that_is_not_whole() {
    let inner = memory();
    saved(&inner, &[1, 2]);
    // Once the new checkpoint is committed, one of its files is lost.
    let store = Arc::clone(&inner);
    let hooked = Hooked::before(&inner, move |operation, path| {
        let committing = operation == Operation::PutIf && path.as_str() == "iter_0000003/commit.json";
        let inner = Arc::clone(&store);
        Box::pin(async move {
            if committing {
                let prefix = StoragePath::parse("iter_0000003").unwrap();
                let listing = inner.list(Some(&prefix), reshard::storage::Depth::All).await.unwrap();
                let model = listing.objects.iter().find(|object| object.path.name().starts_with("model-"));
                inner.delete(&model.unwrap().path).await.unwrap();
            }
        })
    });
    let lines = save_and_settle(&hooked, newest(1, 0), &[3]);
    assert!(
        lines[0].len() == 1 && lines[0][0].contains("nothing was pruned behind iteration 3"),
        "{lines:?}"
    );
    assert!(lines[0][0].contains("is missing"), "{lines:?}");
    assert_eq!(committed(&inner), [3, 2, 1]);
}

#[test]
fn what_another_job_has_under_way_is_not_pruned() {
    let storage = memory();
    saved(&storage, &[5, 6]);
    let data = StoragePath::parse("iter_0000003/attempt-00112233445566778899aabbccddeeff/model.x").unwrap();
    wait(storage.put(&data, bytes::Bytes::from_static(b"data").into())).unwrap();
    save_and_settle(&storage, newest(1, 0), &[7]);
    assert_eq!(paths(&storage, "iter_0000003"), [data.to_string()]);
    // Not either where it begins anew on an iteration that was removed: it read the mark that its commit goes over.
    let mark = Commit::Deleted(DeletedCheckpoint::new().unwrap()).to_bytes();
    wait(storage.put(&StoragePath::parse("iter_0000009/commit.json").unwrap(), mark.into())).unwrap();
    let data = StoragePath::parse("iter_0000009/attempt-00112233445566778899aabbccddeeff/model.x").unwrap();
    wait(storage.put(&data, bytes::Bytes::from_static(b"data").into())).unwrap();
    save_and_settle(&storage, newest(1, 0), &[8]);
    assert_eq!(paths(&storage, "iter_0000009").len(), 2);
}

#[test]
fn a_store_without_conditional_updates_refuses_when_it_is_configured() {
    let storage = Hooked::without_updates(&memory());
    on_ranks(2, |rank| {
        let checkpoint = checkpoint(&storage, meetings());
        let refused = TrainingRun::new(checkpoint, model(), sizes(2), newest(3, 0)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let mut run = run(&storage, &rank, Retention::All);
        let replaced = save_with(&mut run, &rank, 1, 1, |request| request.replace = true).unwrap_err();
        assert_eq!(replaced.source.kind(), ErrorKind::Unsupported, "{replaced}");
        save(&mut run, &rank, 1).unwrap();
        save(&mut run, &rank, 2).unwrap();
        let discarding = resume_with(&mut run, &rank, |request| {
            request.load.iteration = Some(Iteration(1));
            request.discard_newer = true;
        });
        assert_eq!(discarding.unwrap_err().kind(), ErrorKind::Unsupported);
        if rank.rank() == 0 {
            let pinned = run.checkpoint().pin(Iteration(1), "best").unwrap_err();
            assert_eq!(pinned.kind(), ErrorKind::Unsupported);
        }
        resume_and_check(&mut run, &rank, 2);
    });
}
