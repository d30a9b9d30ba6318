//! A [`Driver`] that fills the structs of mainline's `rocket` driver; [`Files`] opens its files and carries
//! them there.
//!
//! What the driver does to the kernel when it is misused is out of reach: it is asked for no address that it
//! has not ([`Places`]), for no object above its largest, for nothing but its four calls and GEM_CLOSE; a
//! job that is submitted has tasks, live objects and none twice, ends long before its limit, and is waited
//! for by whoever submitted it, so that no file goes while one runs; nothing is exported.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rknpu_sys::drm::GemClose;
use rknpu_sys::ioctl::Request;
use rknpu_sys::rocket::{self, CreateBo, FiniBo, Job, PrepBo, Submit, Task};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::address_holes::Places;
use super::result_marks::Marks;
use crate::capabilities::{Capabilities, Domains, DriverName};
use crate::driver::vetted::{self, Vetted};
use crate::driver::{
    Allocate, Completion, Driver, DriverVersion, Import, Object, PROGRAM_ENTRY, Part, Program,
    Purpose, Refused, Spaces, Submission, Usage,
};
use crate::error::{Call, Result as OpenResult};
use crate::limits;
use crate::mapping::{MappedRange, Mapping};

/// An open file of the driver.
pub(crate) trait Channel: Send + Sync + fmt::Debug {
    /// One of the driver's ioctls; the struct is written back also when it fails.
    fn call<T: Request>(&self, request: &mut Vetted<T>) -> Result<(), Errno>;
    /// Maps `len` bytes of the object at this offset, shared, to read and write, and not for children.
    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno>;
}

/// Opens files of the driver.
pub(crate) trait Files: Send + Sync + fmt::Debug {
    /// An open file.
    type File: Channel;
    /// Where they go: a path, or `sim`.
    fn node(&self) -> &str;
    /// Another file.
    fn open(&self) -> Result<Self::File, Errno>;
    /// No job runs any more, and none will.
    fn nothing_runs(&self) {}
    /// Waits.
    fn pause(&self, time: Duration);
}

/// The driver behind its files.
#[derive(Debug)]
pub(crate) struct Rocket<N: Files> {
    id: u64,
    capabilities: Capabilities,
    spaces: Vec<OnceLock<Space<N::File>>>,
    opening: Mutex<()>,
    marks: Marks,
    /// A job was not seen to end: closing its file could be what the kernel dies of.
    unended: AtomicBool,
    /// Held for reading by every call, so that the end waits for them.
    shut_down: RwLock<bool>,
    node: N,
}

/// An address space.
#[derive(Debug)]
struct Space<F> {
    file: F,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    places: Places,
    /// Every object, by its handle.
    handles: BTreeMap<u32, Held>,
}

/// An object that the kernel has.
#[derive(Clone, Copy, Debug)]
struct Held {
    iova: u64,
    size: u64,
    /// Where `mmap` finds it.
    offset: u64,
}

impl<F> Space<F> {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long one wait for a job is, in nanoseconds.
const WAIT_NS: i64 = 250_000_000;
/// What a job may take when its core is reset after its limit, in nanoseconds, with room.
const JOB_NS: i64 = 1_000_000_000;

/// `CLOCK_MONOTONIC`, in nanoseconds: limits of waits are on it.
fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// Makes a call, again while a signal interrupts it.
fn call<T: Request + Copy>(file: &impl Channel, request: T) -> (T, Result<(), Errno>) {
    vetted::call(request, |vetted| file.call(vetted))
}

fn refused(call: Call) -> impl Fn(Errno) -> Refused {
    move |errno| Refused { call, errno }
}

impl<N: Files> Rocket<N> {
    /// Takes an open file as the first space.
    pub(crate) fn open(node: N, file: N::File) -> OpenResult<Rocket<N>> {
        static NEXT: AtomicU64 = AtomicU64::new(1 << 63);
        let capabilities = Capabilities {
            node: node.node().to_owned(),
            driver: DriverName::Rocket,
            version: DriverVersion(0),
            iommu: true,
            domains: Domains::Files,
            spaces: Spaces {
                count: Domains::Files.count(),
                bytes: limits::DOMAIN,
                largest: u64::from(rocket::LARGEST_OBJECT),
                exclusive: false,
                cores: 1,
                import: None,
            },
            unaligned_iova: true,
            sram_total: 0,
            sram_free: 0,
        };
        let driver = Rocket {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            spaces: (0..capabilities.spaces.count).map(|_| OnceLock::new()).collect(),
            capabilities,
            opening: Mutex::new(()),
            marks: Marks::default(),
            unended: AtomicBool::new(false),
            shut_down: RwLock::new(false),
            node,
        };
        let first = Space::guarded(file).map_err(|refused| refused.on(0, limits::PAGE))?;
        // Nobody else has the driver yet.
        let _ = driver.spaces.first().map(|space| space.set(first));
        Ok(driver)
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

    /// A space, opened when it is first used.
    fn space(&self, index: u32) -> Result<&Space<N::File>, Refused> {
        let refused = refused(Call::Create);
        let place = self.spaces.get(index as usize).ok_or(refused(Errno::INVAL))?;
        if let Some(space) = place.get() {
            return Ok(space);
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if place.get().is_none() {
            let space = Space::guarded(self.node.open().map_err(&refused)?)?;
            // Nobody else opens.
            let _ = place.set(space);
        }
        place.get().ok_or(refused(Errno::INVAL))
    }

    /// The space of an object, which is open as long as there is one.
    fn space_of(&self, object: &Object) -> Result<&Space<N::File>, Refused> {
        self.space(object.space)
    }

    /// Waits until no job writes an object, and makes it the CPU's.
    fn prepare(&self, object: &Object, jobs: usize, timeout_ms: u32) -> Result<(), Refused> {
        let file = &self.space_of(object)?.file;
        // Behind others of the same file, each with its limit.
        let patience = i64::from(timeout_ms) * 1_000_000 + JOB_NS.saturating_mul(jobs as i64);
        let until = now_ns().saturating_add(patience);
        loop {
            let timeout_ns = now_ns().saturating_add(WAIT_NS);
            let request = PrepBo { handle: object.handle, reserved: 0, timeout_ns };
            match call(file, request).1 {
                Ok(()) => return Ok(()),
                Err(Errno::TIMEDOUT | Errno::BUSY | Errno::INTR) if timeout_ns < until => {}
                Err(errno) => return Err(Refused { call: Call::Sync, errno }),
            }
        }
    }

    fn finish(&self, object: &Object) -> Result<(), Refused> {
        let request = FiniBo { handle: object.handle, reserved: 0 };
        call(&self.space_of(object)?.file, request).1.map_err(refused(Call::Sync))
    }

    /// Runs a submission's programs: how many left their mark.
    fn run(&self, submission: &Submission, programs: &[Entry]) -> Result<u32, Refused> {
        let refused = refused(Call::Submit);
        let ours =
            |object: &Object| object.driver == self.id && object.space == submission.list.space;
        if !submission.uses.iter().all(|(object, _)| ours(object)) {
            return Err(refused(Errno::XDEV));
        }
        let handles = submission.uses.iter().map(|(object, access)| (object.handle, access));
        let (read, write) = lists(handles);
        // Without one there is nothing to wait for.
        if write.is_empty() {
            return Err(refused(Errno::INVAL));
        }
        let written = || {
            let all = submission.uses.iter();
            all.filter(|(_, access)| *access == Usage::Write).map(|(object, _)| object)
        };
        let place = |mark: u64| {
            let inside = |object: &&Object| {
                mark.checked_sub(object.iova).is_some_and(|at| at + 4 <= object.size)
            };
            let object = written().find(inside)?;
            Some((object.mapping.as_ref()?, (mark - object.iova) as usize))
        };
        let mark = self.marks.next();
        for (mapping, at) in programs.iter().filter_map(|entry| place(entry.mark?)) {
            mapping.write_u32(at, mark);
        }
        for object in written() {
            object.written.store(true, Ordering::Release);
            self.finish(object)?;
        }
        let tasks: Vec<Task> = programs.iter().map(|entry| entry.task).collect();
        for tasks in tasks.chunks(limits::TASKS_PER_JOB * limits::JOBS_IN_FLIGHT) {
            let jobs = self.submit(submission.list.space, tasks, &read, &write);
            let jobs = jobs.map_err(&refused)?;
            for object in written() {
                if let Err(refused) = self.prepare(object, jobs, submission.timeout_ms) {
                    self.unended.store(true, Ordering::Release);
                    return Err(refused);
                }
            }
        }
        written().for_each(|object| object.written.store(false, Ordering::Release));
        let left = |entry: &&Entry| {
            let place = entry.mark.and_then(place);
            place.is_none_or(|(mapping, at)| mapping.read_u32(at) != Some(mark))
        };
        // They run in order: the first that did not ends the count.
        Ok(programs.iter().take_while(left).count() as u32)
    }

    /// Queues jobs of these tasks: how many.
    fn submit(
        &self,
        space: u32,
        tasks: &[Task],
        read: &[u32],
        write: &[u32],
    ) -> Result<usize, Errno> {
        let job = |tasks: &[Task]| Job {
            tasks: tasks.as_ptr().expose_provenance() as u64,
            in_bo_handles: read.as_ptr().expose_provenance() as u64,
            out_bo_handles: write.as_ptr().expose_provenance() as u64,
            task_count: tasks.len() as u32,
            task_struct_size: size_of::<Task>() as u32,
            in_bo_handle_count: read.len() as u32,
            out_bo_handle_count: write.len() as u32,
        };
        let jobs: Vec<Job> = tasks.chunks(limits::TASKS_PER_JOB).map(job).collect();
        let request = Submit {
            jobs: jobs.as_ptr().expose_provenance() as u64,
            job_count: jobs.len() as u32,
            job_struct_size: size_of::<Job>() as u32,
            reserved: 0,
        };
        let space = self.space(space).map_err(|refused| refused.errno)?;
        call(&space.file, request).1.map(|()| jobs.len())
    }
}

impl<F: Channel> Space<F> {
    /// A space whose first page is taken, so that no object is at address 0: what a forgotten address names.
    fn guarded(file: F) -> Result<Space<F>, Refused> {
        let space = Space { file, books: Mutex::default() };
        space.create(limits::PAGE)?;
        Ok(space)
    }

    /// An object: handle, first address, offset. One at a time: the count of places is that of the kernel.
    fn create(&self, size: u64) -> Result<CreateBo, Refused> {
        let refused = refused(Call::Create);
        let mut books = self.books();
        if !books.places.fits(size) {
            return Err(refused(Errno::FAULT));
        }
        let size_32 = u32::try_from(size).map_err(|_| refused(Errno::INVAL))?;
        let request = CreateBo { size: size_32, ..CreateBo::default() };
        let (reply, result) = call(&self.file, request);
        result.map_err(refused)?;
        books.places.take(reply.dma_address, size);
        let held = Held { iova: reply.dma_address, size, offset: reply.offset };
        books.handles.insert(reply.handle, held);
        Ok(reply)
    }

    fn close(&self, handle: u32) -> Result<(), Refused> {
        let mut books = self.books();
        call(&self.file, GemClose { handle, pad: 0 }).1.map_err(refused(Call::Destroy))?;
        if let Some(Held { iova, .. }) = books.handles.remove(&handle) {
            books.places.give_back(iova);
        }
        Ok(())
    }
}

/// Handles that are read and that are written, each once over both: a handle that stands twice drops the job.
fn lists(handles: impl Iterator<Item = (u32, Usage)>) -> (Vec<u32>, Vec<u32>) {
    let (mut read, mut write) = (Vec::new(), Vec::new());
    for (handle, access) in handles {
        if access == Usage::Write { &mut write } else { &mut read }.push(handle);
    }
    for list in [&mut read, &mut write] {
        list.sort_unstable();
        list.dedup();
    }
    read.retain(|handle| write.binary_search(handle).is_err());
    (read, write)
}

/// An entry of a list of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    task: Task,
    mark: Option<u64>,
}

/// Where an entry holds what, in words.
const IOVA: usize = 0;
const COUNT: usize = 1;
const MARK: usize = 2;
/// Entries of a program's trailer, which this driver counts.
const TRAILER: u32 = 4;

impl Entry {
    fn read(list: &Object, index: u32) -> Option<Entry> {
        let mapping = list.mapping.as_ref()?;
        let word = |word: usize| mapping.read_u32(index as usize * PROGRAM_ENTRY + 4 * word);
        let (regcmd, regcmd_count, mark) = (word(IOVA)?, word(COUNT)?, word(MARK)?);
        let sound = (1..=rocket::MOST_COMMANDS).contains(&regcmd_count);
        sound.then_some(Entry {
            task: Task { regcmd, regcmd_count },
            mark: (mark != 0).then_some(mark.into()),
        })
    }
}

/// The programs of a submission; `None` when the list does not hold them.
fn programs(submission: &Submission) -> Option<Vec<Entry>> {
    let range = submission.programs();
    if !submission.list.programs || range.is_empty() {
        return None;
    }
    range.map(|index| Entry::read(&submission.list, index)).collect()
}

impl<N: Files> Driver for Rocket<N> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, request: &Allocate) -> Result<Object, Refused> {
        let _begun = self.begin(Call::Create, None)?;
        let Allocate { space, size, purpose, .. } = *request;
        if size == 0 || size > self.capabilities.spaces.largest {
            return Err(Refused { call: Call::Create, errno: Errno::INVAL });
        }
        let reply = self.space(space)?.create(size)?;
        Ok(Object {
            driver: self.id,
            handle: reply.handle,
            obj_addr: 0,
            space,
            iova: reply.dma_address,
            size,
            programs: purpose == Purpose::Programs,
            fresh: AtomicBool::new(true),
            written: AtomicBool::new(false),
            mapping: None,
        })
    }

    /// It maps nobody else's memory.
    fn import(&self, _: &Import<'_>) -> Result<Object, Refused> {
        Err(Refused { call: Call::Import, errno: Errno::XDEV })
    }

    fn map(&self, object: &mut Object) -> Result<MappedRange, Refused> {
        let refused = refused(Call::Map);
        let _begun = self.begin(Call::Map, Some(object))?;
        if object.mapping.is_some() {
            return Err(refused(Errno::BUSY));
        }
        let len = usize::try_from(object.size).map_err(|_| refused(Errno::OVERFLOW))?;
        let space = self.space_of(object)?;
        let held = space.books().handles.get(&object.handle).copied();
        let offset = held.ok_or(refused(Errno::NOENT))?.offset;
        let mapping = Arc::new(space.file.map(offset, len).map_err(&refused)?);
        let Some(range) = Mapping::claim(&mapping) else { return Err(refused(Errno::BUSY)) };
        object.mapping = Some(mapping);
        Ok(range)
    }

    /// Always all of it. Lines of a list of programs stay in the caches: only CPUs read it.
    fn sync_for_device(&self, part: &Part<'_>) -> Result<(), Refused> {
        let object = part.object();
        let _begun = self.begin(Call::Sync, Some(object))?;
        if !part.is_empty() || object.is_fresh() {
            self.finish(object)?;
            object.synced();
        }
        Ok(())
    }

    /// The wait for a job has done it, unless that failed. What the NPU has only read is not touched: the
    /// driver would throw away lines of a neighbour in the same object that the CPU is writing.
    fn sync_for_cpu(&self, part: &Part<'_>) -> Result<(), Refused> {
        let object = part.object();
        let _begun = self.begin(Call::Sync, Some(object))?;
        if object.written.load(Ordering::Acquire) {
            self.prepare(object, limits::JOBS_IN_FLIGHT, 0)?;
            object.written.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn free(&self, mut object: Object) -> Result<(), (Object, Refused)> {
        let space = self.begin(Call::Destroy, Some(&object));
        let (_begun, space) = match space.and_then(|begun| Ok((begun, self.space_of(&object)?))) {
            Ok(found) => found,
            Err(refused) => return Err((object, refused)),
        };
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
        space.close(object.handle).map_err(|refused| (object, refused))
    }

    fn write_program(&self, entry: &mut [u8], program: &Program) {
        let mark = program.mark.and_then(|mark| u32::try_from(mark).ok()).unwrap_or(0);
        // The low half is all that a space has.
        let words = [program.iova as u32, program.commands.saturating_add(TRAILER), mark];
        for (word, place) in words.into_iter().zip(entry.chunks_exact_mut(4)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn submit(&self, submission: &Submission) -> Completion {
        let begin = Instant::now();
        let _begun = match self.begin(Call::Submit, Some(&submission.list)) {
            Ok(begun) => begun,
            Err(refused) => return Completion::failed(refused.errno),
        };
        let Some(programs) = programs(submission) else { return Completion::failed(Errno::INVAL) };
        let run = self.run(submission, &programs);
        let waited = begin.elapsed();
        let (programs_done, errno) = match run {
            Ok(done) => (done, (done as usize != programs.len()).then_some(Errno::TIMEDOUT)),
            Err(refused) => (0, Some(refused.errno)),
        };
        // The driver does not tell how long it took: no longer than the wait.
        let busy =
            if errno.is_none() { waited.max(Duration::from_nanos(1)) } else { Duration::ZERO };
        Completion { programs_done, busy, waited, errno, foreign_status: None }
    }

    /// It has none of its own; its dma-bufs have, which are not used.
    fn fences(&self, _: &Submission) -> Result<bool, Refused> {
        Ok(false)
    }

    /// The driver resets a core by itself, when a job has had its time.
    fn reset(&self) -> Result<(), Refused> {
        self.begin(Call::Reset, None).map(drop)
    }

    fn check_spaces(&self) -> Result<(), Refused> {
        Ok(())
    }

    fn shut_down(&self) -> Vec<(u32, u64, Refused)> {
        let mut shut_down = self.shut_down.write().unwrap_or_else(PoisonError::into_inner);
        *shut_down = true;
        let mut left = Vec::new();
        for (index, space) in self.spaces.iter().enumerate() {
            let Some(space) = space.get() else { continue };
            let all: Vec<_> = space.books().handles.iter().map(|(h, of)| (*h, of.size)).collect();
            for (handle, size) in all {
                left.extend(space.close(handle).err().map(|refused| (index as u32, size, refused)));
            }
        }
        if !self.unended.load(Ordering::Acquire) {
            self.node.nothing_runs();
        }
        left
    }

    fn pause(&self, time: Duration) {
        self.node.pause(time);
    }
}

impl<N: Files> Drop for Rocket<N> {
    fn drop(&mut self) {
        if self.unended.load(Ordering::Acquire) {
            // Left to the end of the process: by then the driver's limits have long ended every job.
            std::mem::forget(std::mem::take(&mut self.spaces));
        } else {
            self.node.nothing_runs();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_handle_stands_twice() {
        use Usage::{Read, Write};
        let uses = [(3, Read), (1, Write), (3, Read), (2, Read), (3, Read), (2, Write), (1, Write)];
        assert_eq!(lists(uses.into_iter()), (vec![3], vec![1, 2]));
        assert_eq!(lists([(7, Write), (7, Read)].into_iter()), (vec![], vec![7]));
    }
}
