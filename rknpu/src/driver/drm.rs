//! The driver's calls in terms of its structs, for whatever carries the structs across.
//!
//! The driver trusts several fields blindly (kernel pointers, task ranges). [`Vetted`] is the proof that
//! a struct's contents may be trusted: only this file can make one, and it fills those fields from a
//! borrowed [`Object`], which is alive as long as it is borrowed.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rknpu_sys::flags::{JobFlags, SyncFlags};
use rknpu_sys::ioctl::Request;
use rknpu_sys::uapi;
use rustix::io::Errno;

use super::{Completion, Create, Driver, Mapping, Object, Submission};

/// A request whose every field the driver may trust.
pub(crate) struct Vetted<T>(T);

impl<T> Vetted<T> {
    /// The struct, for the call.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Interrupted calls are made again, but not for ever.
const INTERRUPTIONS: u32 = 100;

/// Makes a call, again while a signal interrupts it.
fn call<T: Request + Copy>(calls: &impl Calls, request: T) -> (T, Result<(), Errno>) {
    let mut left = INTERRUPTIONS;
    loop {
        let mut vetted = Vetted(request);
        let result = calls.call(&mut vetted);
        if result == Err(Errno::INTR) && left > 0 {
            left -= 1;
            continue;
        }
        return (vetted.0, result);
    }
}

/// Submits, blocking, with further flags.
fn submit(
    calls: &impl Calls,
    submission: &Submission<'_>,
    more: JobFlags,
) -> (uapi::Submit, Result<(), Errno>) {
    if !submission.is_sound() {
        return (uapi::Submit::default(), Err(Errno::INVAL));
    }
    // All entries alike: the driver picks by core, and an entry of 0 tasks makes it read before the
    // array.
    let range = uapi::SubcoreTask { task_start: submission.start, task_number: submission.count };
    let request = uapi::Submit {
        flags: (JobFlags::PC | JobFlags::PINGPONG | more).bits(),
        timeout: submission.timeout_ms,
        task_start: submission.start,
        task_number: submission.count,
        task_obj_addr: submission.tasks.obj_addr(),
        iommu_domain_id: submission.domain,
        core_mask: submission.mask().bits(),
        fence_fd: -1,
        subcore_task: [range; 5],
        ..Default::default()
    };
    call(calls, request)
}

/// Carries vetted structs to a driver.
pub(crate) trait Calls: Send + Sync + fmt::Debug {
    /// Where it goes.
    fn node(&self) -> &str;
    /// One of the driver's ioctls; the struct is written back also when it fails.
    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno>;
    /// Maps `len` bytes of the object that `MEM_MAP` gave this offset, shared, to read and write.
    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno>;
    /// Closes the descriptor that a submit with FENCE_OUT gave; a negative one says that none could be
    /// made.
    fn close_fence(&self, fd: i32);
    /// `PRIME_FD_TO_HANDLE`.
    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<u32, Errno>;
    /// Waits.
    fn pause(&self, time: Duration);
}

impl<C: Calls> Driver for C {
    fn node(&self) -> &str {
        Calls::node(self)
    }

    fn action(&self, code: u32, value: u32) -> Result<u32, Errno> {
        let (reply, result) = call(self, uapi::Action { flags: code, value });
        result.map(|()| reply.value)
    }

    fn create(&self, create: &Create) -> Result<Object, Errno> {
        let request = uapi::MemCreate {
            flags: create.flags.bits(),
            size: create.size,
            iommu_domain_id: create.domain as i32,
            core_mask: 1,
            ..Default::default()
        };
        let (reply, result) = call(self, request);
        result.map(|()| Object::created(&reply))
    }

    fn map(&self, object: &Object) -> Result<Mapping, Errno> {
        let request = uapi::MemMap { handle: object.handle(), ..Default::default() };
        let (reply, result) = call(self, request);
        result?;
        let len = usize::try_from(object.size()).map_err(|_| Errno::OVERFLOW)?;
        Calls::map(self, reply.offset, len)
    }

    fn sync(&self, object: &Object, flags: SyncFlags, offset: u64, len: u64) -> Result<(), Errno> {
        let request = uapi::MemSync {
            flags: flags.bits(),
            obj_addr: object.obj_addr(),
            offset,
            size: len,
            ..Default::default()
        };
        call(self, request).1
    }

    fn destroy(&self, object: Object) -> Result<(), (Object, Errno)> {
        let request = uapi::MemDestroy { handle: object.handle(), ..Default::default() };
        call(self, request).1.map_err(|errno| (object, errno))
    }

    fn abandon(&self, object: &Object) -> Result<(), Errno> {
        call(self, uapi::MemDestroy { handle: object.handle(), ..Default::default() }).1
    }

    fn submit(&self, submission: &Submission<'_>) -> (Completion, Result<(), Errno>) {
        let (reply, result) = submit(self, submission, JobFlags::empty());
        let completion = Completion {
            tasks_done: reply.task_counter,
            busy: Duration::from_nanos(reply.hw_elapse_time.try_into().unwrap_or(0)),
        };
        (completion, result)
    }

    fn fences(&self, submission: &Submission<'_>) -> Result<bool, Errno> {
        let (reply, result) = submit(self, submission, JobFlags::FENCE_OUT);
        match result {
            // Without fences the flag is refused at once, and the job not run.
            Err(Errno::INVAL) => Ok(false),
            Err(errno) => Err(errno),
            Ok(()) => {
                self.close_fence(reply.fence_fd);
                Ok(true)
            }
        }
    }

    fn import(&self, dma_buf: BorrowedFd<'_>) -> Result<Object, Errno> {
        let handle = Calls::import(self, dma_buf)?;
        // Asks for the imported object's addresses: an existing handle makes the call a query.
        let (reply, result) =
            call(self, uapi::MemCreate { handle, core_mask: 1, ..Default::default() });
        result.map(|()| Object::created(&reply)).inspect_err(|_| {
            // The failure of the query is the one to tell.
            let _ = call(self, uapi::MemDestroy { handle, ..Default::default() });
        })
    }

    fn pause(&self, time: Duration) {
        Calls::pause(self, time);
    }
}
