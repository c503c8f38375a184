use super::config::ModelConfig;
use super::{List, vocabulary_padding};
use crate::{CutRule, DType, PieceKind, Rule, UnshardedTensor};

fn by_heads(keys: &str, axis: usize, head_dim: u64, segments: &[u64], pieces: PieceKind) -> Rule {
    let cut =
        CutRule { unit: Some(head_dim), segments: segments.to_vec(), pieces, ..CutRule::even(axis, "tp") };
    Rule { keys: vec![keys.to_owned()], cut: vec![cut], ..Rule::default() }
}

/// The embedding and the output head, tied where the model ties them: the head is then an alias of the embedding,
/// which is the one that Hugging Face's files have.
fn vocabulary(config: &ModelConfig, embedding_glob: &str, embedding: &str) -> [Rule; 2] {
    let padding = Some(vocabulary_padding(config));
    let tied_with = config.tied.then(|| embedding.to_owned());
    [
        Rule { padding: padding.clone(), ..Rule::cut([embedding_glob], 0, "tp") },
        Rule { padding, tied_with, ..Rule::cut(["lm_head.weight"], 0, "tp") },
    ]
}

/// GPT-2: `Conv1D` weights are `[in, out]`, so column-parallel ones are cut along axis 1.
pub(super) fn gpt2_rules(config: &ModelConfig) -> Vec<Rule> {
    let heads = [config.n_head; 3];
    let [wte, lm_head] = vocabulary(config, "*wte.weight", "transformer.wte.weight");
    vec![
        by_heads("*.attn.c_attn.weight", 1, config.head_dim, &heads, PieceKind::Even),
        by_heads("*.attn.c_attn.bias", 0, config.head_dim, &heads, PieceKind::Even),
        by_heads("*.attn.c_proj.weight", 0, config.head_dim, &[], PieceKind::Even),
        Rule::cut(["*.mlp.c_fc.weight"], 1, "tp"),
        Rule::cut(["*.mlp.c_fc.bias", "*.mlp.c_proj.weight"], 0, "tp"),
        wte,
        lm_head,
        Rule::replicated(["*wpe.weight", "*ln_{1,2,f}.*", "*.attn.{bias,masked_bias}", "*.c_proj.bias"]),
    ]
}

/// LLaMA: ranks share key and value heads where there are fewer heads than ranks.
pub(super) fn llama_rules(config: &ModelConfig) -> Vec<Rule> {
    let d = config.head_dim;
    let [embedding, lm_head] = vocabulary(config, "*embed_tokens.weight", "model.embed_tokens.weight");
    vec![
        by_heads("*.self_attn.q_proj.{weight,bias}", 0, d, &[], PieceKind::Even),
        by_heads("*.self_attn.{k,v}_proj.{weight,bias}", 0, d, &[], PieceKind::Shared),
        by_heads("*.self_attn.o_proj.weight", 1, d, &[], PieceKind::Even),
        Rule::cut(["*.mlp.{gate,up}_proj.weight"], 0, "tp"),
        Rule::cut(["*.mlp.down_proj.weight"], 1, "tp"),
        embedding,
        lm_head,
        Rule::replicated(["*norm.weight", "*rotary_emb.inv_freq"]),
    ]
}

pub(super) fn gpt2_tensors(config: &ModelConfig, dtype: DType) -> Vec<UnshardedTensor> {
    let ModelConfig { n_embd, hidden, block_size, .. } = *config;
    let mut list = List::new(dtype);
    let linear = |list: &mut List, name: String, input: u64, out: u64| {
        list.add(format!("{name}.weight"), &[input, out]);
        list.add(format!("{name}.bias"), &[out]);
    };
    let norm = |list: &mut List, name: String| {
        list.add(format!("{name}.weight"), &[n_embd]);
        list.add(format!("{name}.bias"), &[n_embd]);
    };
    list.add("transformer.wte.weight", &[config.padded_vocab_size, n_embd]);
    list.add("transformer.wpe.weight", &[block_size, n_embd]);
    for layer in 0..config.n_layer {
        let at = format!("transformer.h.{layer}");
        norm(&mut list, format!("{at}.ln_1"));
        linear(&mut list, format!("{at}.attn.c_attn"), n_embd, 3 * n_embd);
        linear(&mut list, format!("{at}.attn.c_proj"), n_embd, n_embd);
        if config.mask_buffer {
            list.add_as(format!("{at}.attn.bias"), DType::F32, &[1, 1, block_size, block_size]);
        }
        norm(&mut list, format!("{at}.ln_2"));
        linear(&mut list, format!("{at}.mlp.c_fc"), n_embd, hidden);
        linear(&mut list, format!("{at}.mlp.c_proj"), hidden, n_embd);
    }
    norm(&mut list, "transformer.ln_f".to_owned());
    list.add("lm_head.weight", &[config.padded_vocab_size, n_embd]);
    list.tensors
}

pub(super) fn llama_tensors(config: &ModelConfig, dtype: DType) -> Vec<UnshardedTensor> {
    let ModelConfig { n_embd, hidden, head_dim, .. } = *config;
    let (heads, kv_heads) = (config.n_head * head_dim, config.n_kv_head * head_dim);
    let mut list = List::new(dtype);
    list.add("model.embed_tokens.weight", &[config.padded_vocab_size, n_embd]);
    for layer in 0..config.n_layer {
        let at = format!("model.layers.{layer}");
        list.add(format!("{at}.input_layernorm.weight"), &[n_embd]);
        list.add(format!("{at}.self_attn.q_proj.weight"), &[heads, n_embd]);
        list.add(format!("{at}.self_attn.k_proj.weight"), &[kv_heads, n_embd]);
        list.add(format!("{at}.self_attn.v_proj.weight"), &[kv_heads, n_embd]);
        list.add(format!("{at}.self_attn.o_proj.weight"), &[n_embd, heads]);
        if config.qk_norm {
            list.add(format!("{at}.self_attn.q_norm.weight"), &[head_dim]);
            list.add(format!("{at}.self_attn.k_norm.weight"), &[head_dim]);
        }
        list.add(format!("{at}.post_attention_layernorm.weight"), &[n_embd]);
        list.add(format!("{at}.mlp.gate_proj.weight"), &[hidden, n_embd]);
        list.add(format!("{at}.mlp.up_proj.weight"), &[hidden, n_embd]);
        list.add(format!("{at}.mlp.down_proj.weight"), &[n_embd, hidden]);
    }
    list.add("model.norm.weight", &[n_embd]);
    list.add("lm_head.weight", &[config.padded_vocab_size, n_embd]);
    list.tensors
}
