use super::PlanError;
use globset::{Glob, GlobSet, GlobSetBuilder};
use reshard_shard::StateGroup;

/// Which part of a checkpoint a load wants. What is not selected is not read, costs nothing and is never
/// "unexpected".
#[derive(Clone, Debug)]
pub struct Select {
    model: bool,
    optimizer: bool,
    objects: bool,
    keys: Option<GlobSet>,
}

impl Default for Select {
    fn default() -> Self {
        Self::all()
    }
}

impl Select {
    /// Everything.
    pub fn all() -> Self {
        Self { model: true, optimizer: true, objects: true, keys: None }
    }

    /// One group of tensors: the model without the optimizer, for evaluation, or the other way round. Per-rank
    /// objects are left out.
    pub fn group(group: StateGroup) -> Self {
        Self {
            model: group == StateGroup::Model,
            optimizer: group == StateGroup::Optimizer,
            objects: false,
            keys: None,
        }
    }

    /// Trainer state alone: no tensor and no per-rank object.
    pub fn trainer_state() -> Self {
        Self { model: false, optimizer: false, objects: false, keys: None }
    }

    /// Only keys that match one of the globs (`*` stops at nothing: separators have no meaning in keys).
    ///
    /// # Errors
    /// [`PlanError::Glob`] for a pattern that is not a glob.
    pub fn keys<'a>(mut self, globs: impl IntoIterator<Item = &'a str>) -> Result<Self, PlanError> {
        let mut set = GlobSetBuilder::new();
        for pattern in globs {
            let bad = |source| PlanError::Glob { pattern: pattern.to_owned(), source };
            set.add(Glob::new(pattern).map_err(bad)?);
        }
        let bad = |source| PlanError::Glob { pattern: String::new(), source };
        self.keys = Some(set.build().map_err(bad)?);
        Ok(self)
    }

    /// Whether a tensor is selected.
    pub fn wants(&self, key: &str, group: StateGroup) -> bool {
        let group = match group {
            StateGroup::Model => self.model,
            StateGroup::Optimizer => self.optimizer,
        };
        group && self.keys.as_ref().is_none_or(|keys| keys.is_match(key))
    }

    /// Whether per-rank objects are selected.
    pub fn wants_objects(&self) -> bool {
        self.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_globs_both_must_match() {
        let select = Select::group(StateGroup::Model).keys(["h.[0-3].*", "wte*"]).unwrap();
        assert!(select.wants("h.2.attn.weight", StateGroup::Model));
        assert!(!select.wants("h.2.attn.weight", StateGroup::Optimizer));
        assert!(!select.wants("h.12.attn.weight", StateGroup::Model));
        assert!(select.wants("wte/weight", StateGroup::Model));
        assert!(!select.wants_objects() && Select::all().wants_objects());
        assert!(!Select::trainer_state().wants("wte", StateGroup::Model));
        assert!(matches!(Select::all().keys(["h.["]), Err(PlanError::Glob { .. })));
    }
}
