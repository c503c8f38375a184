/// A family of models.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// GPT-2: LayerNorm, biases, learned positions, an MLP of two matrices.
    Gpt2,
    /// LLaMA-3: RMSNorm, no biases, rotary positions, SwiGLU, grouped KV heads.
    Llama3,
}

/// Sizes of a model. InfiniTrain's trainer state has the first six by these names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelConfig {
    /// Which parts there are.
    pub family: Family,
    /// Number of layers.
    pub n_layer: u64,
    /// Number of attention heads.
    pub n_head: u64,
    /// Number of key and value heads; `n_head` without grouping.
    pub n_kv_head: u64,
    /// Width of the model.
    pub n_embd: u64,
    /// Size of the vocabulary without padding.
    pub original_vocab_size: u64,
    /// Size of the vocabulary as the embedding has it.
    pub padded_vocab_size: u64,
    /// Width of the MLP.
    pub hidden: u64,
    /// Longest sequence: number of learned positions, and size of the causal mask.
    pub block_size: u64,
    /// Size of a head; `n_embd / n_head` in all sizes here.
    pub head_dim: u64,
    /// The output head shares the storage of the embedding.
    pub tied: bool,
    /// The causal mask is among the tensors (`attn.bias`).
    pub mask_buffer: bool,
    /// Queries and keys are normed for each head.
    pub qk_norm: bool,
    /// Rank of LoRA adapters on the linear layers; 0 = there are none.
    pub lora_rank: u64,
}

impl ModelConfig {
    /// GPT-2 of 124 M parameters, the vocabulary padded to a multiple of 128.
    pub const GPT2_124M: ModelConfig = gpt2(12, 12, 768);
    /// GPT-2 of 350 M parameters.
    pub const GPT2_350M: ModelConfig = gpt2(24, 16, 1024);
    /// GPT-2 of 774 M parameters.
    pub const GPT2_774M: ModelConfig = gpt2(36, 20, 1280);
    /// GPT-2 of 1558 M parameters.
    pub const GPT2_1558M: ModelConfig = gpt2(48, 25, 1600);
    /// LLaMA-3.2 of 1 B parameters, its output head not tied, as InfiniTrain trains it.
    pub const LLAMA3_1B: ModelConfig = llama3(16, 32, 2048, 8192);
    /// LLaMA-3 of 8 B parameters.
    pub const LLAMA3_8B: ModelConfig = llama3(32, 32, 4096, 14336);
    /// LLaMA-3 of 70 B parameters.
    pub const LLAMA3_70B: ModelConfig = llama3(80, 64, 8192, 28672);
    /// LLaMA-3.1 of 405 B parameters.
    pub const LLAMA3_405B: ModelConfig = llama3(126, 128, 16384, 53248);
}

const fn gpt2(n_layer: u64, n_head: u64, n_embd: u64) -> ModelConfig {
    ModelConfig {
        family: Family::Gpt2,
        n_layer,
        n_head,
        n_kv_head: n_head,
        n_embd,
        original_vocab_size: 50257,
        padded_vocab_size: 50304,
        hidden: 4 * n_embd,
        block_size: 1024,
        head_dim: n_embd / n_head,
        tied: true,
        mask_buffer: true,
        qk_norm: false,
        lora_rank: 0,
    }
}

const fn llama3(n_layer: u64, n_head: u64, n_embd: u64, hidden: u64) -> ModelConfig {
    ModelConfig {
        family: Family::Llama3,
        n_layer,
        n_head,
        n_kv_head: 8,
        n_embd,
        original_vocab_size: 128256,
        padded_vocab_size: 128256,
        hidden,
        block_size: 8192,
        head_dim: n_embd / n_head,
        tied: false,
        mask_buffer: false,
        qk_norm: false,
        lora_rank: 0,
    }
}

/// Width of LLaMA-3's MLP: two thirds of `4 * n_embd`, times `multiplier`, rounded up to a multiple of `multiple_of`.
pub fn llama_hidden(n_embd: u64, multiplier: f64, multiple_of: u64) -> u64 {
    let hidden = (4 * n_embd * 2 / 3) as f64 * multiplier;
    (hidden.round() as u64).next_multiple_of(multiple_of.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_of_the_mlp() {
        assert_eq!(llama_hidden(2048, 1.5, 256), ModelConfig::LLAMA3_1B.hidden);
        assert_eq!(llama_hidden(4096, 1.3, 1024), ModelConfig::LLAMA3_8B.hidden);
        assert_eq!(llama_hidden(8192, 1.3, 4096), ModelConfig::LLAMA3_70B.hidden);
        assert_eq!(llama_hidden(16384, 1.2, 4096), ModelConfig::LLAMA3_405B.hidden);
    }
}
