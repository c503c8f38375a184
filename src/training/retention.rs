use crate::format::Iteration;
use std::num::{NonZeroU64, NonZeroUsize};

/// Which committed iterations a run keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retention {
    /// All of them.
    #[default]
    All,
    /// The newest `keep`, the one just saved included.
    Newest {
        /// How many.
        keep: NonZeroUsize,
        /// Besides these, every iteration that this number divides.
        keep_every: Option<NonZeroU64>,
    },
}

impl Retention {
    /// Those of `committed` that are surplus once `saved` is committed, oldest first. Newer ones are never surplus and
    /// do not count: they are not of this run.
    pub(super) fn surplus(self, saved: Iteration, committed: &[Iteration]) -> Vec<Iteration> {
        let Self::Newest { keep, keep_every } = self else { return Vec::new() };
        let mut older: Vec<Iteration> = committed.iter().copied().filter(|it| *it < saved).collect();
        older.sort_unstable();
        older.truncate(older.len().saturating_sub(keep.get() - 1));
        older.retain(|iteration| keep_every.is_none_or(|every| iteration.0 % every.get() != 0));
        older
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the definition: an older iteration is kept for its place among the newest, or for its number.
        #[test]
        fn surplus_is_what_neither_rule_keeps(
            numbers in prop::collection::btree_set(0u64..60, 0..30),
            saved in 0u64..60,
            keep in 1usize..6,
            every in prop::option::of(1u64..12),
        ) {
            let committed: Vec<Iteration> = numbers.iter().rev().map(|&number| Iteration(number)).collect();
            let keep_every = every.and_then(NonZeroU64::new);
            let retention = Retention::Newest { keep: NonZeroUsize::new(keep).unwrap(), keep_every };
            let surplus = retention.surplus(Iteration(saved), &committed);
            for &iteration in &committed {
                let newer_here = numbers.iter().filter(|&&other| other > iteration.0 && other < saved).count() + 1;
                let kept = iteration.0 >= saved
                    || newer_here < keep
                    || every.is_some_and(|every| iteration.0 % every == 0);
                prop_assert_eq!(surplus.contains(&iteration), !kept, "{}", iteration);
            }
            prop_assert!(surplus.is_sorted());
            prop_assert_eq!(Retention::All.surplus(Iteration(saved), &committed), []);
        }
    }
}
