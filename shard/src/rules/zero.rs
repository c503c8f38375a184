use super::bind::BoundTensor;
use super::table::OptimizerRules;
use crate::topology::{Digits, count, position};
use crate::{FlatBuffer, ShardError, ShardedStateDict, Topology};
use std::collections::{BTreeMap, HashMap, HashSet};

/// ZeRO-1: the states of a stage's parameters, dealt as slices of flat buckets.
pub(super) struct Zero {
    /// One bucket for dense parameters, one for experts: those with a rule for experts, and those that are cut along
    /// the ranks over which the first is dealt.
    buckets: Vec<Bucket>,
    /// States that lie in a bucket, by index.
    dealt: HashSet<usize>,
    /// States that share another's storage, by index.
    tied: Vec<usize>,
}

struct Bucket {
    over: Digits,
    /// Parameter and its states, by index, in the order in which the tensors were given.
    parameters: BTreeMap<usize, Vec<usize>>,
    align: u64,
}

impl Zero {
    /// `states` are pairs of parameter and state.
    pub fn new(
        rules: &OptimizerRules,
        topology: &Topology,
        tensors: &[BoundTensor],
        states: Vec<(usize, usize)>,
    ) -> Result<Option<Self>, ShardError> {
        match rules.zero {
            0 => return Ok(None),
            1 => {}
            zero => return Err(ShardError::Rules { why: format!("optimizer.zero = {zero}; it is 0 or 1") }),
        }
        let bucket = |over: &[String]| {
            let mut over = topology.digits_of(over)?;
            over.sort_unstable();
            Ok(Bucket { over, parameters: BTreeMap::new(), align: rules.zero_align })
        };
        // Expert axes are asked for only where an expert needs them: a plain mesh has none.
        let mut buckets = vec![bucket(&rules.zero_over)?];
        let mut zero = Self { buckets: Vec::new(), dealt: HashSet::new(), tied: Vec::new() };
        for (parameter, state) in states {
            zero.dealt.insert(state);
            if tensors[state].alias_of.is_some() {
                zero.tied.push(state);
                continue;
            }
            let sharding = &tensors[parameter].sharding;
            let fault = |axes: &[String]| ShardError::RuleAxes {
                key: tensors[state].key.clone(),
                rule: sharding.rule.clone(),
                axes: axes.to_vec(),
            };
            let unlike = if !sharding.is_equal_everywhere() {
                Some("an uneven cut")
            } else if sharding.stage.is_none() && topology.pipeline_size() > 1 {
                Some("a parameter that every pipeline stage holds")
            } else {
                None
            };
            if let Some(why) = unlike {
                let (key, rule) = (tensors[parameter].key.clone(), sharding.rule.clone());
                return Err(ShardError::UnlikeBuckets { key, rule, why });
            }
            let fits =
                |bucket: &Bucket| topology.are_disjoint(&[sharding.fixed.as_slice(), &bucket.over].concat());
            let mut at = 0;
            if sharding.expert.is_some() || !fits(&buckets[0]) {
                if buckets.len() == 1 {
                    buckets.push(bucket(&rules.zero_expert_over)?);
                }
                at = 1;
                if !fits(&buckets[1]) {
                    return Err(fault(&rules.zero_expert_over));
                }
            }
            buckets[at].parameters.entry(parameter).or_default().push(state);
        }
        zero.buckets = buckets;
        Ok(Some(zero))
    }

    /// How many states it deals.
    pub fn dealt_states(&self) -> usize {
        self.dealt.len()
    }

    /// Whether the state at that index lies in a bucket.
    pub fn deals(&self, state: usize) -> bool {
        self.dealt.contains(&state)
    }

    /// Adds the rank's parts of all states. `dict` holds the parameters already.
    pub fn add_states(
        &self,
        tensors: &[BoundTensor],
        topology: &Topology,
        rank: u64,
        pp_rank: u64,
        dict: &mut ShardedStateDict,
    ) -> Result<(), ShardError> {
        for bucket in &self.buckets {
            let mut flat = FlatBuffer::new();
            let mut states = Vec::new();
            let mut shardings = HashMap::new();
            for (&parameter, of_parameter) in &bucket.parameters {
                let parameter = &tensors[parameter];
                let Some(shard) = dict.get(&parameter.key) else { continue };
                flat.push(&parameter.key, shard.clone(), bucket.align)?;
                shardings.insert(parameter.key.as_str(), &parameter.sharding);
                states.push(of_parameter);
            }
            let owned = flat.even_range(position(rank, &bucket.over), count(&bucket.over));
            let parts = flat.parts(owned, crate::DType::F32, |key| {
                let fixed = shardings.get(key).map_or(&[][..], |sharding| sharding.fixed.as_slice());
                topology.replica_fixing(rank, &[fixed, &bucket.over].concat())
            })?;
            for (part, of_parameter) in parts.into_iter().zip(states) {
                for &state in of_parameter {
                    let state = &tensors[state];
                    dict.insert(&state.key, state.describe(part.tensor.derive()).build(&state.key)?)?;
                }
            }
        }
        for state in
            self.tied.iter().map(|&at| &tensors[at]).filter(|state| state.sharding.is_on(rank, pp_rank))
        {
            let Some(target) = state.alias_of.as_deref().and_then(|target| dict.get(target)) else {
                continue;
            };
            let tied = state.describe(target.derive()).build(&state.key)?;
            dict.insert(&state.key, tied)?;
        }
        Ok(())
    }
}
