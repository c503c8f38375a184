use smallvec::SmallVec;
use std::fmt;

/// Sizes or coordinates, one per axis; up to four axes without an allocation.
pub type Dims = SmallVec<[u64; 4]>;

/// Most axes that a tensor may have. Real tensors have at most five or so; the proofs cost 2^axes per region.
pub const MAX_AXES: usize = 16;

/// Why numbers do not form a region. Names no key: whoever knows the tensor adds it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// Offset and shape have different numbers of axes.
    #[error("offset has {offset} axes and shape has {shape}")]
    Rank {
        /// Axes of the offset.
        offset: usize,
        /// Axes of the shape.
        shape: usize,
    },
    /// A region has at least one element; an empty shard is an empty *list* of regions.
    #[error("size 0 on axis {axis}: an empty shard has no regions")]
    Empty {
        /// The axis with size 0.
        axis: usize,
    },
    /// More axes than [`MAX_AXES`].
    #[error("{0} axes; at most {MAX_AXES} are supported")]
    TooManyAxes(usize),
    /// A coordinate, an element count or a byte count does not fit in 64 bits.
    #[error("coordinates or size overflow 64 bits")]
    Overflow,
    /// The region reaches past the tensor.
    #[error("region {region} reaches past the global shape {shape:?} on axis {axis}")]
    OutOfBounds {
        /// The region, printed.
        region: String,
        /// The tensor's global shape.
        shape: Dims,
        /// The first axis on which it reaches past.
        axis: usize,
    },
}

/// A non-empty n-d box in the global coordinates of a tensor: `offset[a] .. offset[a] + shape[a]` on every axis.
///
/// Valid by construction: every size is at least 1, and neither ends nor the element count overflow `u64`.
/// A 0-dim tensor is the one region with no axes, which has one element.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region {
    offset: Dims,
    shape: Dims,
}

/// The number of elements of `shape` (1 for no axes), checked.
pub fn volume_of(shape: &[u64]) -> Result<u64, RegionError> {
    // A zero anywhere makes the product zero whatever the other sizes are.
    if shape.contains(&0) {
        return Ok(0);
    }
    shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size)).ok_or(RegionError::Overflow)
}

impl Region {
    /// The box `offset[a] .. offset[a] + shape[a]`.
    ///
    /// # Errors
    /// [`RegionError`] where the ranks differ, a size is 0 or something overflows.
    pub fn new(offset: impl AsRef<[u64]>, shape: impl AsRef<[u64]>) -> Result<Self, RegionError> {
        let (offset, shape) = (Dims::from_slice(offset.as_ref()), Dims::from_slice(shape.as_ref()));
        if offset.len() != shape.len() {
            return Err(RegionError::Rank { offset: offset.len(), shape: shape.len() });
        }
        if shape.len() > MAX_AXES {
            return Err(RegionError::TooManyAxes(shape.len()));
        }
        if let Some(axis) = shape.iter().position(|&size| size == 0) {
            return Err(RegionError::Empty { axis });
        }
        for (&start, &size) in offset.iter().zip(&shape) {
            start.checked_add(size).ok_or(RegionError::Overflow)?;
        }
        volume_of(&shape)?;
        Ok(Self { offset, shape })
    }

    /// Takes numbers that [`Region::new`] has accepted before, as a stored chunk table holds them, without
    /// checking them a second time.
    ///
    /// Other numbers give a region that breaks this type's promises (checked in debug builds).
    pub fn from_valid(offset: &[u64], shape: &[u64]) -> Self {
        debug_assert!(Self::new(offset, shape).is_ok());
        Self { offset: Dims::from_slice(offset), shape: Dims::from_slice(shape) }
    }

    /// The whole of a tensor of `global_shape`; `None` where the tensor has no elements.
    ///
    /// # Errors
    /// [`RegionError::Overflow`].
    pub fn whole(global_shape: &[u64]) -> Result<Option<Self>, RegionError> {
        if volume_of(global_shape)? == 0 {
            return Ok(None);
        }
        Self::new(Dims::from_elem(0, global_shape.len()), global_shape).map(Some)
    }

    /// Number of axes.
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }

    /// First coordinate on every axis.
    pub fn offset(&self) -> &[u64] {
        &self.offset
    }

    /// Number of elements on every axis, each at least 1.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// One past the last coordinate on `axis`; the axis must exist.
    pub fn end(&self, axis: usize) -> u64 {
        self.offset[axis] + self.shape[axis]
    }

    /// Number of elements, at least 1.
    pub fn volume(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The common part of two regions of one tensor; `None` where they are disjoint or differ in rank.
    pub fn intersect(&self, other: &Region) -> Option<Region> {
        if self.ndim() != other.ndim() {
            return None;
        }
        let mut offset = Dims::new();
        let mut shape = Dims::new();
        for axis in 0..self.ndim() {
            let start = self.offset[axis].max(other.offset[axis]);
            let end = self.end(axis).min(other.end(axis));
            if end <= start {
                return None;
            }
            offset.push(start);
            shape.push(end - start);
        }
        Some(Region { offset, shape })
    }

    /// Whether `other` lies inside this region.
    pub fn contains(&self, other: &Region) -> bool {
        self.ndim() == other.ndim()
            && (0..self.ndim())
                .all(|axis| other.offset[axis] >= self.offset[axis] && other.end(axis) <= self.end(axis))
    }

    /// Whether the point lies inside this region.
    pub fn contains_point(&self, point: &[u64]) -> bool {
        self.ndim() == point.len()
            && (0..self.ndim()).all(|axis| point[axis] >= self.offset[axis] && point[axis] < self.end(axis))
    }

    /// The part of this region with coordinates `start..end` on `axis`; `None` where nothing is left.
    pub fn clip(&self, axis: usize, start: u64, end: u64) -> Option<Region> {
        let start = start.max(self.offset[axis]);
        let end = end.min(self.end(axis));
        if end <= start {
            return None;
        }
        let mut part = self.clone();
        part.offset[axis] = start;
        part.shape[axis] = end - start;
        Some(part)
    }

    /// Checks that the region lies inside a tensor of `global_shape`.
    ///
    /// # Errors
    /// [`RegionError::Rank`] or [`RegionError::OutOfBounds`].
    pub fn check_within(&self, global_shape: &[u64]) -> Result<(), RegionError> {
        if self.ndim() != global_shape.len() {
            return Err(RegionError::Rank { offset: self.ndim(), shape: global_shape.len() });
        }
        match (0..self.ndim()).find(|&axis| self.end(axis) > global_shape[axis]) {
            None => Ok(()),
            Some(axis) => Err(RegionError::OutOfBounds {
                region: self.to_string(),
                shape: Dims::from_slice(global_shape),
                axis,
            }),
        }
    }
}

/// Prints as a slice: `[0:128, 64:96]`, and `[]` for a 0-dim tensor.
impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for axis in 0..self.ndim() {
            let comma = if axis == 0 { "" } else { ", " };
            write!(f, "{comma}{}:{}", self.offset[axis], self.end(axis))?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: &[u64], shape: &[u64]) -> Region {
        Region::new(offset, shape).unwrap()
    }

    #[test]
    fn invalid_numbers_are_refused() {
        let new = |offset: &[u64], shape: &[u64]| Region::new(offset, shape);
        assert_eq!(new(&[0], &[1, 1]), Err(RegionError::Rank { offset: 1, shape: 2 }));
        assert_eq!(new(&[0, 0], &[1, 0]), Err(RegionError::Empty { axis: 1 }));
        assert_eq!(new(&[u64::MAX], &[1]), Err(RegionError::Overflow));
        assert_eq!(new(&[0, 0], &[1 << 40, 1 << 40]), Err(RegionError::Overflow));
        assert!(region(&[3], &[5]).check_within(&[7]).is_err());
        assert!(region(&[3], &[5]).check_within(&[8]).is_ok());
    }

    #[test]
    fn intersections_and_clips() {
        let a = region(&[0, 4], &[8, 4]);
        assert_eq!(a.intersect(&region(&[6, 0], &[4, 6])), Some(region(&[6, 4], &[2, 2])));
        assert_eq!(a.intersect(&region(&[8, 0], &[4, 8])), None);
        assert_eq!(a.clip(1, 0, 5), Some(region(&[0, 4], &[8, 1])));
        assert_eq!(a.clip(0, 8, 9), None);
        assert!(a.contains(&region(&[7, 7], &[1, 1])) && !a.contains(&region(&[7, 7], &[1, 2])));
        assert_eq!(a.to_string(), "[0:8, 4:8]");
        let scalar = region(&[], &[]);
        assert_eq!((scalar.volume(), scalar.to_string().as_str()), (1, "[]"));
        assert_eq!(scalar.intersect(&scalar), Some(scalar.clone()));
        assert_eq!(Region::whole(&[3, 0]).unwrap(), None);
        assert_eq!(Region::whole(&[]).unwrap(), Some(scalar));
    }
}
