use super::{ObjectChoice, PlanError};
use crate::format::{DataFileName, SavedLayout};
use std::collections::BTreeSet;

/// Which saved per-rank objects `rank` of a run of `world_size` ranks loads, as `(name, saving rank)`.
///
/// # Errors
/// [`PlanError::ObjectRanks`] where each rank should get its own and the run that saved them had another number of
/// ranks.
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
                let saved =
                    ranks.values().find_map(|object| world_size_of(saved, object.file)).unwrap_or(world_size);
                if saved != world_size {
                    return Err(PlanError::ObjectRanks { name: name.clone(), saved, running: world_size });
                }
                // A rank that saved none of this name gets none.
                chosen.extend(ranks.contains_key(&rank).then(|| (name.clone(), rank)));
            }
        }
    }
    Ok(chosen)
}

/// The number of ranks of the run that wrote a file, which its name says.
fn world_size_of(saved: &SavedLayout, file: u32) -> Option<u32> {
    let name: DataFileName = saved.files.get(file as usize)?.path.parse().ok()?;
    Some(name.world_size())
}
