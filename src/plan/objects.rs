use super::{ObjectChoice, PlanError};
use crate::format::SavedLayout;
use std::collections::BTreeSet;

/// Which saved per-rank objects `rank` of a run of `world_size` ranks loads, as `(name, saving rank)`.
///
/// # Errors
/// [`PlanError::ObjectRanks`] where each rank should get its own and an object was saved by another set of ranks
/// than `0..world_size`.
pub fn choose_objects(
    saved: &SavedLayout,
    choice: ObjectChoice,
    rank: u32,
    world_size: u32,
) -> Result<BTreeSet<(String, u32)>, PlanError> {
    let mut chosen = BTreeSet::new();
    for (name, ranks) in &saved.objects {
        match choice {
            ObjectChoice::Fresh => {}
            ObjectChoice::All => chosen.extend(ranks.keys().map(|&rank| (name.clone(), rank))),
            ObjectChoice::Own => {
                let same = ranks.keys().copied().eq(0..world_size);
                if !same {
                    let saved = ranks.keys().last().map_or(0, |&last| last + 1);
                    return Err(PlanError::ObjectRanks { name: name.clone(), saved, running: world_size });
                }
                chosen.insert((name.clone(), rank));
            }
        }
    }
    Ok(chosen)
}
