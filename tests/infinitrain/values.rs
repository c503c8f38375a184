//! Values that arrive.

use crate::store::{Shard, write};
use reshard::checkpoint::{Checkpoint, LoadRequest, Options};
use reshard::collective::Single;
use reshard::plan::{DTypeContract, DTypeRule};
use reshard::shard::{DType, ShardedStateDict, ShardedTensor, Split};

const KEY: &str = "lm_head.weight";

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// What one rank gets of the only tensor.
fn load(shard: Shard<'_>, target: ShardedTensor, rule: DTypeRule) -> Vec<f32> {
    let key = shard.key;
    let checkpoint = Checkpoint::new(write(&[shard]), Options::default());
    let mut dict = ShardedStateDict::new();
    dict.insert(key, target).unwrap();
    let mut request = LoadRequest::new(&dict);
    request.rules.contract = DTypeContract::new(rule);
    let loaded = checkpoint.load(&Single, request).unwrap();
    loaded.tensors[key].as_ref().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn rows_past_the_vocabulary_are_zero() {
    let values: Vec<f32> = (0..10u8).map(f32::from).collect();
    let saved = Shard { bytes: fp32(&values), ..Shard::rows(0, KEY, &[5, 2], &[5, 2], &[0, 0]) };
    let target = ShardedTensor::builder(DType::F32, [8, 2]).split(Split::axis(0)).padded(0);
    let target = target.region([4, 0], [4, 2]).unwrap().build(KEY).unwrap();
    assert_eq!(load(saved, target, DTypeRule::Exact), [8.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn bf16_becomes_fp32_exactly() {
    let bytes: Vec<u8> =
        [0x3f80u16, 0x4000, 0x4040, 0x4080].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let saved = Shard { dtype: "bf16", bytes, ..Shard::rows(0, KEY, &[2, 2], &[2, 2], &[0, 0]) };
    let target = ShardedTensor::builder(DType::F32, [2, 2]).build(KEY).unwrap();
    assert_eq!(load(saved, target, DTypeRule::Widen), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_column_slice_has_the_columns() {
    let values: Vec<f32> =
        (0..4u8).flat_map(|row| (0..4u8).map(move |column| f32::from(10 * row + column))).collect();
    let saved = Shard { bytes: fp32(&values), ..Shard::rows(0, KEY, &[4, 4], &[4, 4], &[0, 0]) };
    let target =
        ShardedTensor::builder(DType::F32, [4, 4]).split(Split::axis(1)).region([0, 1], [4, 2]).unwrap();
    let found = load(saved, target.build(KEY).unwrap(), DTypeRule::Exact);
    assert_eq!(found, [1.0, 2.0, 11.0, 12.0, 21.0, 22.0, 31.0, 32.0]);
}
