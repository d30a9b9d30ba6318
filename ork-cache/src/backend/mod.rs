//! What a cache needs of a device, and of where weights come from.

#[cfg(test)]
pub(crate) mod fake;

use crate::error::Cause;
use crate::ids::{DomainId, WeightId};
use crate::residency::Purpose;

/// Device memory and the source of weights. The state of memory is its type: the CPU's while it is
/// filled, the NPU's afterwards.
///
/// Two kinds of calls: **memory calls** (`create`, `sync_for_device`, `free`) may switch the device's
/// domain, so the cache issues them only while no other domain is at work; `copy` and `reclaim` concern the
/// CPU alone and come at any time. No lock of the cache is held during any of them.
pub trait Backend: Send + Sync + 'static {
    /// Memory of fixed size in one domain that the CPU may write.
    type Host: Send + 'static;
    /// The same memory, with a weight that the NPU may read.
    type Device: Send + Sync + 'static;

    /// Whether work in one domain keeps every other from being entered.
    fn is_exclusive(&self) -> bool {
        true
    }

    /// Creates `bytes` (a multiple of 4096) in `domain`, first for `weight`. A memory call.
    ///
    /// # Errors
    /// What the device says; nothing is then allocated.
    fn create(&self, domain: DomainId, bytes: u64, weight: WeightId) -> Result<Self::Host, Cause>;

    /// Creates `count` slots of `bytes` each in `domain`: as many as the device gives, and why there are no
    /// more. A memory call.
    fn create_slots(
        &self,
        domain: DomainId,
        bytes: u64,
        count: usize,
    ) -> (Vec<Self::Host>, Option<Cause>);

    /// Writes `weight` with the CPU. With [`Purpose::Demand`] somebody waits for it.
    ///
    /// # Errors
    /// What the source says; the content is then undefined and the memory stays usable.
    fn copy(
        &self,
        memory: &mut Self::Host,
        weight: WeightId,
        purpose: Purpose,
    ) -> Result<(), Cause>;

    /// Hands what was written last to the NPU (cache maintenance). A memory call.
    ///
    /// # Errors
    /// What the device says, and the memory as it was.
    fn sync_for_device(&self, memory: Self::Host) -> Result<Self::Device, (Self::Host, Cause)>;

    /// Takes memory back to overwrite it; no call to the device.
    ///
    /// # Errors
    /// The memory as it was, while the device may still write to it.
    fn reclaim(&self, memory: Self::Device) -> Result<Self::Host, (Self::Device, Cause)>;

    /// Gives the memory back: when this returns `Ok`, the bytes are free. A memory call.
    ///
    /// # Errors
    /// What the device says; the address space may then be lost until the device is reset.
    fn free(&self, memory: Self::Host) -> Result<(), Cause>;

    /// `weight` will be copied soon: a chance to read ahead. Must not block; by default nothing.
    fn will_need(&self, weight: WeightId) {
        let _ = weight;
    }
}
