//! From verified bytes in staging to the destinations: copied, converted or compared.

use super::convert::Converter;
use super::rows::rows_in;
use super::{ReadMode, TransferError};
use crate::plan::{Copy, Destination, LoadPlan, PlannedTensor};
use reshard_device::{Axis, DestinationHandle, StridedCopy};
use std::ops::Range;

/// The name of a destination, for errors.
pub(super) fn name(tensor: &PlannedTensor) -> String {
    match &tensor.destination {
        Destination::Tensor(key) => key.clone(),
        Destination::Object { name, rank } => format!("{name} (rank {rank})"),
    }
}

/// Hands `bytes`, which lie at `start` of the file, to all of the `copies` that take something from them. Returns how
/// many values overflowed to infinity in conversions.
pub(super) fn scatter(
    plan: &LoadPlan,
    copies: &[u32],
    start: u64,
    bytes: &[u8],
    destinations: &[DestinationHandle],
    mode: ReadMode,
) -> Result<u64, TransferError> {
    let range = start..start + bytes.len() as u64;
    let mut overflowed = 0;
    for &index in copies {
        let Some(copy) = plan.copies.get(index as usize) else { continue };
        if copy.file_offset >= range.end || copy.file_end() <= range.start {
            continue;
        }
        let tensor = plan.tensors.get(copy.tensor as usize);
        let (Some(tensor), Some(destination)) = (tensor, destinations.get(copy.tensor as usize)) else {
            continue;
        };
        if tensor.saved_dtype == tensor.dtype {
            let pattern = strided(copy)?;
            match mode {
                ReadMode::Fill => {
                    destination.scatter(&pattern, start, bytes)?;
                }
                ReadMode::Compare if destination.differs(&pattern, start, bytes)? => {
                    return Err(TransferError::TiedDiffer { key: name(tensor) });
                }
                ReadMode::Compare => {}
            }
        } else {
            overflowed += convert(tensor, copy, &range, bytes, destination, mode)?;
        }
    }
    Ok(overflowed)
}

/// A copy that changes no dtype, for the device.
pub(super) fn strided(copy: &Copy) -> Result<StridedCopy, TransferError> {
    let axes: Vec<Axis> = copy
        .axes
        .iter()
        .map(|axis| Axis {
            count: axis.count as usize,
            stream_stride: axis.file_stride,
            tensor_stride: axis.local_stride as usize,
        })
        .collect();
    let row_bytes = (copy.row_elements * copy.file_element) as usize;
    Ok(StridedCopy::new(copy.file_offset, copy.local_offset as usize, &axes, row_bytes)?)
}

/// Bytes of converted elements that are made at once.
const CONVERTED_BYTES: u64 = 64 << 10;

fn convert(
    tensor: &PlannedTensor,
    copy: &Copy,
    range: &Range<u64>,
    bytes: &[u8],
    destination: &DestinationHandle,
    mode: ReadMode,
) -> Result<u64, TransferError> {
    let Some(converter) = Converter::new(tensor.saved_dtype, tensor.dtype) else {
        // The dtype contract lets no other pair through.
        return Err(TransferError::OutOfRange {
            key: name(tensor),
            detail: "no conversion between these dtypes".into(),
        });
    };
    let step = CONVERTED_BYTES / copy.local_element;
    let mut converted = vec![0; (step.min(copy.row_elements) * copy.local_element) as usize];
    let mut overflowed = 0;
    rows_in(copy, range, |row| {
        for first in (0..row.elements).step_by(step as usize) {
            let elements = step.min(row.elements - first);
            let from = (row.file_offset + first * copy.file_element - range.start) as usize;
            let source = bytes.get(from..from + (elements * copy.file_element) as usize).unwrap_or_default();
            let target = &mut converted[..(elements * copy.local_element) as usize];
            let counts = converter.convert(source, target).map_err(|error| TransferError::OutOfRange {
                key: name(tensor),
                detail: error.to_string(),
            })?;
            overflowed += counts.overflowed_to_infinity;
            let place = (row.local_offset + first * copy.local_element) as usize;
            let pattern = StridedCopy::new(0, place, &[], target.len())?;
            match mode {
                ReadMode::Fill => destination.write(place, target)?,
                ReadMode::Compare if destination.differs(&pattern, 0, target)? => {
                    return Err(TransferError::TiedDiffer { key: name(tensor) });
                }
                ReadMode::Compare => {}
            }
        }
        Ok(())
    })?;
    Ok(overflowed)
}
