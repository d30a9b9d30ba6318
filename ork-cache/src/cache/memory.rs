//! The memory of a slot, in one of its two states.

use crate::backend::Backend;
use crate::sync::Arc;

/// Memory of a slot.
pub(super) enum Memory<B: Backend> {
    /// The CPU's: empty, or with bytes that the NPU has not been handed yet.
    Host(B::Host),
    /// The NPU's, shared with the uses that have pinned its weight.
    Device(Arc<B::Device>),
}

impl<B: Backend> Memory<B> {
    /// The memory for the CPU to write; as it was, while somebody still shares it.
    pub(super) fn reclaim(self, backend: &B) -> Result<B::Host, Memory<B>> {
        match self {
            Memory::Host(host) => Ok(host),
            Memory::Device(device) => match Arc::try_unwrap(device) {
                Ok(device) => Ok(backend.reclaim(device)),
                Err(shared) => Err(Memory::Device(shared)),
            },
        }
    }
}
