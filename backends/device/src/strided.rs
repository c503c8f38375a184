//! Copies between bytes that stream by and a tensor with strides.
//!
//! A region of a tensor, as bytes of a file, comes by in order: its *stream* side. In the tensor it lies with
//! other strides. Reading scatters the stream into the tensor, writing gathers the tensor into the stream.
//! Memory holds only a piece of the stream at a time, and a piece may begin and end in the middle of a row.

use std::ops::Range;

use crate::DeviceError;
use crate::error::checked_range;
use crate::rows::{Rows, copy_rows};

/// One axis of a [`StridedCopy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// Steps along the axis.
    pub count: usize,
    /// Bytes from one step to the next in the stream.
    pub stream_stride: u64,
    /// Bytes from one step to the next in the tensor.
    pub tensor_stride: usize,
}

/// How rows of bytes lie in a stream and in a tensor.
///
/// The stream side runs forward: row after row in the order of the axes, the outermost first, each step
/// past the end of the one before it. The tensor side may lie in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StridedCopy {
    stream_offset: u64,
    tensor_offset: usize,
    /// The outermost first; those that can be one are one. Each has at least two steps.
    axes: Vec<Axis>,
    /// Bytes that are contiguous on both sides; 0 where there is nothing to copy.
    row_bytes: usize,
    /// The first byte of the stream past this copy.
    stream_end: u64,
    /// The first byte of the tensor past this copy.
    tensor_end: usize,
    /// Whether no two rows share a byte of the tensor.
    writable: bool,
}

impl StridedCopy {
    /// Rows of `row_bytes` bytes along `axes`, the outermost first. The first row is at `stream_offset` in the
    /// stream and at `tensor_offset` in the tensor, both in bytes. Without axes it is one row.
    ///
    /// # Errors
    /// [`DeviceError::TooFar`] where an end is past the address space, [`DeviceError::StreamOverlaps`] where
    /// the stream side does not run forward.
    pub fn new(
        stream_offset: u64,
        tensor_offset: usize,
        axes: &[Axis],
        row_bytes: usize,
    ) -> Result<Self, DeviceError> {
        let mut copy = Self {
            stream_offset,
            tensor_offset,
            axes: Vec::new(),
            row_bytes: 0,
            stream_end: stream_offset,
            tensor_end: tensor_offset,
            writable: true,
        };
        if row_bytes == 0 || axes.iter().any(|axis| axis.count == 0) {
            return Ok(copy);
        }
        let stream_span = stream_span(axes, row_bytes)?;
        let tensor_span = axes.iter().try_fold(row_bytes, |span, axis| {
            (axis.count - 1).checked_mul(axis.tensor_stride)?.checked_add(span)
        });
        copy.stream_end = stream_offset.checked_add(stream_span).ok_or(DeviceError::TooFar)?;
        copy.tensor_end =
            tensor_span.and_then(|span| span.checked_add(tensor_offset)).ok_or(DeviceError::TooFar)?;
        (copy.axes, copy.row_bytes) = merged(axes, row_bytes);
        copy.writable = rows_lie_apart(&copy.axes, copy.row_bytes);
        Ok(copy)
    }

    /// From the first byte of the stream that this copy touches to past the last.
    pub fn stream_range(&self) -> Range<u64> {
        self.stream_offset..self.stream_end
    }

    /// Bytes that are contiguous on both sides: the length of every row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// How many bytes it copies in all.
    pub fn bytes(&self) -> u64 {
        // The stream holds all of them apart from each other, so the product fits.
        self.axes.iter().fold(self.row_bytes as u64, |bytes, axis| bytes * axis.count as u64)
    }

    /// Where the byte at `at` of the stream goes in the tensor, and how many bytes from it on are contiguous on both
    /// sides; `None` where this copy takes nothing from there.
    pub fn row_at(&self, at: u64) -> Option<Range<usize>> {
        let mut left = at.checked_sub(self.stream_offset)?;
        let mut tensor = self.tensor_offset;
        for axis in &self.axes {
            let step = usize::try_from(left / axis.stream_stride).ok().filter(|&step| step < axis.count)?;
            left -= step as u64 * axis.stream_stride;
            tensor += step * axis.tensor_stride;
        }
        let within = usize::try_from(left).ok().filter(|&within| within < self.row_bytes)?;
        Some(tensor + within..tensor + self.row_bytes)
    }

    /// Copies what `stream`, the bytes of the stream at `stream_start`, holds of this copy into `tensor`;
    /// returns how many bytes that was.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where the tensor is too short, [`DeviceError::TensorOverlaps`] where a byte
    /// of it would be written more than once. Nothing is written then.
    pub fn scatter(&self, stream_start: u64, stream: &[u8], tensor: &mut [u8]) -> Result<usize, DeviceError> {
        self.check_writable(tensor.len())?;
        let mut copied = 0;
        self.each_run(stream_start, stream.len(), |run| {
            copied += run.rows * run.row_bytes;
            copy_rows(
                &run,
                &stream[run.stream..],
                run.stream_stride,
                &mut tensor[run.tensor..],
                run.tensor_stride,
            );
            Ok(())
        })?;
        Ok(copied)
    }

    /// Copies from `tensor` what belongs into `stream`, the bytes of the stream at `stream_start`; returns how
    /// many bytes that was.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] where the tensor is too short. Nothing is written then.
    pub fn gather(&self, tensor: &[u8], stream_start: u64, stream: &mut [u8]) -> Result<usize, DeviceError> {
        checked_range(self.tensor_offset, self.tensor_end - self.tensor_offset, tensor.len())?;
        let mut copied = 0;
        self.each_run(stream_start, stream.len(), |run| {
            copied += run.rows * run.row_bytes;
            copy_rows(
                &run,
                &tensor[run.tensor..],
                run.tensor_stride,
                &mut stream[run.stream..],
                run.stream_stride,
            );
            Ok(())
        })?;
        Ok(copied)
    }

    /// Whether a tensor of `size` bytes can be the side that is written.
    pub(crate) fn check_writable(&self, size: usize) -> Result<(), DeviceError> {
        checked_range(self.tensor_offset, self.tensor_end - self.tensor_offset, size)?;
        if self.writable { Ok(()) } else { Err(DeviceError::TensorOverlaps) }
    }

    /// Calls `f` with the runs of rows, in stream order, that lie in the `length` bytes of the stream at
    /// `start`. Offsets in the stream count from `start`. Rows that the piece cuts come shortened.
    pub(crate) fn each_run(
        &self,
        start: u64,
        length: usize,
        mut f: impl FnMut(Rows) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let piece = start..start.saturating_add(length as u64);
        if self.row_bytes == 0 || piece.is_empty() {
            return Ok(());
        }
        let (outer, inner) = match self.axes.split_last() {
            Some((inner, outer)) => (outer, *inner),
            // One row is an axis of one step; its strides are never stepped over.
            None => (
                &[][..],
                Axis { count: 1, stream_stride: self.row_bytes as u64, tensor_stride: self.row_bytes },
            ),
        };
        let walk = Walk { piece, inner, row_bytes: self.row_bytes };
        walk.axes(outer, self.stream_end - self.stream_offset, self.stream_offset, self.tensor_offset, &mut f)
    }
}

/// Bytes that all axes span in the stream; an error unless it runs forward.
fn stream_span(axes: &[Axis], row_bytes: usize) -> Result<u64, DeviceError> {
    let mut span = row_bytes as u64;
    for (index, axis) in axes.iter().enumerate().rev() {
        if axis.count > 1 && axis.stream_stride < span {
            return Err(DeviceError::StreamOverlaps { axis: index, stride: axis.stream_stride, span });
        }
        let steps = (axis.count as u64 - 1).checked_mul(axis.stream_stride);
        span = steps.and_then(|steps| steps.checked_add(span)).ok_or(DeviceError::TooFar)?;
    }
    Ok(span)
}

/// The same copy with the fewest axes and the longest rows.
fn merged(axes: &[Axis], mut row_bytes: usize) -> (Vec<Axis>, usize) {
    let mut merged: Vec<Axis> = Vec::new(); // The innermost first.
    for axis in axes.iter().rev().filter(|axis| axis.count > 1) {
        let (stream_step, tensor_step) = match merged.last() {
            Some(inner) => (
                inner.stream_stride.checked_mul(inner.count as u64),
                inner.tensor_stride.checked_mul(inner.count),
            ),
            None => (Some(row_bytes as u64), Some(row_bytes)),
        };
        let continues = stream_step == Some(axis.stream_stride) && tensor_step == Some(axis.tensor_stride);
        match merged.last_mut() {
            Some(inner) if continues => inner.count *= axis.count,
            None if continues => row_bytes *= axis.count,
            _ => merged.push(*axis),
        }
    }
    merged.reverse();
    (merged, row_bytes)
}

/// Whether the axes nest on the tensor side, in whatever order: every stride reaches past what the smaller
/// ones span. All layouts that come from a dense tensor by slicing and permuting do.
fn rows_lie_apart(axes: &[Axis], row_bytes: usize) -> bool {
    let mut by_stride: Vec<_> = axes.iter().map(|axis| (axis.tensor_stride, axis.count)).collect();
    by_stride.sort_unstable();
    let mut span = row_bytes;
    by_stride.into_iter().all(|(stride, count)| {
        let apart = stride >= span;
        span += (count - 1) * stride;
        apart
    })
}

/// A walk over the rows that lie in a piece of the stream.
struct Walk {
    piece: Range<u64>,
    inner: Axis,
    row_bytes: usize,
}

impl Walk {
    /// The steps of an axis that touch the piece, where a step spans `span` bytes and step 0 is at `base`.
    fn steps(&self, axis: &Axis, base: u64, span: u64) -> Range<usize> {
        let first = match self.piece.start.checked_sub(base + span) {
            Some(past) => past / axis.stream_stride + 1,
            None => 0,
        };
        let end = self.piece.end.saturating_sub(base).div_ceil(axis.stream_stride);
        // Both are cut to the count before they become narrower.
        let count = axis.count as u64;
        (first.min(count) as usize)..(end.min(count) as usize)
    }

    /// Walks `outer` axes and the inner one below them, which span `span` bytes together from `stream` on.
    fn axes(
        &self,
        outer: &[Axis],
        span: u64,
        stream: u64,
        tensor: usize,
        f: &mut impl FnMut(Rows) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let Some((axis, below)) = outer.split_first() else {
            return self.rows(stream, tensor, f);
        };
        let span = span - (axis.count as u64 - 1) * axis.stream_stride;
        for step in self.steps(axis, stream, span) {
            let stream = stream + step as u64 * axis.stream_stride;
            self.axes(below, span, stream, tensor + step * axis.tensor_stride, f)?;
        }
        Ok(())
    }

    /// The rows of the inner axis: a cut one, whole ones, a cut one; any of them may be missing.
    fn rows(
        &self,
        stream: u64,
        tensor: usize,
        f: &mut impl FnMut(Rows) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let row_bytes = self.row_bytes as u64;
        let steps = self.steps(&self.inner, stream, row_bytes);
        let at = |step: usize| stream + step as u64 * self.inner.stream_stride;
        let is_whole = |step| self.piece.start <= at(step) && at(step) + row_bytes <= self.piece.end;
        let mut whole = steps.clone();
        if !whole.is_empty() && !is_whole(whole.start) {
            f(self.cut_row(at(whole.start), tensor + whole.start * self.inner.tensor_stride))?;
            whole.start += 1;
        }
        let cut_last = !whole.is_empty() && !is_whole(whole.end - 1);
        if cut_last {
            whole.end -= 1;
        }
        if !whole.is_empty() {
            f(Rows {
                stream: (at(whole.start) - self.piece.start) as usize,
                tensor: tensor + whole.start * self.inner.tensor_stride,
                row_bytes: self.row_bytes,
                rows: whole.len(),
                stream_stride: self.inner.stream_stride as usize,
                tensor_stride: self.inner.tensor_stride,
            })?;
        }
        if cut_last {
            f(self.cut_row(at(whole.end), tensor + whole.end * self.inner.tensor_stride))?;
        }
        Ok(())
    }

    /// The part of the row at `stream` that lies in the piece.
    fn cut_row(&self, stream: u64, tensor: usize) -> Rows {
        let start = self.piece.start.max(stream);
        let row_bytes = (self.piece.end.min(stream + self.row_bytes as u64) - start) as usize;
        Rows {
            stream: (start - self.piece.start) as usize,
            tensor: tensor + (start - stream) as usize,
            row_bytes,
            rows: 1,
            stream_stride: row_bytes,
            tensor_stride: row_bytes,
        }
    }
}
