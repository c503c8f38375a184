use super::UnshardedTensor;
use super::bind::BoundTensor;
use super::pattern::{Globs, Template};
use super::sharding::Sharding;
use super::table::{OptimizerRules, StateRule};
use crate::{ShardError, StateGroup, Topology};
use std::sync::Arc;

/// Tells optimizer state from parameters and gives it its parameter's sharding.
pub(super) struct StateFinder {
    states: Vec<(Template, StateRule)>,
    scalars: Globs,
}

impl StateFinder {
    pub fn new(rules: &OptimizerRules) -> Result<Self, ShardError> {
        let state = |state: &StateRule| Ok((Template::new(&state.key, "{param}")?, state.clone()));
        Ok(Self {
            states: rules.states.iter().map(state).collect::<Result<_, ShardError>>()?,
            scalars: Globs::new([rules.scalars.as_slice()])?,
        })
    }

    /// The state rule that `key` fits and the index of its parameter; `None` where it fits none.
    ///
    /// # Errors
    /// [`ShardError::State`] where it fits, but its parameter is not there.
    pub fn parameter_of(
        &self,
        key: &str,
        index_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<Option<(usize, usize)>, ShardError> {
        let mut missing = None;
        for (rule, (template, _)) in self.states.iter().enumerate() {
            let Some(parameter) = template.whole(key) else { continue };
            match index_of(parameter) {
                Some(parameter) => return Ok(Some((rule, parameter))),
                None => missing = missing.or(Some(parameter)),
            }
        }
        match missing {
            Some(parameter) if !self.is_scalar(key) => {
                Err(state_error(key, parameter, "its parameter is not among the tensors"))
            }
            _ => Ok(None),
        }
    }

    /// Whether `key` is state that belongs to no parameter.
    pub fn is_scalar(&self, key: &str) -> bool {
        self.scalars.first(key).is_some()
    }

    /// The error for a state of something that is a state itself.
    pub fn not_a_parameter(&self, state: &UnshardedTensor, parameter: &UnshardedTensor) -> ShardError {
        state_error(&state.key, &parameter.key, "that is an optimizer state itself")
    }

    /// Binds a state. It shares the sharding of its parameter, or is a scalar on the parameter's ranks.
    pub fn bind(
        &self,
        rule: usize,
        tensor: &UnshardedTensor,
        owner: &BoundTensor,
        parameter: &UnshardedTensor,
        topology: &Topology,
        is_there: impl Fn(&str) -> bool,
    ) -> Result<BoundTensor, ShardError> {
        let (template, state) = &self.states[rule];
        let sharding = if state.scalar && tensor.global_shape.is_empty() {
            let Sharding { stage, expert, .. } = *owner.sharding;
            Arc::new(Sharding::whole(topology, stage, expert, tensor.global_shape.clone()))
        } else if !state.scalar && tensor.global_shape == parameter.global_shape {
            Arc::clone(&owner.sharding)
        } else {
            let why = if state.scalar { "its shape is not []" } else { "its shape is not the parameter's" };
            return Err(state_error(&tensor.key, &parameter.key, why));
        };
        let alias_of =
            owner.alias_of.as_deref().map(|target| template.fill(target)).filter(|key| is_there(key));
        Ok(BoundTensor {
            key: tensor.key.clone(),
            dtype: state.dtype.unwrap_or(tensor.dtype),
            sharding,
            alias_of,
            group: StateGroup::Optimizer,
            parameter: Some(parameter.key.clone()),
        })
    }
}

fn state_error(key: &str, parameter: &str, why: &'static str) -> ShardError {
    ShardError::State { key: key.to_owned(), parameter: parameter.to_owned(), why }
}
