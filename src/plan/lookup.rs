//! Which saved tensor fills a wanted one, tied weights included.

use super::PlanError;
use crate::format::{SavedLayout, SavedTensor};
use reshard_shard::{ShardedStateDict, ShardedTensor};
use std::collections::BTreeMap;

/// For tied weights whose copies were saved apart: which saved key fills the one tensor that both share now.
/// The key is that of the tensor that owns the storage in the target, the value the saved key that wins.
pub type TieWinners = BTreeMap<String, String>;

/// Names that shared one storage when they were saved, where the checkpoint does not say so, as other tools' don't:
/// alias to owner, which must be a saved key. A tensor that is stored under its own name is always filled from there; a
/// tie only finds what was saved under one of the names (a moment of a shared parameter, the weight of an output head).
pub type SavedTies = BTreeMap<String, String>;

/// The saved tensor that holds the bytes of `key`, after following an alias.
pub(crate) fn stored<'a>(saved: &'a SavedLayout, key: &'a str) -> Option<(&'a str, &'a SavedTensor)> {
    let tensor = saved.tensors.get(key)?;
    match &tensor.alias_of {
        None => Some((key, tensor)),
        Some(owner) => saved.tensors.get(owner).map(|tensor| (owner.as_str(), tensor)),
    }
}

/// What a checkpoint says, and what its reader knows besides.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub(crate) saved: &'a SavedLayout,
    pub(crate) ties: &'a SavedTies,
}

/// Checks that the owners of the ties are saved.
pub(crate) fn check_ties(known: Known<'_>) -> Result<(), PlanError> {
    match known.ties.iter().find(|(_, owner)| !known.saved.tensors.contains_key(*owner)) {
        Some((alias, owner)) => Err(PlanError::SavedTie { alias: alias.clone(), owner: owner.clone() }),
        None => Ok(()),
    }
}

/// The saved key that fills the wanted tensor `key`.
///
/// A state of a parameter that was tied when it was saved is stored under one name only (a framework's optimizer
/// sees the shared tensor once), so the names that shared its storage are tried too.
pub(crate) fn source_key(known: Known<'_>, key: &str, wanted: &ShardedTensor) -> Option<String> {
    let saved = known.saved;
    if let Some((found, _)) = stored(saved, key) {
        return Some(found.to_owned());
    }
    let parameter = wanted.parameter().unwrap_or(key);
    shares_storage(known, parameter)
        .map(|other| renamed(key, parameter, other))
        .find_map(|other| stored(saved, &other).map(|(found, _)| found.to_owned()))
}

/// The other keys whose bytes are, or were when they were saved, those of `key`.
fn shares_storage<'a>(known: Known<'a>, key: &'a str) -> impl Iterator<Item = &'a str> {
    let owner = stored(known.saved, key).map(|(owner, _)| owner);
    let saved = known.saved.tensors.iter().filter_map(move |(other, tensor)| {
        let same =
            owner == Some(other.as_str()) || tensor.alias_of.is_some() && tensor.alias_of.as_deref() == owner;
        same.then_some(other.as_str())
    });
    let told_owner = known.ties.get(key).map_or(key, String::as_str);
    let told = known.ties.iter().filter(move |(_, owner)| *owner == told_owner);
    let told = told.flat_map(|(alias, owner)| [owner.as_str(), alias.as_str()]);
    saved.chain(told).filter(move |other| *other != key)
}

fn renamed(key: &str, from: &str, to: &str) -> String {
    key.replacen(from, to, 1)
}

/// A wanted tensor and the other saved copies that must equal it, because here they share one storage.
pub(crate) struct Tie {
    /// The saved key that fills the tensor.
    pub(crate) source: String,
    /// Saved keys whose bytes must be equal; empty where a winner was named.
    pub(crate) equals: Vec<String>,
    /// Saved keys that are accounted for by this tensor though they are not read.
    pub(crate) dropped: Vec<String>,
}

/// The aliases of every tensor that has some, in the order of their keys.
pub(crate) type Aliases<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// The aliases of a target by the tensor that owns their storage.
pub(crate) fn aliases(target: &ShardedStateDict) -> Aliases<'_> {
    let mut aliases = Aliases::new();
    for (alias, tensor) in target.iter() {
        if let Some(owner) = tensor.alias_of() {
            aliases.entry(owner).or_default().push(alias);
        }
    }
    aliases
}

/// How the wanted tensor `key`, which owns its storage, is filled, given the target's aliases of it (or of its
/// parameter, for an optimizer state).
pub(crate) fn resolve_tie(
    known: Known<'_>,
    aliases: &Aliases<'_>,
    winners: &TieWinners,
    key: &str,
    wanted: &ShardedTensor,
) -> Result<Option<Tie>, PlanError> {
    let owner = wanted.parameter().unwrap_or(key);
    let saved = known.saved;
    let source = source_key(known, key, wanted);
    let mut others: Vec<String> = Vec::new();
    let of = |owner: &str| aliases.get(owner).into_iter().flatten();
    let own = of(key).map(|alias| (*alias).to_owned());
    let derived = of(owner).filter(|_| owner != key).map(|alias| renamed(key, owner, alias));
    for tied_key in own.chain(derived) {
        if let Some((other, _)) = stored(saved, &tied_key)
            && source.as_deref() != Some(other)
            && !others.iter().any(|known| known == other)
        {
            others.push(other.to_owned());
        }
    }
    let Some(winner) = winners.get(owner) else {
        // The tensor itself may be missing under its own name and present under the alias's.
        let Some(source) = source.or_else(|| (!others.is_empty()).then(|| others.remove(0))) else {
            return Ok(None);
        };
        return Ok(Some(Tie { source, equals: others, dropped: Vec::new() }));
    };
    let wanted_source = renamed(key, owner, winner);
    let Some((found, _)) = stored(saved, &wanted_source) else {
        return Err(PlanError::TieWinner { owner: owner.to_owned(), winner: wanted_source });
    };
    let found = found.to_owned();
    let dropped = others.into_iter().chain(source).filter(|other| *other != found).collect();
    Ok(Some(Tie { source: found, equals: Vec::new(), dropped }))
}
