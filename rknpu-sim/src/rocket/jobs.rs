//! Jobs: a queue for each file, which stays with a core while it holds any, and what runs on the cores.

use crate::engine::Start;
use crate::job::{CORES, Hardware, widened};
use crate::kernel::{Channel, Event, MS, Pending};
use crate::state::{SpaceMap, State};
use rknpu_sys::regs::INT_DPU;
use rknpu_sys::rocket;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A program, as the driver writes it into the PC's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    regcmd: u32,
    /// Entries without the trailer's four.
    amount: u32,
}

impl Task {
    pub(super) fn new(task: rocket::Task) -> Task {
        // Half the commands, rounded up, less one, in 16 bits.
        let data_amount = (task.regcmd_count.div_ceil(2) - 1) & 0xffff;
        Task { regcmd: task.regcmd, amount: (2 * data_amount).saturating_sub(2) }
    }
}

/// A job of a file.
#[derive(Debug)]
pub(crate) struct Job {
    file: u32,
    tasks: Vec<Task>,
    next: usize,
    read: Vec<u64>,
    write: Vec<u64>,
    map: Arc<SpaceMap>,
    /// Jobs that write what this one reads or writes, and came before it.
    after: Vec<u64>,
}

impl Job {
    pub(super) fn new(
        file: u32,
        tasks: Vec<Task>,
        read: Vec<u64>,
        write: Vec<u64>,
        map: Arc<SpaceMap>,
    ) -> Job {
        Job { file, tasks, next: 0, read, write, map, after: Vec::new() }
    }

    /// Objects that it holds, each once.
    pub(super) fn objects(&self) -> impl Iterator<Item = u64> + use<> {
        self.read.clone().into_iter().chain(self.write.clone())
    }
}

/// A file's queue.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<u64>,
    /// The job that runs.
    running: Option<u64>,
    /// Where it runs, as long as it has jobs.
    core: usize,
}

impl Queue {
    fn load(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }
}

/// All jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    live: BTreeMap<u64, Job>,
    queues: BTreeMap<u32, Queue>,
    on_core: [Option<u64>; CORES],
    pub(crate) submitted: u64,
}

impl Jobs {
    /// Whether a job that has not ended writes an object.
    pub(crate) fn writes(&self, address: u64) -> bool {
        self.live.values().any(|job| job.write.contains(&address))
    }

    /// What runs on a core, and how many wait for it.
    pub(crate) fn on(&self, core: usize) -> (bool, usize) {
        let queues = self.queues.values().filter(|queue| queue.core == core);
        (self.on_core[core].is_some(), queues.map(|queue| queue.waiting.len()).sum())
    }

    /// Whether a file has jobs that have not ended.
    pub(super) fn any_of(&self, file: u32) -> bool {
        self.live.values().any(|job| job.file == file)
    }

    /// Jobs of a file that have not begun.
    pub(super) fn waiting(&self, file: u32) -> usize {
        self.queues.get(&file).map_or(0, |queue| queue.waiting.len())
    }

    pub(super) fn queue(&mut self, file: u32, mut job: Job) {
        self.submitted += 1;
        let id = self.submitted;
        let touches =
            |other: &Job| other.write.iter().any(|at| job.objects().any(|own| own == *at));
        job.after =
            self.live.iter().filter(|(_, other)| touches(other)).map(|(id, _)| *id).collect();
        self.live.insert(id, job);
        let load = |core: usize| -> usize {
            self.queues.values().filter(|queue| queue.core == core).map(Queue::load).sum()
        };
        let idlest = (0..CORES).min_by_key(|core| load(*core)).unwrap_or(0);
        let queue = self.queues.entry(file).or_default();
        if queue.load() == 0 {
            queue.core = idlest;
        }
        queue.waiting.push_back(id);
    }

    /// The oldest job that may run on a core.
    fn next_on(&self, core: usize) -> Option<u64> {
        let queues = self.queues.values().filter(|queue| queue.core == core);
        let first = queues.filter_map(|queue| queue.waiting.front().copied());
        let free = |id: &u64| {
            let after = self.live.get(id).map_or(&[][..], |job| &job.after);
            !after.iter().any(|other| self.live.contains_key(other))
        };
        first.filter(free).min()
    }

    /// Takes the jobs of a file that have not begun.
    pub(super) fn cancel(&mut self, file: u32) -> Vec<Job> {
        let Some(queue) = self.queues.get_mut(&file) else { return Vec::new() };
        let waiting = std::mem::take(&mut queue.waiting);
        waiting.into_iter().filter_map(|id| self.live.remove(&id)).collect()
    }
}

impl State {
    /// Starts what can start.
    pub(crate) fn start_rocket(&mut self) {
        for core in 0..CORES {
            if self.rocket.jobs.on_core[core].is_some() {
                continue;
            }
            let Some(id) = self.rocket.jobs.next_on(core) else { continue };
            let Jobs { live, queues, on_core, .. } = &mut self.rocket.jobs;
            let Some(job) = live.get(&id) else { continue };
            if let Some(queue) = queues.get_mut(&job.file) {
                queue.waiting.pop_front();
                queue.running = Some(id);
            }
            on_core[core] = Some(id);
            // The limit is for the job, whatever its tasks.
            let limit = rocket::JOB_TIMEOUT_MS * MS;
            let when = self.time.now().saturating_add(limit);
            self.time.at(when, Event::JobTimeout { core, job: id });
            self.time.wake(Channel::Written);
            self.start_task(core);
        }
    }

    fn start_task(&mut self, core: usize) {
        let id = self.rocket.jobs.on_core[core];
        let Some(job) = id.and_then(|id| self.rocket.jobs.live.get_mut(&id)) else { return };
        let Some(task) = job.tasks.get(job.next).copied() else { return };
        job.next += 1;
        let map = job.map.clone();
        let (generation, fresh) = self.cores[core].start();
        let start = Start {
            core,
            fresh,
            regcmd_addr: task.regcmd,
            regcfg_amount: task.amount,
            tasks: 1,
            dma_base: 0,
            int_mask: INT_DPU,
            ping_pong: true,
        };
        self.time.pending.push_back(Pending { start, generation, map });
    }

    /// A core's interrupt: the next task, or the end of the job.
    pub(crate) fn rocket_interrupt(&mut self, core: usize, generation: u64, status: u32) {
        let hardware = &mut self.cores[core];
        if hardware.generation != generation {
            return;
        }
        if widened(status) & INT_DPU == 0 {
            // The mask lets nothing else through: no interrupt, and the limit decides.
            hardware.hardware = Hardware::Hung { tasks: 0 };
            return;
        }
        hardware.interrupts += 1;
        hardware.hardware = Hardware::Finished { tasks: 1 };
        hardware.touched.clear();
        let id = self.rocket.jobs.on_core[core];
        let more = |job: &Job| job.next < job.tasks.len();
        if id.and_then(|id| self.rocket.jobs.live.get(&id)).is_some_and(more) {
            self.start_task(core);
        } else {
            self.report.jobs_done += 1;
            self.end_job(core);
        }
    }

    /// A job's limit: the core is reset, and whoever waits is told that it is done.
    pub(crate) fn rocket_timeout(&mut self, core: usize, job: u64) {
        if self.rocket.jobs.on_core[core] != Some(job) {
            return;
        }
        self.cores[core].reset();
        self.report.jobs_timed_out += 1;
        self.end_job(core);
    }

    fn end_job(&mut self, core: usize) {
        let Some(id) = self.rocket.jobs.on_core[core].take() else { return };
        let Some(job) = self.rocket.jobs.live.remove(&id) else { return };
        if let Some(queue) = self.rocket.jobs.queues.get_mut(&job.file) {
            queue.running = None;
        }
        self.release_job(&job);
        if !self.rocket.jobs.any_of(job.file)
            && self.rocket.gone.get(&job.file).is_some_and(|space| !space.leaked)
        {
            self.rocket.gone.remove(&job.file);
        }
        self.start_rocket();
        self.time.wake(Channel::Written);
    }

    /// Gives back what a job held.
    pub(super) fn release_job(&mut self, job: &Job) {
        for address in job.objects() {
            self.put_shmem(address);
        }
    }
}
