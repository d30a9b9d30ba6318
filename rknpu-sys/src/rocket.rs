//! The calls of `rocket`, the driver of mainline kernels since Linux 6.18 (`/dev/accel/accelN`).
//!
//! Its numbers collide with those of `rknpu` ([`CREATE_BO`] is `ACTION`'s, [`SUBMIT`] is `SUBMIT`'s), so what
//! a node is decides [`DRM_VERSION`](crate::ioctl::DRM_VERSION), whose name is [`DRIVER_NAME`] here.
//! Beside these four, `VERSION` and `GEM_CLOSE` are safe to call; `GET_MAGIC` and `GET_UNIQUE` stop the
//! kernel.
//!
//! Source: the kernel's public header `rocket_accel.h`, 64-bit layout; the driver's behaviour as observed on
//! Linux 7.3.
//!
//! ```
//! use rknpu_sys::{ioctl, rocket};
//!
//! // Other driver, other struct, same number.
//! assert_eq!(rocket::CREATE_BO as u8, ioctl::ACTION as u8);
//! assert_ne!(rocket::CREATE_BO, ioctl::ACTION);
//! ```

use crate::ioctl::{DRM_COMMAND_BASE, DRM_TYPE, Request, request, word};
use crate::uapi::uapi;
use rustix::ioctl::opcode;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Name that the driver gives in [`Version`](crate::drm::Version).
pub const DRIVER_NAME: &str = "rocket";
/// Largest object whose creation does no harm: above it the call fails and leaves freed pages mapped.
pub const LARGEST_OBJECT: u32 = 0x7fff_f000;
/// Most commands of a task: more are cut to the 16 bits of the PC's data amount.
pub const MOST_COMMANDS: u32 = 0x2_0000;
/// A job that takes longer is dropped and its core reset; nobody is told. In milliseconds.
pub const JOB_TIMEOUT_MS: u64 = 500;

uapi! {
    /// `CREATE_BO`: an object at an address of the open file's own space, the first one at 0.
    ///
    /// ```
    /// use rknpu_sys::rocket::{CREATE_BO, CreateBo};
    ///
    /// let create = CreateBo { size: 4096, ..Default::default() };
    /// assert_eq!(size_of_val(&create), (CREATE_BO >> 16 & 0x3fff) as usize);
    /// ```
    #[derive(Default)]
    (C) CreateBo, size 24, align 8 {
        /// Bytes, 1..=[`LARGEST_OBJECT`].
        0 size: u32,
        /// Out: GEM handle.
        4 handle: u32,
        /// Out: first address for the NPU.
        8 dma_address: u64,
        /// Out: where `mmap` on the node finds it.
        16 offset: u64,
    }
}

uapi! {
    /// A task: one register program, which ends in one interrupt.
    ///
    /// ```
    /// use rknpu_sys::rocket::Task;
    ///
    /// // The trailer's four entries count here, where `rknpu` leaves them out.
    /// let task = Task { regcmd: 0x1000, regcmd_count: 108 + 4 };
    /// assert_eq!(size_of_val(&task), 8);
    /// ```
    #[derive(Default)]
    (C) Task, size 8, align 4 {
        /// Address of its first command.
        0 regcmd: u32,
        /// Commands, 1..=[`MOST_COMMANDS`].
        4 regcmd_count: u32,
    }
}

uapi! {
    /// A job: tasks that run one after the other on a core of the kernel's choice.
    ///
    /// The lists hold handles, each at most once over both: a job with one twice is dropped, and `SUBMIT`
    /// says 0.
    ///
    /// ```
    /// use rknpu_sys::rocket::{Job, Task};
    ///
    /// let (tasks, out) = ([Task { regcmd: 0x1000, regcmd_count: 112 }], [1u32]);
    /// let job = Job {
    ///     tasks: tasks.as_ptr() as u64,
    ///     task_count: 1,
    ///     task_struct_size: size_of::<Task>() as u32,
    ///     out_bo_handles: out.as_ptr() as u64,
    ///     out_bo_handle_count: 1,
    ///     ..Default::default()
    /// };
    /// assert_eq!(size_of_val(&job), 40);
    /// ```
    #[derive(Default)]
    (C) Job, size 40, align 8 {
        /// User address of the [`Task`]s.
        0 tasks: u64,
        /// User address of handles of objects that are read.
        8 in_bo_handles: u64,
        /// User address of handles of objects that are written: what [`PrepBo`] waits for.
        16 out_bo_handles: u64,
        /// Tasks, at least 1.
        24 task_count: u32,
        /// Size of a [`Task`].
        28 task_struct_size: u32,
        /// Handles that are read.
        32 in_bo_handle_count: u32,
        /// Handles that are written.
        36 out_bo_handle_count: u32,
    }
}

uapi! {
    /// `SUBMIT`: queues jobs and returns. It says 0 also of jobs that it drops.
    ///
    /// ```
    /// use rknpu_sys::rocket::{Job, Submit};
    ///
    /// let jobs = [Job::default()];
    /// let submit = Submit {
    ///     jobs: jobs.as_ptr() as u64,
    ///     job_count: 1,
    ///     job_struct_size: size_of::<Job>() as u32,
    ///     ..Default::default()
    /// };
    /// assert_eq!(submit.reserved, 0); // else EINVAL
    /// ```
    #[derive(Default)]
    (C) Submit, size 24, align 8 {
        /// User address of the [`Job`]s.
        0 jobs: u64,
        /// How many.
        8 job_count: u32,
        /// Size of a [`Job`].
        12 job_struct_size: u32,
        /// 0.
        16 reserved: u64,
    }
}

uapi! {
    /// `PREP_BO`: waits for the jobs that write an object, then makes it the CPU's.
    ///
    /// ```
    /// use rknpu_sys::rocket::PrepBo;
    ///
    /// // Without waiting: EBUSY while a job writes it.
    /// let look = PrepBo { handle: 1, timeout_ns: 0, ..Default::default() };
    /// assert_eq!(look.reserved, 0);
    /// ```
    #[derive(Default)]
    (C) PrepBo, size 16, align 8 {
        /// GEM handle.
        0 handle: u32,
        /// 0.
        4 reserved: u32,
        /// Until when, in nanoseconds of `CLOCK_MONOTONIC`: a time, not a length.
        8 timeout_ns: i64,
    }
}

uapi! {
    /// `FINI_BO`: makes an object the NPU's, all of it.
    ///
    /// ```
    /// use rknpu_sys::rocket::{FINI_BO, FiniBo};
    ///
    /// let done = FiniBo { handle: 1, reserved: 0 };
    /// assert_eq!(size_of_val(&done), (FINI_BO >> 16 & 0x3fff) as usize);
    /// ```
    #[derive(Default)]
    (C) FiniBo, size 8, align 4 {
        /// GEM handle.
        0 handle: u32,
        /// 0.
        4 reserved: u32,
    }
}

/// [`CreateBo`].
pub const CREATE_BO: u32 = word(opcode::read_write::<CreateBo>(DRM_TYPE, DRM_COMMAND_BASE));
/// [`Submit`].
pub const SUBMIT: u32 = word(opcode::write::<Submit>(DRM_TYPE, DRM_COMMAND_BASE + 1));
/// [`PrepBo`].
pub const PREP_BO: u32 = word(opcode::write::<PrepBo>(DRM_TYPE, DRM_COMMAND_BASE + 2));
/// [`FiniBo`].
pub const FINI_BO: u32 = word(opcode::write::<FiniBo>(DRM_TYPE, DRM_COMMAND_BASE + 3));

const _: () = {
    assert!(CREATE_BO == 0xC018_6440);
    assert!(SUBMIT == 0x4018_6441);
    assert!(PREP_BO == 0x4010_6442);
    assert!(FINI_BO == 0x4008_6443);
};

request! {
    CreateBo => CREATE_BO,
    Submit => SUBMIT,
    PrepBo => PREP_BO,
    FiniBo => FINI_BO,
}
