//! Runs of equal rows at equal distances: the inner loop of every strided copy.

/// Rows of one length at one distance from each other on each side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    /// Where the first row is in the piece of the stream.
    pub stream: usize,
    /// Where the first row is in the tensor.
    pub tensor: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// How many rows, at least one.
    pub rows: usize,
    /// Bytes from row to row in the stream, at least `row_bytes` where there is more than one.
    pub stream_stride: usize,
    /// Bytes from row to row in the tensor; less than `row_bytes` only where the tensor is read.
    pub tensor_stride: usize,
}

/// Copies the rows of `run` from the start of `from` to the start of `to`.
pub(crate) fn copy_rows(run: &Rows, from: &[u8], from_stride: usize, to: &mut [u8], to_stride: usize) {
    // Lengths known when compiled turn a call of memcpy per row into a load and a store or a few.
    match run.row_bytes {
        1 => copy_fixed::<1>(run.rows, from, from_stride, to, to_stride),
        2 => copy_fixed::<2>(run.rows, from, from_stride, to, to_stride),
        4 => copy_fixed::<4>(run.rows, from, from_stride, to, to_stride),
        8 => copy_fixed::<8>(run.rows, from, from_stride, to, to_stride),
        16 => copy_fixed::<16>(run.rows, from, from_stride, to, to_stride),
        32 => copy_fixed::<32>(run.rows, from, from_stride, to, to_stride),
        64 => copy_fixed::<64>(run.rows, from, from_stride, to, to_stride),
        length => {
            for row in 0..run.rows {
                let (from, to) = (&from[row * from_stride..], &mut to[row * to_stride..]);
                to[..length].copy_from_slice(&from[..length]);
            }
        }
    }
}

fn copy_fixed<const N: usize>(rows: usize, from: &[u8], from_stride: usize, to: &mut [u8], to_stride: usize) {
    for row in 0..rows {
        let (from, to) = (&from[row * from_stride..], &mut to[row * to_stride..]);
        to[..N].copy_from_slice(&from[..N]);
    }
}
