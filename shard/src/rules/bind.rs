use super::UnshardedTensor;
use super::pattern::{Globs, Template};
use super::sharding::Sharding;
use super::stage::StageFinder;
use super::state::StateFinder;
use super::table::{ExpertRule, Rule, Rules};
use super::zero::Zero;
use crate::topology::Digit;
use crate::{DType, ShardError, ShardedStateDict, ShardedTensor, StateGroup, Topology};
use std::collections::HashMap;
use std::sync::Arc;

/// Rules applied to the tensors of one model and one topology, for any of its ranks.
pub struct BoundRules {
    topology: Topology,
    tensors: Vec<BoundTensor>,
    zero: Option<Zero>,
}

/// A tensor with its sharding.
pub(super) struct BoundTensor {
    pub key: String,
    pub dtype: DType,
    pub sharding: Arc<Sharding>,
    pub alias_of: Option<String>,
    pub group: StateGroup,
    pub parameter: Option<String>,
}

impl Rules {
    /// Finds the rule, the stage and the sharding of every tensor.
    ///
    /// # Errors
    /// - [`ShardError::Rules`] where the table contradicts itself or says nothing;
    /// - [`ShardError::NoRule`], [`ShardError::NoStage`], [`ShardError::Layer`], [`ShardError::State`],
    ///   [`ShardError::DuplicateKey`] naming the key;
    /// - [`ShardError::Cut`] naming key, size and rule where a size does not divide;
    /// - [`ShardError::RuleAxes`], [`ShardError::UnknownAxis`] for mesh axes.
    pub fn bind<T: Into<UnshardedTensor>>(
        &self,
        tensors: impl IntoIterator<Item = T>,
        topology: &Topology,
    ) -> Result<BoundRules, ShardError> {
        let tensors: Vec<UnshardedTensor> = tensors.into_iter().map(Into::into).collect();
        let mut by_key = HashMap::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            if by_key.insert(tensor.key.as_str(), at).is_some() {
                return Err(ShardError::DuplicateKey { key: tensor.key.clone() });
            }
        }
        let states = StateFinder::new(&self.optimizer)?;
        let binder = Binder::new(self, topology, &tensors)?;
        let mut bound: Vec<Option<BoundTensor>> = Vec::with_capacity(tensors.len());
        let mut of_parameter = Vec::new();
        for (at, tensor) in tensors.iter().enumerate() {
            match states.parameter_of(&tensor.key, |key| by_key.get(key).copied())? {
                Some((rule, parameter)) => {
                    of_parameter.push((at, rule, parameter));
                    bound.push(None);
                }
                None if states.is_scalar(&tensor.key) => bound.push(Some(binder.scalar(tensor))),
                None => bound.push(Some(binder.parameter(tensor)?)),
            }
        }
        binder.tie(&mut bound, &by_key);
        let mut zero_states = Vec::new();
        for (at, rule, parameter) in of_parameter {
            let owner = bound[parameter]
                .as_ref()
                .filter(|owner| owner.group == StateGroup::Model)
                .ok_or_else(|| states.not_a_parameter(&tensors[at], &tensors[parameter]))?;
            let state = states.bind(rule, &tensors[at], owner, &tensors[parameter], topology, |key| {
                by_key.contains_key(key)
            })?;
            if Arc::ptr_eq(&state.sharding, &owner.sharding) && self.optimizer.zero > 0 {
                zero_states.push((parameter, at));
            }
            bound[at] = Some(state);
        }
        // Every entry is bound by now.
        let bound: Vec<BoundTensor> = bound.into_iter().flatten().collect();
        let zero = Zero::new(&self.optimizer, topology, &bound, zero_states)?;
        Ok(BoundRules { topology: topology.clone(), tensors: bound, zero })
    }
}

impl BoundRules {
    /// The state dict of `rank`.
    ///
    /// # Errors
    /// [`ShardError::Rank`]; [`ShardError::Cut`] where an even cut follows an uneven one and does not come out on
    /// this rank; [`ShardError::Alias`] where tied tensors are not alike.
    pub fn rank(&self, rank: u64) -> Result<ShardedStateDict, ShardError> {
        let pp_rank = self.topology.pipeline_rank(rank)?;
        let mut dict = ShardedStateDict::new();
        for (at, tensor) in self.tensors.iter().enumerate() {
            let elsewhere = !tensor.sharding.is_on(rank, pp_rank);
            if elsewhere || self.zero.as_ref().is_some_and(|zero| zero.deals(at)) {
                continue;
            }
            let builder =
                tensor.describe(ShardedTensor::builder(tensor.dtype, &tensor.sharding.global_shape));
            dict.insert(&tensor.key, tensor.sharding.shard(builder, &tensor.key, &self.topology, rank)?)?;
        }
        if let Some(zero) = &self.zero {
            zero.add_states(&self.tensors, &self.topology, rank, pp_rank, &mut dict)?;
        }
        dict.check_aliases()?;
        Ok(dict)
    }

    /// How many tensors are states that ZeRO deals over ranks of their own.
    pub fn dealt_states(&self) -> usize {
        self.zero.as_ref().map_or(0, Zero::dealt_states)
    }

    /// The topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
}

impl BoundTensor {
    /// What does not depend on the rank.
    pub fn describe(&self, builder: crate::ShardedTensorBuilder) -> crate::ShardedTensorBuilder {
        let mut builder = builder.dtype(self.dtype).group(self.group);
        if let Some(parameter) = &self.parameter {
            builder = builder.parameter(parameter);
        }
        match &self.alias_of {
            Some(target) => builder.alias_of(target),
            None => builder,
        }
    }
}

/// What is needed to find a parameter's sharding.
struct Binder<'a> {
    rules: &'a Rules,
    topology: &'a Topology,
    globs: Globs,
    stages: StageFinder,
    /// By rule: the template of expert numbers and the number of experts.
    experts: Vec<Option<(Template, u64)>>,
}

impl<'a> Binder<'a> {
    fn new(
        rules: &'a Rules,
        topology: &'a Topology,
        tensors: &[UnshardedTensor],
    ) -> Result<Self, ShardError> {
        for (number, rule) in rules.rules.iter().enumerate() {
            let ways =
                usize::from(rule.replicated) + usize::from(!rule.cut.is_empty() || !rule.flat.is_empty());
            if rule.keys.is_empty() || ways != 1 {
                let why = "needs `keys` and one of `replicated`, `cut` and `flat`";
                return Err(ShardError::Rules { why: format!("rule {} {:?} {why}", number + 1, rule.keys) });
            }
        }
        let globs = Globs::new(rules.rules.iter().map(|rule| rule.keys.as_slice()))?;
        let keys = || tensors.iter().map(|tensor| tensor.key.as_str());
        let stages = StageFinder::new(rules.pipeline.as_ref(), topology, keys())?;
        let count = |(number, rule): (usize, &Rule)| {
            let Some(expert) = &rule.expert else { return Ok(None) };
            let template = Template::new(&expert.key, "{expert}")?;
            let mine = keys().filter(|key| globs.first(key).is_some_and(|(first, _)| first == number));
            let largest = mine.filter_map(|key| template.number(key)).max();
            let count = expert.count.or(largest.and_then(|largest| largest.checked_add(1))).unwrap_or(0);
            Ok(Some((template, count)))
        };
        let experts = rules.rules.iter().enumerate().map(count).collect::<Result<_, ShardError>>()?;
        Ok(Self { rules, topology, globs, stages, experts })
    }

    fn scalar(&self, tensor: &UnshardedTensor) -> BoundTensor {
        let sharding = Sharding::whole(self.topology, None, None, tensor.global_shape.clone());
        BoundTensor {
            key: tensor.key.clone(),
            dtype: tensor.dtype,
            sharding: Arc::new(sharding),
            alias_of: None,
            group: StateGroup::Optimizer,
            parameter: None,
        }
    }

    fn rule_of(&self, key: &str) -> Option<(usize, &'a Rule, &str)> {
        let (number, glob) = self.globs.first(key)?;
        Some((number, self.rules.rules.get(number)?, glob))
    }

    fn parameter(&self, tensor: &UnshardedTensor) -> Result<BoundTensor, ShardError> {
        let key = &tensor.key;
        let (number, rule, glob) =
            self.rule_of(key).ok_or_else(|| ShardError::NoRule { key: key.clone() })?;
        let stage = self.stages.find(key)?;
        let name = format!("rule {} `{glob}`", number + 1);
        let expert = match (&rule.expert, self.experts.get(number)) {
            (Some(expert), Some(Some((template, count)))) => {
                Some(self.expert(expert, template, *count, key, &name)?)
            }
            _ => None,
        };
        let sharding = Sharding::whole(self.topology, stage, expert, tensor.global_shape.clone()).with_rule(
            rule,
            name,
            self.topology,
            key,
        )?;
        Ok(BoundTensor {
            key: key.clone(),
            dtype: rule.dtype.unwrap_or(tensor.dtype),
            sharding: Arc::new(sharding),
            alias_of: None,
            group: StateGroup::Model,
            parameter: None,
        })
    }

    /// The digit and its value on the ranks that hold the expert that `key` names.
    fn expert(
        &self,
        rule: &ExpertRule,
        template: &Template,
        count: u64,
        key: &str,
        name: &str,
    ) -> Result<(Digit, u64), ShardError> {
        let digit = self.topology.digit(&rule.over)?;
        match template.number(key) {
            Some(expert) if expert < count && count.is_multiple_of(digit.size) => {
                Ok((digit, expert / (count / digit.size)))
            }
            expert => Err(ShardError::Expert {
                key: key.to_owned(),
                rule: name.to_owned(),
                expert,
                count,
                over: rule.over.clone(),
                ranks: digit.size,
            }),
        }
    }

    /// Makes tied tensors aliases where both lie on the same stage. That they are alike is checked with the rank's
    /// state dict.
    fn tie(&self, bound: &mut [Option<BoundTensor>], by_key: &HashMap<&str, usize>) {
        let stage = |tensor: Option<&Option<BoundTensor>>| Some(tensor?.as_ref()?.sharding.stage);
        for at in 0..bound.len() {
            let Some(tensor) = bound[at].as_ref().filter(|tensor| tensor.group == StateGroup::Model) else {
                continue;
            };
            let Some(target) = self.rule_of(&tensor.key).and_then(|(_, rule, _)| rule.tied_with.as_ref())
            else {
                continue;
            };
            let owner = by_key.get(target.as_str()).and_then(|&owner| stage(bound.get(owner)));
            if owner == Some(tensor.sharding.stage)
                && let Some(tensor) = bound[at].as_mut()
            {
                tensor.alias_of = Some(target.clone());
            }
        }
    }
}
