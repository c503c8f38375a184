//! The memory that a load fills, by commit mode: the library's own, the caller's, or a second copy of the caller's.

use super::{CheckpointError, CommitMode};
use crate::plan::{Destination, LoadPlan};
use bytes::Bytes;
use reshard_device::{Buffer, DestinationHandle, Device, with_destinations};
use reshard_shard::ShardedStateDict;
use std::collections::BTreeMap;

/// One place for each tensor of the plan, in its order: a buffer of the library, or nothing where the caller's own
/// buffer of that key is filled.
pub(super) struct Placed {
    buffers: Vec<Option<Buffer>>,
}

impl Placed {
    /// Allocates what the mode needs, after checking the caller's buffers against the plan.
    pub(super) fn new(
        device: &dyn Device,
        plan: &LoadPlan,
        target: &ShardedStateDict,
        mode: &CommitMode<'_>,
    ) -> Result<Self, CheckpointError> {
        let given = match mode {
            CommitMode::Allocate => None,
            CommitMode::InPlace(buffers) | CommitMode::Staged(buffers) => Some(buffers),
        };
        if let Some(buffers) = given
            && let Some(key) = buffers.keys().find(|key| target.get(key).is_none())
        {
            return Err(CheckpointError::Invalid(format!(
                "a buffer was given for `{key}`, which is not in the target"
            )));
        }
        let mut placed = Vec::with_capacity(plan.tensors.len());
        for tensor in &plan.tensors {
            let in_place = match (&tensor.destination, given) {
                (Destination::Tensor(key), Some(buffers)) => {
                    let length = buffers.get(key.as_str()).map(|buffer| buffer.len() as u64);
                    check_length(key, length, tensor.local_bytes)?;
                    matches!(mode, CommitMode::InPlace(_))
                }
                _ => false,
            };
            let bytes = usize::try_from(tensor.local_bytes).map_err(|_| {
                CheckpointError::Invalid(format!(
                    "a tensor of {} bytes does not fit this machine",
                    tensor.local_bytes
                ))
            })?;
            let buffer = if in_place {
                None
            } else {
                Some(device.allocate(bytes).map_err(crate::transfer::TransferError::from)?)
            };
            placed.push(buffer);
        }
        Ok(Self { buffers: placed })
    }

    /// Makes everything visible: new tensors and objects are returned, staged ones are moved into the caller's buffers.
    pub(super) fn reveal(
        self,
        plan: &LoadPlan,
        mode: &mut CommitMode<'_>,
    ) -> (BTreeMap<String, Buffer>, BTreeMap<(String, u32), Bytes>) {
        let (mut tensors, mut objects) = (BTreeMap::new(), BTreeMap::new());
        for (tensor, buffer) in plan.tensors.iter().zip(self.buffers) {
            let Some(buffer) = buffer else { continue };
            match (&tensor.destination, &mut *mode) {
                (Destination::Object { name, rank }, _) => {
                    objects.insert((name.clone(), *rank), buffer.into_bytes());
                }
                (Destination::Tensor(key), CommitMode::Allocate) => {
                    tensors.insert(key.clone(), buffer);
                }
                (Destination::Tensor(key), CommitMode::InPlace(buffers) | CommitMode::Staged(buffers)) => {
                    if let Some(own) = buffers.get_mut(key.as_str()) {
                        own.copy_from_slice(buffer.as_ref());
                    }
                }
            }
        }
        (tensors, objects)
    }
}

fn check_length(key: &str, found: Option<u64>, wanted: u64) -> Result<(), CheckpointError> {
    match found {
        Some(length) if length == wanted => Ok(()),
        Some(length) => Err(CheckpointError::Invalid(format!(
            "tensor `{key}`: its local buffer has {length} bytes and its shard needs {wanted}"
        ))),
        None => Err(CheckpointError::Invalid(format!(
            "tensor `{key}` is in the target but no buffer was given for it"
        ))),
    }
}

/// Lends the places to `work`, as one handle for each tensor of the plan in its order.
pub(super) fn lend<R>(
    placed: &mut Placed,
    plan: &LoadPlan,
    mode: &mut CommitMode<'_>,
    work: impl FnOnce(Result<Vec<DestinationHandle>, CheckpointError>) -> R,
) -> R {
    // The caller's buffers by key; each is lent once, since a plan has one tensor for a key.
    let mut own: BTreeMap<&str, &mut [u8]> = match mode {
        CommitMode::InPlace(buffers) => {
            buffers.iter_mut().map(|(key, buffer)| (*key, &mut **buffer)).collect()
        }
        CommitMode::Allocate | CommitMode::Staged(_) => BTreeMap::new(),
    };
    let mut slices: Vec<&mut [u8]> = Vec::with_capacity(plan.tensors.len());
    for (tensor, buffer) in plan.tensors.iter().zip(&mut placed.buffers) {
        match (buffer, &tensor.destination) {
            (Some(buffer), _) => slices.push(buffer.as_mut()),
            (None, Destination::Tensor(key)) => match own.remove(key.as_str()) {
                Some(buffer) => slices.push(buffer),
                None => return work(Err(CheckpointError::Invalid(format!("no buffer for `{key}`")))),
            },
            (None, Destination::Object { name, .. }) => {
                return work(Err(CheckpointError::Invalid(format!("no buffer for object `{name}`"))));
            }
        }
    }
    with_destinations(slices, |handles| work(Ok(handles)))
}
