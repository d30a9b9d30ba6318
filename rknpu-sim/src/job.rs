//! Jobs: the queues of the cores, what starts and what ends there.
//!
//! Jobs live in a slab whose last freed place is handed out next, as the kernel's allocator does it.
//! Queues and slots hold places, not jobs: where the driver forgets to unlink a job that it frees,
//! the place stays linked and later means another job, exactly as the dangling pointer does.

use crate::config::Config;
use crate::debugfs::Load;
use crate::engine::Start;
use crate::fence::FenceId;
use crate::hazard::Hazard;
use crate::kernel::{Channel, Pending};
use crate::memory::Backing;
use crate::object::Object;
use crate::state::State;
use crate::tasks::{Chunk, MAX_TASKS, Read};
use rknpu_sys::flags::JobFlags;
use rknpu_sys::uapi::Submit;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Cores of an RK3588.
pub const CORES: usize = 3;

/// What a core's hardware does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hardware {
    #[default]
    Idle,
    /// An engine has the work, or its interrupt is on the calendar.
    Running { tasks: u32 },
    /// It will never raise its interrupt.
    Hung { tasks: u32 },
    /// It has raised its interrupt.
    Finished { tasks: u32 },
}

impl Hardware {
    /// What the status register shows.
    pub(crate) fn tasks(self) -> u32 {
        match self {
            Hardware::Idle => 0,
            Hardware::Running { tasks } => tasks.saturating_sub(1),
            Hardware::Hung { tasks } | Hardware::Finished { tasks } => tasks & 0xfff,
        }
    }
}

/// A core: the driver's part and the hardware's.
#[derive(Debug, Default)]
pub(crate) struct Core {
    /// The job that the driver thinks is running.
    pub(crate) slot: Option<usize>,
    /// That job has been freed: said once, however often its memory becomes another job's.
    pub(crate) dangling: bool,
    pub(crate) queue: VecDeque<usize>,
    /// A place that was used again while it was still linked: a list that links to itself, from
    /// which it cannot be taken.
    pub(crate) stuck: Option<usize>,
    /// Tasks of jobs queued and running; some failures forget to subtract theirs.
    pub(crate) tasks: i64,
    pub(crate) hardware: Hardware,
    /// Counts starts and resets: what was on the calendar before is void.
    pub(crate) generation: u64,
    /// Buffers that the running work touches.
    pub(crate) touched: Vec<Arc<Backing>>,
    pub(crate) starts: u64,
    pub(crate) interrupts: u64,
    pub(crate) resets: u64,
    /// Not reset since its last start.
    warm: bool,
    pub(crate) load: Load,
}

impl Core {
    /// Starts one task: the number that its end on the calendar bears, and whether the core was reset
    /// since it last started one.
    pub(crate) fn start(&mut self) -> (u64, bool) {
        self.generation += 1;
        self.starts += 1;
        self.hardware = Hardware::Running { tasks: 1 };
        self.touched.clear();
        (self.generation, !std::mem::replace(&mut self.warm, true))
    }

    /// Ends whatever runs.
    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.resets += 1;
        self.warm = false;
        self.hardware = Hardware::Idle;
        self.touched.clear();
    }
}

/// A job. Freed ones keep their contents until their place is used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) freed: bool,
    pub(crate) nonblock: bool,
    pub(crate) args: Submit,
    /// The object that `task_obj_addr` named, referenced.
    pub(crate) tasks: Option<u64>,
    pub(crate) created: u64,
    /// When the first core's slot was obtained.
    pub(crate) committed: Option<u64>,
    pub(crate) use_cores: u32,
    /// Slots still to be obtained.
    pub(crate) to_start: i32,
    /// Interrupts still to come.
    pub(crate) to_finish: i32,
    pub(crate) seen_interrupt: [bool; CORES],
    pub(crate) int_status: [u32; CORES],
    pub(crate) int_mask: [u32; CORES],
    pub(crate) chunks: [u32; CORES],
    /// Byte offset of the last task in its buffer, once something was started.
    pub(crate) last_task: Option<u64>,
    pub(crate) result: Option<Errno>,
    pub(crate) done: bool,
    pub(crate) elapsed: u64,
    pub(crate) fence: Option<FenceId>,
}

impl Job {
    /// The tasks that a core runs: first and number.
    fn range(&self, core: usize) -> (u32, u32) {
        let entry = if self.use_cores == 3 { core + 2 } else { core };
        let range = &self.args.subcore_task[entry.min(4)];
        (range.task_start, range.task_number)
    }

    /// The tasks that a core starts next.
    fn chunk(&self, core: usize) -> Chunk {
        let (first, number) = self.range(core);
        let done = self.chunks[core].saturating_mul(MAX_TASKS);
        let count = number.saturating_sub(done).min(MAX_TASKS);
        Chunk { first: u64::from(first) + u64::from(done), count }
    }

    pub(crate) fn uses(&self, core: usize) -> bool {
        self.args.core_mask & (1 << core) != 0
    }

    /// The core whose registers and wait queue stand for the job.
    pub(crate) fn wait_core(&self) -> usize {
        match self.args.core_mask {
            2 => 1,
            4 => 2,
            _ => 0,
        }
    }
}

/// The slab of jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    places: Vec<Job>,
    free: Vec<usize>,
    pub(crate) submitted: u64,
}

impl Jobs {
    /// Puts a job into the place that was freed last, or, with `noise`, into any free one.
    pub(crate) fn add(&mut self, job: Job, noise: impl FnOnce(u64) -> u64) -> usize {
        self.submitted += 1;
        let last = self.free.len().saturating_sub(1);
        let back = usize::try_from(noise(self.free.len() as u64)).unwrap_or(0).min(last);
        let free = if self.free.is_empty() { None } else { Some(self.free.remove(last - back)) };
        match free {
            Some(place) => {
                self.places[place] = job;
                place
            }
            None => {
                self.places.push(job);
                self.places.len() - 1
            }
        }
    }

    pub(crate) fn at(&self, place: usize) -> &Job {
        &self.places[place]
    }

    pub(crate) fn at_mut(&mut self, place: usize) -> &mut Job {
        &mut self.places[place]
    }
}

/// How a start failed.
enum NoStart {
    /// The driver refuses: the job's result is EINVAL.
    Refused,
    /// The kernel would have died.
    Oops,
}

impl State {
    /// Links a job into the queues of its cores.
    pub(crate) fn enqueue(&mut self, place: usize) {
        for core in 0..CORES {
            let job = self.jobs.at(place);
            if job.uses(core) {
                let (_, number) = job.range(core);
                let core = &mut self.cores[core];
                if core.queue.contains(&place) {
                    core.stuck = Some(place);
                } else {
                    core.queue.push_back(place);
                }
                core.tasks += i64::from(number);
            }
        }
    }

    /// Starts the next job of a core, if the core is free.
    pub(crate) fn start_next(&mut self, config: &Config, core: usize) {
        if self.resetting || self.cores[core].slot.is_some() {
            return;
        }
        let Some(&place) = self.cores[core].queue.front() else { return };
        if self.cores[core].stuck != Some(place) {
            self.cores[core].queue.pop_front();
        }
        let now = self.time.now();
        self.cores[core].slot = Some(place);
        self.cores[core].dangling = false;
        self.cores[core].load.begin(now);
        let job = self.jobs.at_mut(place);
        if job.freed {
            let hazard = Hazard::FreedJobStarted { core };
            self.hazard(config, hazard);
            return;
        }
        job.committed.get_or_insert(now);
        job.to_start -= 1;
        if job.to_start == 0 {
            self.commit(config, place);
        }
    }

    /// Starts all cores of a job.
    fn commit(&mut self, config: &Config, place: usize) {
        let mask = self.jobs.at(place).args.core_mask;
        // Masks 5 and 6 are no combination that the driver starts.
        if !matches!(mask, 1 | 2 | 4 | 3 | 7) {
            return;
        }
        for core in (0..CORES).filter(|core| mask & (1 << core) != 0) {
            match self.start(config, place, core) {
                Ok(()) => {}
                Err(NoStart::Refused) => self.jobs.at_mut(place).result = Some(Errno::INVAL),
                Err(NoStart::Oops) => {
                    self.jobs.at_mut(place).result = Some(Errno::FAULT);
                    return;
                }
            }
        }
    }

    /// Programs one core with the next chunk of a job.
    fn start(&mut self, config: &Config, place: usize, core: usize) -> Result<(), NoStart> {
        let job = self.jobs.at(place);
        let flags = JobFlags::from_bits_retain(job.args.flags);
        if !flags.contains(JobFlags::PC) {
            return Err(NoStart::Refused);
        }
        let (address, base) = (job.args.task_obj_addr, job.args.task_base_addr);
        let tasks = job.tasks.ok_or(NoStart::Refused)?;
        let first_chunk = job.chunks[core] == 0;
        let chunk = job.chunk(core);
        let object = self.objects.get(tasks).filter(|object| object.kernel_map);
        let Some(backing) = object.and_then(|object| object.backing.clone()) else {
            self.hazard(config, Hazard::TasksNotMapped { address });
            return Err(NoStart::Oops);
        };
        let read = chunk.read(&backing);
        if read.as_ref().is_none_or(|read| read.overruns) {
            let (size, Chunk { first, count }) = (backing.len() as u64, chunk);
            self.hazard(config, Hazard::TasksOutside { address, first, count, size });
        }
        let Read { task, int_mask, last, .. } = read.ok_or(NoStart::Oops)?;
        if first_chunk && (int_mask == 0 || widened(int_mask) != int_mask) {
            self.hazard(config, Hazard::HalfInterruptMask { mask: int_mask });
        }
        let job = self.jobs.at_mut(place);
        job.last_task = Some(last);
        job.int_mask[core] = int_mask;
        let (generation, fresh) = self.cores[core].start();
        let start = Start {
            core,
            fresh,
            // The registers are 32 bits wide.
            regcmd_addr: task.regcmd_addr as u32,
            regcfg_amount: task.regcfg_amount,
            tasks: chunk.count,
            dma_base: base as u32,
            int_mask,
            ping_pong: flags.contains(JobFlags::PINGPONG),
        };
        let map = self.domains.live().map.clone();
        self.time.pending.push_back(Pending { start, generation, map });
        Ok(())
    }

    /// A core's interrupt.
    pub(crate) fn interrupt(&mut self, config: &Config, core: usize, generation: u64, status: u32) {
        let hardware = &mut self.cores[core];
        if hardware.generation != generation {
            return;
        }
        hardware.interrupts += 1;
        if let Hardware::Running { tasks } = hardware.hardware {
            hardware.hardware = Hardware::Finished { tasks };
        }
        hardware.touched.clear();
        let Some(place) = hardware.slot else {
            self.start_next(config, core);
            return;
        };
        let job = self.jobs.at_mut(place);
        job.seen_interrupt[core] = true;
        job.int_status[core] = status;
        if widened(status) != job.int_mask[core] {
            let mask = job.int_mask[core];
            self.report.wrong_interrupt(core, status, mask);
            return;
        }
        self.finished(config, core, place);
    }

    /// A core has done its chunk.
    fn finished(&mut self, config: &Config, core: usize, place: usize) {
        let now = self.time.now();
        let job = self.jobs.at_mut(place);
        let (_, number) = job.range(core);
        job.chunks[core] += 1;
        if job.chunks[core] < number.div_ceil(MAX_TASKS) {
            if self.start(config, place, core).is_err() {
                self.jobs.at_mut(place).result = Some(Errno::INVAL);
            }
            return;
        }
        let held = &mut self.cores[core];
        held.slot = None;
        held.tasks -= i64::from(number);
        held.load.end(now);
        let job = self.jobs.at_mut(place);
        // A board's clock never shows 0 for a job that ran, whatever the engine's.
        job.elapsed = (now - job.committed.unwrap_or(now)).max(1);
        job.to_finish -= 1;
        if job.to_finish == 0 {
            job.done = true;
            let (fence, nonblock) = (job.fence, job.nonblock);
            let waits_at = if job.use_cores > 1 { 0 } else { core };
            if let Some(fence) = fence {
                self.signal(fence);
            }
            if nonblock {
                self.free_job(config, place);
            }
            self.put_domain(config);
            self.time.wake(Channel::Job(waits_at));
            self.report.jobs_done += 1;
        }
        self.start_next(config, core);
    }

    /// Frees a job where nothing can wait.
    pub(crate) fn free_job(&mut self, config: &Config, place: usize) {
        if let Some(object) = self.retire(config, place) {
            self.put_object_now(config, object);
        }
    }

    /// Puts a job's place on the free list; its task object is still referenced.
    pub(crate) fn retire(&mut self, config: &Config, place: usize) -> Option<u64> {
        let job = self.jobs.at_mut(place);
        if job.freed {
            let hazard = Hazard::JobFreedTwice;
            self.hazard(config, hazard);
            return None;
        }
        job.freed = true;
        let object = job.tasks;
        self.jobs.free.push(place);
        let held = |core: &Core| core.slot == Some(place) && !core.dangling;
        let linked = |core: &Core| held(core) || core.queue.contains(&place);
        if let Some(core) = self.cores.iter().position(linked) {
            self.cores[core].dangling |= self.cores[core].slot == Some(place);
            let hazard = Hazard::FreedJobLinked { core };
            self.hazard(config, hazard);
        }
        object
    }

    /// Takes a job out of the queues that the driver looks into: the first `n`, where `n` is how many
    /// cores it uses, not which.
    pub(crate) fn unlink(&mut self, place: usize) {
        let cores = self.jobs.at(place).use_cores as usize;
        for core in self.cores.iter_mut().take(cores) {
            core.queue.retain(|&linked| linked != place);
        }
    }

    /// Clears the slots that a job holds where no interrupt of its was seen.
    pub(crate) fn clear_slots(&mut self, place: usize) {
        let now = self.time.now();
        for core in 0..CORES {
            let job = self.jobs.at(place);
            let held = &mut self.cores[core];
            if job.uses(core) && held.slot == Some(place) && !job.seen_interrupt[core] {
                let (_, number) = job.range(core);
                held.slot = None;
                held.tasks -= i64::from(number);
                held.load.end(now);
            }
        }
    }

    /// The core with the fewest tasks, the lowest among equals.
    pub(crate) fn idlest(&self) -> usize {
        (0..CORES).min_by_key(|&core| self.cores[core].tasks).unwrap_or(0)
    }

    /// Books what a core's work touched.
    pub(crate) fn touched(&mut self, core: usize, generation: u64, touched: Vec<Arc<Backing>>) {
        let core = &mut self.cores[core];
        if core.generation == generation {
            core.touched = touched;
        }
    }

    /// Which running work touches an object, if any.
    pub(crate) fn job_using(&self, object: Option<&Object>) -> Option<usize> {
        let backing = object?.backing.as_ref()?;
        let running = |core: &Core| {
            matches!(core.hardware, Hardware::Running { .. })
                && core.touched.iter().any(|used| Arc::ptr_eq(used, backing))
        };
        self.cores.iter().position(running)
    }
}

/// Each of the six two-bit pairs that has a bit gets both; other bits are dropped.
pub(crate) fn widened(status: u32) -> u32 {
    let pairs = (0..6).map(|pair| 0x3 << (2 * pair));
    pairs.filter(|pair| status & pair != 0).fold(0, |wide, pair| wide | pair)
}
