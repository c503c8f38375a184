use super::config::{Family, ModelConfig};
use super::{Naming, Preset};
use crate::{Dims, UnshardedTensor};
use std::collections::HashMap;

impl Preset {
    /// The preset whose names and shapes these tensors have; `None` where it is none of them.
    ///
    /// Shapes do not tell the size of a head where there is no norm of one: 64 for GPT-2 and for LLaMA up to a width of
    /// 2048, else 128, as all published sizes have it. Set `config.n_head`, `n_kv_head` and `head_dim` where a trainer
    /// state knows better. The vocabulary counts as not padded.
    pub fn detect<'t>(tensors: impl IntoIterator<Item = &'t UnshardedTensor>) -> Option<Self> {
        let shapes: HashMap<&str, &Dims> =
            tensors.into_iter().map(|tensor| (tensor.key.as_str(), &tensor.global_shape)).collect();
        let shape = |key: &str| shapes.get(key).map(|shape| shape.as_slice());
        let rows_and_columns = |key: &str| match shape(key) {
            Some(&[rows, columns]) => Some((rows, columns)),
            _ => None,
        };
        let count = |before: &str| {
            let number = |key: &&str| key.strip_prefix(before)?.split('.').next()?.parse::<u64>().ok();
            shapes.keys().filter_map(number).max().and_then(|last| last.checked_add(1))
        };
        // Hugging Face's own GPT-2 files leave the prefix out.
        let prefix = if shape("wte.weight").is_some() { "" } else { "transformer." };
        let gpt2 = |name: &str| format!("{prefix}{name}");
        let (naming, family, embedding, layers, norm) = if shape("model.embed_tokens.weight").is_some() {
            let (embedding, layers) = ("model.embed_tokens.weight".to_owned(), "model.layers.".to_owned());
            (Naming::HuggingFace, Family::Llama3, embedding, layers, "self_attn.q_norm.weight")
        } else {
            let (rows, columns) = rows_and_columns(&gpt2("h.0.attn.c_attn.weight"))?;
            let family = if shape(&gpt2("wpe.weight")).is_some() { Family::Gpt2 } else { Family::Llama3 };
            // Packed rows are more than the width, however few KV heads there are.
            let naming = if rows < columns { Naming::HuggingFace } else { Naming::InfiniTrain };
            (naming, family, gpt2("wte.weight"), gpt2("h."), "attn.q_norm.weight")
        };
        let (vocabulary, n_embd) = rows_and_columns(&embedding)?;
        let layer = |name: &str| format!("{layers}0.{name}");
        let qk_norm = shape(&layer(norm)).and_then(|shape| shape.first().copied());
        let usual = if family == Family::Gpt2 || n_embd <= 2048 { 64 } else { 128 };
        let head_dim = qk_norm.unwrap_or(usual);
        let (q, kv, hidden) = match (naming, family) {
            (Naming::HuggingFace, Family::Llama3) => {
                let (q, _) = rows_and_columns(&layer("self_attn.q_proj.weight"))?;
                let (kv, _) = rows_and_columns(&layer("self_attn.k_proj.weight"))?;
                (q, kv, rows_and_columns(&layer("mlp.up_proj.weight"))?.0)
            }
            (Naming::HuggingFace, Family::Gpt2) => {
                (n_embd, n_embd, rows_and_columns(&layer("mlp.c_fc.weight"))?.1)
            }
            (Naming::InfiniTrain, _) => {
                let (rows, _) = rows_and_columns(&layer("attn.c_attn.weight"))?;
                let (_, q) = rows_and_columns(&layer("attn.c_proj.weight"))?;
                (q, rows.checked_sub(q)? / 2, rows_and_columns(&layer("mlp.c_fc.weight"))?.0)
            }
        };
        if head_dim == 0 || q < head_dim || kv < head_dim {
            return None;
        }
        let tied = family == Family::Gpt2 || shape("lm_head.weight").is_none();
        let config = ModelConfig {
            family,
            n_layer: count(&layers)?,
            n_head: q / head_dim,
            n_kv_head: kv / head_dim,
            n_embd,
            original_vocab_size: vocabulary,
            padded_vocab_size: vocabulary,
            hidden,
            block_size: shape(&gpt2("wpe.weight")).and_then(|shape| shape.first().copied()).unwrap_or(8192),
            head_dim,
            tied,
            mask_buffer: shape(&layer("attn.bias")).is_some(),
            qk_norm: qk_norm.is_some(),
            lora_rank: shape(&layer("attn.c_attn.lora_A"))
                .and_then(|shape| shape.first().copied())
                .unwrap_or(0),
        };
        Some(Self { naming, config })
    }
}
