use reshard_storage::ReadBuffer;

/// A slot of the staging pool as memory that a store's read fills. It goes back to the pool when it is dropped, which
/// a store does only after the read has really ended.
pub(super) struct StagingBuffer(pub(super) reshard_device::Slot);

impl ReadBuffer for StagingBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
