//! Presets: the sharding table of GPT-2 and LLaMA-3, and worlds of them proved to tile.

#![allow(clippy::unwrap_used)]

mod naive;

use naive::prove_world;
use reshard_shard::{
    CutError, DType, INFINITRAIN_ORDER, ModelConfig, Naming, ParallelSizes, Preset, Rules, ShardError,
    ShardedStateDict, ShardedTensor, Split, StateGroup, Topology,
};

fn infinitrain(tp: u64, dp: u64, pp: u64) -> Topology {
    ParallelSizes { tp, dp, pp, ..Default::default() }.in_order(&INFINITRAIN_ORDER).unwrap()
}

fn dict(preset: &Preset, topology: &Topology, rank: u64) -> ShardedStateDict {
    preset.bind_with_adam(DType::BF16, topology).unwrap().rank(rank).unwrap()
}

/// `(global start, local start, length)` along `axis` of every region; they must cover the other axis.
fn along(tensor: &ShardedTensor, axis: usize) -> Vec<(u64, u64, u64)> {
    let mut starts = 0;
    let mut found = Vec::new();
    for placement in tensor.placements() {
        let region = &placement.region;
        for other in (0..region.ndim()).filter(|&other| other != axis) {
            assert_eq!((region.offset()[other], region.end(other)), (0, tensor.global_shape()[other]));
        }
        found.push((region.offset()[axis], starts, region.shape()[axis]));
        starts += region.shape()[axis];
    }
    found
}

#[test]
fn gpt2_in_infinitrain_names_is_sharded_as_its_table_says() {
    let preset = Preset::new(Naming::InfiniTrain, ModelConfig::GPT2_124M);
    let topology = infinitrain(2, 2, 1);
    let dict = dict(&preset, &topology, 1);
    let layer = "transformer.h.11";
    for (key, global, local, axis, regions) in [
        (
            "transformer.wte.weight".to_owned(),
            vec![50304, 768],
            vec![25152, 768],
            Some(0),
            vec![(25152, 0, 25152)],
        ),
        ("lm_head.weight".to_owned(), vec![50304, 768], vec![25152, 768], Some(0), vec![(25152, 0, 25152)]),
        ("transformer.wpe.weight".to_owned(), vec![1024, 768], vec![1024, 768], None, vec![(0, 0, 1024)]),
        ("transformer.ln_f.bias".to_owned(), vec![768], vec![768], None, vec![(0, 0, 768)]),
        (format!("{layer}.ln_1.weight"), vec![768], vec![768], None, vec![(0, 0, 768)]),
        (
            format!("{layer}.attn.c_attn.weight"),
            vec![2304, 768],
            vec![1152, 768],
            Some(0),
            vec![(384, 0, 384), (1152, 384, 384), (1920, 768, 384)],
        ),
        (
            format!("{layer}.attn.c_attn.bias"),
            vec![2304],
            vec![1152],
            Some(0),
            vec![(384, 0, 384), (1152, 384, 384), (1920, 768, 384)],
        ),
        (format!("{layer}.attn.c_proj.weight"), vec![768, 768], vec![768, 384], Some(1), vec![(384, 0, 384)]),
        (format!("{layer}.attn.c_proj.bias"), vec![768], vec![768], None, vec![(0, 0, 768)]),
        (
            format!("{layer}.mlp.c_fc.weight"),
            vec![3072, 768],
            vec![1536, 768],
            Some(0),
            vec![(1536, 0, 1536)],
        ),
        (format!("{layer}.mlp.c_fc.bias"), vec![3072], vec![1536], Some(0), vec![(1536, 0, 1536)]),
        (
            format!("{layer}.mlp.c_proj.weight"),
            vec![768, 3072],
            vec![768, 1536],
            Some(1),
            vec![(1536, 0, 1536)],
        ),
    ] {
        for (prefix, dtype, group) in [
            ("", DType::BF16, StateGroup::Model),
            ("adam.m.", DType::F32, StateGroup::Optimizer),
            ("adam.v.", DType::F32, StateGroup::Optimizer),
        ] {
            let tensor = dict.get(&format!("{prefix}{key}")).unwrap();
            assert_eq!((tensor.dtype(), tensor.group()), (dtype, group));
            assert_eq!(
                (tensor.global_shape().to_vec(), tensor.local_shape().to_vec()),
                (global.clone(), local.clone())
            );
            assert_eq!(along(tensor, axis.unwrap_or(0)), regions, "{prefix}{key}");
            assert_eq!(tensor.split().map(|split| split.axis), axis);
            // dp alone holds copies of what tp cuts, all four ranks of the rest.
            assert_eq!(tensor.replica().count(), if axis.is_some() { 2 } else { 4 });
            let parameter = (!prefix.is_empty()).then_some(key.as_str());
            assert_eq!(tensor.parameter(), parameter);
            let vocabulary = key.ends_with("wte.weight") || key.ends_with("lm_head.weight");
            assert_eq!(tensor.padded_axes(), if vocabulary { &[0][..] } else { &[] });
            assert_eq!(
                tensor.logical_shape().map(|shape| shape.to_vec()),
                vocabulary.then(|| vec![50257, 768])
            );
        }
    }
    let mask = dict.get(&format!("{layer}.attn.bias")).unwrap();
    assert_eq!((mask.global_shape().as_slice(), mask.dtype()), ([1, 1, 1024, 1024].as_slice(), DType::F32));
    assert!(dict.get(&format!("adam.m.{layer}.attn.bias")).is_none());
    let steps = dict.get("adam.t").unwrap();
    assert_eq!((steps.global_shape().len(), steps.dtype(), steps.replica().count()), (0, DType::I64, 4));
    assert_eq!(dict.len(), 3 * (4 + 12 * 12 + 1) + 12 + 1);
}

#[test]
fn segments_are_declared_whatever_tp_is() {
    for tp in [1, 2, 4] {
        let preset = Preset::new(Naming::InfiniTrain, ModelConfig::LLAMA3_1B);
        let dict = dict(&preset, &infinitrain(tp, 1, 1), tp - 1);
        let c_attn = dict.get("transformer.h.0.attn.c_attn.weight").unwrap();
        assert_eq!(c_attn.split(), Some(&Split::segmented(0, [2048, 512, 512])));
    }
}

#[test]
fn grouped_heads_of_llama() {
    let preset = Preset::new(Naming::InfiniTrain, ModelConfig::LLAMA3_1B);
    let dict = dict(&preset, &infinitrain(4, 1, 1), 1);
    let c_attn = dict.get("transformer.h.3.attn.c_attn.weight").unwrap();
    assert_eq!(along(c_attn, 0), [(512, 0, 512), (2176, 512, 128), (2688, 640, 128)]);
    assert_eq!(c_attn.local_shape().as_slice(), [768, 2048]);
    let gate = dict.get("transformer.h.3.mlp.c_fc2.weight").unwrap();
    assert_eq!(along(gate, 0), [(2048, 0, 2048)]);
    assert!(dict.get("transformer.wpe.weight").is_none() && dict.get("transformer.h.3.ln_1.bias").is_none());
    // 8 packed KV heads do not go over 16 ranks: one shard can't be part unique, part copy.
    let error = preset.bind_with_adam(DType::F32, &infinitrain(16, 1, 1)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "tensor `transformer.h.0.attn.c_attn.weight`: axis 0 over `tp`: size 512, which is 8 unit(s) of 64, \
         does not divide by 16 ranks (rule 1 `*.attn.c_attn.{weight,bias,lora_B*}`)"
    );
    // Apart, they are shared by two ranks each.
    let preset = Preset::new(Naming::HuggingFace, ModelConfig::LLAMA3_1B);
    let topology = ParallelSizes { tp: 16, dp: 2, ..Default::default() }.topology().unwrap();
    let dict = self::dict(&preset, &topology, 21); // tp 5, dp 1
    let k = dict.get("model.layers.0.self_attn.k_proj.weight").unwrap();
    assert_eq!(along(k, 0), [(128, 0, 64)]);
    assert_eq!((k.replica().id(), k.replica().count()), (3, 4)); // 4, 5, 20, 21
    let q = dict.get("model.layers.0.self_attn.q_proj.weight").unwrap();
    assert_eq!((along(q, 0), q.replica().count()), (vec![(640, 0, 128)], 2));
}

#[test]
fn what_does_not_divide_is_refused() {
    let refused = |config: &ModelConfig, tp| {
        let preset = Preset::new(Naming::InfiniTrain, config.clone());
        match preset.bind_with_adam(DType::F32, &infinitrain(tp, 1, 1)).err() {
            Some(ShardError::Cut { key, source, .. }) => (key, source),
            other => panic!("{other:?}"),
        }
    };
    let unpadded = ModelConfig { padded_vocab_size: 50257, ..ModelConfig::GPT2_124M };
    let size = CutError::Indivisible { size: 50257, unit: 1, count: 2 };
    assert_eq!(refused(&unpadded, 2), ("transformer.wte.weight".into(), size));
    // 12 heads over 8 ranks, although 768 divides by 8.
    let heads = CutError::Indivisible { size: 768, unit: 64, count: 8 };
    assert_eq!(refused(&ModelConfig::GPT2_124M, 8), ("transformer.h.0.attn.c_attn.weight".into(), heads));
    assert!(
        Preset::new(Naming::InfiniTrain, unpadded).bind_with_adam(DType::F32, &infinitrain(1, 1, 1)).is_ok()
    );
}

#[test]
fn a_stage_has_its_own_layers_and_ends() {
    let preset = Preset::new(Naming::InfiniTrain, ModelConfig::GPT2_124M);
    let topology = infinitrain(1, 1, 5);
    let mut next = 0;
    for (rank, layers) in [3, 3, 2, 2, 2].into_iter().enumerate() {
        let dict = dict(&preset, &topology, rank as u64);
        for layer in 0..12 {
            let here = (next..next + layers).contains(&layer);
            assert_eq!(dict.get(&format!("transformer.h.{layer}.ln_1.weight")).is_some(), here);
            assert_eq!(dict.get(&format!("adam.v.transformer.h.{layer}.ln_1.weight")).is_some(), here);
        }
        next += layers;
        for (key, here) in [
            ("transformer.wte.weight", rank == 0),
            ("transformer.wpe.weight", rank == 0),
            ("transformer.ln_f.weight", rank == 4),
            ("lm_head.weight", rank == 4),
            ("adam.t", true),
        ] {
            assert_eq!(dict.get(key).is_some(), here, "{key} on stage {rank}");
        }
    }
    // Two chunks each: layers 0-2 and 6-8 on the first rank.
    let topology = ParallelSizes { pp: 2, vpp: 2, ..Default::default() }.topology().unwrap();
    let dict = dict(&preset, &topology, 0);
    let here: Vec<u64> =
        (0..12).filter(|layer| dict.get(&format!("transformer.h.{layer}.ln_1.weight")).is_some()).collect();
    assert_eq!(here, [0, 1, 2, 6, 7, 8]);
}

#[test]
fn embeddings_are_tied_where_they_meet() {
    let alias = |naming, pp, key: &str| {
        let preset = Preset::new(naming, ModelConfig::GPT2_124M);
        let topology = infinitrain(1, 1, pp);
        let found = (0..pp).find_map(|rank| dict(&preset, &topology, rank).get(key).cloned()).unwrap();
        found.alias_of().map(str::to_owned)
    };
    assert_eq!(alias(Naming::InfiniTrain, 1, "transformer.wte.weight").as_deref(), Some("lm_head.weight"));
    assert_eq!(
        alias(Naming::InfiniTrain, 1, "adam.v.transformer.wte.weight").as_deref(),
        Some("adam.v.lm_head.weight")
    );
    assert_eq!(alias(Naming::InfiniTrain, 1, "lm_head.weight"), None);
    assert_eq!(alias(Naming::HuggingFace, 1, "lm_head.weight").as_deref(), Some("transformer.wte.weight"));
    for key in
        ["transformer.wte.weight", "lm_head.weight", "adam.m.transformer.wte.weight", "adam.m.lm_head.weight"]
    {
        assert_eq!(alias(Naming::InfiniTrain, 2, key), None);
    }
    let llama = dict(&Preset::new(Naming::InfiniTrain, ModelConfig::LLAMA3_1B), &infinitrain(1, 1, 1), 0);
    assert_eq!(llama.get("transformer.wte.weight").unwrap().alias_of(), None);
}

#[test]
fn adapters_are_cut_with_the_layer_they_adapt() {
    let config = ModelConfig { lora_rank: 8, qk_norm: true, ..ModelConfig::LLAMA3_1B };
    let dict = dict(&Preset::new(Naming::InfiniTrain, config), &infinitrain(4, 1, 1), 1);
    let tensor = |name: &str| dict.get(&format!("transformer.h.0.{name}")).unwrap();
    let b = tensor("attn.c_attn.lora_B");
    assert_eq!(along(b, 0), [(512, 0, 512), (2176, 512, 128), (2688, 640, 128)]);
    assert_eq!(b.local_shape().as_slice(), [768, 8]);
    assert_eq!(tensor("attn.c_attn.lora_A").split(), None);
    assert_eq!(along(tensor("mlp.c_fc2.lora_B"), 0), [(2048, 0, 2048)]);
    assert_eq!(along(tensor("mlp.c_proj.lora_A"), 1), [(2048, 0, 2048)]);
    assert_eq!(along(tensor("attn.c_proj.lora_A"), 1), [(512, 0, 512)]);
    assert_eq!(tensor("mlp.c_proj.lora_B").split(), None);
    assert_eq!(tensor("attn.q_norm.weight").local_shape().as_slice(), [64]);
    // Only the adapters are trained.
    assert!(dict.get("adam.m.transformer.h.0.attn.c_attn.lora_B").is_some());
    assert!(dict.get("adam.m.transformer.h.0.attn.c_attn.weight").is_none());
}

#[test]
fn hugging_face_gpt2_is_cut_along_its_own_axes() {
    let topology = ParallelSizes { tp: 2, ..Default::default() }.topology().unwrap();
    let dict = dict(&Preset::new(Naming::HuggingFace, ModelConfig::GPT2_124M), &topology, 1);
    let tensor = |name: &str| dict.get(&format!("transformer.h.0.{name}")).unwrap();
    let c_attn = tensor("attn.c_attn.weight");
    assert_eq!(along(c_attn, 1), [(384, 0, 384), (1152, 384, 384), (1920, 768, 384)]);
    assert_eq!(c_attn.local_shape().as_slice(), [768, 1152]);
    assert_eq!(c_attn.placements()[1].strides.as_slice(), [1152, 1]);
    assert_eq!(along(tensor("attn.c_attn.bias"), 0).len(), 3);
    assert_eq!(along(tensor("attn.c_proj.weight"), 0), [(384, 0, 384)]);
    assert_eq!(along(tensor("mlp.c_fc.weight"), 1), [(1536, 0, 1536)]);
    assert_eq!(along(tensor("mlp.c_proj.weight"), 0), [(1536, 0, 1536)]);
    let step = dict.get("optimizer.state.transformer.h.0.mlp.c_fc.weight.step").unwrap();
    assert_eq!((step.local_shape().len(), step.replica().count()), (0, 2));
    let moment = dict.get("optimizer.state.transformer.h.0.mlp.c_fc.weight.exp_avg_sq").unwrap();
    assert_eq!(moment.placements(), tensor("mlp.c_fc.weight").placements());
}

/// Published numbers of parameters.
#[test]
fn presets_have_the_size_of_the_models() {
    let count = |naming, config: &ModelConfig, without: &[&str]| -> u64 {
        let config = ModelConfig {
            padded_vocab_size: config.original_vocab_size,
            mask_buffer: false,
            ..config.clone()
        };
        let tensors = Preset::new(naming, config).tensors(DType::BF16);
        tensors
            .iter()
            .filter(|tensor| !without.contains(&tensor.key.as_str()))
            .map(|tensor| tensor.global_shape.iter().product::<u64>())
            .sum()
    };
    for naming in [Naming::InfiniTrain, Naming::HuggingFace] {
        let tied = ["lm_head.weight"];
        assert_eq!(count(naming, &ModelConfig::GPT2_124M, &tied), 124_439_808);
        assert_eq!(count(naming, &ModelConfig::GPT2_350M, &tied), 354_823_168);
        assert_eq!(count(naming, &ModelConfig::GPT2_774M, &tied), 774_030_080);
        assert_eq!(count(naming, &ModelConfig::GPT2_1558M, &tied), 1_557_611_200);
        assert_eq!(count(naming, &ModelConfig::LLAMA3_1B, &tied), 1_235_814_400);
        assert_eq!(count(naming, &ModelConfig::LLAMA3_8B, &[]), 8_030_261_248);
        assert_eq!(count(naming, &ModelConfig::LLAMA3_70B, &[]), 70_553_706_496);
        assert_eq!(count(naming, &ModelConfig::LLAMA3_405B, &[]), 405_853_388_800);
    }
}

#[test]
fn presets_are_found_by_their_keys() {
    for (naming, config) in [
        (Naming::InfiniTrain, ModelConfig::GPT2_124M),
        (Naming::HuggingFace, ModelConfig::GPT2_774M),
        (Naming::InfiniTrain, ModelConfig { lora_rank: 4, ..ModelConfig::LLAMA3_1B }),
        (Naming::InfiniTrain, ModelConfig { qk_norm: true, ..ModelConfig::LLAMA3_8B }),
        (Naming::HuggingFace, ModelConfig::LLAMA3_70B),
    ] {
        let preset = Preset::new(naming, config);
        let mut tensors = preset.tensors(DType::BF16);
        tensors.extend(preset.adam_tensors(DType::F32));
        let mut found = Preset::detect(&tensors).unwrap();
        assert_eq!(found.config.original_vocab_size, preset.config.padded_vocab_size);
        found.config.original_vocab_size = preset.config.original_vocab_size;
        assert_eq!(found, preset);
        found.rules().bind(tensors, &infinitrain(1, 1, 1)).unwrap();
    }
    // A GPT-2 file of Hugging Face: no prefix, no output head.
    let preset = Preset::new(Naming::HuggingFace, ModelConfig::GPT2_124M);
    let mut tensors = preset.tensors(DType::F32);
    tensors.retain(|tensor| tensor.key != "lm_head.weight");
    tensors.iter_mut().for_each(|tensor| tensor.key = tensor.key.replacen("transformer.", "", 1));
    let found = Preset::detect(&tensors).unwrap();
    assert_eq!((found.naming, found.config.n_layer, found.config.tied), (Naming::HuggingFace, 12, true));
    found.rules().bind(tensors, &infinitrain(2, 1, 2)).unwrap();
    assert_eq!(Preset::detect(&[("w", DType::F32, [2u64, 2]).into()]), None);
}

#[test]
fn worlds_of_every_preset_tile() {
    for (naming, config) in [
        (Naming::InfiniTrain, ModelConfig { n_layer: 3, lora_rank: 4, ..ModelConfig::GPT2_124M }),
        (Naming::HuggingFace, ModelConfig { n_layer: 3, ..ModelConfig::GPT2_124M }),
        (Naming::InfiniTrain, ModelConfig { n_layer: 3, qk_norm: true, ..ModelConfig::LLAMA3_1B }),
        (Naming::HuggingFace, ModelConfig { n_layer: 3, n_kv_head: 2, ..ModelConfig::LLAMA3_8B }),
    ] {
        for (tp, cp, dp, pp, zero) in
            [(1, 1, 1, 1, 0), (2, 1, 3, 2, 1), (4, 1, 2, 1, 1), (2, 2, 2, 3, 0), (4, 2, 5, 1, 1)]
        {
            let tp = if naming == Naming::InfiniTrain && config.n_kv_head < tp { 2 } else { tp };
            let topology = ParallelSizes { tp, cp, dp, pp, ..Default::default() }.topology().unwrap();
            let preset = Preset::new(naming, config.clone());
            let mut rules = preset.rules();
            rules.optimizer.zero = zero;
            rules.optimizer.zero_over = vec!["dp".into(), "cp".into()];
            rules.optimizer.zero_align = 64;
            let mut tensors = preset.tensors(DType::BF16);
            tensors.extend(preset.adam_tensors(DType::F32));
            let bound = rules.bind(tensors.clone(), &topology).unwrap();
            let dicts: Vec<_> = (0..topology.world_size()).map(|rank| bound.rank(rank).unwrap()).collect();
            for tensor in &tensors {
                let shards = dicts.iter().enumerate();
                prove_world(shards.filter_map(|(rank, dict)| Some((rank as u64, dict.get(&tensor.key)?))));
            }
        }
    }
}

/// The cases of the system that this project started from.
#[test]
fn known_cases() {
    let apply = |table: &str, key: &str, shape: &[u64], tp, rank| {
        let table = format!("[[rule]]\nkeys = [\"*\"]\n{table}");
        let topology = ParallelSizes { tp, ..Default::default() }.topology().unwrap();
        let dict =
            Rules::from_toml(&table).unwrap().apply([(key, DType::F32, shape)], &topology, rank).unwrap();
        dict.get(key).unwrap().clone()
    };
    let even = "cut = [{ axis = 0, over = \"tp\" }]";
    assert_eq!(along(&apply(even, "w", &[16, 4], 4, 1), 0), [(4, 0, 4)]);
    assert_eq!(along(&apply(even, "w", &[16, 4], 2, 1), 0), [(8, 0, 8)]);
    let uneven = "cut = [{ axis = 0, over = \"tp\", sizes = [3, 5] }]";
    assert_eq!(along(&apply(uneven, "w", &[8, 4], 2, 1), 0), [(3, 0, 5)]);
    let columns = "cut = [{ axis = 1, over = \"tp\", sizes = [1, 2, 1] }]";
    let column = apply(columns, "w", &[4, 4], 3, 1);
    assert_eq!((along(&column, 1), column.local_shape().to_vec()), (vec![(1, 0, 2)], vec![4, 2]));
    // A saved vocabulary of 5 rows, wanted with 8: rank 1 of 2 has one row of it and three of padding.
    let padded = format!("{even}\npadding = {{ axis = 0, logical = 5, multiple = 4 }}");
    let lm_head = apply(&padded, "lm_head.weight", &[5, 2], 2, 1);
    assert_eq!((lm_head.global_shape().to_vec(), along(&lm_head, 0)), (vec![8, 2], vec![(4, 0, 4)]));
    // A rank that has nothing but padding is a rank like any other.
    assert_eq!(along(&apply(&padded, "lm_head.weight", &[5, 2], 4, 3), 0), [(12, 0, 4)]);
}

/// All ranks of the largest job that is planned for: the groups come from strides, not from scans.
#[test]
fn a_rank_of_a_large_world_is_described_alone() {
    let preset = Preset::new(Naming::HuggingFace, ModelConfig::LLAMA3_405B);
    let topology = ParallelSizes { tp: 8, pp: 16, dp: 128, ..Default::default() }.topology().unwrap();
    assert_eq!(topology.world_size(), 16384);
    let mut rules = preset.rules();
    rules.optimizer.zero = 1;
    let mut tensors = preset.tensors(DType::BF16);
    tensors.extend(preset.adam_tensors(DType::F32));
    let bound = rules.bind(tensors, &topology).unwrap();
    let mut owned = 0;
    for rank in (0..128).map(|dp| 8 * dp) {
        let dict = bound.rank(rank).unwrap();
        let moments = dict.iter().filter(|(key, _)| key.ends_with(".exp_avg"));
        owned += moments.map(|(_, tensor)| tensor.local_elements()).sum::<u64>();
        assert!(dict.iter().all(|(_, tensor)| tensor.placements().len() <= 3));
    }
    let stage = bound.rank(0).unwrap();
    let parameters = stage.iter().filter(|(_, tensor)| tensor.group() == StateGroup::Model);
    assert_eq!(owned, parameters.map(|(_, tensor)| tensor.local_elements()).sum::<u64>());
}
