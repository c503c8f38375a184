//! Where a wanted tensor may differ in shape from the saved one: padding at the end of the axes that allow it.

use super::PlanError;
use crate::format::SavedTensor;
use reshard_shard::{Dims, Region, ShardedTensor};

/// Checks the shapes of a saved and a wanted tensor and returns the part of the wanted one that has saved data:
/// the smaller size on each axis. What lies outside is zero-filled.
///
/// A larger target is filled with zeros past the saved end. A smaller one drops saved rows, but never below the
/// logical shape, which one side must know.
pub(crate) fn filled_shape(
    key: &str,
    saved: &SavedTensor,
    wanted: &ShardedTensor,
) -> Result<Dims, PlanError> {
    let error = |why: String| PlanError::Shape {
        key: key.to_owned(),
        saved: saved.global_shape.clone(),
        wanted: wanted.global_shape().clone(),
        why,
    };
    if saved.global_shape.len() != wanted.global_shape().len() {
        return Err(error("the number of axes differs".into()));
    }
    if let (Some(a), Some(b)) = (&saved.logical_shape, wanted.logical_shape())
        && a != b
    {
        return Err(error(format!("without padding it is {a:?} in the checkpoint and {b:?} here")));
    }
    let logical = saved.logical_shape.as_ref().or(wanted.logical_shape());
    let mut filled = Dims::new();
    for (axis, (&have, &want)) in saved.global_shape.iter().zip(wanted.global_shape()).enumerate() {
        filled.push(have.min(want));
        if have == want {
            continue;
        }
        if !wanted.padded_axes().contains(&axis) {
            return Err(error(format!("axis {axis} may not be padded")));
        }
        match logical.map(|logical| logical[axis]) {
            Some(size) if want < size || have < size => {
                return Err(error(format!(
                    "axis {axis} has {size} rows of data, and padding never goes below that"
                )));
            }
            None if want < have => {
                return Err(error(format!(
                    "axis {axis} would shrink, and neither side says how many of its rows are data; state the logical shape"
                )));
            }
            _ => {}
        }
    }
    Ok(filled)
}

/// The part of `region` inside `filled` (where there is one), and the boxes that tile the rest.
pub(crate) fn split_at_padding(region: &Region, filled: &[u64]) -> (Option<Region>, Vec<Region>) {
    let mut outside = Vec::new();
    let mut inside = region.clone();
    for (axis, &end) in filled.iter().enumerate() {
        outside.extend(inside.clip(axis, end, u64::MAX));
        match inside.clip(axis, 0, end) {
            Some(rest) => inside = rest,
            None => return (None, outside),
        }
    }
    (Some(inside), outside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_shard::prove_tiling;

    proptest! {
        #[test]
        fn inside_and_outside_tile_the_region(
            at in (0u64..6, 0u64..6, 1u64..6, 1u64..6), filled in (0u64..8, 0u64..8),
        ) {
            let region = Region::new([at.0, at.1], [at.2, at.3]).unwrap();
            let filled = [filled.0, filled.1];
            let (inside, outside) = split_at_padding(&region, &filled);
            prop_assert!(prove_tiling([&region], inside.iter().chain(&outside)).is_ok());
            if let Some(inside) = inside { prop_assert!(inside.check_within(&filled).is_ok()); }
            for part in outside { prop_assert!((0..2).any(|axis| part.offset()[axis] >= filled[axis])); }
        }
    }
}
