//! The host's own memory.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::device::StagingMemory;
use crate::{Device, DeviceError};

/// What processors and vector instructions like best.
const TENSOR_ALIGNMENT: usize = 64;
/// A page, and what direct reads from disk ask for.
const STAGING_ALIGNMENT: usize = 4096;

/// The host's own memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

impl Device for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn allocate_staging(&self, bytes: usize) -> Result<Box<dyn StagingMemory>, DeviceError> {
        Ok(Box::new(Aligned::zeroed(bytes, STAGING_ALIGNMENT)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer(Aligned::zeroed(bytes, TENSOR_ALIGNMENT)?))
    }
}

/// The memory of a tensor that the library allocated. Bytes that nothing wrote are zero.
#[derive(Debug)]
pub struct Buffer(Aligned);

impl Buffer {
    /// The same memory, immutable and shared, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.as_mut()
    }
}

/// Zeroed memory whose first byte is aligned.
///
/// The allocation is longer than what is used and starts anywhere. An allocator that is asked for both zeros
/// and alignment writes the zeros itself; asked for zeros alone it passes on untouched pages of the system,
/// so memory that a transfer fills anyway is not written twice.
struct Aligned {
    memory: Box<[u8]>,
    used: Range<usize>,
}

impl Aligned {
    fn zeroed(bytes: usize, alignment: usize) -> Result<Self, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { device: Host.name().into(), bytes };
        let all = bytes.checked_add(alignment).ok_or_else(out_of_memory)?;
        let memory = bytemuck::allocation::try_zeroed_slice_box::<u8>(all).map_err(|()| out_of_memory())?;
        let start = memory.as_ptr().align_offset(alignment);
        Ok(Self { memory, used: start..start + bytes })
    }
}

impl StagingMemory for Aligned {}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.used.clone()]
    }
}

impl AsMut<[u8]> for Aligned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.used.clone()]
    }
}

impl fmt::Debug for Aligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aligned").field("bytes", &self.used.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zero() {
        for bytes in [0, 1, 63, 64, 4096, 100_000] {
            let mut buffer = Host.allocate(bytes).unwrap();
            assert_eq!(buffer.as_ref(), vec![0; bytes]);
            assert_eq!(buffer.as_ref().as_ptr() as usize % 64, 0);
            buffer.as_mut().fill(7);
            let at = buffer.as_ref().as_ptr();
            let shared = buffer.into_bytes();
            assert_eq!(shared, vec![7; bytes]);
            assert_eq!(shared.as_ptr(), at);

            let staging = Host.allocate_staging(bytes).unwrap();
            assert_eq!(staging.as_ref().as_ref(), vec![0; bytes]);
            assert_eq!(staging.as_ref().as_ref().as_ptr() as usize % 4096, 0);
        }
    }

    #[test]
    fn memory_that_no_machine_has_is_an_error() {
        for bytes in [usize::MAX, usize::MAX / 2, 1 << 60] {
            let error = Host.allocate(bytes).unwrap_err();
            assert_eq!(error, DeviceError::OutOfMemory { device: "host".into(), bytes });
        }
    }
}
