//! Rules and unsharded tensors of known model families, in the names of known frameworks.
//!
//! `Preset::new(Naming::InfiniTrain, ModelConfig::GPT2_124M)` with `bind_with_adam` is a whole training state on any
//! topology, which is what plans, tests and benchmarks start from.

mod adam;
mod config;
mod detect;
mod hugging_face;
mod infinitrain;

pub use config::{Family, ModelConfig, llama_hidden};

use crate::{
    BoundRules, DType, Dims, PaddingRule, PipelineRules, Rules, ShardError, Topology, UnshardedTensor,
};

/// In whose names and memory layouts a model's tensors are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// InfiniTrain: linear weights are `[out, in]`, Q, K and V are packed.
    InfiniTrain,
    /// Hugging Face transformers: GPT-2's linear weights are `[in, out]` (its `Conv1D`), LLaMA's Q, K and V are apart.
    HuggingFace,
}

/// A model in someone's names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preset {
    /// In whose names.
    pub naming: Naming,
    /// The model.
    pub config: ModelConfig,
}

impl Preset {
    /// A model in the names of `naming`.
    pub fn new(naming: Naming, config: ModelConfig) -> Self {
        Self { naming, config }
    }

    /// The sharding rules, for any topology: tensor parallelism over `tp`, pipeline stages over `pp`, optimizer states
    /// like their parameters. Set [`OptimizerRules::zero`](crate::OptimizerRules::zero) for ZeRO-1.
    pub fn rules(&self) -> Rules {
        let config = &self.config;
        let (layer_key, rules) = match (self.naming, config.family) {
            (Naming::InfiniTrain, _) => ("transformer.h.{layer}.", infinitrain::rules(config)),
            (Naming::HuggingFace, Family::Gpt2) => ("h.{layer}.", hugging_face::gpt2_rules(config)),
            (Naming::HuggingFace, Family::Llama3) => ("layers.{layer}.", hugging_face::llama_rules(config)),
        };
        let globs = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect();
        Rules {
            pipeline: Some(PipelineRules {
                layer_keys: vec![layer_key.to_owned()],
                layers: Some(config.n_layer),
                layers_of_chunk: Vec::new(),
                first: globs(&["*wte.weight", "*wpe.weight", "*embed_tokens.weight"]),
                last: globs(&["*ln_f.*", "*model.norm.weight", "*lm_head.weight"]),
                every: globs(&["*rotary_emb.inv_freq"]),
            }),
            optimizer: adam::rules(),
            rules,
        }
    }

    /// The model's unsharded parameters and buffers, in the model's order; buffers are f32.
    pub fn tensors(&self, dtype: DType) -> Vec<UnshardedTensor> {
        match (self.naming, self.config.family) {
            (Naming::InfiniTrain, _) => infinitrain::tensors(&self.config, dtype),
            (Naming::HuggingFace, Family::Gpt2) => hugging_face::gpt2_tensors(&self.config, dtype),
            (Naming::HuggingFace, Family::Llama3) => hugging_face::llama_tensors(&self.config, dtype),
        }
    }

    /// Adam's unsharded states of the trained parameters (of the adapters alone where there are some). InfiniTrain
    /// counts steps once, torch for each parameter.
    pub fn adam_tensors(&self, dtype: DType) -> Vec<UnshardedTensor> {
        adam::tensors(self.naming, &self.tensors(dtype), dtype, self.config.lora_rank > 0)
    }

    /// Parameters, buffers and Adam's f32 states, ready to be asked for any rank's state dict.
    ///
    /// # Errors
    /// As [`Rules::bind`], where the model does not fit the topology.
    pub fn bind_with_adam(&self, dtype: DType, topology: &Topology) -> Result<BoundRules, ShardError> {
        let mut tensors = self.tensors(dtype);
        tensors.extend(self.adam_tensors(DType::F32));
        self.rules().bind(tensors, topology)
    }
}

/// The padding that the vocabulary axis may have.
fn vocabulary_padding(config: &ModelConfig) -> PaddingRule {
    PaddingRule { axis: 0, logical: Some(config.original_vocab_size), multiple: None }
}

/// Collects unsharded tensors.
struct List {
    dtype: DType,
    tensors: Vec<UnshardedTensor>,
}

impl List {
    fn new(dtype: DType) -> Self {
        Self { dtype, tensors: Vec::new() }
    }

    fn add(&mut self, key: impl Into<String>, shape: &[u64]) {
        self.add_as(key, self.dtype, shape);
    }

    fn add_as(&mut self, key: impl Into<String>, dtype: DType, shape: &[u64]) {
        self.tensors.push(UnshardedTensor { key: key.into(), dtype, global_shape: Dims::from_slice(shape) });
    }
}
