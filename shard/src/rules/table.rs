use crate::{DType, Pieces};
use serde::{Deserialize, Serialize};

/// How tensors are sharded, as a table: which keys are cut along which axis over which mesh axis, which pipeline
/// stage they belong to, and how optimizer state follows its parameters.
///
/// Written in TOML or built in code. Only [`Rules::apply`] and [`Rules::bind`] check it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Which keys belong to which pipeline stage. Without it the topology must have one stage.
    #[serde(default)]
    pub pipeline: Option<PipelineRules>,
    /// Which keys are optimizer state, and of which parameter.
    #[serde(default)]
    pub optimizer: OptimizerRules,
    /// The rules for parameters and buffers, tried in order; the first that matches a key holds.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// How the tensors whose keys match are sharded. One of `replicated`, `cut` and `flat` says it; `flat` may follow
/// a `cut`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Globs of whole keys: `*` stands for any characters (dots and slashes too), `?` for one, `[ab]` and
    /// `{weight,bias}` for alternatives.
    pub keys: Vec<String>,
    /// Every rank of the stage holds the whole tensor.
    #[serde(default)]
    pub replicated: bool,
    /// The cuts, each on what those before it left.
    #[serde(default)]
    pub cut: Vec<CutRule>,
    /// What the cuts left is laid flat, row-major, and dealt in equal ranges over these mesh axes together (ZeRO-3).
    #[serde(default)]
    pub flat: Vec<String>,
    /// Permission to pad.
    #[serde(default)]
    pub padding: Option<PaddingRule>,
    /// The tensor shares the storage of this one where both lie on the same stage (tied embeddings), and so does its
    /// optimizer state. On different stages, or where the other is not among the tensors, it is one of its own.
    #[serde(default)]
    pub tied_with: Option<String>,
    /// Element type that the rank wants; `None` = that of the unsharded tensor.
    #[serde(default)]
    pub dtype: Option<DType>,
    /// The keys name experts, and each rank holds only some of them.
    #[serde(default)]
    pub expert: Option<ExpertRule>,
}

/// A cut of one tensor axis over one mesh axis.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutRule {
    /// Axis of the tensor, from 0.
    pub axis: usize,
    /// Axis of the mesh.
    pub over: String,
    /// Segments along the axis, each cut on its own, as proportions: for packed QKV the numbers of heads
    /// (`[32, 8, 8]`), `[1, 1]` for a fused `[gate; up]`, or just the sizes. None = one segment.
    #[serde(default)]
    pub segments: Vec<u64>,
    /// Elements that stay together, such as the size of a head; 1 where not said.
    #[serde(default)]
    pub unit: Option<u64>,
    /// How the pieces are dealt.
    #[serde(default)]
    pub pieces: PieceKind,
    /// Explicit sizes for the ranks, in order; instead of `unit` and `pieces`.
    #[serde(default)]
    pub sizes: Vec<u64>,
}

/// How a cut deals pieces; see [`Pieces`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PieceKind {
    /// Equal pieces, or an error.
    #[default]
    Even,
    /// Equal pieces; where there are fewer units than ranks, several ranks hold the same unit (replicated KV heads).
    Shared,
    /// torch's `chunk`: the last ranks may hold less, or nothing.
    Chunk,
}

/// Permission to pad an axis at its end: a saved and a wanted tensor may differ in size there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaddingRule {
    /// Axis of the tensor.
    pub axis: usize,
    /// Size without padding, where it is known.
    #[serde(default)]
    pub logical: Option<u64>,
    /// Makes the size the logical one (or the given one, where that is not known) rounded up to a multiple of this
    /// times the number of ranks that the axis is cut over: Megatron's `make-vocab-size-divisible-by`. `None` = the
    /// given size stays.
    #[serde(default)]
    pub multiple: Option<u64>,
}

/// Keys that name an expert by its global number: rank `r` of `n` along `over` holds the `r`-th of `n` equal runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertRule {
    /// The text around the number, somewhere in the key: `.experts.{expert}.`.
    pub key: String,
    /// Axis of the mesh, usually `ep`.
    pub over: String,
    /// Number of experts; `None` = one more than the largest number among the keys.
    #[serde(default)]
    pub count: Option<u64>,
}

/// Which pipeline stage a key belongs to. Optimizer state belongs where its parameter does.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineRules {
    /// The text around the global layer number, somewhere in the key: `transformer.h.{layer}.`. The first that
    /// occurs holds.
    pub layer_keys: Vec<String>,
    /// Number of layers; `None` = one more than the largest number among the keys.
    #[serde(default)]
    pub layers: Option<u64>,
    /// Layers of each of the `pp * vpp` model chunks; empty = even, the remainder to the first.
    #[serde(default)]
    pub layers_of_chunk: Vec<u64>,
    /// Globs of keys before the layers: on the first stage.
    #[serde(default)]
    pub first: Vec<String>,
    /// Globs of keys behind the layers: on the last stage.
    #[serde(default)]
    pub last: Vec<String>,
    /// Globs of keys that every stage holds.
    #[serde(default)]
    pub every: Vec<String>,
}

/// Which keys are optimizer state, and how it is sharded: like its parameter, with a dtype of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerRules {
    /// States of the parameters.
    pub states: Vec<StateRule>,
    /// Globs of keys of states that belong to no parameter; every rank holds them.
    pub scalars: Vec<String>,
    /// ZeRO stage: 0 = states are sharded as parameters are; 1 = they are also dealt over data parallel ranks, as
    /// slices of a flat bucket for each stage, and another for its experts.
    pub zero: u8,
    /// Mesh axes over which a bucket is dealt.
    pub zero_over: Vec<String>,
    /// Mesh axes over which a bucket of experts is dealt. In it are the parameters whose rule has `expert`, and those that
    /// are cut along ranks that `zero_over` covers.
    pub zero_expert_over: Vec<String>,
    /// Parameters begin at multiples of this many elements in a bucket.
    pub zero_align: u64,
}

impl Default for OptimizerRules {
    fn default() -> Self {
        Self {
            states: Vec::new(),
            scalars: Vec::new(),
            zero: 0,
            zero_over: vec!["dp".into()],
            zero_expert_over: vec!["edp".into()],
            zero_align: 1,
        }
    }
}

/// One state that each parameter has. It has the parameter's shape and is sharded like it, or it is a scalar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateRule {
    /// Its key, with the parameter's in it: `adam.m.{param}`, `optimizer.state.{param}.exp_avg`.
    pub key: String,
    /// Element type that the rank wants; `None` = that of the unsharded tensor.
    #[serde(default)]
    pub dtype: Option<DType>,
    /// It is 0-dim, whatever the parameter's shape (a count of steps), and whole on every rank that holds a shard of
    /// the parameter.
    #[serde(default)]
    pub scalar: bool,
}

impl Rule {
    /// Every rank of the stage holds tensors of these keys whole.
    pub fn replicated<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { replicated: true, ..Self::of(keys) }
    }

    /// Tensors of these keys are cut along `axis` over the mesh axis `over`, evenly.
    pub fn cut<K: Into<String>>(keys: impl IntoIterator<Item = K>, axis: usize, over: &str) -> Self {
        Self { cut: vec![CutRule::even(axis, over)], ..Self::of(keys) }
    }

    /// No way of sharding yet.
    fn of<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

impl CutRule {
    /// Equal pieces.
    pub fn even(axis: usize, over: &str) -> Self {
        Self {
            axis,
            over: over.to_owned(),
            segments: Vec::new(),
            unit: None,
            pieces: PieceKind::Even,
            sizes: Vec::new(),
        }
    }

    /// How the pieces are dealt; `None` where the fields contradict each other.
    pub(crate) fn dealt(&self) -> Option<Pieces> {
        let unit = self.unit.unwrap_or(1);
        match (self.pieces, self.sizes.is_empty(), self.unit) {
            (PieceKind::Even, true, _) => Some(Pieces::Even { unit }),
            (PieceKind::Shared, true, _) if self.segments.is_empty() => Some(Pieces::Shared { unit }),
            (PieceKind::Chunk, true, None) => Some(Pieces::Chunk),
            (PieceKind::Even, false, None) => Some(Pieces::Sizes(self.sizes.clone())),
            _ => None,
        }
    }
}
