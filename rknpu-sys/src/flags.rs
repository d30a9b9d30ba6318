//! Flags of the driver's calls. Unknown bits are kept, as the driver keeps them.
//!
//! ```
//! use rknpu_sys::flags::{CoreMask, JobFlags, MemFlags};
//!
//! // A weight's buffer, a task array's, and a blocking job on core 1.
//! let data = MemFlags::NON_CONTIGUOUS
//!     | MemFlags::CACHEABLE
//!     | MemFlags::IOMMU_LIMIT_IOVA_ALIGNMENT;
//! let tasks = data | MemFlags::KERNEL_MAPPING;
//! let job = JobFlags::PC | JobFlags::PINGPONG;
//! assert_eq!((data.bits(), tasks.bits()), (0x403, 0x40b));
//! assert_eq!((job.bits(), CoreMask::CORE1.bits()), (5, 2));
//! ```

use bitflags::bitflags;

bitflags! {
    /// `MemCreate::flags`. The driver validates none of them.
    ///
    /// ```
    /// use rknpu_sys::flags::MemFlags;
    ///
    /// let flags = MemFlags::from_bits_retain(0x8000_0403);
    /// assert!(flags.contains(MemFlags::CACHEABLE));
    /// assert!(!flags.contains(MemFlags::KERNEL_MAPPING)); // no place for a task array
    /// assert_eq!(flags.bits(), 0x8000_0403); // unknown bits stay, as in the driver
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MemFlags: u32 {
        /// Pages from shmem, joined by the IOMMU. Without it the driver takes the contiguous path,
        /// whose fallback breaks mmap and free when an IOMMU is present.
        const NON_CONTIGUOUS = 0x1;
        /// Normal cached CPU mapping; only such buffers can be synced.
        const CACHEABLE = 0x2;
        /// Normal non-cacheable CPU mapping.
        const WRITE_COMBINE = 0x4;
        /// The kernel maps the buffer for itself: needed for task arrays.
        const KERNEL_MAPPING = 0x8;
        /// Not tested by the driver.
        const IOMMU = 0x10;
        /// No effect: memory is always zeroed.
        const ZEROING = 0x20;
        /// Not tested by the driver.
        const SECURE = 0x40;
        /// No effect with an IOMMU.
        const DMA32 = 0x80;
        /// Take what fits from on-chip SRAM.
        const TRY_ALLOC_SRAM = 0x100;
        /// Ignored on the RK3588.
        const TRY_ALLOC_NBUF = 0x200;
        /// Since 0.9.7: page-granular IOVA from the driver's own allocator, without power-of-two
        /// alignment and without cache maintenance while mapping.
        const IOMMU_LIMIT_IOVA_ALIGNMENT = 0x400;
        /// Unknown bits are stored by the driver.
        const _ = !0;
    }

    /// `MemSync::flags`. 0 does nothing and succeeds.
    ///
    /// ```
    /// use rknpu_sys::flags::SyncFlags;
    ///
    /// // A new buffer is cleaned and invalidated before its first use by the NPU.
    /// let first = SyncFlags::TO_DEVICE | SyncFlags::FROM_DEVICE;
    /// assert_eq!(first.bits(), 3);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SyncFlags: u32 {
        /// Clean: the CPU wrote, the NPU will read.
        const TO_DEVICE = 1;
        /// Invalidate: the NPU wrote, the CPU will read. Discards dirty CPU lines in the range.
        const FROM_DEVICE = 2;
        /// Other bits are ignored by the driver.
        const _ = !0;
    }

    /// `Submit::flags`.
    ///
    /// ```
    /// use rknpu_sys::flags::JobFlags;
    ///
    /// let job = JobFlags::PC | JobFlags::PINGPONG;
    /// assert!(!job.contains(JobFlags::NONBLOCK)); // the call waits
    /// assert_eq!(job.bits(), 5);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct JobFlags: u32 {
        /// Program-counter mode; mandatory.
        const PC = 0x1;
        /// Return at once. Clear: wait, uninterruptibly.
        const NONBLOCK = 0x2;
        /// Alternate the two register groups between programs.
        const PINGPONG = 0x4;
        /// Wait for `fence_fd` first.
        const FENCE_IN = 0x8;
        /// Return a sync file in `fence_fd`.
        const FENCE_OUT = 0x10;
        /// Other bits are ignored by the driver.
        const _ = !0;
    }

    /// `Submit::core_mask`: 0 lets the driver choose. 5 and 6 are accepted and never run.
    ///
    /// ```
    /// use rknpu_sys::flags::CoreMask;
    ///
    /// let all = CoreMask::CORE0 | CoreMask::CORE1 | CoreMask::CORE2;
    /// assert_eq!(all.bits(), 7);
    /// assert!(CoreMask::AUTO.is_empty());
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CoreMask: u32 {
        /// Core 0.
        const CORE0 = 1;
        /// Core 1.
        const CORE1 = 2;
        /// Core 2.
        const CORE2 = 4;
    }
}

impl CoreMask {
    /// The driver picks the core with the fewest queued tasks.
    pub const AUTO: CoreMask = CoreMask::empty();
}

const _: () = {
    let known = MemFlags::NON_CONTIGUOUS.bits()
        | MemFlags::CACHEABLE.bits()
        | MemFlags::WRITE_COMBINE.bits()
        | MemFlags::KERNEL_MAPPING.bits()
        | MemFlags::IOMMU.bits()
        | MemFlags::ZEROING.bits()
        | MemFlags::SECURE.bits()
        | MemFlags::DMA32.bits()
        | MemFlags::TRY_ALLOC_SRAM.bits()
        | MemFlags::TRY_ALLOC_NBUF.bits()
        | MemFlags::IOMMU_LIMIT_IOVA_ALIGNMENT.bits();
    assert!(known == 0x7ff);
};
