//! InfiniTrain's trainer_state.json.

use crate::foreign::ForeignError;
use crate::format::{ModelConfig, ParallelSizes, TrainerState};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// As it stands: flat, and every field may be missing.
#[derive(Deserialize)]
struct Raw {
    n_layer: Option<u64>,
    n_head: Option<u64>,
    n_kv_head: Option<u64>,
    n_embd: Option<u64>,
    original_vocab_size: Option<u64>,
    padded_vocab_size: Option<u64>,
    /// What older writers say instead of `padded_vocab_size`.
    vocab_size: Option<u64>,
    global_step: Option<u64>,
    consumed_train_samples: Option<u64>,
    ddp_size: Option<NonZeroU32>,
    /// Another name of `ddp_size`.
    dp_size: Option<NonZeroU32>,
    tp_size: Option<NonZeroU32>,
    sp_size: Option<NonZeroU32>,
    pp_size: Option<NonZeroU32>,
    vpp_size: Option<NonZeroU32>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Reads `file`. As for InfiniTrain itself, a missing size is 1 and a missing count 0; a 0 in the architecture means that
/// the writer did not know it. Fields that are not known are kept in `user`.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<TrainerState, ForeignError> {
    let malformed = |why: String| ForeignError::Malformed { file: file.to_owned(), why };
    let raw: Raw =
        serde_json::from_slice(bytes).map_err(|error| malformed(format!("not a trainer state: {error}")))?;
    if let (Some(ddp), Some(dp)) = (raw.ddp_size, raw.dp_size)
        && ddp != dp
    {
        return Err(malformed(format!("ddp_size is {ddp} and dp_size is {dp}")));
    }
    let known = |value: Option<u64>| value.filter(|&value| value > 0);
    let size = |size: Option<NonZeroU32>| size.unwrap_or(NonZeroU32::MIN);
    Ok(TrainerState {
        global_step: raw.global_step.unwrap_or(0),
        consumed_train_samples: raw.consumed_train_samples.unwrap_or(0),
        model: ModelConfig {
            n_layer: known(raw.n_layer),
            n_head: known(raw.n_head),
            n_kv_head: known(raw.n_kv_head),
            n_embd: known(raw.n_embd),
            original_vocab_size: known(raw.original_vocab_size),
            padded_vocab_size: known(raw.padded_vocab_size.or(raw.vocab_size)),
            others: BTreeMap::new(),
        },
        ran_with: ParallelSizes {
            tp: size(raw.tp_size),
            pp: size(raw.pp_size),
            dp: size(raw.ddp_size.or(raw.dp_size)),
            sp: size(raw.sp_size),
            vpp: size(raw.vpp_size),
        },
        lr_scheduler: Value::Null,
        user: if raw.others.is_empty() { Value::Null } else { Value::Object(raw.others) },
    })
}
