//! The generic DRM, dma-heap and dma-buf structs used beside the driver's own.
//!
//! Source: the kernel's public headers (`drm.h`, `dma-buf.h`, `dma-heap.h`), 64-bit layout.

use crate::uapi::uapi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

uapi! {
    /// `DRM_IOCTL_VERSION`: which driver stands behind a node.
    ///
    /// The three pointers are user addresses of buffers of the given lengths; the kernel returns the
    /// full lengths and copies what fits, without a terminating NUL.
    #[derive(Default)]
    (C) Version, size 64, align 8 {
        /// Out: major version.
        0 version_major: i32,
        /// Out: minor version.
        4 version_minor: i32,
        /// Out: patch level.
        8 version_patchlevel: i32,
        /// Unused; keeps the struct free of padding.
        12 reserved: i32,
        /// Length of the name buffer; out: of the name.
        16 name_len: u64,
        /// Address of the name buffer.
        24 name: u64,
        /// Length of the date buffer; out: of the date, 0 on some builds.
        32 date_len: u64,
        /// Address of the date buffer.
        40 date: u64,
        /// Length of the description buffer; out: of the description.
        48 desc_len: u64,
        /// Address of the description buffer.
        56 desc: u64,
    }
}

uapi! {
    /// `DRM_IOCTL_GEM_CLOSE`.
    #[derive(Default)]
    (C) GemClose, size 8, align 4 {
        /// Handle to close.
        0 handle: u32,
        /// Unused.
        4 pad: u32,
    }
}

uapi! {
    /// `DRM_IOCTL_PRIME_HANDLE_TO_FD` and `DRM_IOCTL_PRIME_FD_TO_HANDLE`.
    #[derive(Default)]
    (C) PrimeHandle, size 12, align 4 {
        /// GEM handle, in or out.
        0 handle: u32,
        /// `O_CLOEXEC | O_RDWR` on export.
        4 flags: u32,
        /// dma-buf descriptor, in or out.
        8 fd: i32,
    }
}

uapi! {
    /// `DMA_HEAP_IOCTL_ALLOC` on `/dev/dma_heap/<name>`.
    #[derive(Default)]
    (C) DmaHeapAllocation, size 24, align 8 {
        /// Bytes wanted.
        0 len: u64,
        /// Out: the dma-buf.
        8 fd: u32,
        /// Flags of the new descriptor: `O_RDWR | O_CLOEXEC`.
        12 fd_flags: u32,
        /// 0.
        16 heap_flags: u64,
    }
}

uapi! {
    /// `DMA_BUF_IOCTL_SYNC`: brackets CPU access to an imported buffer.
    #[derive(Default)]
    (C) DmaBufSync, size 8, align 8 {
        /// [`DMA_BUF_SYNC_READ`], [`DMA_BUF_SYNC_WRITE`], [`DMA_BUF_SYNC_START`], [`DMA_BUF_SYNC_END`].
        0 flags: u64,
    }
}

/// CPU will read.
pub const DMA_BUF_SYNC_READ: u64 = 1;
/// CPU will write.
pub const DMA_BUF_SYNC_WRITE: u64 = 2;
/// CPU access begins.
pub const DMA_BUF_SYNC_START: u64 = 0;
/// CPU access ends.
pub const DMA_BUF_SYNC_END: u64 = 4;
/// Name that the rknpu driver gives in [`Version`].
pub const DRIVER_NAME: &str = "rknpu";
