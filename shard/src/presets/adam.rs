use super::Naming;
use crate::{DType, OptimizerRules, StateRule, UnshardedTensor};

/// First and second moment, in InfiniTrain's names and in those of a torch optimizer state by parameter name.
const MOMENTS: [&str; 4] = [
    "adam.m.{param}",
    "adam.v.{param}",
    "optimizer.state.{param}.exp_avg",
    "optimizer.state.{param}.exp_avg_sq",
];

/// States keep the dtype that they have: a bf16 model has f32 moments.
pub(super) fn rules() -> OptimizerRules {
    let state = |key: &str, scalar| StateRule { key: key.to_owned(), dtype: None, scalar };
    let moments = MOMENTS.iter().map(|key| state(key, false));
    OptimizerRules {
        states: moments.chain([state("optimizer.state.{param}.step", true)]).collect(),
        scalars: vec!["adam.t".to_owned()],
        ..OptimizerRules::default()
    }
}

/// States of all parameters in `model`, or of its adapters alone.
pub(super) fn tensors(
    naming: Naming,
    model: &[UnshardedTensor],
    dtype: DType,
    adapters: bool,
) -> Vec<UnshardedTensor> {
    let state = |key: String, dtype, shape: &[u64]| UnshardedTensor::from((key, dtype, shape));
    // The causal mask is a buffer; biases of linear layers end in `.c_attn.bias` and the like.
    let trained = model
        .iter()
        .filter(|tensor| !tensor.key.ends_with(".attn.bias") && (!adapters || tensor.key.contains(".lora_")));
    let mut states = Vec::new();
    for UnshardedTensor { key, global_shape, .. } in trained {
        match naming {
            Naming::InfiniTrain => {
                states.push(state(format!("adam.m.{key}"), dtype, global_shape));
                states.push(state(format!("adam.v.{key}"), dtype, global_shape));
            }
            Naming::HuggingFace => {
                states.push(state(format!("optimizer.state.{key}.exp_avg"), dtype, global_shape));
                states.push(state(format!("optimizer.state.{key}.exp_avg_sq"), dtype, global_shape));
                states.push(state(format!("optimizer.state.{key}.step"), DType::F32, &[]));
            }
        }
    }
    if naming == Naming::InfiniTrain {
        states.push(state("adam.t".to_owned(), DType::I64, &[]));
    }
    states
}
