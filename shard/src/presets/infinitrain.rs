use super::config::{Family, ModelConfig};
use super::{List, vocabulary_padding};
use crate::{CutRule, DType, Rule, UnshardedTensor};

/// Rules of GPT-2 and LLaMA-3, whose names agree. Adapters follow the layer they adapt: on a column-parallel one B is
/// cut as its weight is, on a row-parallel one A is.
pub(super) fn rules(config: &ModelConfig) -> Vec<Rule> {
    let head = Some(config.head_dim);
    let mut c_attn = Rule::cut(["*.attn.c_attn.{weight,bias,lora_B*}"], 0, "tp");
    for cut in &mut c_attn.cut {
        *cut = CutRule {
            segments: vec![config.n_head, config.n_kv_head, config.n_kv_head],
            unit: head,
            ..CutRule::even(0, "tp")
        };
    }
    let mut attn_proj = Rule::cut(["*.attn.c_proj.{weight,lora_A*}"], 1, "tp");
    attn_proj.cut = vec![CutRule { unit: head, ..CutRule::even(1, "tp") }];
    let padding = Some(vocabulary_padding(config));
    let wte = Rule {
        padding: padding.clone(),
        tied_with: config.tied.then(|| "lm_head.weight".to_owned()),
        ..Rule::cut(["*wte.weight"], 0, "tp")
    };
    vec![
        c_attn,
        attn_proj,
        Rule::cut(["*.mlp.{c_fc,c_fc2}.{weight,bias,lora_B*}"], 0, "tp"),
        Rule::cut(["*.mlp.c_proj.{weight,lora_A*}"], 1, "tp"),
        wte,
        Rule { padding, ..Rule::cut(["lm_head.weight"], 0, "tp") },
        Rule::replicated([
            "*wpe.weight",
            "*.ln_{1,2}.*",
            "*ln_f.*",
            "*.attn.{q,k}_norm.weight",
            "*.attn.bias",
            "*.c_proj.{bias,lora_B*}",
            "*.{c_attn,c_fc,c_fc2}.lora_A*",
        ]),
    ]
}

/// Parameters and buffers in the model's order.
pub(super) fn tensors(config: &ModelConfig, dtype: DType) -> Vec<UnshardedTensor> {
    let gpt2 = config.family == Family::Gpt2;
    let ModelConfig { n_embd, hidden, block_size, head_dim, .. } = *config;
    let (heads, kv_heads) = (config.n_head * head_dim, config.n_kv_head * head_dim);
    let mut list = List::new(dtype);
    let linear = |list: &mut List, name: String, out: u64, input: u64| {
        list.add(format!("{name}.weight"), &[out, input]);
        if gpt2 {
            list.add(format!("{name}.bias"), &[out]);
        }
        if config.lora_rank > 0 {
            list.add(format!("{name}.lora_A"), &[config.lora_rank, input]);
            list.add(format!("{name}.lora_B"), &[out, config.lora_rank]);
        }
    };
    let norm = |list: &mut List, name: String| {
        list.add(format!("{name}.weight"), &[n_embd]);
        if gpt2 {
            list.add(format!("{name}.bias"), &[n_embd]);
        }
    };
    list.add("transformer.wte.weight", &[config.padded_vocab_size, n_embd]);
    if gpt2 {
        list.add("transformer.wpe.weight", &[block_size, n_embd]);
    }
    for layer in 0..config.n_layer {
        let at = format!("transformer.h.{layer}");
        norm(&mut list, format!("{at}.ln_1"));
        linear(&mut list, format!("{at}.attn.c_attn"), heads + 2 * kv_heads, n_embd);
        linear(&mut list, format!("{at}.attn.c_proj"), n_embd, heads);
        if config.mask_buffer {
            list.add_as(format!("{at}.attn.bias"), DType::F32, &[1, 1, block_size, block_size]);
        }
        if config.qk_norm {
            list.add(format!("{at}.attn.q_norm.weight"), &[head_dim]);
            list.add(format!("{at}.attn.k_norm.weight"), &[head_dim]);
        }
        norm(&mut list, format!("{at}.ln_2"));
        linear(&mut list, format!("{at}.mlp.c_fc"), hidden, n_embd);
        if !gpt2 {
            linear(&mut list, format!("{at}.mlp.c_fc2"), hidden, n_embd);
        }
        linear(&mut list, format!("{at}.mlp.c_proj"), n_embd, hidden);
    }
    norm(&mut list, "transformer.ln_f".to_owned());
    list.add("lm_head.weight", &[config.padded_vocab_size, n_embd]);
    list.tensors
}
