use super::consume::Consumer;
use reshard_storage::{ReadBuffer, Slot};
use std::any::Any;
use std::ops::Range;

/// A slot of the staging pool as memory that a store's read fills. It goes back to the pool when it is dropped, which
/// a store does only after the read has really ended.
pub(super) struct StagingBuffer {
    memory: reshard_device::Slot,
    /// Works on the bytes as they come.
    pub(super) consumer: Consumer,
}

impl StagingBuffer {
    pub(super) fn new(memory: reshard_device::Slot, consumer: Consumer) -> Self {
        Self { memory, consumer }
    }

    /// The buffer that a store gives back; `None` where the store lost it and gave another one.
    pub(super) fn returned(slot: Slot) -> Option<Box<Self>> {
        let slot: Box<dyn Any> = slot;
        slot.downcast().ok()
    }

    /// What the consumer has not yet taken of the first `length` bytes, once all of them are there.
    pub(super) fn finish(&mut self, length: usize) {
        let bytes = self.memory.get(..length).unwrap_or_default();
        self.consumer.advance(bytes, true);
    }
}

impl ReadBuffer for StagingBuffer {
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn bytes(&self) -> &[u8] {
        &self.memory
    }

    fn filled(&mut self, piece: Range<usize>) {
        if piece.start == 0 {
            self.consumer.begin();
        }
        let bytes = self.memory.get(..piece.end).unwrap_or_default();
        self.consumer.advance(bytes, false);
    }
}
