//! A scenario on a fresh machine: its threads, its calls.

use crate::replay::call::Left;
use crate::replay::compare::{Tokens, outcome, same_field, same_outcome};
use crate::replay::fatal::{self, Fatal};
use crate::replay::format::{Scenario, Step, Trace, after, number};
use crate::replay::layout::put;
use crate::replay::script::{Lane, Lost, When, lanes, lost, when};
use crate::replay::standin::StandIn;
use crate::replay::{Difference, NotCompared, Replayed, descriptors, observe};
use rknpu_sim::config::{Addresses, Config, Domains, Hardware};
use rknpu_sim::{File, Machine, Mapping, set_cpu};
use rknpu_sys::uapi::{MemCreate, SubcoreTask, Submit};
use rustix::fd::{OwnedFd, RawFd};
use rustix::io::Errno;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// How long a reset line may take: what is longer is no recording.
const LONGEST_LINE_US: u64 = 60_000_000;
/// Of mmap.
const PROT_READ: u64 = 1;
/// SRAM that a machine may have.
const LARGEST_SRAM: u64 = 1 << 30;
/// Buffers made one after the other: the smallest fill a domain's 4 GiB.
const MOST_BUFFERS: u64 = 1 << 20;

/// A mapping, and whose it is.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) mapping: Mapping,
    /// The buffer was made with a kernel mapping: tasks are written to it.
    pub(super) tasks: bool,
    pub(crate) thread: Option<String>,
    /// Bytes still mapped.
    left: u64,
}

/// Buffers that a step made until it failed.
#[derive(Debug)]
pub(super) struct Filled {
    file: String,
    size: u64,
    handles: Vec<u32>,
}

/// What the steps share.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) files: HashMap<String, Arc<File>>,
    /// Those of the card node.
    pub(super) cards: Vec<String>,
    pub(crate) tokens: Tokens,
    pub(crate) views: Vec<View>,
    /// Buffers made one after the other until it failed.
    pub(super) filled: VecDeque<Filled>,
    /// How many buffers each such run of them had.
    pub(super) counts: Vec<usize>,
    /// Flags of objects by offset, to know task buffers again.
    pub(super) offsets: HashMap<u64, u32>,
    pub(super) objects: HashMap<u64, u32>,
    /// Descriptors that are kept open.
    pub(crate) kept: Vec<OwnedFd>,
    /// Descriptors that the machine handed out.
    pub(super) made: Vec<RawFd>,
    /// Bytes synced when the log was last read.
    pub(crate) synced: (u64, u64),
    /// Files of a child process, which close when it dies.
    pub(super) child: Vec<String>,
    done: Vec<bool>,
    /// What each thread's last call left in its struct.
    pub(super) left: HashMap<Option<String>, Left>,
    /// Handle of the last dumb picture.
    pub(crate) dumb: u64,
    fatal: Option<Fatal>,
    differences: Vec<Difference>,
    not_compared: Vec<NotCompared>,
    internals: Vec<String>,
}

/// A replay under way.
#[derive(Debug)]
pub(crate) struct Run<'s> {
    pub(crate) machine: Machine,
    pub(crate) scenario: &'s Scenario,
    seed: Option<u64>,
    world: Mutex<World>,
}

/// Replays a scenario once; a seed varies what was a race. Where a call is missing from the recording
/// because its process died in it, the scenario is replayed again with that call.
pub(crate) fn once(trace: &Trace, scenario: &Scenario, seed: Option<u64>) -> Replayed {
    let (replayed, started) = with(trace, scenario, seed, None);
    match lost(scenario, started) {
        Some(call) if replayed.unequal > 0 => with(trace, scenario, seed, Some(call)).0,
        _ => replayed,
    }
}

/// One replay, and how many programs it started.
fn with(
    trace: &Trace,
    scenario: &Scenario,
    seed: Option<u64>,
    lost: Option<Lost>,
) -> (Replayed, usize) {
    let machine = Machine::new(config(trace, scenario, seed));
    let done = vec![false; scenario.steps.len()];
    let world = Mutex::new(World { done, ..World::default() });
    let run = Run { machine, scenario, seed, world };
    run.all(lost);
    let starts: u64 = run.machine.report().cores.iter().map(|core| core.starts).sum();
    let mut world = run.world.into_inner().unwrap_or_else(PoisonError::into_inner);
    world.differences.sort_by_key(|difference| difference.step);
    let unequal: BTreeSet<usize> = world.differences.iter().map(|d| d.step).collect();
    world.not_compared.retain(|n| !unequal.contains(&n.step));
    world.not_compared.sort_by_key(|not_compared| not_compared.step);
    let not_compared: BTreeSet<usize> = world.not_compared.iter().map(|n| n.step).collect();
    let (steps, unequal, not_compared) = (scenario.steps.len(), unequal.len(), not_compared.len());
    let replayed = Replayed {
        name: scenario.name.clone(),
        file: String::new(),
        steps,
        equal: steps - unequal,
        unequal,
        not_compared,
        racy: scenario.racy.is_some(),
        fatal: world.fatal,
        differences: world.differences,
        skipped: world.not_compared,
        internals: world.internals,
    };
    (replayed, usize::try_from(starts).unwrap_or(usize::MAX))
}

fn config(trace: &Trace, scenario: &Scenario, seed: Option<u64>) -> Config {
    let setup = &scenario.config;
    let truth = |value: &Value| value.as_bool() != Some(false);
    let sram = setup.sram.as_str().and_then(|text| text.split(' ').next());
    let line_us = after(&setup.cmdline, "rig.rst_us=").unwrap_or(0);
    // Where it was a race whether waiters saw the reset, every other variation lets them.
    let seen = seed.is_some_and(|seed| seed % 2 == 0) && line_us == 0;
    let late = seed.is_some_and(|seed| seed % 2 == 0) && line_us > 0;
    // A machine whose device tree names no supply is told by what it dies of.
    let supplyless = fatal::oopsed(&scenario.kernel_log) == Some("regulator_get_voltage");
    Config {
        iommu: truth(&setup.iommu),
        domains: if setup.domains.starts_with("stub") { Domains::Stub } else { Domains::Real },
        fences: truth(&setup.fence),
        sram: sram.and_then(|text| number(&Value::from(text))).unwrap_or(0).min(LARGEST_SRAM),
        mainline_port: setup.kernel.contains("w568w"),
        addresses: Addresses::Reused,
        slab_poison: setup.cmdline.contains("slub_debug"),
        hz: after(&trace.hz, "CONFIG_HZ=").and_then(|hz| u32::try_from(hz).ok()).unwrap_or(300),
        reset_lines_ns: if seen {
            50_000
        } else if late {
            0
        } else {
            line_us.min(LONGEST_LINE_US) * 1000
        },
        noise: seed,
        engine: Arc::new(StandIn),
        hardware: Hardware {
            microvolts: Hardware::default().microvolts.filter(|_| !supplyless),
            ..Hardware::default()
        },
        ..Config::default()
    }
}

impl Run<'_> {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all threads to their end. None begins before all hold the clock.
    fn all(&self, lost: Option<Lost>) {
        let lanes = lanes(self.scenario, self.seed);
        let (main, threads) = lanes.split_at(1);
        let held = self.machine.actor();
        std::thread::scope(|scope| {
            for lane in threads {
                let (ready, readied) = mpsc::channel();
                scope.spawn(move || {
                    let _held = self.machine.actor();
                    // Who waits for it is there until it has come.
                    let _ = ready.send(());
                    self.lane(lane);
                });
                let _ = readied.recv();
            }
            if let Some(lost) = lost {
                let (ready, readied) = mpsc::channel();
                scope.spawn(move || {
                    let _held = self.machine.actor();
                    let _ = ready.send(());
                    self.lost(lost);
                });
                let _ = readied.recv();
            }
            self.lane(&main[0]);
            drop(held);
        });
        self.ends();
        let mut world = self.world();
        let (views, files) = (std::mem::take(&mut world.views), std::mem::take(&mut world.files));
        let made = std::mem::take(&mut world.made);
        drop(world);
        drop((views, files));
        descriptors::close(made.into_iter());
    }

    /// The call in which the process died, after all others.
    fn ends(&self) {
        let function = fatal::oopsed(&self.scenario.kernel_log);
        if let Some(function) = function.filter(|_| !self.scenario.completed) {
            let steps = || self.scenario.steps.iter().rev();
            let object = steps().find_map(|step| self.object_of(step));
            let name = steps().find(|step| step.op == "open").and_then(|step| step.text("fd"));
            let file = name.and_then(|name| self.world().files.get(name).cloned());
            let fatal = fatal::die(self, function, file.as_deref(), object);
            self.died(fatal);
        }
    }

    pub(crate) fn died(&self, fatal: Fatal) {
        self.world().fatal = Some(fatal);
    }

    /// The object that a step made.
    pub(crate) fn object_of(&self, step: &Step) -> Option<u64> {
        let made = step.op == "MEM_CREATE";
        let token = step.expect.get("out_changed").filter(|_| made)?.get("obj_addr")?.as_str()?;
        self.world().tokens.get(token)
    }

    fn lane(&self, lane: &Lane) {
        set_cpu(lane.cpu);
        for (at, &n) in lane.steps.iter().enumerate() {
            self.wait(n, when(self.scenario, n));
            let step = &self.scenario.steps[n];
            self.step(n, step);
            self.close_unused(n);
            let next = lane.steps[at + 1..].first().map(|&next| &self.scenario.steps[next]);
            let again = next.filter(|next| next.op == "open").and_then(|next| next.text("fd"));
            if again.is_some_and(|fd| self.is_open(fd)) {
                // The thread's name stands for another process from here on.
                lane.thread.iter().for_each(|thread| self.process_ends(thread));
            }
            self.world().done[n] = true;
            self.machine.notify();
        }
        if let Some(thread) = &lane.thread {
            self.process_ends(thread);
        }
        set_cpu(0);
    }

    /// A blocking submit that the recording lost.
    fn lost(&self, lost: Lost) {
        self.wait(lost.tasks, When { at_ms: lost.at_ms, after_listed: true });
        let step = &self.scenario.steps[lost.tasks];
        let token = step.expect.get("out_changed").and_then(|out| out.get("obj_addr")?.as_str());
        let object = token.and_then(|token| self.world().tokens.get(token)).unwrap_or(0);
        let Some(file) = self.file(step) else { return };
        let job = Submit {
            flags: 0x5,
            timeout: 2000,
            task_number: 1,
            task_obj_addr: object,
            core_mask: 1 << lost.core.min(2),
            fence_fd: -1,
            subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
            ..Submit::default()
        };
        // Nobody saw what it returned.
        let _ = file
            .call_bytes(rknpu_sys::ioctl::SUBMIT, zerocopy::IntoBytes::as_mut_bytes(&mut { job }));
    }

    fn wait(&self, n: usize, when: When) {
        if when.after_listed {
            self.machine.wait_while(|| !self.world().done[..n].iter().all(|done| *done));
        }
        let left = Duration::from_millis(when.at_ms).saturating_sub(self.machine.now());
        if !left.is_zero() {
            self.machine.sleep(left);
        }
    }

    fn step(&self, n: usize, step: &Step) {
        match step.op.as_str() {
            "open" => self.open(n, step),
            "close" => self.close(n, step),
            "mmap" => self.mmap(n, step),
            "munmap" => self.munmap(n, step),
            "write_task" => self.write_task(step),
            "read_task" => self.read_task(n, step),
            "create_until_fail" => self.fill(n, step),
            "observe" => observe::observe(self, n, step),
            "internal_sync_log" => self.sync_log(n, step),
            "internal_state" => {
                let found: Vec<String> = observe::internals(self, step).collect();
                if !found.is_empty() {
                    self.not_compared(n, "the driver's internals, which are not owed");
                }
                let found = found.into_iter().map(|text| format!("step {n}: {text}"));
                self.world().internals.extend(found);
            }
            _ => self.ioctl(n, step),
        }
    }

    pub(crate) fn differ(&self, n: usize, field: &str, recorded: &Value, simulated: &str) {
        let step = &self.scenario.steps[n];
        let recorded = recorded.as_str().map_or_else(|| recorded.to_string(), str::to_owned);
        self.world().differences.push(Difference {
            step: n,
            call: format!("{} {}", step.op, step.step).trim().to_owned(),
            field: field.to_owned(),
            recorded,
            simulated: simulated.to_owned(),
        });
    }

    /// Notes that a step's answer, or part of it, is compared with nothing.
    pub(crate) fn not_compared(&self, n: usize, why: &str) {
        let step = &self.scenario.steps[n];
        self.world().not_compared.push(NotCompared {
            step: n,
            call: format!("{} {}", step.op, step.step).trim().to_owned(),
            why: why.to_owned(),
        });
    }

    /// Compares an outcome with the recorded one; whether it succeeded.
    pub(crate) fn outcome<T>(&self, n: usize, step: &Step, result: &Result<T, Errno>) -> bool {
        let simulated = outcome(result);
        if let Some(recorded) = step.errno().filter(|errno| !same_outcome(errno, &simulated)) {
            self.differ(n, "errno", &Value::from(recorded), &simulated);
        }
        result.is_ok()
    }

    fn mmap(&self, n: usize, step: &Step) {
        let (offset, len) = (step.number("offset"), step.number("len"));
        let (Some(offset), Some(len)) = (offset, len.and_then(|len| usize::try_from(len).ok()))
        else {
            return self.not_compared(n, "it names no range");
        };
        let result = match self.file(step) {
            Some(file) => file.mmap(offset, len),
            None => {
                let token = format!("dmabuf:{}", step.text("fd").unwrap_or_default());
                let fd = self.world().tokens.get(&token).and_then(|fd| i32::try_from(fd).ok());
                if step.number("prot") == Some(PROT_READ) {
                    return self
                        .not_compared(n, "a mapping for reading only, which is the kernel's");
                }
                self.machine.mmap_dma_buf(fd.unwrap_or(-1), offset, len)
            }
        };
        self.outcome(n, step, &result);
        let mut world = self.world();
        let flags = world.offsets.get(&offset).copied().unwrap_or(0);
        if let Ok(mapping) = result {
            let (tasks, thread) = (flags & 0x8 != 0, step.thread.clone());
            let left = mapping.len() as u64;
            world.views.push(View { mapping, tasks, thread, left });
        }
    }

    /// The latest mapping of a length, or a part of the latest that is longer.
    fn munmap(&self, n: usize, step: &Step) {
        let len = step.number("len").unwrap_or(0).next_multiple_of(4096);
        let mut world = self.world();
        let whole = world.views.iter().rposition(|view| view.left == len);
        let at = whole.or_else(|| world.views.iter().rposition(|view| view.left > len));
        let found = at.map(|at| {
            world.views[at].left -= len;
            (world.views[at].left == 0).then(|| world.views.remove(at))
        });
        drop(world);
        self.outcome(n, step, &found.map(drop).ok_or(Errno::INVAL));
    }

    /// MEM_CREATE until it fails.
    fn fill(&self, n: usize, step: &Step) {
        let Some(file) = self.file(step) else { return self.not_compared(n, "no file is open") };
        let (mut handles, mut addresses) = (Vec::new(), Vec::new());
        let max = step.number("max").unwrap_or(u64::MAX).min(MOST_BUFFERS);
        let mut result = Ok(());
        while (addresses.len() as u64) < max {
            let mut args = MemCreate {
                flags: low(step.number("flags")),
                size: step.number("size").unwrap_or(0),
                iommu_domain_id: low(step.number("domain")).cast_signed(),
                ..MemCreate::default()
            };
            let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut args);
            if let Err(errno) = file.call_bytes(rknpu_sys::ioctl::MEM_CREATE, bytes) {
                result = Err(errno);
                break;
            }
            handles.push(args.handle);
            addresses.push(args.dma_addr);
        }
        self.outcome(n, step, &result);
        if let Some(count) = step.expect.get("count")
            && number(count) != Some(addresses.len() as u64)
        {
            self.differ(n, "count", count, &addresses.len().to_string());
        }
        let name = step.text("fd").unwrap_or_default().to_owned();
        let mut world = self.world();
        world.counts.push(handles.len());
        let size = step.number("size").unwrap_or(0);
        world.filled.push_back(Filled { file: name, size, handles });
        drop(world);
        let Some(recorded) = step.expect.get("dma_addr").and_then(Value::as_array) else { return };
        let rule = step.rule("dma_addr");
        for (at, recorded) in recorded.iter().enumerate() {
            let simulated = addresses.get(at).copied().unwrap_or(0);
            if !same_field(rule, recorded, simulated, &mut self.world().tokens) {
                self.differ(n, &format!("dma_addr[{at}]"), recorded, &format!("{simulated:#x}"));
                return;
            }
        }
    }

    fn sync_log(&self, n: usize, step: &Step) {
        let report = self.machine.report();
        let now = (report.to_device, report.from_device);
        let before = std::mem::replace(&mut self.world().synced, now);
        for (field, bytes) in [
            ("to_dev_bytes", now.0.wrapping_sub(before.0)),
            ("to_cpu_bytes", now.1.wrapping_sub(before.1)),
        ] {
            let Some(recorded) = step.value.get(field) else { continue };
            if number(recorded) != Some(bytes) && step.step != "clr" {
                self.differ(n, field, recorded, &bytes.to_string());
            }
        }
    }
}

impl Run<'_> {
    /// Destroys the buffers of a [`Run::fill`]: how many could be, and how many could not. Which one is
    /// recorded by the size in the step's name at best: else the oldest of as many buffers, or the oldest.
    pub(crate) fn drain(&self, step: &Step, buffers: u64) -> (u64, u64) {
        let mut world = self.world();
        let fits = |filled: &Filled| filled.handles.len() as u64 == buffers;
        let named = |filled: &Filled| fits(filled) && step.step.contains(&in_units(filled.size));
        let at = world.filled.iter().position(named);
        let at = at.or_else(|| world.filled.iter().position(fits)).unwrap_or(0);
        let filled = world.filled.remove(at);
        drop(world);
        let Some(Filled { file, handles, .. }) = filled else { return (0, 0) };
        let Some(file) = self.world().files.get(&file).cloned() else { return (0, 0) };
        let (mut destroyed, mut failed) = (0, 0);
        for handle in handles {
            let mut bytes = [0; 16];
            put(&mut bytes, 0, 4, handle.into());
            match file.call_bytes(rknpu_sys::ioctl::MEM_DESTROY, &mut bytes) {
                Ok(_) => destroyed += 1,
                Err(_) => failed += 1,
            }
        }
        (destroyed, failed)
    }

    /// Waits for a fence on the machine's clock.
    pub(crate) fn poll(&self, fence: u64, micros: u64) -> bool {
        let fd = i32::try_from(fence).unwrap_or(-1);
        self.machine.wait_fence(fd, Duration::from_micros(micros))
    }
}

/// A size as step names have it: `64k`, `16m`.
fn in_units(size: u64) -> String {
    let (k, m) = (size >> 10, size >> 20);
    if m > 0 && m << 20 == size { format!("{m}m") } else { format!("{k}k") }
}

/// Whether a thread of the recording was a process of its own, or several one after the other.
pub(super) fn is_process(thread: &str) -> bool {
    let name = thread.to_ascii_lowercase();
    let numbered = name.strip_prefix('p').is_some_and(|rest| rest.parse::<u32>().is_ok());
    numbered || name.contains("child") || name.contains("proc")
}

/// The low 32 bits of a recorded number.
pub(super) fn low(value: Option<u64>) -> u32 {
    value.unwrap_or(0) as u32
}
