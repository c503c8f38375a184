//! Strided copies against a copy byte by byte.

#![allow(clippy::unwrap_used, reason = "functions that only tests call are tests too")]

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use reshard_device::{Axis, DeviceError, StridedCopy, with_destinations, with_sources};

#[derive(Debug, Clone)]
struct Case {
    stream_offset: u64,
    tensor_offset: usize,
    axes: Vec<Axis>,
    row_bytes: usize,
    /// Whether the tensor side was made to be free of overlap.
    apart: bool,
}

impl Case {
    fn copy(&self) -> StridedCopy {
        StridedCopy::new(self.stream_offset, self.tensor_offset, &self.axes, self.row_bytes).unwrap()
    }

    /// Every byte: where it is in the stream and where in the tensor, in stream order.
    fn bytes(&self) -> Vec<(u64, usize)> {
        let mut rows = vec![(self.stream_offset, self.tensor_offset)];
        for axis in &self.axes {
            let steps = |(stream, tensor)| {
                (0..axis.count).map(move |step| {
                    (stream + step as u64 * axis.stream_stride, tensor + step * axis.tensor_stride)
                })
            };
            rows = rows.into_iter().flat_map(steps).collect();
        }
        let row = |(stream, tensor)| (0..self.row_bytes).map(move |at| (stream + at as u64, tensor + at));
        rows.into_iter().flat_map(row).collect()
    }

    fn tensor_size(&self) -> usize {
        self.bytes().iter().map(|(_, tensor)| tensor + 1).max().unwrap_or(self.tensor_offset)
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let row_bytes = prop_oneof![1 => Just(0usize), 4 => 1usize..10, 4 => (0u32..7).prop_map(|e| 1 << e), 1 => 60usize..200];
    // Count, padding in the stream, padding in the tensor (often none, so that axes merge), rank in the tensor.
    let padding = || prop_oneof![2 => Just(0usize), 1 => 0usize..9];
    let axis = (prop_oneof![1 => 0usize..2, 8 => 1usize..6], padding(), padding(), any::<u8>());
    let axes = prop::collection::vec(axis, 0..5);
    (0u64..20, 0usize..20, axes, row_bytes, prop::bool::weighted(0.85), any::<bool>()).prop_map(
        |(stream_offset, tensor_offset, drawn, row_bytes, apart, permuted)| {
            let mut axes: Vec<_> =
                drawn.iter().map(|d| Axis { count: d.0, stream_stride: 0, tensor_stride: 0 }).collect();
            let mut span = row_bytes as u64;
            for (axis, drawn) in axes.iter_mut().zip(&drawn).rev() {
                axis.stream_stride = span + drawn.1 as u64;
                span += (axis.count.max(1) as u64 - 1) * axis.stream_stride;
            }
            let mut order: Vec<_> = (0..axes.len()).rev().collect();
            if permuted {
                order.sort_by_key(|at| drawn[*at].3);
            }
            let mut span = row_bytes;
            for at in order {
                axes[at].tensor_stride = if apart { span + drawn[at].2 } else { drawn[at].2 };
                span += (axes[at].count.max(1) - 1) * axes[at].tensor_stride;
            }
            Case { stream_offset, tensor_offset, axes, row_bytes, apart }
        },
    )
}

/// Borders that cut the stream into pieces, from before the copy to past it.
fn cuts(case: &Case, cuts: &[u16]) -> Vec<Range<u64>> {
    let end = case.copy().stream_range().end + 3;
    let mut borders: Vec<_> = cuts.iter().map(|cut| u64::from(*cut) % (end + 1)).collect();
    borders.extend([0, end]);
    borders.sort_unstable();
    borders.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn noise(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| ((at + seed).wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

fn within(piece: &Range<u64>, bytes: &[(u64, usize)]) -> Vec<(usize, usize)> {
    let inside = bytes.iter().filter(|(stream, _)| piece.contains(stream));
    inside.map(|(stream, tensor)| ((stream - piece.start) as usize, *tensor)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pieces_are_scattered_as_byte_by_byte(case in cases(), at in prop::collection::vec(any::<u16>(), 0..5)) {
        let (copy, bytes) = (case.copy(), case.bytes());
        prop_assert_eq!(copy.bytes(), bytes.len() as u64);
        let mut tensor = noise(case.tensor_size(), 1);
        if !case.apart {
            let mut places: Vec<_> = bytes.iter().map(|(_, tensor)| tensor).collect();
            places.sort_unstable();
            if places.windows(2).any(|pair| pair[0] == pair[1]) {
                prop_assert_eq!(copy.scatter(0, &[0; 9], &mut tensor), Err(DeviceError::TensorOverlaps));
            }
            return Ok(());
        }
        let mut lent = tensor.clone();
        for piece in cuts(&case, &at) {
            let stream = noise((piece.end - piece.start) as usize, 2);
            let mut want = tensor.clone();
            let inside = within(&piece, &bytes);
            inside.iter().for_each(|(from, to)| want[*to] = stream[*from]);
            prop_assert_eq!(copy.scatter(piece.start, &stream, &mut tensor), Ok(inside.len()));
            prop_assert_eq!(&tensor, &want);
            let copied = with_destinations(vec![&mut lent], |to| to[0].scatter(&copy, piece.start, &stream));
            prop_assert_eq!(copied, Ok(inside.len()));
            prop_assert_eq!(&lent, &want);
        }
    }

    #[test]
    fn pieces_are_gathered_as_byte_by_byte(case in cases(), at in prop::collection::vec(any::<u16>(), 0..5)) {
        let (copy, bytes) = (case.copy(), case.bytes());
        let tensor = noise(case.tensor_size(), 3);
        for piece in cuts(&case, &at) {
            let mut stream = noise((piece.end - piece.start) as usize, 4);
            let mut want = stream.clone();
            let mut lent = stream.clone();
            let inside = within(&piece, &bytes);
            inside.iter().for_each(|(to, from)| want[*to] = tensor[*from]);
            prop_assert_eq!(copy.gather(&tensor, piece.start, &mut stream), Ok(inside.len()));
            prop_assert_eq!(&stream, &want);
            let copied = with_sources(vec![&tensor], |from| from[0].gather(&copy, piece.start, &mut lent));
            prop_assert_eq!(copied, Ok(inside.len()));
            prop_assert_eq!(&lent, &want);
        }
    }

    #[test]
    fn rows_are_what_is_contiguous_from_a_byte_on(case in cases()) {
        let (copy, bytes) = (case.copy(), case.bytes());
        let places: BTreeMap<u64, usize> = bytes.iter().copied().collect();
        // Bytes here and there, and their neighbours, which may belong to no row.
        let sample = places.keys().step_by(1 + places.len() / 40).flat_map(|&at| [at.saturating_sub(1), at, at + 1]);
        for at in sample {
            match (copy.row_at(at), places.get(&at)) {
                (None, None) => {}
                (Some(row), Some(place)) => {
                    prop_assert!(row.start == *place && row.start < row.end && row.len() <= copy.row_bytes());
                    for (step, tensor) in row.enumerate() {
                        prop_assert_eq!(places.get(&(at + step as u64)), Some(&tensor));
                    }
                }
                other => prop_assert!(false, "byte {}: {:?}", at, other),
            }
        }
    }

    #[test]
    fn a_tensor_that_is_too_short_is_an_error(case in cases()) {
        let size = case.tensor_size();
        prop_assume!(!case.bytes().is_empty());
        let copy = case.copy();
        let mut short = vec![0; size - 1];
        let is_range_error = |r| matches!(r, Err(DeviceError::OutOfRange { .. }));
        prop_assert!(is_range_error(copy.scatter(0, &[], &mut short)));
        prop_assert!(is_range_error(copy.gather(&short, 0, &mut [])));
        prop_assert!(is_range_error(with_destinations(vec![&mut short], |to| to[0].scatter(&copy, 0, &[]))));
        prop_assert!(is_range_error(with_sources(vec![&short], |from| from[0].gather(&copy, 0, &mut []))));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let axis = |count, stream_stride, tensor_stride| Axis { count, stream_stride, tensor_stride };
    let overlap = StridedCopy::new(0, 0, &[axis(2, 7, 8), axis(2, 4, 4)], 4).unwrap_err();
    assert_eq!(overlap, DeviceError::StreamOverlaps { axis: 0, stride: 7, span: 8 });
    for (offset, at, axes) in [
        (u64::MAX, 0, vec![]),
        (0, usize::MAX, vec![]),
        (0, 0, vec![axis(usize::MAX, 4, 4)]),
        (0, 0, vec![axis(3, u64::MAX, 4)]),
        (0, 0, vec![axis(3, 4, usize::MAX)]),
    ] {
        assert_eq!(StridedCopy::new(offset, at, &axes, 4), Err(DeviceError::TooFar));
    }
    let none = StridedCopy::new(9, 5, &[axis(0, 0, usize::MAX), axis(usize::MAX, 0, 0)], 4).unwrap();
    assert_eq!((none.bytes(), none.stream_range()), (0, 9..9));
    // A piece that begins near the end of all streams holds nothing of it.
    let far = StridedCopy::new(0, 0, &[], 8).unwrap();
    assert_eq!(far.scatter(u64::MAX - 1, &[1; 8], &mut [0; 8]), Ok(0));
}

#[test]
fn axes_that_continue_each_other_become_one_row() {
    let axes = [(2, 60, 60), (1, 7, 3), (3, 20, 20), (5, 4, 4)];
    let axes = axes.map(|(count, stream_stride, tensor_stride)| Axis { count, stream_stride, tensor_stride });
    assert_eq!(StridedCopy::new(1, 2, &axes, 4), StridedCopy::new(1, 2, &[], 120));
}
