//! SUBMIT: queueing a job, waiting for it, and what follows when it does not end.

use crate::fence::FenceId;
use crate::hazard::Hazard;
use crate::job::{CORES, Core, Job};
use crate::kernel::{Call, Channel, MS};
use crate::report::CallKind;
use crate::state::State;
use rknpu_sys::flags::JobFlags;
use rknpu_sys::uapi::Submit;
use rustix::io::Errno;

/// How long an abort sleeps, and a soft reset.
const ABORT_SLEEP: u64 = 100 * MS;
/// Waits of one timeout before a job is given up.
const WAITS: u32 = 3;
/// Reset lines asserted and released in a soft reset of an RK3588.
const RESET_STEPS: u64 = 12;

/// Queues a job; a blocking one is waited for, uninterruptibly.
pub(crate) fn submit(call: &mut Call<'_>, _file: u32, args: &mut Submit) -> Result<(), Errno> {
    if args.task_number == 0 || args.core_mask > 7 {
        return Err(Errno::INVAL);
    }
    let flags = JobFlags::from_bits_retain(args.flags);
    let place = new_job(call, args)?;
    if flags.intersects(JobFlags::FENCE_IN | JobFlags::FENCE_OUT) && !call.config().fences {
        call.retire_and_put(place);
        return Err(Errno::INVAL);
    }
    if flags.contains(JobFlags::FENCE_IN) {
        call.wait_for_fence(args)?;
    }
    if flags.contains(JobFlags::FENCE_OUT) {
        call.jobs.at_mut(place).fence = Some(fence_out(call, args));
    }
    // The job keeps the caller's struct as it is now; a blocking one writes into it at the end.
    call.jobs.at_mut(place).args = *args;
    if flags.contains(JobFlags::NONBLOCK) {
        return nonblocking(call, place);
    }
    let result = blocking(call, place, flags);
    let job = call.jobs.at(place);
    if result != Err(Errno::FAULT) {
        args.core_mask = job.args.core_mask;
        args.task_counter = job.args.task_counter;
        args.hw_elapse_time = job.args.hw_elapse_time;
    }
    match result {
        Ok(()) => {
            call.retire_and_put(place);
            Ok(())
        }
        // The process died inside the kernel: everything stays as it was.
        Err(Errno::FAULT) => Err(Errno::FAULT),
        Err(errno) => {
            call.abort(place, errno);
            Err(errno)
        }
    }
}

fn new_job(call: &mut Call<'_>, args: &Submit) -> Result<usize, Errno> {
    let config = call.config();
    let flags = JobFlags::from_bits_retain(args.flags);
    let address = args.task_obj_addr;
    let mut tasks = None;
    if address != 0 {
        match call.objects.get_mut(address) {
            Some(object) => {
                object.refs += 1;
                tasks = Some(address);
            }
            None => {
                let was = call.objects.was(address);
                let hazard = Hazard::StaleObject { call: CallKind::Submit, address, was };
                call.hazard(config, hazard);
                return Err(Errno::FAULT);
            }
        }
    }
    if args.timeout > i32::MAX as u32 && !flags.contains(JobFlags::NONBLOCK) {
        call.hazard(config, Hazard::EndlessTimeout { timeout: args.timeout });
    }
    if matches!(args.core_mask, 5 | 6) {
        call.hazard(config, Hazard::MaskNeverRuns { mask: args.core_mask });
    }
    let cores = args.core_mask.count_ones().max(1);
    let job = Job {
        nonblock: flags.contains(JobFlags::NONBLOCK),
        args: *args,
        tasks,
        created: call.time.now(),
        use_cores: cores,
        to_start: cores.cast_signed(),
        to_finish: cores.cast_signed(),
        ..Job::default()
    };
    let State { jobs, time, .. } = &mut **call;
    Ok(jobs.add(job, |places| time.noise(places)))
}

fn fence_out(call: &mut Call<'_>, args: &mut Submit) -> FenceId {
    let fence = call.fences.add();
    let file = match call.faults.fence_file() {
        Some(errno) => Err(errno),
        None => call.fences.open(fence),
    };
    // Without a descriptor the job runs all the same, and the errno stands in its place.
    args.fence_fd = file.unwrap_or_else(|errno| -errno.raw_os_error());
    fence
}

fn nonblocking(call: &mut Call<'_>, place: usize) -> Result<(), Errno> {
    call.kill_aged(call.jobs.at(place).args.core_mask);
    call.schedule(place);
    match call.jobs.at(place).result {
        None => Ok(()),
        Some(Errno::FAULT) => Err(Errno::FAULT),
        Some(errno) => {
            call.abort(place, errno);
            Err(errno)
        }
    }
}

fn blocking(call: &mut Call<'_>, place: usize, flags: JobFlags) -> Result<(), Errno> {
    call.schedule(place);
    let result = call.jobs.at(place).result;
    if result == Some(Errno::FAULT) {
        return Err(Errno::FAULT);
    }
    if flags.contains(JobFlags::PC) {
        return call.wait_for_job(place);
    }
    // Nothing was started; a job that is still queued is taken for done and freed.
    let config = call.config();
    call.hazard(config, Hazard::WithoutPc { busy: result.is_none() });
    result.map_or(Ok(()), Err)
}

impl Call<'_> {
    /// Chooses the core, takes the domain, queues the job and starts what can start.
    fn schedule(&mut self, place: usize) {
        let config = self.config();
        if self.jobs.at(place).args.core_mask == 0 {
            let core = self.idlest();
            self.jobs.at_mut(place).args.core_mask = 1 << core;
        }
        let id = self.jobs.at(place).args.iommu_domain_id.cast_signed();
        let id = if config.version.has_domains() { id } else { 0 };
        if self.get_domain(id).is_err() {
            self.jobs.at_mut(place).result = Some(Errno::INVAL);
            return;
        }
        self.enqueue(place);
        let mask = self.jobs.at(place).args.core_mask;
        for core in (0..CORES).filter(|core| mask & (1 << core) != 0) {
            self.start_next(config, core);
        }
    }

    /// Waits for a job: up to three timeouts while it has not started, or has started less than one
    /// timeout ago.
    fn wait_for_job(&mut self, place: usize) -> Result<(), Errno> {
        let config = self.config();
        let timeout = self.jobs.at(place).args.timeout;
        let core = self.jobs.at(place).wait_core();
        let endless = timeout > i32::MAX as u32;
        let wait = u64::from(timeout) * MS;
        let began = self.time.now();
        let mut waits = 0;
        let woken = loop {
            let woken = self.wait_once(place, core, (!endless).then_some(wait));
            waits += 1;
            if woken || waits == WAITS {
                break woken;
            }
            let committed = self.jobs.at(place).committed;
            if committed.is_some_and(|at| self.time.now() - at >= wait) {
                break false;
            }
        };
        let hardware = self.cores[core].hardware.tasks();
        let Some(last) = self.jobs.at(place).last_task else {
            self.unlink(place);
            return Err(Errno::INVAL);
        };
        self.write_status(place, core, last)?;
        let elapsed = self.time.now() - began;
        let job = self.jobs.at_mut(place);
        if endless && woken {
            // The remaining time is cut to an int and taken for an error.
            job.args.task_counter = hardware;
            let ticks = elapsed * u64::from(config.hz) / (1_000 * MS);
            let errno = i32::try_from(ticks).unwrap_or(i32::MAX - 2) + 2;
            return Err(Errno::from_raw_os_error(errno.min(4095)));
        }
        if !woken {
            job.args.task_counter = hardware;
            self.report.jobs_timed_out += 1;
            return Err(Errno::TIMEDOUT);
        }
        if !job.done {
            return Err(Errno::INVAL);
        }
        job.args.task_counter = job.args.task_number;
        job.args.hw_elapse_time = i64::try_from(job.elapsed).unwrap_or(i64::MAX);
        Ok(())
    }

    /// One wait of a timeout: whether the job is done or a reset came.
    fn wait_once(&mut self, place: usize, core: usize, wait: Option<u64>) -> bool {
        let tick = 1_000 * MS / u64::from(self.config().hz.max(1));
        let late = self.time.noise(tick);
        let deadline = wait.map(|wait| self.time.now().saturating_add(wait + late));
        loop {
            if self.jobs.at(place).done || self.resetting {
                return true;
            }
            if deadline.is_some_and(|deadline| self.time.now() >= deadline) {
                return false;
            }
            self.wait(Channel::Job(core), deadline);
        }
    }

    /// Stores the interrupt status in the last task, through the kernel's mapping.
    fn write_status(&mut self, place: usize, core: usize, last: u64) -> Result<(), Errno> {
        let job = self.jobs.at(place);
        let status = job.int_status[core];
        let (address, args) = (job.args.task_obj_addr, job.args);
        let backing = job.tasks.and_then(|tasks| self.objects.get(tasks)?.backing.clone());
        let Some(backing) = backing else { return Ok(()) };
        let at = last + std::mem::offset_of!(rknpu_sys::uapi::Task, int_status) as u64;
        let size = backing.len() as u64;
        if at + 4 > size {
            let config = self.config();
            let (first, count) = (u64::from(args.task_start), args.task_number);
            self.hazard(config, Hazard::TasksOutside { address, first, count, size });
            return Err(Errno::FAULT);
        }
        // Tested above.
        backing.cpu_write(at as usize, &status.to_le_bytes());
        Ok(())
    }

    /// Gives a job up: the domain, then 100 ms, the slots, and a reset when it timed out.
    fn abort(&mut self, place: usize, errno: Errno) {
        let config = self.config();
        self.put_domain(config);
        self.sleep(ABORT_SLEEP);
        self.clear_slots(place);
        if errno == Errno::TIMEDOUT && !self.jobs.at(place).done {
            // Its failure is logged and changes nothing here.
            let _ = self.soft_reset();
        }
        self.retire_and_put(place);
    }

    /// Frees a job where a thread can wait.
    fn retire_and_put(&mut self, place: usize) {
        let config = self.config();
        if let Some(object) = self.retire(config, place) {
            self.put_object(object);
        }
    }

    /// Resets the whole NPU: 100 ms, then every waiter is woken, then the lines. A second caller
    /// returns at once.
    pub(crate) fn soft_reset(&mut self) -> Result<(), Errno> {
        if self.reset_locked {
            return Ok(());
        }
        self.reset_locked = true;
        self.resetting = true;
        self.sleep(ABORT_SLEEP);
        for core in 0..CORES {
            self.time.wake(Channel::Job(core));
        }
        let lines = self.config().reset_lines_ns;
        if lines > 0 {
            self.sleep(lines * RESET_STEPS);
        }
        self.reset_locked = false;
        if let Some(errno) = self.faults.reset() {
            // The flag stays: every submit fails until a reset succeeds.
            return Err(errno);
        }
        self.cores.iter_mut().for_each(Core::reset);
        self.resetting = false;
        Ok(())
    }

    /// What a NONBLOCK submit does first: jobs on its cores that are older than `timeout`
    /// microseconds (the driver compares microseconds with milliseconds) are killed with everything
    /// queued behind them, and the NPU is reset.
    fn kill_aged(&mut self, mask: u32) {
        let config = self.config();
        for core in (0..CORES).filter(|core| mask & (1 << core) != 0) {
            let Some(aged) = self.cores[core].slot else { continue };
            let job = self.jobs.at(aged);
            let age = (self.time.now() - job.created) / 1_000;
            if age < u64::from(job.args.timeout) {
                continue;
            }
            // A failing reset is not looked at.
            let _ = self.soft_reset();
            let now = self.time.now();
            self.cores[core].slot = None;
            self.cores[core].load.end(now);
            let mut killed = vec![aged];
            killed.extend(std::mem::take(&mut self.cores[core].queue));
            let blocking = killed.iter().any(|&place| !self.jobs.at(place).nonblock);
            let jobs = u32::try_from(killed.len()).unwrap_or(u32::MAX);
            self.hazard(config, Hazard::JobsKilled { core, jobs, blocking });
            // A blocking job's clean-up was never set up: it is left to its own timeout.
            for place in killed {
                if self.jobs.at(place).nonblock {
                    self.free_job(config, place);
                }
            }
        }
    }

    /// FENCE_IN: waits for a fence of another driver, `timeout` taken as timer ticks; a wait that runs
    /// out counts as success. The device's own fences are not waited for.
    fn wait_for_fence(&mut self, args: &mut Submit) -> Result<(), Errno> {
        let config = self.config();
        let Some(fence) = self.fences.of(args.fence_fd) else {
            self.hazard(config, Hazard::FenceLeak);
            return Err(Errno::INVAL);
        };
        args.fence_fd = -1;
        let ticks = u64::from(args.timeout) * 1_000 * MS / u64::from(config.hz.max(1));
        let deadline = self.time.now().saturating_add(ticks);
        while self.fences.holds_up(fence) && self.time.now() < deadline {
            self.wait(Channel::Fence, Some(deadline));
        }
        Ok(())
    }
}
