use crate::region::{Dims, Region, RegionError};
use crate::{CoverageFault, CutError, DType};

/// Why something is not a shard, a state dict, a topology or a rule table. Every variant is *invalid input*: the
/// caller's description is wrong, nothing was read or written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// Coordinates or sizes of a tensor are not valid.
    #[error("tensor `{key}`: {source}")]
    Region {
        /// The tensor.
        key: String,
        /// What is wrong.
        source: RegionError,
    },
    /// Two regions of one shard overlap in global coordinates.
    #[error("tensor `{key}`: two regions of one shard overlap at element {point:?}")]
    RegionsOverlap {
        /// The tensor.
        key: String,
        /// The first element that two regions share.
        point: Dims,
    },
    /// Two elements share a place in the local buffer, or one lies outside it.
    #[error(
        "tensor `{key}`: region {region} does not fit its local buffer of {local_elements} elements: {why}"
    )]
    Placement {
        /// The tensor.
        key: String,
        /// The region.
        region: Box<Region>,
        /// Size of the local buffer, in elements.
        local_elements: u64,
        /// What does not fit.
        why: &'static str,
    },
    /// A declared split (axis and segments) does not fit the global shape.
    #[error(
        "tensor `{key}`: split of axis {axis} with segments {segments:?} does not fit global shape {global_shape:?}"
    )]
    Split {
        /// The tensor.
        key: String,
        /// The declared axis.
        axis: usize,
        /// The declared segment lengths along it.
        segments: Vec<u64>,
        /// The tensor's global shape.
        global_shape: Dims,
    },
    /// The logical shape is not inside the global shape, or differs on an axis that may not be padded.
    #[error(
        "tensor `{key}`: logical shape {logical_shape:?} does not fit global shape {global_shape:?} (padded axes {padded_axes:?})"
    )]
    LogicalShape {
        /// The tensor.
        key: String,
        /// Shape without padding.
        logical_shape: Vec<u64>,
        /// Shape with padding.
        global_shape: Vec<u64>,
        /// The axes on which padding is allowed.
        padded_axes: Vec<usize>,
    },
    /// An opaque dtype can only be held whole.
    #[error("tensor `{key}`: dtype {dtype} is packed and can only be saved and loaded whole, in whole bytes")]
    OpaqueSplit {
        /// The tensor.
        key: String,
        /// Its dtype.
        dtype: DType,
    },
    /// `replica_id` is not below `replica_count`, or the ranks of a replica group are not sorted and distinct.
    #[error("tensor `{key}`: replica {id} of {count} is not valid: {why}")]
    Replica {
        /// The tensor.
        key: String,
        /// The replica id.
        id: u32,
        /// The replica count.
        count: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// A key was given twice.
    #[error("tensor `{key}` is declared twice; merge the declarations or rename one")]
    DuplicateKey {
        /// The tensor.
        key: String,
    },
    /// A tensor says that it is the same as one that is not there, or that is itself an alias.
    #[error(
        "tensor `{key}` is declared an alias of `{target}`, which is not a tensor of this state dict on its own"
    )]
    Alias {
        /// The tensor.
        key: String,
        /// What it names.
        target: String,
    },
    /// The regions that all ranks hold together do not tile the tensor.
    #[error("tensor `{key}`: {fault}")]
    Coverage {
        /// The tensor.
        key: String,
        /// Where.
        fault: CoverageFault,
    },
    /// A mesh axis is not valid.
    #[error("mesh axis `{axis}` of size {size}: {why}")]
    Axis {
        /// The axis.
        axis: String,
        /// Its size.
        size: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// Sizes of parallelism do not make up, or do not divide, the number of ranks.
    #[error(
        "sizes {sizes:?} do not fit {world_size} ranks; their product must divide it, or be it where they name all ranks"
    )]
    WorldSize {
        /// Number of ranks that the sizes cut.
        world_size: u64,
        /// The sizes.
        sizes: Vec<u64>,
    },
    /// A mesh has no axis of that name.
    #[error("no mesh axis `{axis}`; the topology has {known:?}")]
    UnknownAxis {
        /// The name asked for.
        axis: String,
        /// The axes that there are.
        known: Vec<String>,
    },
    /// A rank is not one of the world's.
    #[error("rank {rank} is not one of the {world_size} ranks of the topology (0 is the first)")]
    Rank {
        /// The rank.
        rank: u64,
        /// Number of ranks.
        world_size: u64,
    },
    /// A coordinate is past the end of its axis.
    #[error("coordinate {at} is past the end of mesh axis `{axis}` of size {size} (0 is the first)")]
    Coordinate {
        /// The axis.
        axis: String,
        /// The coordinate.
        at: u64,
        /// Size of the axis.
        size: u64,
    },
    /// Axes cut the same ranks in ways that do not go together, such as `ep` with a `dp` that it is cut out of.
    #[error("mesh axes {axes:?} cut the same ranks in ways that do not nest; use axes of one mesh together")]
    AxesOverlap {
        /// The axes.
        axes: Vec<String>,
    },
    /// Layers are not given for every model chunk.
    #[error(
        "layers are given for {given} model chunks, but pp {pp} x vpp {vpp} makes {chunks}; give one number for each"
    )]
    Chunks {
        /// Chunks that have a number of layers.
        given: usize,
        /// Chunks that there are.
        chunks: u64,
        /// Pipeline ranks.
        pp: u64,
        /// Model chunks of each pipeline rank.
        vpp: u64,
    },
    /// A parameter can't lie there in a flat bucket.
    #[error(
        "parameter `{key}`: start {start} in a flat bucket that has {elements} elements already; give the parameters in order, without overlap"
    )]
    Bucket {
        /// The parameter.
        key: String,
        /// First element in the bucket.
        start: u64,
        /// End of the parameters before it.
        elements: u64,
    },
    /// A table of sharding rules can't be read, or contradicts itself.
    #[error("sharding rules: {why}")]
    Rules {
        /// What is wrong, and where.
        why: String,
    },
    /// No rule matches a key.
    #[error("tensor `{key}`: no sharding rule matches; add one, or a last rule for `*`")]
    NoRule {
        /// The tensor.
        key: String,
    },
    /// The rules do not say which pipeline stage a key is on.
    #[error(
        "tensor `{key}`: no pipeline stage; name it in `layer_keys`, `first`, `last` or `every` of [pipeline]"
    )]
    NoStage {
        /// The tensor.
        key: String,
    },
    /// A key names a layer that the model does not have.
    #[error("tensor `{key}`: layer {layer} of a model of {layers} layers (0 is the first)")]
    Layer {
        /// The tensor.
        key: String,
        /// The layer it names.
        layer: u64,
        /// Number of layers.
        layers: u64,
    },
    /// A rule cuts a tensor in a way that does not come out.
    #[error("tensor `{key}`: axis {axis} over `{over}`: {source} ({rule})")]
    Cut {
        /// The tensor.
        key: String,
        /// The tensor's axis.
        axis: usize,
        /// The mesh axis.
        over: String,
        /// The rule.
        rule: String,
        /// What does not come out.
        source: CutError,
    },
    /// A key names no expert, or the experts do not divide by the expert parallel ranks.
    #[error("tensor `{key}`: expert {expert:?} of {count} over {ranks} ranks of `{over}` ({rule})")]
    Expert {
        /// The tensor.
        key: String,
        /// The rule.
        rule: String,
        /// The expert that the key names.
        expert: Option<u64>,
        /// Number of experts.
        count: u64,
        /// The mesh axis.
        over: String,
        /// Its size.
        ranks: u64,
    },
    /// Mesh axes that shard one tensor tell the same ranks apart, so that no rank would hold some parts.
    #[error(
        "tensor `{key}`: mesh axes {axes:?} can't shard it together with its pipeline stage or its other axes ({rule})"
    )]
    RuleAxes {
        /// The tensor.
        key: String,
        /// The rule.
        rule: String,
        /// The mesh axes.
        axes: Vec<String>,
    },
    /// An optimizer state does not fit its parameter.
    #[error("optimizer state `{key}` of parameter `{parameter}`: {why}")]
    State {
        /// The state.
        key: String,
        /// The parameter.
        parameter: String,
        /// What does not fit.
        why: &'static str,
    },
    /// A parameter of a flat ZeRO bucket lies, or makes what is behind it lie, elsewhere on each of the ranks that
    /// should hold the same slice.
    #[error("tensor `{key}`: {why} can't lie in a flat ZeRO bucket; change that, or set zero = 0 ({rule})")]
    UnlikeBuckets {
        /// The parameter.
        key: String,
        /// The rule.
        rule: String,
        /// What makes the buckets unlike.
        why: &'static str,
    },
}
