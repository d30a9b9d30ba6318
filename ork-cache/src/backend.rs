//! The boundary to the device and to where weights come from.

use crate::error::Cause;
use crate::ids::{DomainId, WeightId};

/// Device memory and the source of weights, as the cache needs them.
///
/// Two kinds of calls: **memory calls** (`create`, `publish`, `free`) may switch the device's
/// domain, so the cache issues them only while no other domain is at work; `copy` runs on the CPU
/// alone and at any time. No lock of the cache is held during any of them, and for one buffer
/// there is never more than one at a time.
///
/// The cache's tests, its loom models and a real device all run the same code above this trait;
/// [`fake::Fake`](crate::fake::Fake) is the implementation that checks its caller.
///
/// ```
/// use ork_cache::backend::Backend;
/// use ork_cache::core::{Home, Limits, WeightSpec};
/// use ork_cache::{Cache, Cause, DomainId, WeightId, policy::Lru};
///
/// /// Plain memory, each weight filled with its number.
/// struct Memory;
///
/// impl Backend for Memory {
///     type Buffer = Vec<u8>;
///
///     fn create(&self, _domain: DomainId, bytes: u64) -> Result<Vec<u8>, Cause> {
///         Ok(vec![0; bytes as usize])
///     }
///     fn copy(&self, buffer: &mut Vec<u8>, weight: WeightId) -> Result<(), Cause> {
///         buffer.fill(weight.0 as u8);
///         Ok(())
///     }
///     fn publish(&self, _buffer: &mut Vec<u8>) -> Result<(), Cause> {
///         Ok(())
///     }
///     fn free(&self, _buffer: Vec<u8>) -> Result<(), Cause> {
///         Ok(())
///     }
/// }
///
/// let cache = Cache::new(Memory, Limits::single(8192), Box::new(Lru::new()));
/// cache.attach(&[WeightSpec { bytes: 4096, domain: DomainId(0), home: Home::Own }; 9])?;
/// assert_eq!(cache.acquire(WeightId(7))?[..3], [7, 7, 7]);
/// # Ok::<(), ork_cache::Error>(())
/// ```
pub trait Backend: Send + Sync + 'static {
    /// A piece of device memory of fixed size in one domain.
    type Buffer: Send + Sync + 'static;

    /// Creates a buffer of `bytes` (a multiple of 4096) in `domain`. A memory call.
    ///
    /// # Errors
    /// What the device says; nothing is then allocated.
    fn create(&self, domain: DomainId, bytes: u64) -> Result<Self::Buffer, Cause>;

    /// Writes `weight` into the buffer with the CPU. The NPU must not read it before `publish`.
    ///
    /// # Errors
    /// What the source says; the buffer's content is then undefined and the buffer stays usable.
    fn copy(&self, buffer: &mut Self::Buffer, weight: WeightId) -> Result<(), Cause>;

    /// Hands the written bytes to the NPU (cache maintenance). A memory call.
    ///
    /// # Errors
    /// What the device says; the buffer stays usable for another `copy`.
    fn publish(&self, buffer: &mut Self::Buffer) -> Result<(), Cause>;

    /// Gives the memory back: when this returns `Ok`, the bytes are free. A memory call.
    ///
    /// # Errors
    /// What the device says; the address space may then be lost until the device is reset.
    fn free(&self, buffer: Self::Buffer) -> Result<(), Cause>;

    /// `weight` will be copied soon: a chance to read ahead. Must not block; by default nothing.
    fn ahead(&self, weight: WeightId) {
        let _ = weight;
    }
}
