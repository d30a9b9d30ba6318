//! The generic DRM, dma-heap and dma-buf structs used beside the driver's own.
//!
//! Source: the kernel's public headers (`drm.h`, `dma-buf.h`, `dma-heap.h`), 64-bit layout.
//!
//! ```
//! use rknpu_sys::drm::{self, DmaBufSync, DmaHeapAllocation};
//!
//! // A dma-heap's buffer for the NPU: allocated, mapped, and written between two of these brackets.
//! let wanted = DmaHeapAllocation { len: 1 << 20, fd_flags: 0o2000002, ..Default::default() };
//! let begin = DmaBufSync { flags: drm::DMA_BUF_SYNC_START | drm::DMA_BUF_SYNC_WRITE };
//! let end = DmaBufSync { flags: drm::DMA_BUF_SYNC_END | drm::DMA_BUF_SYNC_WRITE };
//! assert_eq!((wanted.len, begin.flags, end.flags), (1 << 20, 2, 6));
//! ```

use crate::uapi::uapi;
use zerocopy::{FromBytes, Immutable, IntoBytes};

uapi! {
    /// `DRM_IOCTL_VERSION`: which driver stands behind a node.
    ///
    /// The three pointers are user addresses of buffers of the given lengths; the kernel returns the
    /// full lengths and copies what fits, without a terminating NUL.
    ///
    /// ```
    /// use rknpu_sys::drm::{DRIVER_NAME, Version};
    ///
    /// let mut name = [0u8; 16];
    /// let mut version = Version {
    ///     name_len: name.len() as u64,
    ///     name: name.as_mut_ptr() as u64,
    ///     ..Default::default()
    /// };
    /// // What the driver's answer looks like:
    /// name[..5].copy_from_slice(b"rknpu");
    /// (version.version_minor, version.version_patchlevel, version.name_len) = (9, 8, 5);
    /// assert_eq!(&name[..version.name_len as usize], DRIVER_NAME.as_bytes());
    /// ```
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
    ///
    /// ```
    /// use rknpu_sys::{drm::GemClose, ioctl};
    ///
    /// let close = GemClose { handle: 3, pad: 0 };
    /// assert_eq!(size_of_val(&close), (ioctl::GEM_CLOSE >> 16 & 0x3fff) as usize);
    /// ```
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
    ///
    /// ```
    /// use rknpu_sys::drm::PrimeHandle;
    ///
    /// // Import: the descriptor goes in, the handle comes out.
    /// let import = PrimeHandle { fd: 7, ..Default::default() };
    /// assert_eq!((import.handle, import.fd), (0, 7));
    /// ```
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
    ///
    /// ```
    /// use rknpu_sys::{drm::DmaHeapAllocation, ioctl};
    ///
    /// const O_RDWR: u32 = 2;
    /// const O_CLOEXEC: u32 = 0o2000000;
    /// let fd_flags = O_RDWR | O_CLOEXEC;
    /// let wanted = DmaHeapAllocation { len: 64 << 10, fd_flags, ..Default::default() };
    /// assert_eq!(wanted.heap_flags, 0);
    /// assert_eq!(ioctl::DMA_HEAP_ALLOC, 0xC018_4800);
    /// ```
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
    ///
    /// ```
    /// use rknpu_sys::drm::{DMA_BUF_SYNC_END, DMA_BUF_SYNC_READ, DmaBufSync};
    ///
    /// // The CPU has read what the NPU wrote, and lets go.
    /// let done = DmaBufSync { flags: DMA_BUF_SYNC_END | DMA_BUF_SYNC_READ };
    /// assert_eq!(done.flags, 5);
    /// ```
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
