//! How the holders of equal shards divide the work of saving them, without talking to each other.
//!
//! The members of a replica group hold equal lists of pieces. Laid end to end in file order these form one range of
//! bytes, and member `i` of `n` takes the `i`-th of `n` equal parts of it. Contiguous parts give each reader few
//! files and long extents, where a greedy deal by size would scatter neighbours over all members.

use reshard_shard::{Region, Replica};

/// Pieces smaller than this go to one member whole: cutting them saves no time and makes more chunks.
const MIN_CUT_BYTES: u64 = 128 << 10;

/// A piece of the group's data in file order.
pub(crate) struct Piece<'a> {
    /// The box.
    pub(crate) region: &'a Region,
    /// Its size in bytes.
    pub(crate) bytes: u64,
    /// Whether it may be cut at a border (an opaque tensor may not).
    pub(crate) divisible: bool,
}

/// The parts that `replica` writes, as `(index of the piece, part of its region)`, in order. The parts of all
/// members together tile every piece exactly once.
pub(crate) fn share(pieces: &[Piece<'_>], replica: Replica) -> Vec<(usize, Region)> {
    let total: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let border = |member: u32| -> u64 {
        (u128::from(total) * u128::from(member) / u128::from(replica.count())) as u64
    };
    let (from, to) = (border(replica.id()), border(replica.id() + 1));
    let mut parts = Vec::new();
    let mut start = 0u64;
    for (index, piece) in pieces.iter().enumerate() {
        let axis = piece.region.shape().iter().position(|&size| size > 1).unwrap_or(0);
        let rows = piece.region.shape().get(axis).copied().unwrap_or(1);
        let first = rows_before(piece, rows, start, from);
        let past = rows_before(piece, rows, start, to);
        start += piece.bytes;
        if first == 0 && past == rows {
            parts.push((index, piece.region.clone()));
        } else if first < past {
            let offset = piece.region.offset()[axis];
            parts.extend(piece.region.clip(axis, offset + first, offset + past).map(|part| (index, part)));
        }
    }
    parts
}

/// How many of the piece's rows (along its first axis longer than 1) lie before a border of the group's bytes.
/// Every member computes the same number for the same border, so neighbours' parts meet without gap or overlap.
fn rows_before(piece: &Piece<'_>, rows: u64, start: u64, border: u64) -> u64 {
    if border <= start {
        return 0;
    }
    let within = border - start;
    if within >= piece.bytes {
        return rows;
    }
    if !piece.divisible || piece.bytes < MIN_CUT_BYTES {
        return if within * 2 >= piece.bytes { rows } else { 0 };
    }
    // Rounded to the nearest row.
    ((u128::from(within) * u128::from(rows) * 2 + u128::from(piece.bytes)) / (u128::from(piece.bytes) * 2))
        as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_shard::prove_tiling;

    proptest! {
        #[test]
        fn shares_tile_every_piece_and_are_balanced(
            shapes in proptest::collection::vec((1u64..40, 1u64..40, 1u64..2000, proptest::bool::weighted(0.9)), 0..12),
            members in 1u32..9,
        ) {
            let regions: Vec<Region> = shapes.iter().map(|&(a, b, c, _)| Region::new([5, 0, 9], [a, b, c]).unwrap()).collect();
            let pieces: Vec<Piece> = regions.iter().zip(&shapes)
                .map(|(region, shape)| Piece { region, bytes: region.volume() * 4, divisible: shape.3 }).collect();
            let mut parts: Vec<Vec<Region>> = vec![Vec::new(); pieces.len()];
            let mut written = Vec::new();
            for id in 0..members {
                let own = share(&pieces, Replica::new(id, members).unwrap());
                prop_assert!(own.is_sorted_by_key(|&(index, _)| index));
                written.push(own.iter().map(|(_, part)| part.volume() * 4).sum::<u64>());
                for (index, part) in own { parts[index].push(part); }
            }
            for (region, parts) in regions.iter().zip(&parts) {
                prop_assert!(prove_tiling([region], parts).is_ok());
            }
            // No member is off the mean by more than what one border may move at each end.
            let slack = pieces.iter().map(|piece| match piece.divisible && piece.bytes >= MIN_CUT_BYTES {
                true => { let rows = piece.region.shape().iter().find(|&&size| size > 1).unwrap(); piece.bytes / rows }
                false => piece.bytes,
            }).max().unwrap_or(0);
            let mean = written.iter().sum::<u64>() / u64::from(members);
            for bytes in written { prop_assert!(bytes.abs_diff(mean) <= slack + 2); }
        }
    }
}
