//! Flags of the driver's calls. Unknown bits are kept, as the driver keeps them.

use bitflags::bitflags;

bitflags! {
    /// `MemCreate::flags`. The driver validates none of them.
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
