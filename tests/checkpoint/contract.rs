//! How dtypes may differ between what was saved and what is wanted.

use crate::harness::{dict, errors, load, memory, save_with};
use reshard::checkpoint::LoadRequest;
use reshard::plan::{DTypeContract, DTypeRule};
use reshard::shard::{DType, Replica, ShardedStateDict, ShardedTensor, ShardedTensorBuilder, StateGroup};
use reshard::storage::StorageBackend;
use std::sync::Arc;

fn bytes<T: Copy, const N: usize>(values: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to(value)).collect()
}

fn bf16(values: &[f32]) -> Vec<u8> {
    bytes(values, |value| ((value.to_bits() >> 16) as u16).to_le_bytes())
}

fn f32s(values: &[f32]) -> Vec<u8> {
    bytes(values, f32::to_le_bytes)
}

/// A run of one rank with one tensor `w` of four elements.
fn saved(dtype: DType, data: &[u8]) -> Arc<dyn StorageBackend> {
    let storage = memory();
    let dicts = [dict([("w", ShardedTensor::builder(dtype, [4]))])];
    save_with(&storage, 1, &dicts, |_, _| data.to_vec()).pop().unwrap().unwrap();
    storage
}

/// The element of each of two ranks: rank r has elements 2r and 2r + 1.
fn halves(dtype: DType) -> Vec<ShardedStateDict> {
    let half = |rank: u64| ShardedTensor::builder(dtype, [4]).region([2 * rank], [2]).unwrap();
    (0..2).map(|rank| dict([("w", half(rank))])).collect()
}

fn rule(rule: DTypeRule) -> impl Fn(&mut LoadRequest<'_>) + Sync {
    move |request| request.rules.contract = DTypeContract::new(rule)
}

/// The tensor over both ranks, and the overflows that both report.
fn loaded(storage: &Arc<dyn StorageBackend>, dtype: DType, how: DTypeRule) -> (Vec<u8>, u64) {
    let ranks = load(storage, &halves(dtype), rule(how)).into_iter().map(Result::unwrap);
    ranks.fold((Vec::new(), 0), |(mut all, overflowed), rank| {
        all.extend(rank.tensors["w"].as_ref());
        (all, overflowed + rank.report.overflowed)
    })
}

fn refused(storage: &Arc<dyn StorageBackend>, dtype: DType, how: DTypeRule) -> String {
    let errors = errors(load(storage, &halves(dtype), rule(how)));
    assert!(errors.iter().all(|error| error.contains("`w`")), "{errors:?}");
    errors[0].clone()
}

#[test]
fn dtype_narrowed_in_silence() {
    let storage = saved(DType::F32, &f32s(&[1.0, 2.0, 3.0, 4.0]));
    for how in [DTypeRule::Exact, DTypeRule::Widen] {
        let error = refused(&storage, DType::BF16, how);
        assert!(error.contains("f32") && error.contains("bf16") && error.contains("allow `any`"), "{error}");
    }
}

#[test]
fn exact_refuses_to_widen_and_widen_does_it() {
    let values = [1.0, -0.0, f32::NEG_INFINITY, 1.5e-39];
    let storage = saved(DType::BF16, &bf16(&values));
    let error = refused(&storage, DType::F32, DTypeRule::Exact);
    assert!(error.contains("allow `widen`"), "{error}");
    let exact: Vec<f32> = values.iter().map(|value| f32::from_bits(value.to_bits() >> 16 << 16)).collect();
    assert_eq!(loaded(&storage, DType::F32, DTypeRule::Widen), (f32s(&exact), 0));
    // The same dtype keeps every bit, NaN payloads too.
    let odd = [0x7fa1u16, 0xffc3, 0x8000, 0x0001];
    let storage = saved(DType::BF16, &bytes(&odd, u16::to_le_bytes));
    assert_eq!(loaded(&storage, DType::BF16, DTypeRule::Any), (bytes(&odd, u16::to_le_bytes), 0));
}

#[test]
fn any_rounds_to_nearest_even_and_counts_what_becomes_infinite() {
    // Halfway between two bf16 goes to the even one; f32::MAX is past the largest bf16.
    let halfway = [0x3f80_8000u32, 0x3f81_8000].map(f32::from_bits);
    let storage = saved(DType::F32, &f32s(&[halfway[0], halfway[1], f32::MAX, f32::INFINITY]));
    let expected: Vec<u8> = bytes(&[0x3f80u16, 0x3f82, 0x7f80, 0x7f80], u16::to_le_bytes);
    assert_eq!(loaded(&storage, DType::BF16, DTypeRule::Any), (expected, 1));
    let report = load(&storage, &halves(DType::BF16), rule(DTypeRule::Any)).pop().unwrap().unwrap().report;
    assert!(report.table().contains("values that became infinite  1"), "{}", report.table());
}

#[test]
fn an_integer_out_of_range_is_an_error_on_all_ranks() {
    let storage = saved(DType::I64, &bytes(&[1i64, 2, 3, 127], i64::to_le_bytes));
    assert_eq!(loaded(&storage, DType::I8, DTypeRule::Any), (vec![1, 2, 3, 127], 0));
    let storage = saved(DType::I64, &bytes(&[1i64, 2, 3, 128], i64::to_le_bytes));
    // Only rank 1 has the value.
    let error = refused(&storage, DType::I8, DTypeRule::Any);
    assert!(error.contains("rank 1 failed") && error.contains("128"), "{error}");
}

#[test]
fn bool_complex_and_integers_never_become_something_else() {
    for (saved_as, wanted, size) in [
        (DType::Bool, DType::U8, 1),
        (DType::U8, DType::Bool, 1),
        (DType::C64, DType::F32, 8),
        (DType::I32, DType::F32, 4),
        (DType::F32, DType::I32, 4),
    ] {
        let storage = saved(saved_as, &vec![0; 4 * size]);
        let error = refused(&storage, wanted, DTypeRule::Any);
        assert!(error.contains("never convert"), "{error}");
    }
}

/// A bf16 model with f32 moments: each tensor has its own dtype, and one key may have a rule of its own.
#[test]
fn moments_keep_their_dtype_and_one_key_may_have_its_own_rule() {
    let state = |model: DType| -> ShardedStateDict {
        let replica = Replica::SOLE;
        let moment = |builder: ShardedTensorBuilder| {
            builder.group(StateGroup::Optimizer).parameter("w").replica(replica)
        };
        dict([
            ("w", ShardedTensor::builder(model, [2])),
            ("adam.m.w", moment(ShardedTensor::builder(DType::F32, [2]))),
        ])
    };
    let storage = memory();
    let (weights, moments) = (bf16(&[1.0, 2.0]), f32s(&[0.1, 1e-30]));
    let local = |_: usize, key: &str| if key == "w" { weights.clone() } else { moments.clone() };
    save_with(&storage, 1, &[state(DType::BF16)], local).pop().unwrap().unwrap();
    let bf16_model = load(&storage, &[state(DType::BF16)], |_| {}).pop().unwrap().unwrap();
    assert_eq!(bf16_model.tensors["adam.m.w"].as_ref(), moments);
    let contract = DTypeContract::new(DTypeRule::Exact).with_override("w", DTypeRule::Widen);
    let wide = load(&storage, &[state(DType::F32)], |request| request.rules.contract = contract.clone());
    let wide = wide.into_iter().next().unwrap().unwrap();
    assert_eq!(wide.tensors["w"].as_ref(), f32s(&[1.0, 2.0]));
    assert_eq!(wide.tensors["adam.m.w"].as_ref(), moments);
    let elsewhere = DTypeContract::new(DTypeRule::Exact).with_override("adam.m.w", DTypeRule::Widen);
    let errors =
        errors(load(&storage, &[state(DType::F32)], |request| request.rules.contract = elsewhere.clone()));
    assert!(errors[0].contains("`w`"), "{errors:?}");
}
