use smallvec::SmallVec;

/// A range of digits of a rank number in mixed radix: its value is `rank / stride % size`.
///
/// A mesh axis is one; so is a part of an axis (ranks that share a KV head differ only in the low part of the
/// tensor-parallel digit), and so is an expert axis, which straddles two axes of the dense mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Digit {
    /// Rank distance of neighbours along the digit.
    pub stride: u64,
    /// Number of values.
    pub size: u64,
}

/// A few digits, in ascending order of stride where nothing else is said.
pub(crate) type Digits = SmallVec<[Digit; 4]>;

impl Digit {
    pub fn of(self, rank: u64) -> u64 {
        rank / self.stride % self.size
    }

    /// First stride above the digit. Fits, because a digit of a world ends at or below the world's size.
    fn end(self) -> u64 {
        self.stride * self.size
    }

    /// The digit without its lowest `factor` values' worth: ranks that differ only there count as one.
    /// `factor` divides the size.
    pub fn above(self, factor: u64) -> Digit {
        Digit { stride: self.stride * factor, size: self.size / factor }
    }
}

/// The digits of a world of `world` ranks that stay free when `fixed` are given, in ascending order; `None` where
/// the fixed ones overlap in a way that leaves no digits (neither nested nor a common refinement).
pub(crate) fn free_digits(world: u64, fixed: &[Digit]) -> Option<Digits> {
    let fixed = || fixed.iter().filter(|digit| digit.size > 1);
    let mut cuts: SmallVec<[u64; 8]> = fixed().flat_map(|digit| [digit.stride, digit.end()]).collect();
    cuts.extend([1, world]);
    cuts.sort_unstable();
    cuts.dedup();
    let mut free = Digits::new();
    for pair in cuts.windows(2) {
        let (low, high) = (pair[0], pair[1]);
        if high % low != 0 {
            return None;
        }
        if fixed().any(|digit| digit.stride <= low && high <= digit.end()) {
            continue;
        }
        free.push(Digit { stride: low, size: high / low });
    }
    Some(free)
}

/// Place of `rank` among the ranks that differ from it only in `digits` (ascending), in ascending order of rank.
pub(crate) fn position(rank: u64, digits: &[Digit]) -> u64 {
    digits.iter().rev().fold(0, |position, digit| position * digit.size + digit.of(rank))
}

/// Number of ranks that differ only in `digits`; too large where they overlap.
pub(crate) fn count(digits: &[Digit]) -> u64 {
    digits.iter().fold(1, |count, digit| count.saturating_mul(digit.size))
}

/// `rank` with `digits` set to 0.
pub(crate) fn base(rank: u64, digits: &[Digit]) -> u64 {
    digits.iter().fold(rank, |base, digit| base - digit.of(rank) * digit.stride)
}

/// The ranks that differ from `rank` only in `digits` (ascending), in ascending order.
pub(crate) fn members(rank: u64, digits: &[Digit]) -> Vec<u64> {
    let mut ranks = vec![base(rank, digits)];
    for digit in digits.iter().rev() {
        ranks = ranks
            .iter()
            .flat_map(|&low| (0..digit.size).map(move |value| low + value * digit.stride))
            .collect();
    }
    ranks
}
