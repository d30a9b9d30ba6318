//! A [`Driver`] that fills the structs of the vendor's `rknpu` driver; a [`Channel`] carries them to one.
//!
//! The driver trusts several fields blindly (kernel pointers, task ranges). [`Vetted`] is the proof that
//! a struct's contents may be trusted: this file alone has them made, and fills those fields from a borrowed
//! [`Object`] of its own, which exists as long as it is borrowed.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rknpu_sys::flags::{CoreMask, JobFlags, MemFlags, SyncFlags};
use rknpu_sys::ioctl::Request;
use rknpu_sys::regs::{CORES, INT_CLEAR_ALL, INT_DPU, pc};
use rknpu_sys::{action, uapi};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::capabilities::{Capabilities, Domains, DriverName};
use crate::driver::vetted::{self, Vetted};
use crate::driver::{
    Allocate, Caching, Completion, Driver, DriverVersion, Import, Object, PROGRAM_ENTRY, Part,
    Program, Purpose, Refused, Spaces, Submission,
};
use crate::error::{Call, Error, Result as OpenResult};
use crate::limits;
use crate::mapping::{MappedRange, Mapping};

const _: () = assert!(size_of::<uapi::Task>() == PROGRAM_ENTRY);

/// Carries vetted structs to a driver.
pub(crate) trait Channel: Send + Sync + fmt::Debug {
    /// Where it goes: a path, or `sim`.
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

/// The driver behind a channel.
#[derive(Debug)]
pub(crate) struct Rknpu<C> {
    channel: C,
    id: u64,
    capabilities: Capabilities,
    handles: Mutex<Handles>,
    /// Held for reading by every call, so that the end waits for them.
    shut_down: RwLock<bool>,
}

/// Address space and size of every object, by its handle.
type Handles = BTreeMap<u32, (u32, u64)>;

/// Makes a call, again while a signal interrupts it.
fn call<T: Request + Copy>(channel: &impl Channel, request: T) -> (T, Result<(), Errno>) {
    vetted::call(request, |vetted| channel.call(vetted))
}

/// `ACTION`: the value that the call leaves.
fn action(channel: &impl Channel, code: u32, value: u32) -> Result<u32, Refused> {
    let (reply, result) = call(channel, uapi::Action { flags: code, value });
    let call = match code {
        action::ACT_RESET => Call::Reset,
        action::SET_IOMMU_DOMAIN_ID => Call::Switch,
        _ => Call::Action,
    };
    result.map(|()| reply.value).map_err(|errno| Refused { call, errno })
}

impl<C: Channel> Rknpu<C> {
    /// Asks what the driver can do, by calls without effect, except that one with domains is switched to
    /// domain 1 and back.
    pub(crate) fn open(channel: C) -> OpenResult<Rknpu<C>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ask = |code| action(&channel, code, 0).map_err(|refused| refused.on(0, 0));
        let version = DriverVersion(ask(action::GET_DRV_VERSION)?);
        let iommu = ask(action::GET_IOMMU_EN)? != 0;
        let domains = domains(&channel, version, iommu)?;
        // Drivers before 0.8 know no SRAM.
        let sram = |code| ask(code).map_or(0, u64::from);
        let capabilities = Capabilities {
            node: channel.node().to_owned(),
            driver: DriverName::Rknpu,
            version,
            iommu,
            domains,
            spaces: Spaces {
                count: domains.count(),
                bytes: limits::DOMAIN,
                largest: limits::BUFFER,
                exclusive: true,
                cores: CORES as u32,
                // It is always unmapped there, wherever it was mapped.
                import: Some(0),
            },
            unaligned_iova: iommu && version >= DriverVersion::UNALIGNED_IOVA,
            sram_total: sram(action::GET_TOTAL_SRAM_SIZE),
            sram_free: sram(action::GET_FREE_SRAM_SIZE),
        };
        Ok(Rknpu {
            channel,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            capabilities,
            handles: Mutex::default(),
            shut_down: RwLock::new(false),
        })
    }

    /// Begins a call, unless all is over or the object is another driver's.
    fn begin(&self, call: Call, of: Option<&Object>) -> Result<RwLockReadGuard<'_, bool>, Refused> {
        let shut_down = self.shut_down.read().unwrap_or_else(PoisonError::into_inner);
        if *shut_down {
            return Err(Refused { call, errno: Errno::SHUTDOWN });
        }
        if of.is_some_and(|object| object.driver != self.id) {
            return Err(Refused { call, errno: Errno::XDEV });
        }
        Ok(shut_down)
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object that `reply` tells of.
    fn object(
        &self,
        handles: &mut Handles,
        reply: &uapi::MemCreate,
        space: u32,
        purpose: Purpose,
    ) -> Object {
        handles.insert(reply.handle, (space, reply.size));
        Object {
            driver: self.id,
            handle: reply.handle,
            obj_addr: reply.obj_addr,
            space,
            iova: reply.dma_addr,
            size: reply.size,
            programs: purpose == Purpose::Programs,
            fresh: AtomicBool::new(true),
            written: AtomicBool::new(false),
            mapping: None,
        }
    }

    fn destroy(&self, handle: u32) -> Result<(), Refused> {
        let request = uapi::MemDestroy { handle, ..Default::default() };
        let (_, result) = call(&self.channel, request);
        result.map_err(|errno| Refused { call: Call::Destroy, errno })
    }

    fn sync(&self, part: &Part<'_>, flags: SyncFlags) -> Result<(), Refused> {
        let request = uapi::MemSync {
            flags: flags.bits(),
            obj_addr: part.object().obj_addr,
            offset: part.offset(),
            size: part.len(),
            ..Default::default()
        };
        let (_, result) = call(&self.channel, request);
        result.map_err(|errno| Refused { call: Call::Sync, errno })
    }

    /// Submits, blocking, with further flags.
    fn submit(&self, submission: &Submission, more: JobFlags) -> (uapi::Submit, Option<Errno>) {
        let _begun = match self.begin(Call::Submit, Some(&submission.list)) {
            Ok(begun) => begun,
            Err(refused) => return (uapi::Submit::default(), Some(refused.errno)),
        };
        if !is_sound(submission) {
            return (uapi::Submit::default(), Some(Errno::INVAL));
        }
        // All entries alike: the driver picks by core, and an entry of 0 tasks makes it read before
        // the array.
        let range =
            uapi::SubcoreTask { task_start: submission.first, task_number: submission.count };
        let request = uapi::Submit {
            flags: (JobFlags::PC | JobFlags::PINGPONG | more).bits(),
            timeout: submission.timeout_ms,
            task_start: submission.first,
            task_number: submission.count,
            task_obj_addr: submission.list.obj_addr,
            iommu_domain_id: submission.list.space,
            core_mask: CoreMask::from_bits_retain(1 << submission.core).bits(),
            fence_fd: -1,
            subcore_task: [range; 5],
            ..Default::default()
        };
        let (reply, result) = call(&self.channel, request);
        (reply, result.err())
    }
}

/// Whether the driver may be asked: it checks none of this, and reads and writes past the list when the
/// range is wrong.
fn is_sound(submission: &Submission) -> bool {
    let Submission { list, first, count, core, timeout_ms, .. } = submission;
    let end = u64::from(*first) + u64::from(*count);
    list.programs
        && end * PROGRAM_ENTRY as u64 <= list.size
        && (1..=pc::TASKS_PER_COMMIT).contains(count)
        && (*core as usize) < CORES
        // With its top bit set, a wait never succeeds.
        && (1..=i32::MAX as u32).contains(timeout_ms)
}

/// The status that an interrupt left in the last task of a job that timed out, 0 if none came.
fn status_left(submission: &Submission) -> Option<u32> {
    let last = submission.programs().last()? as usize;
    let at = last * PROGRAM_ENTRY + std::mem::offset_of!(uapi::Task, int_status);
    let status = submission.list.mapping.as_ref()?.read_u32(at)?;
    (status != 0).then_some(status)
}

impl<C: Channel> Driver for Rknpu<C> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, request: &Allocate) -> Result<Object, Refused> {
        let Allocate { space, size, purpose, caching } = *request;
        let _begun = self.begin(Call::Create, None)?;
        let mut flags = MemFlags::NON_CONTIGUOUS;
        flags |= match caching {
            Caching::Cached => MemFlags::CACHEABLE,
            Caching::WriteCombined => MemFlags::WRITE_COMBINE,
            Caching::Uncached => MemFlags::empty(),
        };
        // Page-granular addresses: no alignment gaps, and none of the losses seen with the other
        // allocator. Maps without cache maintenance, which an object's first sync makes good.
        let unaligned = self.capabilities.unaligned_iova && caching == Caching::Cached;
        flags.set(MemFlags::IOMMU_LIMIT_IOVA_ALIGNMENT, unaligned);
        flags.set(MemFlags::KERNEL_MAPPING, purpose == Purpose::Programs);
        // A size near 2^64 makes an object whose sync is an oops.
        if size == 0 || size > limits::BUFFER || space >= self.capabilities.spaces.count {
            return Err(Refused { call: Call::Create, errno: Errno::INVAL });
        }
        let request = uapi::MemCreate {
            flags: flags.bits(),
            size,
            iommu_domain_id: space as i32,
            core_mask: 1,
            ..Default::default()
        };
        let (reply, result) = call(&self.channel, request);
        result.map_err(|errno| Refused { call: Call::Create, errno })?;
        Ok(self.object(&mut self.handles(), &reply, space, purpose))
    }

    fn import(&self, from: &Import<'_>) -> Result<Object, Refused> {
        let refused = |errno| Refused { call: Call::Import, errno };
        let _begun = self.begin(Call::Import, None)?;
        if self.capabilities.spaces.import != Some(from.space) {
            return Err(refused(Errno::XDEV));
        }
        // It is mapped in whatever domain is current.
        if self.capabilities.domains == Domains::Real {
            action(&self.channel, action::SET_IOMMU_DOMAIN_ID, from.space)?;
        }
        // Nobody else imports or frees until the handle is noted.
        let mut handles = self.handles();
        let handle = self.channel.import(from.dma_buf).map_err(refused)?;
        // The driver gives what it has imported already the same handle again, which one free ends.
        if handles.contains_key(&handle) {
            return Err(refused(Errno::EXIST));
        }
        // Asks for the object's addresses: an existing handle makes the call a query.
        let query = uapi::MemCreate { handle, core_mask: 1, ..Default::default() };
        let (reply, result) = call(&self.channel, query);
        if let Err(errno) = result {
            // The failure of the query is the one to tell.
            let _ = self.destroy(handle);
            return Err(refused(errno));
        }
        Ok(self.object(&mut handles, &reply, from.space, Purpose::Data))
    }

    fn map(&self, object: &mut Object) -> Result<MappedRange, Refused> {
        let refused = |errno| Refused { call: Call::Map, errno };
        let _begun = self.begin(Call::Map, Some(object))?;
        if object.mapping.is_some() {
            return Err(refused(Errno::BUSY));
        }
        let request = uapi::MemMap { handle: object.handle, ..Default::default() };
        let (reply, result) = call(&self.channel, request);
        result.map_err(refused)?;
        let len = usize::try_from(object.size).map_err(|_| refused(Errno::OVERFLOW))?;
        let mapping = Arc::new(self.channel.map(reply.offset, len).map_err(refused)?);
        let Some(range) = Mapping::claim(&mapping) else { return Err(refused(Errno::BUSY)) };
        object.mapping = Some(mapping);
        Ok(range)
    }

    /// The first time, all of it and twice: what a new object's pages left in the caches would otherwise
    /// overwrite the NPU's results later, and a single sync has been seen to wedge the next submit.
    fn sync_for_device(&self, part: &Part<'_>) -> Result<(), Refused> {
        let object = part.object();
        let _begun = self.begin(Call::Sync, Some(object))?;
        let Some(all) = object.part(0..object.size).filter(|_| object.is_fresh()) else {
            return if part.is_empty() { Ok(()) } else { self.sync(part, SyncFlags::TO_DEVICE) };
        };
        self.sync(&all, SyncFlags::TO_DEVICE | SyncFlags::FROM_DEVICE)?;
        self.sync(&all, SyncFlags::TO_DEVICE)?;
        object.synced();
        Ok(())
    }

    fn sync_for_cpu(&self, part: &Part<'_>) -> Result<(), Refused> {
        let _begun = self.begin(Call::Sync, Some(part.object()))?;
        if part.is_empty() { Ok(()) } else { self.sync(part, SyncFlags::FROM_DEVICE) }
    }

    fn free(&self, mut object: Object) -> Result<(), (Object, Refused)> {
        let _begun = match self.begin(Call::Destroy, Some(&object)) {
            Ok(begun) => begun,
            Err(refused) => return Err((object, refused)),
        };
        // The mapping first: while it is there, the addresses stay taken.
        if let Some(mapping) = object.mapping.take() {
            match Arc::try_unwrap(mapping) {
                Ok(mapping) => {
                    if let Err(errno) = mapping.release() {
                        return Err((object, Refused { call: Call::Unmap, errno }));
                    }
                }
                Err(held) => {
                    object.mapping = Some(held);
                    return Err((object, Refused { call: Call::Unmap, errno: Errno::BUSY }));
                }
            }
        }
        // Noted at once: the driver gives the number to the next object.
        let mut handles = self.handles();
        if let Err(refused) = self.destroy(object.handle) {
            return Err((object, refused));
        }
        handles.remove(&object.handle);
        Ok(())
    }

    fn write_program(&self, entry: &mut [u8], program: &Program) {
        let task = uapi::Task {
            enable_mask: pc::ENABLE_CNA_CORE_DPU,
            int_mask: INT_DPU,
            int_clear: INT_CLEAR_ALL,
            regcfg_amount: program.commands,
            regcmd_addr: program.iova,
            ..Default::default()
        };
        if let Some(entry) = entry.get_mut(..PROGRAM_ENTRY) {
            entry.copy_from_slice(task.as_bytes());
        }
    }

    fn submit(&self, submission: &Submission) -> Completion {
        let begin = Instant::now();
        let (reply, errno) = Rknpu::submit(self, submission, JobFlags::empty());
        let foreign_status =
            errno.filter(|errno| *errno == Errno::TIMEDOUT).and_then(|_| status_left(submission));
        Completion {
            programs_done: reply.task_counter,
            busy: Duration::from_nanos(reply.hw_elapse_time.try_into().unwrap_or(0)),
            waited: begin.elapsed(),
            errno,
            foreign_status,
        }
    }

    fn fences(&self, submission: &Submission) -> Result<bool, Refused> {
        let (reply, errno) = Rknpu::submit(self, submission, JobFlags::FENCE_OUT);
        match errno {
            // Without fences the flag is refused at once, and the job not run.
            Some(Errno::INVAL) => Ok(false),
            Some(errno) => Err(Refused { call: Call::Submit, errno }),
            None => {
                self.channel.close_fence(reply.fence_fd);
                Ok(true)
            }
        }
    }

    fn reset(&self) -> Result<(), Refused> {
        let _begun = self.begin(Call::Reset, None)?;
        action(&self.channel, action::ACT_RESET, 0).map(drop)
    }

    /// A wrong count shows as a switch that fails after 6 s.
    fn check_spaces(&self) -> Result<(), Refused> {
        let _begun = self.begin(Call::Switch, None)?;
        if self.capabilities.domains != Domains::Real {
            return Ok(());
        }
        let current = action(&self.channel, action::GET_IOMMU_DOMAIN_ID, 0)?;
        let other = (current + 1) % self.capabilities.spaces.count;
        action(&self.channel, action::SET_IOMMU_DOMAIN_ID, other)?;
        action(&self.channel, action::SET_IOMMU_DOMAIN_ID, current).map(drop)
    }

    fn shut_down(&self) -> Vec<(u32, u64, Refused)> {
        let mut shut_down = self.shut_down.write().unwrap_or_else(PoisonError::into_inner);
        *shut_down = true;
        let mut all: Vec<_> = std::mem::take(&mut *self.handles()).into_iter().collect();
        // One switch for each domain.
        all.sort_by_key(|(_, (space, _))| *space);
        let refused = |(handle, (space, size))| {
            self.destroy(handle).err().map(|refused| (space, size, refused))
        };
        all.into_iter().filter_map(refused).collect()
    }

    fn pause(&self, time: Duration) {
        self.channel.pause(time);
    }
}

/// A stub accepts the switch and still says 0. A driver that has lost its count of users refuses one of the
/// two switches, after 6 s: the first, or when it is in domain 1 the second.
fn domains(channel: &impl Channel, version: DriverVersion, iommu: bool) -> OpenResult<Domains> {
    if !iommu || version < DriverVersion::SAFE_DOMAINS {
        return Ok(Domains::None);
    }
    let current = || {
        let current = action(channel, action::GET_IOMMU_DOMAIN_ID, 0);
        current.map_err(|refused| refused.on(0, 0))
    };
    let switch = |from, to| {
        let node = channel.node().to_owned();
        let switched = action(channel, action::SET_IOMMU_DOMAIN_ID, to);
        switched.map_err(|refused| Error::DomainsStuck { node, from, to, errno: refused.errno })
    };
    switch(current()?, 1)?;
    let now = current()?;
    switch(now, 0)?;
    Ok(if now == 1 { Domains::Real } else { Domains::Stub })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Uses;
    use crate::driver::object::tests::nobodys;

    #[test]
    fn only_sound_submissions_reach_the_driver() {
        let submission = |first, count, core, timeout_ms| {
            let (list, uses) = (Arc::new(nobodys(4096)), Arc::new(Uses::default()));
            is_sound(&Submission { list, first, count, core, timeout_ms, uses })
        };
        assert!(submission(0, 102, 2, 100) && submission(101, 1, 0, i32::MAX as u32));
        assert!(!submission(0, 103, 0, 100), "a page holds 102");
        assert!(!submission(102, 1, 0, 100) && !submission(u32::MAX, u32::MAX, 0, 100));
        assert!(!submission(0, 0, 0, 100), "the driver would read before the array");
        assert!(!submission(0, 1, 3, 100));
        assert!(!submission(0, 1, 0, 0) && !submission(0, 1, 0, 1 << 31), "waits without end");
        let data = Object { programs: false, ..nobodys(4096) };
        let (list, uses) = (Arc::new(data), Arc::new(Uses::default()));
        let submission = Submission { list, first: 0, count: 1, core: 0, timeout_ms: 1, uses };
        assert!(!is_sound(&submission), "no kernel mapping: a null pointer");
    }
}
