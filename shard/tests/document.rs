//! The example table of docs/sharding.md is read and does what the page says.

#![allow(clippy::unwrap_used)]

mod naive;

use naive::prove_world;
use reshard_shard::{DType, ParallelSizes, Rules, ShardedStateDict};

/// The text between ```` ```toml ```` and the next fence.
fn table() -> String {
    let page = include_str!("../../docs/sharding.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_example_table_shards_a_model() {
    let rules = Rules::from_toml(&table()).unwrap();
    let parameters: Vec<(String, Vec<u64>)> = [("model.embed_tokens.weight".to_owned(), vec![1000, 128])]
        .into_iter()
        .chain((0..4).flat_map(|layer| {
            let at = |name: &str| format!("model.layers.{layer}.{name}");
            [
                (at("norm.weight"), vec![128]),
                (at("qkv_proj.weight"), vec![256, 128]),
                (at("qkv_proj.bias"), vec![256]),
                (at("o_proj.weight"), vec![128, 128]),
                (at("experts.0.up.weight"), vec![64, 128]),
                (at("experts.1.up.weight"), vec![64, 128]),
            ]
        }))
        .chain([("model.norm.weight".to_owned(), vec![128]), ("lm_head.weight".to_owned(), vec![1000, 128])])
        .collect();
    let mut tensors: Vec<(String, DType, Vec<u64>)> = vec![("optimizer.lr".into(), DType::F64, vec![])];
    for (key, shape) in &parameters {
        tensors.push((key.clone(), DType::BF16, shape.clone()));
        for state in ["exp_avg", "exp_avg_sq"] {
            tensors.push((format!("optimizer.state.{key}.{state}"), DType::BF16, shape.clone()));
        }
        tensors.push((format!("optimizer.state.{key}.step"), DType::F32, vec![]));
    }
    for (tp, dp, pp, ep) in [(1, 1, 1, 1), (4, 2, 1, 2), (2, 4, 2, 2)] {
        let topology = ParallelSizes { tp, dp, pp, ep, ..Default::default() }.topology().unwrap();
        let bound = rules.bind(tensors.clone(), &topology).unwrap();
        let dicts: Vec<ShardedStateDict> =
            (0..topology.world_size()).map(|rank| bound.rank(rank).unwrap()).collect();
        for (key, _, _) in &tensors {
            let shards = dicts.iter().enumerate();
            prove_world(shards.filter_map(|(rank, dict)| Some((rank as u64, dict.get(key)?))));
        }
        let embedding = dicts[0].get("model.embed_tokens.weight").unwrap();
        assert_eq!(embedding.global_shape()[0], 1000u64.next_multiple_of(16 * tp));
        let moment = dicts[0].get("optimizer.state.model.layers.0.o_proj.weight.exp_avg").unwrap();
        assert_eq!(moment.dtype(), DType::F32);
        let head = dicts.last().unwrap().get("lm_head.weight").unwrap();
        assert_eq!(head.alias_of().is_some(), pp == 1);
    }
}
