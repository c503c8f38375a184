//! The host's own memory.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use memmap2::MmapMut;

use crate::device::StagingMemory;
use crate::{Device, DeviceError};

/// The host's own memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

impl Device for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn allocate_staging(&self, bytes: usize) -> Result<Box<dyn StagingMemory>, DeviceError> {
        Ok(Box::new(Pages::zeroed(bytes)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer(if bytes < OWN_PAGES {
            Memory::Aligned(Aligned::zeroed(bytes)?)
        } else {
            Memory::Pages(Pages::zeroed(bytes)?.made_large())
        }))
    }
}

/// The memory of a tensor that the library allocated. Bytes that nothing wrote are zero.
#[derive(Debug)]
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    Aligned(Aligned),
    Pages(Pages),
}

/// From this length on a tensor has pages of its own: large enough for the system's large pages.
const OWN_PAGES: usize = 4 << 20;

impl Buffer {
    /// The same memory, immutable and shared, without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Memory::Aligned(memory) => &memory.memory[memory.used.clone()],
            Memory::Pages(pages) => pages.as_ref(),
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Aligned(memory) => &mut memory.memory[memory.used.clone()],
            Memory::Pages(pages) => pages.as_mut(),
        }
    }
}

/// Zeroed pages straight from the system. They cost nothing before they are touched, while an allocator that has
/// used memory at hand would clear all of it first.
#[derive(Debug)]
struct Pages(MmapMut);

impl Pages {
    fn zeroed(bytes: usize) -> Result<Self, DeviceError> {
        let pages = MmapMut::map_anon(bytes);
        pages.map(Self).map_err(|_| DeviceError::OutOfMemory { device: Host.name().into(), bytes })
    }

    /// Asks for large pages, which are fetched from the system in fewer steps: all of a tensor is written.
    fn made_large(self) -> Self {
        #[cfg(target_os = "linux")]
        let _only_advice = self.0.advise(memmap2::Advice::HugePage);
        self
    }
}

impl StagingMemory for Pages {}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Pages {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// What processors and vector instructions like best.
const TENSOR_ALIGNMENT: usize = 64;

/// Zeroed memory of the allocator whose first byte is aligned: the allocation is longer than what is used.
struct Aligned {
    memory: Box<[u8]>,
    used: Range<usize>,
}

impl Aligned {
    fn zeroed(bytes: usize) -> Result<Self, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory { device: Host.name().into(), bytes };
        let all = bytes.checked_add(TENSOR_ALIGNMENT).ok_or_else(out_of_memory)?;
        let memory = bytemuck::allocation::try_zeroed_slice_box::<u8>(all).map_err(|()| out_of_memory())?;
        let start = memory.as_ptr().align_offset(TENSOR_ALIGNMENT);
        Ok(Self { memory, used: start..start + bytes })
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
        for bytes in [0, 1, 63, 64, 4096, 100_000, OWN_PAGES + 1] {
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
