//! The memory of one slot: the CPU's or the NPU's.

use super::load::in_use;
use crate::backend::Backend;
use crate::error::Cause;
use crate::sync::Arc;

/// Memory of a slot.
pub(super) enum SlotMemory<B: Backend> {
    /// The CPU's: empty, or with bytes that the NPU has not been handed yet.
    Host(B::Host),
    /// The NPU's, shared with the uses that have pinned its weight.
    Device(Arc<B::Device>),
}

impl<B: Backend> SlotMemory<B> {
    /// The memory for the CPU to write; as it was and why, while somebody still shares it, or the device does
    /// not let go of it.
    pub(super) fn reclaim(self, backend: &B) -> Result<B::Host, (SlotMemory<B>, Cause)> {
        match self {
            SlotMemory::Host(host) => Ok(host),
            SlotMemory::Device(device) => match Arc::try_unwrap(device) {
                Ok(device) => backend
                    .reclaim(device)
                    .map_err(|(device, cause)| (SlotMemory::Device(Arc::new(device)), cause)),
                Err(shared) => Err((SlotMemory::Device(shared), in_use())),
            },
        }
    }
}
