use super::table::{CutRule, Rule};
use crate::topology::{Digit, Digits};
use crate::{
    CutError, Cuts, Dims, FlatBuffer, Pieces, Replica, ShardError, ShardedTensor, ShardedTensorBuilder,
    Split, Topology,
};

/// A rule made definite for one tensor and one topology: what a rank number says about its shard.
pub(super) struct Sharding {
    /// The rule, for errors.
    pub rule: String,
    /// Pipeline rank; `None` = all.
    pub stage: Option<u64>,
    /// The digit that tells expert ranks apart and its value on the ranks that hold this expert.
    pub expert: Option<(Digit, u64)>,
    /// Every digit that tells shards apart.
    pub fixed: Digits,
    pub global_shape: Dims,
    logical_shape: Option<Dims>,
    padded: Option<usize>,
    split: Option<Split>,
    cuts: Vec<BoundCut>,
    flat: Digits,
}

struct BoundCut {
    axis: usize,
    segments: Vec<u64>,
    pieces: Pieces,
    digit: Digit,
    over: String,
}

impl Sharding {
    /// Held whole by every rank of a stage (or of all).
    pub fn whole(
        topology: &Topology,
        stage: Option<u64>,
        expert: Option<(Digit, u64)>,
        global_shape: Dims,
    ) -> Self {
        // A mesh without `pp` has one stage, which tells no ranks apart.
        let pipeline = stage.and_then(|_| topology.digit("pp").ok());
        Self {
            rule: String::new(),
            stage,
            expert,
            fixed: pipeline.into_iter().chain(expert.map(|(digit, _)| digit)).collect(),
            global_shape,
            logical_shape: None,
            padded: None,
            split: None,
            cuts: Vec::new(),
            flat: Digits::new(),
        }
    }

    /// Puts a rule on it. `name` names the rule in errors.
    pub fn with_rule(
        mut self,
        rule: &Rule,
        name: String,
        topology: &Topology,
        key: &str,
    ) -> Result<Self, ShardError> {
        self.rule = name;
        self.pad(rule, topology, key)?;
        let mut left = Cuts::whole(&self.global_shape);
        for cut in &rule.cut {
            left = self.add_cut(cut, left, topology, key)?;
        }
        for axis in &rule.flat {
            self.flat.push(topology.digit(axis)?);
        }
        self.flat.sort_unstable();
        self.fixed.extend_from_slice(&self.flat);
        self.split = match self.cuts.first() {
            Some(cut) => Some(Split::segmented(cut.axis, cut.segments.clone())),
            None => (!self.flat.is_empty() && !self.global_shape.is_empty()).then(|| Split::axis(0)),
        };
        if !topology.are_disjoint(&self.fixed) {
            let axes = rule
                .cut
                .iter()
                .map(|cut| &cut.over)
                .chain(&rule.flat)
                .chain(rule.expert.iter().map(|e| &e.over));
            return Err(ShardError::RuleAxes {
                key: key.to_owned(),
                rule: self.rule,
                axes: axes.cloned().collect(),
            });
        }
        Ok(self)
    }

    fn pad(&mut self, rule: &Rule, topology: &Topology, key: &str) -> Result<(), ShardError> {
        let Some(padding) = &rule.padding else { return Ok(()) };
        let ndim = self.global_shape.len();
        let Some(size) = self.global_shape.get_mut(padding.axis) else {
            return Err(self.cut_error(
                key,
                padding.axis,
                "padding",
                CutError::Axis { axis: padding.axis, ndim },
            ));
        };
        if let Some(multiple) = padding.multiple {
            let mut unit = multiple;
            for cut in rule.cut.iter().filter(|cut| cut.axis == padding.axis) {
                unit = unit.saturating_mul(topology.size(&cut.over)?);
            }
            let base = padding.logical.unwrap_or(*size);
            *size = base.checked_next_multiple_of(unit).ok_or_else(|| ShardError::Rules {
                why: format!("{}: `{key}` can't be padded from {base} to a multiple of {unit}", self.rule),
            })?;
        }
        self.padded = Some(padding.axis);
        self.logical_shape = padding.logical.map(|logical| {
            let mut shape = self.global_shape.clone();
            shape[padding.axis] = logical;
            shape
        });
        Ok(())
    }

    /// Adds a cut to those that made `left`, on the ranks with index 0 everywhere.
    fn add_cut(
        &mut self,
        cut: &CutRule,
        left: Cuts,
        topology: &Topology,
        key: &str,
    ) -> Result<Cuts, ShardError> {
        let axis = cut.axis;
        let fault = |source| self.cut_error(key, axis, &cut.over, source);
        let ndim = self.global_shape.len();
        let size = *self.global_shape.get(axis).ok_or_else(|| fault(CutError::Axis { axis, ndim }))?;
        let contradiction =
            |why: &str| ShardError::Rules { why: format!("{}: cut of axis {axis}: {why}", self.rule) };
        let pieces = cut
            .dealt()
            .ok_or_else(|| contradiction("`sizes`, `unit`, `segments` and `pieces` do not go together"))?;
        let first = self.cuts.iter().all(|earlier| earlier.axis != axis);
        if !first && (!cut.segments.is_empty() || matches!(pieces, Pieces::Shared { .. })) {
            return Err(contradiction("segments and shared pieces must come first on their axis"));
        }
        if !cut.segments.is_empty() && self.padded == Some(axis) {
            return Err(contradiction("an axis with segments can't be padded"));
        }
        let segments = proportions(&cut.segments, size).map_err(fault)?;
        let digit = topology.digit(&cut.over)?;
        let next = left.cut_segments(axis, &segments, &pieces, 0, digit.size).map_err(fault)?;
        // Shared pieces come first on their axis, so all of it is left.
        let shared_by = match pieces {
            Pieces::Shared { .. } => pieces.shared_by(size, digit.size).map_err(fault)?,
            _ => 1,
        };
        self.fixed.push(digit.above(shared_by));
        self.cuts.push(BoundCut { axis, segments, pieces, digit, over: cut.over.clone() });
        Ok(next)
    }

    fn cut_error(&self, key: &str, axis: usize, over: &str, source: CutError) -> ShardError {
        ShardError::Cut { key: key.to_owned(), axis, over: over.to_owned(), rule: self.rule.clone(), source }
    }

    /// Whether `rank`, on pipeline rank `pp_rank`, holds a shard.
    pub fn is_on(&self, rank: u64, pp_rank: u64) -> bool {
        self.stage.is_none_or(|stage| stage == pp_rank)
            && self.expert.is_none_or(|(digit, value)| digit.of(rank) == value)
    }

    /// Whether every rank's local array has the same shape, so that what lies behind it in a flat bucket lies at
    /// the same place on all of them.
    pub fn is_equal_everywhere(&self) -> bool {
        self.cuts.iter().all(|cut| match &cut.pieces {
            Pieces::Even { .. } | Pieces::Shared { .. } => true,
            Pieces::Sizes(sizes) => sizes.windows(2).all(|pair| pair[0] == pair[1]),
            Pieces::Chunk => {
                let whole = [self.global_shape[cut.axis]];
                let lengths = if cut.segments.is_empty() { whole.as_slice() } else { &cut.segments };
                lengths.iter().all(|length| length.is_multiple_of(cut.digit.size))
            }
        })
    }

    /// Describes the shard of `rank`, one that holds it.
    pub fn shard(
        &self,
        builder: ShardedTensorBuilder,
        key: &str,
        topology: &Topology,
        rank: u64,
    ) -> Result<ShardedTensor, ShardError> {
        let mut cuts = Cuts::whole(&self.global_shape);
        for cut in &self.cuts {
            cuts = cuts
                .cut_segments(cut.axis, &cut.segments, &cut.pieces, cut.digit.of(rank), cut.digit.size)
                .map_err(|source| self.cut_error(key, cut.axis, &cut.over, source))?;
        }
        let mut builder =
            builder.cuts(&cuts).map_err(|source| ShardError::Region { key: key.to_owned(), source })?;
        if let Some(split) = &self.split {
            builder = builder.split(split.clone());
        }
        if let Some(axis) = self.padded {
            builder = builder.padded(axis);
        }
        if let Some(logical_shape) = &self.logical_shape {
            builder = builder.logical_shape(logical_shape);
        }
        let replica = topology.replica_fixing(rank, &self.fixed)?;
        let shard = builder.replica(replica).build(key)?;
        if self.flat.is_empty() { Ok(shard) } else { self.flatten(shard, key, rank, replica) }
    }

    fn flatten(
        &self,
        shard: ShardedTensor,
        key: &str,
        rank: u64,
        replica: Replica,
    ) -> Result<ShardedTensor, ShardError> {
        let (dtype, alias) = (shard.dtype(), shard.alias_of().map(str::to_owned));
        let mut bucket = FlatBuffer::new();
        bucket.push(key, shard, 1)?;
        let (index, count) =
            (crate::topology::position(rank, &self.flat), crate::topology::count(&self.flat));
        let parts = bucket.parts(bucket.even_range(index, count), dtype, |_| Ok(replica))?;
        let [part] = parts.as_slice() else {
            return Err(ShardError::Rules { why: format!("{}: `{key}` has no flat part", self.rule) });
        };
        match alias {
            Some(target) => part.tensor.derive().alias_of(target).build(key),
            None => Ok(part.tensor.clone()),
        }
    }
}

/// Lengths of segments from their proportions.
fn proportions(parts: &[u64], size: u64) -> Result<Vec<u64>, CutError> {
    let wrong = || CutError::Segments { segments: parts.to_vec(), size };
    let sum: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    let length = |&part: &u64| {
        let scaled = u128::from(part) * u128::from(size);
        match scaled.checked_rem(sum) {
            // At most `size`, so it fits.
            Some(0) if part > 0 => Ok((scaled / sum) as u64),
            _ => Err(wrong()),
        }
    };
    parts.iter().map(length).collect()
}
