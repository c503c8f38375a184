/// How an axis, or a segment of one, is dealt to a number of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pieces {
    /// Equal pieces, each a whole number of units of `unit` elements (the size of a head; 1 where any cut will do).
    Even {
        /// Elements that stay together.
        unit: u64,
    },
    /// As [`Pieces::Even`]; but where there are fewer units than ranks, consecutive ranks hold the same unit
    /// (replicated KV heads: rank `r` of `n` holds head `r * heads / n`).
    Shared {
        /// Elements that stay together.
        unit: u64,
    },
    /// torch's `chunk`, as FSDP2 cuts axis 0: `ceil(size / ranks)` each; the last ones are smaller or empty.
    Chunk,
    /// These sizes, one for each rank, possibly 0.
    Sizes(Vec<u64>),
}

/// Why an axis can't be cut as asked. Names no key: whoever knows the tensor adds it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CutError {
    /// The tensor has no such axis.
    #[error("there is no axis {axis}: the tensor has {ndim} axes")]
    Axis {
        /// The axis asked for.
        axis: usize,
        /// Axes of the tensor.
        ndim: usize,
    },
    /// The index of a piece is not below their number.
    #[error("piece {index} of {count} does not exist")]
    Index {
        /// The index.
        index: u64,
        /// The number of pieces.
        count: u64,
    },
    /// A size is not a whole number of units.
    #[error("size {size} is not a whole number of units of {unit}")]
    Unit {
        /// Size of the axis or segment.
        size: u64,
        /// Elements of a unit.
        unit: u64,
    },
    /// A number of units does not divide by a number of ranks.
    #[error("size {size}, which is {} unit(s) of {unit}, does not divide by {count} ranks", .size / .unit)]
    Indivisible {
        /// Size of the axis or segment.
        size: u64,
        /// Elements of a unit, at least 1.
        unit: u64,
        /// Number of ranks.
        count: u64,
    },
    /// Explicit sizes are not one for each rank, or do not add up.
    #[error("sizes {sizes:?} are not {count} numbers with sum {size}")]
    Sizes {
        /// The sizes.
        sizes: Vec<u64>,
        /// Number of ranks.
        count: u64,
        /// Size of the axis or segment.
        size: u64,
    },
    /// Segments do not fit what is left of the axis.
    #[error("segments {segments:?} do not fit size {size}")]
    Segments {
        /// The segments.
        segments: Vec<u64>,
        /// What is left of the axis.
        size: u64,
    },
}

impl Pieces {
    /// Equal pieces at any element.
    pub const EVEN: Pieces = Pieces::Even { unit: 1 };

    /// `(start, length)` of piece `index` of `count` of `size` elements; the length may be 0.
    ///
    /// # Errors
    /// [`CutError`].
    pub fn piece(&self, size: u64, index: u64, count: u64) -> Result<(u64, u64), CutError> {
        if index >= count {
            return Err(CutError::Index { index, count });
        }
        match self {
            Pieces::Even { .. } | Pieces::Shared { .. } => {
                let shared_by = self.shared_by(size, count)?;
                let length = size / (count / shared_by);
                Ok((index / shared_by * length, length))
            }
            Pieces::Chunk => {
                let length = size.div_ceil(count);
                let start = length.saturating_mul(index).min(size);
                Ok((start, length.min(size - start)))
            }
            Pieces::Sizes(sizes) => {
                let wrong = || CutError::Sizes { sizes: sizes.clone(), count, size };
                let sum = sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
                if sizes.len() as u64 != count || sum != Some(size) {
                    return Err(wrong());
                }
                let before = sizes.get(..index as usize).ok_or_else(wrong)?;
                let length = *sizes.get(index as usize).ok_or_else(wrong)?;
                Ok((before.iter().sum(), length))
            }
        }
    }

    /// How many consecutive ranks hold the same piece: 1 except for [`Pieces::Shared`].
    ///
    /// # Errors
    /// [`CutError`] where even pieces do not come out even.
    pub fn shared_by(&self, size: u64, count: u64) -> Result<u64, CutError> {
        let (&unit, shared) = match self {
            Pieces::Even { unit } => (unit, false),
            Pieces::Shared { unit } => (unit, true),
            Pieces::Chunk | Pieces::Sizes(_) => return Ok(1),
        };
        let units = size.checked_div(unit).filter(|units| units * unit == size);
        let units = units.ok_or(CutError::Unit { size, unit })?;
        if units.checked_rem(count) == Some(0) {
            Ok(1)
        } else if shared && units < count && count.checked_rem(units) == Some(0) {
            Ok(count / units)
        } else {
            Err(CutError::Indivisible { size, unit, count })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &Pieces, size: u64, count: u64) -> Vec<(u64, u64)> {
        (0..count).map(|index| pieces.piece(size, index, count).unwrap()).collect()
    }

    #[test]
    fn pieces_of_every_kind() {
        assert_eq!(all(&Pieces::EVEN, 6, 3), [(0, 2), (2, 2), (4, 2)]);
        assert_eq!(all(&Pieces::EVEN, 0, 3), [(0, 0); 3]);
        assert_eq!(all(&Pieces::Shared { unit: 4 }, 8, 4), [(0, 4), (0, 4), (4, 4), (4, 4)]);
        assert_eq!(all(&Pieces::Shared { unit: 4 }, 16, 2), [(0, 8), (8, 8)]);
        // torch.arange(5).chunk(4) has 3 chunks; FSDP2 gives rank 3 an empty one.
        assert_eq!(all(&Pieces::Chunk, 5, 4), [(0, 2), (2, 2), (4, 1), (5, 0)]);
        assert_eq!(all(&Pieces::Chunk, 1, 3), [(0, 1), (1, 0), (1, 0)]);
        assert_eq!(all(&Pieces::Sizes(vec![3, 0, 5]), 8, 3), [(0, 3), (3, 0), (3, 5)]);
    }

    #[test]
    fn pieces_that_do_not_come_out_are_refused() {
        let piece = |pieces: Pieces, size, count| pieces.piece(size, 0, count).unwrap_err();
        assert_eq!(piece(Pieces::EVEN, 7, 2), CutError::Indivisible { size: 7, unit: 1, count: 2 });
        // 768 divides by 8, but its 12 heads do not.
        let heads = piece(Pieces::Even { unit: 64 }, 768, 8);
        assert_eq!(heads.to_string(), "size 768, which is 12 unit(s) of 64, does not divide by 8 ranks");
        assert_eq!(
            piece(Pieces::Shared { unit: 4 }, 12, 4),
            CutError::Indivisible { size: 12, unit: 4, count: 4 }
        );
        assert_eq!(piece(Pieces::Even { unit: 5 }, 12, 4), CutError::Unit { size: 12, unit: 5 });
        assert_eq!(piece(Pieces::Even { unit: 0 }, 12, 4), CutError::Unit { size: 12, unit: 0 });
        for sizes in [vec![3, 5], vec![3, 4, 0], vec![u64::MAX, 9, 0]] {
            assert!(matches!(piece(Pieces::Sizes(sizes), 8, 3), CutError::Sizes { .. }));
        }
        assert_eq!(Pieces::EVEN.piece(8, 2, 2), Err(CutError::Index { index: 2, count: 2 }));
        assert_eq!(Pieces::EVEN.piece(8, 0, 0), Err(CutError::Index { index: 0, count: 0 }));
    }
}
