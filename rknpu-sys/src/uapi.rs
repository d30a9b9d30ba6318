//! The structs that the driver reads and writes.
//!
//! Source: the public header of the vendor driver 0.9.8. Every size, alignment and offset is
//! asserted at compile time; none has padding, so a zeroed struct is fully initialised bytes.
//!
//! ```
//! use rknpu_sys::uapi::MemCreate;
//! use zerocopy::{FromZeros, IntoBytes};
//!
//! let create = MemCreate { size: 4096, ..MemCreate::new_zeroed() };
//! assert_eq!(create.as_bytes().len(), 48);
//! assert_eq!(create.as_bytes()[8..16], 4096u64.to_le_bytes());
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Declares a struct and asserts its size, alignment and the offset of each field.
macro_rules! uapi {
    (
        $(#[$meta:meta])*
        ($($repr:ident),+) $name:ident, size $size:literal, align $align:literal {
            $( $(#[$fmeta:meta])* $offset:literal $field:ident : $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[repr($($repr),+)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $ty, )* }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            assert!(align_of::<$name>() == $align);
            $( assert!(core::mem::offset_of!($name, $field) == $offset); )*
        };
    };
}
pub(crate) use uapi;

uapi! {
    /// `ACTION`: one of the codes of [`crate::action`] and its value.
    ///
    /// ```
    /// use rknpu_sys::{action, uapi::Action};
    ///
    /// // What is the live domain?
    /// let action = Action { flags: action::GET_IOMMU_DOMAIN_ID, value: 0 };
    /// assert_eq!(action.flags, 24);
    /// ```
    #[derive(Default)]
    (C) Action, size 8, align 4 {
        /// Action code.
        0 flags: u32,
        /// Argument in, result out; unchanged when the call fails.
        4 value: u32,
    }
}

uapi! {
    /// `MEM_CREATE` since 0.9.6: makes a buffer, or describes the one that `handle` names.
    ///
    /// ```
    /// use rknpu_sys::{flags::MemFlags, uapi::MemCreate};
    ///
    /// // 1 MiB of weights in domain 3.
    /// let flags = MemFlags::NON_CONTIGUOUS
    ///     | MemFlags::CACHEABLE
    ///     | MemFlags::IOMMU_LIMIT_IOVA_ALIGNMENT;
    /// let create = MemCreate {
    ///     flags: flags.bits(),
    ///     size: 1 << 20,
    ///     iommu_domain_id: 3,
    ///     ..Default::default()
    /// };
    /// assert_eq!((create.handle, create.flags), (0, 0x403));
    /// ```
    #[derive(Default)]
    (C) MemCreate, size 48, align 8 {
        /// 0 for a new buffer; an existing handle asks for its description. Out: the handle.
        0 handle: u32,
        /// [`crate::flags::MemFlags`]. Unknown bits are stored, not refused.
        4 flags: u32,
        /// Bytes wanted; out: rounded up to 4096.
        8 size: u64,
        /// Out: the kernel object's address, which SYNC and SUBMIT dereference unchecked.
        16 obj_addr: u64,
        /// Out: the buffer's first IOVA (without an IOMMU, its physical address).
        24 dma_addr: u64,
        /// SRAM bytes wanted; out: SRAM bytes given.
        32 sram_size: u64,
        /// Domain to map into, 0..=15.
        40 iommu_domain_id: i32,
        /// Only used by the NBUF path, which the RK3588 lacks.
        44 core_mask: u32,
    }
}

uapi! {
    /// `MEM_CREATE` of 0.8 to 0.9.5: no domain. A newer driver reads it as domain 0.
    ///
    /// ```
    /// use rknpu_sys::ioctl::{MEM_CREATE, MEM_CREATE_V40};
    /// use rknpu_sys::uapi::{MemCreate, MemCreateV40};
    ///
    /// // Both words name call 2: the driver dispatches on the number, the size says what to copy.
    /// assert_eq!(MEM_CREATE as u8, MEM_CREATE_V40 as u8);
    /// assert_eq!((size_of::<MemCreate>(), size_of::<MemCreateV40>()), (48, 40));
    /// ```
    #[derive(Default)]
    (C) MemCreateV40, size 40, align 8 {
        /// As in [`MemCreate`].
        0 handle: u32,
        /// As in [`MemCreate`].
        4 flags: u32,
        /// As in [`MemCreate`].
        8 size: u64,
        /// As in [`MemCreate`].
        16 obj_addr: u64,
        /// As in [`MemCreate`].
        24 dma_addr: u64,
        /// As in [`MemCreate`].
        32 sram_size: u64,
    }
}

uapi! {
    /// `MEM_MAP`: asks for the offset at which `mmap` finds a buffer.
    ///
    /// ```
    /// use rknpu_sys::uapi::MemMap;
    ///
    /// let question = MemMap { handle: 1, ..Default::default() };
    /// assert_eq!(question.offset, 0); // the driver writes it
    /// ```
    #[derive(Default)]
    (C) MemMap, size 16, align 8 {
        /// The buffer's handle in this file.
        0 handle: u32,
        /// Unused.
        4 reserved: u32,
        /// Out: offset for `mmap`, from 0x1_0000_0000 upwards.
        8 offset: u64,
    }
}

uapi! {
    /// `MEM_DESTROY`: gives a handle back; memory and IOVA go when the last mapping has gone.
    ///
    /// ```
    /// use rknpu_sys::uapi::MemDestroy;
    ///
    /// let destroy = MemDestroy { handle: 1, ..Default::default() };
    /// assert_eq!(destroy.obj_addr, 0); // the handle is enough
    /// ```
    #[derive(Default)]
    (C) MemDestroy, size 16, align 8 {
        /// The buffer's handle in this file.
        0 handle: u32,
        /// Unused.
        4 reserved: u32,
        /// Ignored by the DRM driver.
        8 obj_addr: u64,
    }
}

uapi! {
    /// `MEM_SYNC`: cache maintenance over a range of a CACHEABLE buffer.
    ///
    /// There is no handle: `obj_addr` is a kernel pointer that the driver trusts. A stale one is a
    /// use-after-free in the kernel.
    ///
    /// ```
    /// use rknpu_sys::{flags::SyncFlags, uapi::{MemCreate, MemSync}};
    ///
    /// // What the CPU wrote into the first page becomes visible to the NPU.
    /// let buffer = MemCreate { obj_addr: 0xffff_ff80_0000_1000, ..Default::default() };
    /// let sync = MemSync {
    ///     flags: SyncFlags::TO_DEVICE.bits(),
    ///     obj_addr: buffer.obj_addr,
    ///     size: 4096,
    ///     ..Default::default()
    /// };
    /// assert_eq!((sync.offset, sync.size), (0, 4096));
    /// ```
    #[derive(Default)]
    (C) MemSync, size 32, align 8 {
        /// [`crate::flags::SyncFlags`].
        0 flags: u32,
        /// Unused.
        4 reserved: u32,
        /// The buffer's `obj_addr` from [`MemCreate`].
        8 obj_addr: u64,
        /// First byte.
        16 offset: u64,
        /// Number of bytes.
        24 size: u64,
    }
}

uapi! {
    /// One register-command program, as the task array in a KERNEL_MAPPING buffer lists it.
    ///
    /// Of a range of tasks the driver uses the first one's `regcmd_addr`, `regcfg_amount` and
    /// `int_mask` (to clear) and the last one's `int_mask` (to wait for), and writes the last one's
    /// `int_status`; programs in between are reached through the chain in the commands themselves.
    ///
    /// ```
    /// use rknpu_sys::{regs, uapi::Task};
    ///
    /// let task = Task {
    ///     enable_mask: regs::pc::ENABLE_CNA_CORE_DPU,
    ///     int_mask: regs::INT_DPU,
    ///     int_clear: regs::INT_CLEAR_ALL,
    ///     regcfg_amount: 108,
    ///     regcmd_addr: 0xffff_0000,
    ///     ..Default::default()
    /// };
    /// // Packed: fields are read by value.
    /// let (mask, amount) = (task.int_mask, task.regcfg_amount);
    /// assert_eq!((mask, amount), (0x300, 108));
    /// ```
    #[derive(Default)]
    (C, packed) Task, size 40, align 1 {
        /// Not read by the driver.
        0 flags: u32,
        /// Not read by the driver.
        4 op_idx: u32,
        /// Not read by the driver; 0x0d for CNA, core and DPU.
        8 enable_mask: u32,
        /// Interrupt bits that end the program: one full pair, 0x300 for the DPU.
        12 int_mask: u32,
        /// Not read by the driver.
        16 int_clear: u32,
        /// Out: interrupt bits seen.
        20 int_status: u32,
        /// Register entries without the four of the trailer.
        24 regcfg_amount: u32,
        /// Not read by the driver.
        28 regcfg_offset: u32,
        /// IOVA of the program; the low 32 bits are used.
        32 regcmd_addr: u64,
    }
}

uapi! {
    /// The range of the task array that one core runs.
    ///
    /// ```
    /// use rknpu_sys::uapi::{SubcoreTask, Submit};
    ///
    /// // Entry 0 is that of the core that runs alone; none may be left with 0 tasks.
    /// let range = SubcoreTask { task_start: 0, task_number: 1 };
    /// let job = Submit { task_number: 1, subcore_task: [range; 5], ..Default::default() };
    /// assert!(job.subcore_task.iter().all(|s| s.task_number == 1));
    /// ```
    #[derive(Default)]
    (C) SubcoreTask, size 8, align 4 {
        /// First task.
        0 task_start: u32,
        /// Number of tasks; 0 makes the driver read before the array.
        4 task_number: u32,
    }
}

uapi! {
    /// `SUBMIT`: a job.
    ///
    /// ```
    /// use rknpu_sys::flags::{CoreMask, JobFlags};
    /// use rknpu_sys::uapi::{SubcoreTask, Submit};
    ///
    /// // A job of one program on core 2, of at most 6 s, whose addresses are domain 1's.
    /// let job = Submit {
    ///     flags: (JobFlags::PC | JobFlags::PINGPONG).bits(),
    ///     timeout: 6000,
    ///     task_number: 1,
    ///     iommu_domain_id: 1,
    ///     core_mask: CoreMask::CORE2.bits(),
    ///     fence_fd: -1,
    ///     subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
    ///     ..Default::default()
    /// };
    /// assert_eq!((job.flags, job.core_mask), (5, 4));
    /// ```
    #[derive(Default)]
    (C) Submit, size 104, align 8 {
        /// [`crate::flags::JobFlags`].
        0 flags: u32,
        /// Milliseconds, 1..=0x7fff_ffff; a set top bit makes a wait that never succeeds.
        4 timeout: u32,
        /// Not used for dispatch on the RK3588; see `subcore_task`.
        8 task_start: u32,
        /// Must not be 0; returned as `task_counter` on success.
        12 task_number: u32,
        /// Out: tasks done.
        16 task_counter: u32,
        /// Ignored.
        20 priority: i32,
        /// `obj_addr` of the buffer that holds the task array; trusted unchecked.
        24 task_obj_addr: u64,
        /// Domain of every address in the job (a signed int in the driver).
        32 iommu_domain_id: u32,
        /// Unused.
        36 reserved: u32,
        /// Goes to PC_DMA_BASE_ADDR; 0.
        40 task_base_addr: u64,
        /// Out: nanoseconds from commit to interrupt; 0 when nothing ran.
        48 hw_elapse_time: i64,
        /// [`crate::flags::CoreMask`]; out: the core that AUTO chose.
        56 core_mask: u32,
        /// Fence in or out; -1 for none.
        60 fence_fd: i32,
        /// One core i uses entry i; two cores entries 0 and 1; three cores entries 2, 3 and 4.
        64 subcore_task: [SubcoreTask; 5],
    }
}
