use super::Topology;
use crate::ShardError;
use serde::{Deserialize, Serialize};

/// Megatron's order of axes, the fastest first: `rank = tp + TP * (cp + CP * (dp + DP * pp))` for dense layers, and
/// `rank = etp + ETP * (ep + EP * (edp + EDP * pp))` for expert layers.
pub const MEGATRON_ORDER: [&str; 5] = ["tp", "cp", "ep", "dp", "pp"];

/// InfiniTrain's order of axes, the fastest first: `rank = tp + TP * (dp + DP * pp)`.
pub const INFINITRAIN_ORDER: [&str; 3] = ["tp", "dp", "pp"];

/// The sizes of the usual kinds of parallelism; each is 1 where not said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelSizes {
    /// Tensor parallel ranks.
    pub tp: u64,
    /// Context parallel ranks. All state is replicated along them.
    pub cp: u64,
    /// Data parallel ranks.
    pub dp: u64,
    /// Pipeline parallel ranks.
    pub pp: u64,
    /// Expert parallel ranks. They are no further ranks: expert layers cut the `tp * cp * dp` ranks of a pipeline
    /// stage into `etp * ep * edp`, so that expert tensors are replicated `edp` times.
    pub ep: u64,
    /// Tensor parallel ranks of expert layers; `None` = `tp`.
    pub etp: Option<u64>,
    /// Model chunks of each pipeline rank.
    pub vpp: u64,
}

impl Default for ParallelSizes {
    fn default() -> Self {
        Self { tp: 1, cp: 1, dp: 1, pp: 1, ep: 1, etp: None, vpp: 1 }
    }
}

impl ParallelSizes {
    /// Sets `dp` so that the world has `world_size` ranks.
    ///
    /// # Errors
    /// [`ShardError::WorldSize`] where `tp * cp * pp` does not divide `world_size`.
    pub fn fill_dp(mut self, world_size: u64) -> Result<Self, ShardError> {
        let sizes = vec![self.tp, self.cp, self.pp];
        let others = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        match others.and_then(|others| world_size.checked_rem(others).map(|rest| (rest, world_size / others)))
        {
            Some((0, dp)) if dp > 0 => self.dp = dp,
            _ => return Err(ShardError::WorldSize { world_size, sizes }),
        }
        Ok(self)
    }

    /// The topology in [`MEGATRON_ORDER`].
    ///
    /// # Errors
    /// As [`ParallelSizes::in_order`].
    pub fn topology(self) -> Result<Topology, ShardError> {
        self.in_order(&MEGATRON_ORDER)
    }

    /// The topology with the axes in `order`, the fastest first, which names `tp`, `cp`, `ep`, `dp`, `pp` or those
    /// of them that are larger than 1.
    ///
    /// The mesh's axes are `tp`, `cp`, `dp`, `pp`; the expert axes `etp`, `ep`, `edp` cut the same ranks: the same
    /// order with `etp` for `tp`, `edp` for `dp` and without `cp`, as Megatron makes its second mesh.
    ///
    /// # Errors
    /// [`ShardError::Axis`] where the order names an axis that is not one of these or twice, or leaves out one that
    /// is larger than 1, or a size is 0; [`ShardError::WorldSize`] where the expert sizes do not divide the ranks of
    /// a stage; [`ShardError::AxesOverlap`] where pipeline stages of the two meshes would differ.
    pub fn in_order(self, order: &[&str]) -> Result<Topology, ShardError> {
        for &axis in order {
            if !MEGATRON_ORDER.contains(&axis) {
                let why = "an order names tp, cp, ep, dp, pp; use a mesh for other axes";
                return Err(ShardError::Axis { axis: axis.to_owned(), size: 1, why });
            }
        }
        // Axes of size 1 that the order leaves out change no rank; naming them lets rules speak of them.
        let left_out = MEGATRON_ORDER.into_iter().filter(|axis| !order.contains(axis));
        if let Some(axis) = left_out.clone().find(|&axis| self.dense(axis) > 1 || axis == "ep" && self.ep > 1)
        {
            let size = if axis == "ep" { self.ep } else { self.dense(axis) };
            return Err(ShardError::Axis { axis: axis.into(), size, why: "the order leaves it out" });
        }
        let order: Vec<&str> = order.iter().copied().chain(left_out).collect();
        let dense = order.iter().filter(|&&axis| axis != "ep").map(|&axis| (axis, self.dense(axis)));
        let topology = Topology::mesh(dense)?.with_vpp(self.vpp)?;

        let etp = self.etp.unwrap_or(self.tp);
        let (ranks, sizes) = (topology.world_size() / self.pp, vec![etp, self.ep]);
        let edp = match etp.checked_mul(self.ep) {
            Some(each) if each > 0 && ranks % each == 0 => ranks / each,
            _ => return Err(ShardError::WorldSize { world_size: ranks, sizes }),
        };
        let expert = order.iter().filter_map(|&axis| match axis {
            "tp" => Some((Some("etp"), etp)),
            "ep" => Some((Some("ep"), self.ep)),
            "dp" => Some((Some("edp"), edp)),
            "pp" => Some((None, self.pp)),
            _ => None,
        });
        let stride = |axes: &[(Option<&str>, u64)]| -> u64 {
            axes.iter().take_while(|(name, _)| name.is_some()).map(|&(_, size)| size).product()
        };
        let expert: Vec<_> = expert.collect();
        if self.pp > 1 && stride(&expert) != topology.digit("pp")?.stride {
            return Err(ShardError::AxesOverlap { axes: vec!["pp".into(), "ep".into(), "cp".into()] });
        }
        topology.with_view(expert)
    }

    /// Size of an axis of the dense mesh.
    fn dense(self, axis: &str) -> u64 {
        match axis {
            "tp" => self.tp,
            "cp" => self.cp,
            "dp" => self.dp,
            "pp" => self.pp,
            _ => 1,
        }
    }
}
