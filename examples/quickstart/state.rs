//! GPT-2 with Adam: its sharding on any topology, and bytes that are known in advance.

use reshard::shard::{BoundRules, DType, ModelConfig, Naming, ParallelSizes, Preset, ShardedStateDict};
use reshard_oracle::{cut, full_tensor};
use std::collections::BTreeMap;
use std::error::Error;

/// The model's sharding on one topology.
pub fn shardings(config: &ModelConfig, sizes: ParallelSizes) -> Result<BoundRules, Box<dyn Error>> {
    let preset = Preset::new(Naming::InfiniTrain, config.clone());
    Ok(preset.bind_with_adam(DType::F32, &sizes.topology()?)?)
}

/// A GPT-2 that a small machine saves in a moment.
pub fn small() -> ModelConfig {
    ModelConfig {
        n_layer: 4,
        n_head: 4,
        n_kv_head: 4,
        n_embd: 256,
        hidden: 1024,
        original_vocab_size: 4000,
        padded_vocab_size: 4096,
        block_size: 256,
        ..ModelConfig::GPT2_124M
    }
}

/// The whole tensor `key`, known to everybody who checks. The embedding and the output head are tied: stages that hold
/// one each keep them equal, as training does.
fn whole(key: &str, dtype: DType, global_shape: &[u64]) -> Vec<u8> {
    full_tensor(&key.replace("transformer.wte.weight", "lm_head.weight"), dtype, global_shape)
}

/// What a rank's local buffers must hold, cut from whole tensors element by element.
pub fn expected(dict: &ShardedStateDict) -> BTreeMap<String, Vec<u8>> {
    dict.iter()
        .filter(|(_, shard)| shard.alias_of().is_none())
        .map(|(key, shard)| (key.to_owned(), cut(&whole(key, shard.dtype(), shard.global_shape()), shard)))
        .collect()
}
