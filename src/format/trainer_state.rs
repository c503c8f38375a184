//! trainer_state.json: what the training loop needs besides tensors.

use super::names::{FORMAT, VERSION};
use super::{FormatError, version};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The state of the training loop at the iteration saved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// Optimizer steps done.
    pub global_step: u64,
    /// Training samples consumed, over all data-parallel ranks.
    pub consumed_train_samples: u64,
    /// The model's architecture.
    pub model: ModelConfig,
    /// The sizes of the parallel dimensions that it ran with.
    pub ran_with: ParallelSizes,
    /// The learning-rate scheduler's own state; `null` where there is none.
    pub lr_scheduler: Value,
    /// Whatever the caller wants back.
    pub user: Value,
}

/// The architecture, as far as the caller states it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Transformer layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_layer: Option<u64>,
    /// Attention heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_head: Option<u64>,
    /// Key-value heads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_kv_head: Option<u64>,
    /// Width of the embedding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n_embd: Option<u64>,
    /// Words of the tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_vocab_size: Option<u64>,
    /// Rows of the embedding, padding included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padded_vocab_size: Option<u64>,
    /// Others that the caller names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, Value>,
}

/// Sizes of the parallel dimensions of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParallelSizes {
    /// Tensor parallel.
    pub tp: NonZeroU32,
    /// Pipeline parallel.
    pub pp: NonZeroU32,
    /// Data parallel.
    pub dp: NonZeroU32,
    /// Sequence parallel.
    pub sp: NonZeroU32,
    /// Virtual pipeline stages a rank.
    pub vpp: NonZeroU32,
}

/// One rank.
impl Default for ParallelSizes {
    fn default() -> Self {
        let one = NonZeroU32::MIN;
        Self { tp: one, pp: one, dp: one, sp: one, vpp: one }
    }
}

/// A property of the architecture that two configurations state differently.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// Its name.
    pub field: String,
    /// Value of the saved model.
    pub saved: Value,
    /// Value of the running model.
    pub running: Value,
}

/// The name of [`ModelConfig::padded_vocab_size`], the one property that may differ between runs of one model.
const PADDED_VOCAB_SIZE: &str = "padded_vocab_size";

impl Difference {
    /// Whether only padding differs, as it does between tensor-parallel sizes; the tensors' own shapes decide then
    /// whether they load.
    pub fn is_padding(&self) -> bool {
        self.field == PADDED_VOCAB_SIZE
    }
}

#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    format: &'a str,
    #[serde(flatten)]
    state: &'a TrainerState,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    version: u64,
    format: String,
    global_step: u64,
    consumed_train_samples: u64,
    model: ModelConfig,
    ran_with: ParallelSizes,
    lr_scheduler: Value,
    user: Value,
}

impl TrainerState {
    /// The state after `global_step` steps of a run on one rank, with nothing else said.
    pub fn at_step(global_step: u64) -> Self {
        Self {
            global_step,
            consumed_train_samples: 0,
            model: ModelConfig::default(),
            ran_with: ParallelSizes::default(),
            lr_scheduler: Value::Null,
            user: Value::Null,
        }
    }

    /// The bytes of trainer_state.json.
    ///
    /// # Errors
    /// [`FormatError::TrainerState`] where a caller's JSON can't be written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, FormatError> {
        serde_json::to_vec(&Written { version: VERSION, format: FORMAT, state: self }).map_err(|error| {
            FormatError::TrainerState { file: super::TRAINER_STATE_FILE.to_owned(), why: error.to_string() }
        })
    }

    /// Reads `file`.
    ///
    /// # Errors
    /// [`FormatError::UnsupportedVersion`] or [`FormatError::TrainerState`].
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, FormatError> {
        let fault = |why: String| FormatError::TrainerState { file: file.to_owned(), why };
        let read: Read =
            version::parse(file, bytes, |read: &Read| read.version, |error| fault(error.to_string()))?;
        if read.format != FORMAT {
            return Err(fault(format!("format `{}` is not {FORMAT}", read.format)));
        }
        let Read { global_step, consumed_train_samples, model, ran_with, lr_scheduler, user, .. } = read;
        Ok(Self { global_step, consumed_train_samples, model, ran_with, lr_scheduler, user })
    }
}

/// The properties that both configurations state and state differently. What only one states is no difference.
pub fn compare_architecture(saved: &ModelConfig, running: &ModelConfig) -> Vec<Difference> {
    let known = [
        ("n_layer", saved.n_layer, running.n_layer),
        ("n_head", saved.n_head, running.n_head),
        ("n_kv_head", saved.n_kv_head, running.n_kv_head),
        ("n_embd", saved.n_embd, running.n_embd),
        ("original_vocab_size", saved.original_vocab_size, running.original_vocab_size),
        (PADDED_VOCAB_SIZE, saved.padded_vocab_size, running.padded_vocab_size),
    ];
    let known = known.into_iter().filter_map(|(field, saved, running)| {
        Some((field.to_owned(), Value::from(saved?), Value::from(running?)))
    });
    let others = saved.others.iter().filter_map(|(field, saved)| {
        Some((field.clone(), saved.clone(), running.others.get(field)?.clone()))
    });
    known
        .chain(others)
        .filter(|(_, saved, running)| !same(saved, running))
        .map(|(field, saved, running)| Difference { field, saved, running })
        .collect()
}

/// Equal as values: 1e4 and 10000.0 and 10000 are one number, whoever wrote them.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.is_f64() || y.is_f64()) && x.as_f64() == y.as_f64()
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(name, x)| y.get(name).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state() -> TrainerState {
        let one = NonZeroU32::MIN;
        TrainerState {
            global_step: 100,
            consumed_train_samples: u64::MAX,
            model: ModelConfig {
                n_layer: Some(12),
                padded_vocab_size: Some(50_304),
                others: BTreeMap::from([
                    ("rope_theta".into(), json!(10_000)),
                    ("act".into(), json!(["gelu", 1])),
                ]),
                ..ModelConfig::default()
            },
            ran_with: ParallelSizes { tp: one, pp: one, dp: NonZeroU32::new(8).unwrap(), sp: one, vpp: one },
            lr_scheduler: json!({"last_epoch": 3, "base_lrs": [0.1]}),
            user: Value::Null,
        }
    }

    #[test]
    fn a_state_round_trips_and_other_text_is_refused() {
        let bytes = state().to_bytes().unwrap();
        assert_eq!(TrainerState::parse("t", &bytes).unwrap(), state());
        let text = String::from_utf8(bytes).unwrap();
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            TrainerState::parse("t", text.replacen(from, to, 1).as_bytes()).unwrap_err()
        };
        let newer = FormatError::UnsupportedVersion { file: "t".into(), found: 2 };
        assert_eq!(with("\"version\":1", "\"version\":2"), newer);
        assert_eq!(with("\"version\":1", "\"version\":2,\"new\":1"), newer);
        for (from, to, words) in [
            ("reshard", "other", "format `other`"),
            ("\"user\"", "\"usr\"", "unknown field `usr`"),
            ("\"tp\":1", "\"tp\":0", "nonzero"),
            ("\"tp\":1,", "", "missing field `tp`"),
            ("\"global_step\":100", "\"global_step\":1,\"global_step\":2", "duplicate field"),
            ("\"n_layer\":12", "\"n_layer\":-1", "invalid value"),
            ("{\"version\"", "\"version\"", "invalid type"),
        ] {
            let error = with(from, to).to_string();
            assert!(error.starts_with("t: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn only_what_both_state_is_compared() {
        let saved = state().model;
        assert_eq!(compare_architecture(&saved, &ModelConfig::default()), []);
        let mut running = saved.clone();
        running.n_head = Some(12);
        running.others.insert("rope_theta".into(), json!(1e4));
        assert_eq!(compare_architecture(&saved, &running), []);
        running.n_layer = Some(24);
        running.padded_vocab_size = Some(50_432);
        running.others.insert("act".into(), json!(["gelu", 2]));
        let found = compare_architecture(&saved, &running);
        let names: Vec<_> = found.iter().map(|d| (d.field.as_str(), d.is_padding())).collect();
        assert_eq!(names, [("n_layer", false), ("padded_vocab_size", true), ("act", false)]);
        assert_eq!((&found[0].saved, &found[0].running), (&json!(12), &json!(24)));
    }
}
