//! Tied weights: one storage under two names, when saved, when loaded, or both.

use crate::harness::{dict, errors, handle, load, memory, on_ranks, save_with, trainer_state};
use reshard::checkpoint::{Checkpoint, ErrorKind, LoadRequest, Options, SaveData, SaveRequest};
use reshard::collective::{Collective, Single};
use reshard::format::Iteration;
use reshard::plan::ObjectChoice;
use reshard::shard::{DType, ShardedStateDict, ShardedTensor, ShardedTensorBuilder, StateGroup};
use reshard::storage::StorageBackend;
use reshard_oracle::full_tensor;
use std::sync::Arc;

const STATES: [&str; 3] = ["", "m.", "v."];

fn tensor(state: &str, name: &str) -> ShardedTensorBuilder {
    let builder = ShardedTensor::builder(DType::F32, [6, 2]);
    if state.is_empty() { builder } else { builder.group(StateGroup::Optimizer).parameter(name) }
}

/// Two ranks, `first` on rank 0 and `second` on rank 1, as an embedding and a head on two pipeline stages.
fn apart(first: &str, second: &str) -> Vec<ShardedStateDict> {
    [first, second]
        .map(|name| {
            let keys = STATES.map(|state| format!("{state}{name}"));
            dict(STATES.iter().zip(&keys).map(|(state, key)| (key.as_str(), tensor(state, name))))
        })
        .into()
}

/// One rank with both names: `alias` shares the storage of `owner`, and the optimizer knows the owner only.
fn together(owner: &str, alias: &str) -> Vec<ShardedStateDict> {
    let keys = STATES.map(|state| format!("{state}{owner}"));
    let owned = STATES.iter().zip(&keys).map(|(state, key)| (key.as_str(), tensor(state, owner)));
    vec![dict(owned.chain([(alias, tensor("", alias).alias_of(owner))]))]
}

/// What is saved for a key: `source` decides, so that keys of one source are equal.
fn data(key: &str, source: &str) -> Vec<u8> {
    let state = STATES.iter().rev().find(|state| key.starts_with(**state)).unwrap();
    full_tensor(&format!("{state}{source}"), DType::F32, &[6, 2])
}

fn save(
    dicts: &[ShardedStateDict],
    local: impl Fn(usize, &str) -> Vec<u8> + Sync,
) -> Arc<dyn StorageBackend> {
    let storage = memory();
    save_with(&storage, 1, dicts, local).into_iter().for_each(|report| drop(report.unwrap()));
    storage
}

/// Both orders of the two names, so that nothing depends on which comes first.
const NAMES: [(&str, &str); 2] = [("a.wte", "z.head"), ("z.head", "a.wte")];

#[test]
fn tied_then_untied_fills_both_names_and_both_moments() {
    for (owner, alias) in NAMES {
        let storage = save(&together(owner, alias), |_, key| data(key, "one"));
        for (first, second) in NAMES {
            for (loaded, name) in
                load(&storage, &apart(first, second), |_| {}).into_iter().zip([first, second])
            {
                let loaded = loaded.unwrap();
                assert_eq!(loaded.tensors.len(), 3);
                for state in STATES {
                    let key = format!("{state}{name}");
                    assert_eq!(loaded.tensors[&key].as_ref(), data(&key, "one"), "{key}, saved as {owner}");
                }
            }
        }
    }
}

#[test]
fn tied_then_tied_needs_no_say_whichever_name_owns() {
    for (owner, alias) in NAMES {
        let storage = save(&together(owner, alias), |_, key| data(key, "one"));
        for (owner, alias) in NAMES {
            let loaded = load(&storage, &together(owner, alias), |_| {}).pop().unwrap().unwrap();
            // The alias has no bytes of its own.
            assert_eq!(loaded.tensors.len(), 3);
            for state in STATES {
                let key = format!("{state}{owner}");
                assert_eq!(loaded.tensors[&key].as_ref(), data(&key, "one"), "{key}");
            }
        }
    }
}

#[test]
fn untied_then_tied_needs_equal_bytes() {
    let source = |key: &str, differs: &str| if key == differs { "other" } else { "one" };
    for (first, second) in NAMES {
        let storage = save(&apart(first, second), |_, key| data(key, "one"));
        for (owner, alias) in NAMES {
            let loaded = load(&storage, &together(owner, alias), |_| {}).pop().unwrap().unwrap();
            assert_eq!(loaded.tensors[owner].as_ref(), data(owner, "one"));
        }
        // One moment that differs is enough, on every rank.
        let storage = save(&apart(first, second), |_, key| data(key, source(key, "v.z.head")));
        for (owner, alias) in NAMES {
            let mut dicts = together(owner, alias);
            dicts.push(ShardedStateDict::new());
            for error in errors(load(&storage, &dicts, |_| {})) {
                assert!(
                    error.contains(&format!("`v.{owner}`")) && error.contains("which saved key wins"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn a_named_winner_fills_the_tensor_and_its_moments() {
    for (first, second) in NAMES {
        let storage =
            save(&apart(first, second), |_, key| data(key, if key.contains("wte") { "wte" } else { "head" }));
        for (owner, alias) in NAMES {
            for winner in ["a.wte", "z.head"] {
                let named = |request: &mut LoadRequest<'_>| {
                    request.rules.tie_winners = [(owner.to_owned(), winner.to_owned())].into();
                };
                let loaded = load(&storage, &together(owner, alias), named).pop().unwrap().unwrap();
                for state in STATES {
                    let key = format!("{state}{owner}");
                    assert_eq!(
                        loaded.tensors[&key].as_ref(),
                        data(&key, &winner[2..]),
                        "{key} from {winner}"
                    );
                }
                // What lost is accounted for, and not read.
                assert!(loaded.report.unexpected.is_empty());
                assert_eq!(loaded.report.own.bytes_needed, 3 * 6 * 2 * 4);
            }
            let unknown = |request: &mut LoadRequest<'_>| {
                request.rules.tie_winners = [(owner.to_owned(), "b".to_owned())].into();
            };
            assert!(errors(load(&storage, &together(owner, alias), unknown))[0].contains("no such tensor"));
        }
    }
}

/// A file of another tool has the embedding only; the head was tied to it, says the caller.
#[test]
fn a_name_that_was_not_stored_is_filled_through_a_tie() {
    let storage = save(&[dict([("wte", tensor("", "wte"))])], |_, key| data(key, "one"));
    let dicts = [dict([("wte", tensor("", "wte"))]), dict([("head", tensor("", "head"))])];
    assert!(errors(load(&storage, &dicts, |_| {}))[0].contains("`head`"));
    let tied = |request: &mut LoadRequest<'_>| {
        request.rules.saved_ties = [("head".to_owned(), "wte".to_owned())].into();
    };
    let loaded = load(&storage, &dicts, tied).pop().unwrap().unwrap();
    assert_eq!(loaded.tensors["head"].as_ref(), data("wte", "one"));
}

#[test]
fn bytes_given_for_an_alias_must_be_its_owners() {
    let (owner, alias) = NAMES[0];
    let dicts = together(owner, alias);
    for (source, fits) in [("one", true), ("two", false)] {
        let trainer_state = trainer_state(1);
        let keys = STATES.map(|state| format!("{state}{owner}"));
        let buffers: Vec<Vec<u8>> = keys.iter().map(|key| data(key, "one")).collect();
        let bytes = data(alias, source);
        let mut own: SaveData<'_> =
            keys.iter().zip(&buffers).map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
        own.insert(alias, &bytes);
        let request = SaveRequest::new(Iteration(1), &dicts[0], own, &trainer_state);
        match handle(&memory()).save(&Single, request) {
            Ok(_) => assert!(fits),
            Err(error) => {
                assert!(!fits && error.source.kind() == ErrorKind::Invalid, "{error}");
                assert!(error.to_string().contains("`z.head` is an alias of `a.wte`"), "{error}");
            }
        }
    }
}

#[test]
fn a_staging_budget_that_is_too_small_is_the_callers_fault_and_says_what_is_enough() {
    let (owner, alias) = NAMES[0];
    let storage = save(&together(owner, alias), |_, key| data(key, "one"));
    let dicts = [together(owner, alias), together(owner, alias)].concat();
    let mut enough = 100;
    for is_enough in [false, true] {
        let texts = on_ranks(2, |rank| {
            let options = Options { staging_bytes: enough, ..Options::default() };
            let mut request = LoadRequest::new(&dicts[rank.rank()]);
            request.objects = ObjectChoice::Fresh;
            let error = match Checkpoint::new(Arc::clone(&storage), options).load(&rank, request) {
                Ok(_) => return String::new(),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            error.to_string()
        });
        if is_enough {
            assert_eq!(texts, ["", ""]);
        } else {
            let number = texts[0].rsplit_once("at least ").unwrap().1;
            enough = number.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
        }
    }
}
