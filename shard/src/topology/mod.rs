//! Which rank holds what: a mesh of named axes over the ranks.
//!
//! A rank number is a number in mixed radix, and a mesh axis is one of its digits, so the coordinates of a rank
//! and the ranks that hold a shard come out of strides, never out of a scan over all ranks.

mod digits;
mod sizes;
mod stages;

pub(crate) use digits::{Digit, Digits, count, position};
pub use sizes::{INFINITRAIN_ORDER, MEGATRON_ORDER, ParallelSizes};
pub use stages::LayerStages;

use crate::{GroupId, Replica, ShardError};
use digits::{base, free_digits, members};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A mesh of named axes over the ranks `0..world_size`, and how many model chunks a pipeline rank has.
///
/// With the axes `a, b, c`, the first the fastest, `rank = a + A * (b + B * c)`. A topology may have further axes
/// that cut the same ranks otherwise ([`Topology::with_view`]): expert parallel ranks come out of the data and
/// context parallel ones.
#[derive(Clone)]
pub struct Topology {
    axes: Vec<(String, Digit)>,
    world_size: u64,
    vpp: u64,
    /// Group of the ranks that agree with a base rank on all but the free digits. Hashing a group costs its size,
    /// and every tensor asks for one of the same few.
    groups: Arc<Mutex<HashMap<(Digits, u64), GroupId>>>,
}

impl Topology {
    /// The world of one rank, without axes.
    pub fn sole() -> Self {
        Self { axes: Vec::new(), world_size: 1, vpp: 1, groups: Arc::default() }
    }

    /// A mesh of the axes `(name, size)`, the **first the fastest**: its neighbours are neighbouring ranks. (A
    /// `DeviceMesh` of torch lists its slowest dimension first.)
    ///
    /// # Errors
    /// [`ShardError::Axis`] for a size of 0, a name given twice, or more ranks than fit in 32 bits.
    pub fn mesh<N: Into<String>>(axes: impl IntoIterator<Item = (N, u64)>) -> Result<Self, ShardError> {
        let mut topology = Self::sole();
        for (name, size) in axes {
            topology.world_size = topology.add_axis(name.into(), topology.world_size, size)?;
        }
        Ok(topology)
    }

    /// Adds axes that cut the same ranks in another way, the first the fastest; a `None` name passes over ranks
    /// that the view gives no name.
    ///
    /// # Errors
    /// [`ShardError::Axis`] as for [`Topology::mesh`]; [`ShardError::WorldSize`] where the product of the sizes is
    /// not the number of ranks.
    pub fn with_view<'a>(
        mut self,
        axes: impl IntoIterator<Item = (Option<&'a str>, u64)>,
    ) -> Result<Self, ShardError> {
        let mut stride = 1u64;
        let mut sizes = Vec::new();
        for (name, size) in axes {
            sizes.push(size);
            stride = match name {
                Some(name) => self.add_axis(name.to_owned(), stride, size)?,
                None => stride.saturating_mul(size),
            };
        }
        if stride != self.world_size {
            return Err(ShardError::WorldSize { world_size: self.world_size, sizes });
        }
        Ok(self)
    }

    /// Gives every pipeline rank `vpp` model chunks (virtual pipeline stages). It is no axis of ranks.
    ///
    /// # Errors
    /// [`ShardError::Axis`] where it is 0.
    pub fn with_vpp(mut self, vpp: u64) -> Result<Self, ShardError> {
        if vpp == 0 {
            return Err(ShardError::Axis { axis: "vpp".into(), size: vpp, why: "a size is at least 1" });
        }
        self.vpp = vpp;
        Ok(self)
    }

    fn add_axis(&mut self, axis: String, stride: u64, size: u64) -> Result<u64, ShardError> {
        let why = if size == 0 {
            "a size is at least 1"
        } else if self.axes.iter().any(|(known, _)| *known == axis) {
            "the name is taken"
        } else if stride.checked_mul(size).is_none_or(|world| world > u64::from(u32::MAX)) {
            "a world has at most 4294967295 ranks"
        } else {
            self.axes.push((axis, Digit { stride, size }));
            return Ok(stride * size);
        };
        Err(ShardError::Axis { axis, size, why })
    }

    /// Number of ranks.
    pub fn world_size(&self) -> u64 {
        self.world_size
    }

    /// Model chunks per pipeline rank.
    pub fn vpp(&self) -> u64 {
        self.vpp
    }

    /// The axes and their sizes, in order of declaration.
    pub fn axes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.axes.iter().map(|(name, digit)| (name.as_str(), digit.size))
    }

    /// Number of ranks along `axis`.
    ///
    /// # Errors
    /// [`ShardError::UnknownAxis`].
    pub fn size(&self, axis: &str) -> Result<u64, ShardError> {
        Ok(self.digit(axis)?.size)
    }

    /// Place of `rank` along `axis`.
    ///
    /// # Errors
    /// [`ShardError::UnknownAxis`], [`ShardError::Rank`].
    pub fn coordinate(&self, rank: u64, axis: &str) -> Result<u64, ShardError> {
        self.check_rank(rank)?;
        Ok(self.digit(axis)?.of(rank))
    }

    /// Pipeline rank of `rank`: its place along `pp`, 0 where the mesh has no such axis.
    ///
    /// # Errors
    /// [`ShardError::Rank`].
    pub fn pipeline_rank(&self, rank: u64) -> Result<u64, ShardError> {
        self.check_rank(rank)?;
        Ok(self.digit("pp").map_or(0, |digit| digit.of(rank)))
    }

    /// Number of pipeline ranks; 1 where the mesh has no axis `pp`.
    pub fn pipeline_size(&self) -> u64 {
        self.digit("pp").map_or(1, |digit| digit.size)
    }

    /// The rank at these coordinates; axes that are not named are at 0.
    ///
    /// # Errors
    /// [`ShardError::UnknownAxis`]; [`ShardError::Coordinate`] past the end of an axis; [`ShardError::AxesOverlap`]
    /// where two axes name the same ranks (`dp` and `ep`).
    pub fn rank_at(&self, coordinates: &[(&str, u64)]) -> Result<u64, ShardError> {
        let mut rank = 0;
        let mut digits = Digits::new();
        for &(axis, at) in coordinates {
            let digit = self.digit(axis)?;
            if at >= digit.size {
                return Err(ShardError::Coordinate { axis: axis.to_owned(), at, size: digit.size });
            }
            rank += at * digit.stride;
            digits.push(digit);
        }
        if self.are_disjoint(&digits) {
            return Ok(rank);
        }
        Err(ShardError::AxesOverlap { axes: coordinates.iter().map(|&(axis, _)| axis.to_owned()).collect() })
    }

    /// The ranks that hold the same shard as `rank` of a tensor that is sharded along the axes `sharded` and
    /// replicated along all others, ascending.
    ///
    /// # Errors
    /// [`ShardError::UnknownAxis`], [`ShardError::Rank`], [`ShardError::AxesOverlap`].
    pub fn holders(&self, rank: u64, sharded: &[&str]) -> Result<Vec<u64>, ShardError> {
        self.check_rank(rank)?;
        Ok(members(rank, &self.free(&self.digits_of(sharded)?)?))
    }

    /// Which replica `rank` holds of a tensor that is sharded along the axes `sharded`: its place among
    /// [`Topology::holders`].
    ///
    /// # Errors
    /// As [`Topology::holders`].
    pub fn replica(&self, rank: u64, sharded: &[&str]) -> Result<Replica, ShardError> {
        self.check_rank(rank)?;
        self.replica_fixing(rank, &self.digits_of(sharded)?)
    }

    /// As [`Topology::replica`], by digits. `rank` is one of the world.
    pub(crate) fn replica_fixing(&self, rank: u64, fixed: &[Digit]) -> Result<Replica, ShardError> {
        let free = self.free(fixed)?;
        // Both fit: a world has at most `u32::MAX` ranks.
        let (id, count) = (position(rank, &free) as u32, count(&free) as u32);
        let base = base(rank, &free);
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let group = *groups
            .entry((free, base))
            .or_insert_with_key(|(free, base)| GroupId::of_ranks(members(*base, free)));
        Ok(Replica::in_group(id, count, group))
    }

    /// Whether no two of the digits tell the same ranks apart: then each combination of their values occurs.
    pub(crate) fn are_disjoint(&self, digits: &[Digit]) -> bool {
        free_digits(self.world_size, digits)
            .is_some_and(|free| count(&free).checked_mul(count(digits)) == Some(self.world_size))
    }

    pub(crate) fn digits_of(&self, axes: &[impl AsRef<str>]) -> Result<Digits, ShardError> {
        axes.iter().map(|axis| self.digit(axis.as_ref())).collect()
    }

    pub(crate) fn digit(&self, axis: &str) -> Result<Digit, ShardError> {
        self.axes.iter().find(|(name, _)| name == axis).map(|&(_, digit)| digit).ok_or_else(|| {
            ShardError::UnknownAxis {
                axis: axis.to_owned(),
                known: self.axes.iter().map(|(name, _)| name.clone()).collect(),
            }
        })
    }

    pub(crate) fn check_rank(&self, rank: u64) -> Result<(), ShardError> {
        if rank < self.world_size {
            return Ok(());
        }
        Err(ShardError::Rank { rank, world_size: self.world_size })
    }

    fn free(&self, fixed: &[Digit]) -> Result<Digits, ShardError> {
        free_digits(self.world_size, fixed).ok_or_else(|| ShardError::AxesOverlap {
            axes: self
                .axes
                .iter()
                .filter(|(_, digit)| fixed.contains(digit))
                .map(|(name, _)| name.clone())
                .collect(),
        })
    }
}

/// Prints the axes, the fastest first: `16 ranks (tp=2 dp=4 pp=2)`.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes().map(|(name, size)| format!("{name}={size}")).collect();
        write!(f, "{} ranks ({}", self.world_size, axes.join(" "))?;
        if self.vpp > 1 {
            write!(f, ", vpp={}", self.vpp)?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
