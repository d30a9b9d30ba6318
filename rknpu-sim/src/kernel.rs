//! The one lock of the driver model, waiting, and time.
//!
//! Every call enters the kernel, which takes the lock, and leaves it when it waits, when an engine
//! runs, and while memory is copied. On the virtual clock nothing takes time but waits: when every
//! thread inside waits and no engine runs, the clock jumps to whatever is due first.

use crate::access::Recorder;
use crate::bus::Ran;
use crate::config::{Clock, Config};
use crate::engine::{Outcome, Run, Start};
use crate::job::Hardware;
use crate::state::State;
use crate::time::Waiter;
pub(crate) use crate::time::{Channel, Event, MS, Pending};
use std::cell::Cell;
use std::cmp::Reverse;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Threads that run engines when no caller can: one per core.
const WORKERS: usize = 3;

thread_local! {
    /// The machine whose time this thread holds even outside calls; 0 for none.
    static ACTOR: Cell<u64> = const { Cell::new(0) };
    /// The CPU that the thread's calls count as coming from.
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Sets the CPU that this thread's calls count as coming from: freed addresses are kept per CPU.
pub(crate) fn set_cpu(cpu: usize) {
    CPU.set(cpu);
}

/// The CPU of the calling thread.
pub(crate) fn cpu() -> usize {
    CPU.get()
}

/// The driver model's shared part.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) config: Config,
    state: Mutex<State>,
    wake: Condvar,
    work: Condvar,
    id: u64,
    born: Instant,
    pub(crate) recorder: Recorder,
}

impl Kernel {
    pub(crate) fn new(config: Config) -> Arc<Kernel> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let state = Mutex::new(State::new(&config));
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (wake, work) = (Condvar::new(), Condvar::new());
        let (born, recorder) = (Instant::now(), Recorder::default());
        Arc::new(Kernel { config, state, wake, work, id, born, recorder })
    }

    /// Enters the kernel: until the value is dropped or waits, time stands still.
    pub(crate) fn enter(self: &Arc<Kernel>) -> Call<'_> {
        let mut state = self.lock();
        self.tick(&mut state);
        let counted = ACTOR.get() != self.id;
        if counted {
            state.time.active += 1;
        }
        Call { kernel: self, state: Some(state), counted }
    }

    /// Makes this thread hold the clock even between its calls, until the value is dropped.
    pub(crate) fn act(self: &Arc<Kernel>) -> Actor {
        let mut state = self.lock();
        let nested = ACTOR.replace(self.id) == self.id;
        if !nested {
            state.time.active += 1;
        }
        Actor { kernel: self.clone(), nested, thread: PhantomData }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// On the real clock, reads it.
    fn tick(&self, state: &mut State) {
        if self.config.clock == Clock::Real {
            let now = u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
            state.time.now = state.time.now.max(now);
        }
    }

    /// Lets the next thing happen if nothing that runs could still happen before it.
    fn advance(&self, state: &mut State) -> bool {
        self.tick(state);
        let time = &state.time;
        let event = time.next_event();
        let deadline = time.next_deadline();
        let ready = match self.config.clock {
            Clock::Virtual => time.active == 0 && time.engines == 0 && time.pending.is_empty(),
            Clock::Real => {
                let first = [event, deadline].into_iter().flatten().min();
                first.is_some_and(|when| when <= time.now)
            }
        };
        if !ready {
            return false;
        }
        match (event, deadline) {
            // What the hardware does at an instant comes before what a thread does at it.
            (Some(when), late) if late.is_none_or(|late| when <= late) => {
                self.fire(state, when);
            }
            (_, Some(when)) => {
                state.time.now = state.time.now.max(when);
                state.time.expire(when);
            }
            _ => return false,
        }
        self.notify(state);
        true
    }

    fn fire(&self, state: &mut State, when: u64) {
        state.time.now = state.time.now.max(when);
        if let Some(Reverse((_, _, event))) = state.time.events.pop() {
            match event {
                Event::Interrupt { core, generation, status }
                    if crate::rocket::is(&self.config) =>
                {
                    state.rocket_interrupt(core, generation, status);
                }
                Event::JobTimeout { core, job } => state.rocket_timeout(core, job),
                Event::Interrupt { core, generation, status } => {
                    state.interrupt(&self.config, core, generation, status);
                }
                Event::LetGo => state.put_domain(&self.config),
            }
        }
    }

    /// Tells sleepers that something has changed for them.
    fn notify(&self, state: &mut State) {
        let untold = std::mem::take(&mut state.time.untold);
        if untold && state.time.asleep > 0 {
            self.wake.notify_all();
        }
    }

    /// Runs an engine outside the lock and books how its work ends.
    fn run<'k>(&'k self, mut state: MutexGuard<'k, State>, job: Pending) -> MutexGuard<'k, State> {
        state.time.engines += 1;
        let began = state.time.now;
        let Pending { start, generation, map } = job;
        let hangs = state.faults.hang(start.core);
        drop(state);
        let Ran { mut run, touched, fault } = if hangs {
            Ran::hung()
        } else {
            map.run(self.config.engine.as_ref(), &start, &self.recorder)
        };
        let mut state = self.lock();
        self.tick(&mut state);
        state.time.engines -= 1;
        state.touched(start.core, generation, touched);
        if let Some(fault) = fault {
            run.findings.extend(state.domains.elsewhere(&map, &fault));
        }
        self.finish(&mut state, start, generation, began, run);
        // The clock may go on now: whoever sleeps must look.
        state.time.untold = true;
        self.notify(&mut state);
        state
    }

    fn finish(&self, state: &mut State, start: Start, generation: u64, began: u64, run: Run) {
        for finding in run.findings {
            state.report.finding(start.core, finding);
        }
        let core = &mut state.cores[start.core];
        if core.generation != generation {
            return;
        }
        match run.outcome {
            Outcome::Done { int_status, tasks_done, busy_ns } => {
                core.hardware = Hardware::Running { tasks: tasks_done };
                let when = began.saturating_add(busy_ns);
                let status = state.faults.foreign_interrupt(start.core).unwrap_or(int_status);
                let event = Event::Interrupt { core: start.core, generation, status };
                state.time.at(when, event);
            }
            Outcome::Hang { task_counter } => {
                core.hardware = Hardware::Hung { tasks: task_counter };
            }
        }
    }

    /// Called when a thread leaves: what waits must not wait for it any longer.
    fn leave(self: &Arc<Kernel>, state: &mut State) {
        // With nobody inside, the clock waits for the next caller, or for a worker.
        while !state.time.waiters.is_empty() && self.advance(state) {}
        if !state.time.pending.is_empty() || self.idle_events(state) {
            self.need_worker(state);
        }
        self.notify(state);
    }

    /// Whether something is due that no thread inside waits for.
    fn idle_events(&self, state: &State) -> bool {
        let time = &state.time;
        let quiet = time.active == 0 && time.waiters.is_empty();
        (quiet || self.config.clock == Clock::Real) && !time.events.is_empty()
    }

    fn need_worker(self: &Arc<Kernel>, state: &mut State) {
        if state.time.idle_workers > 0 {
            self.work.notify_one();
        } else if state.time.workers < WORKERS {
            let kernel = Arc::downgrade(self);
            let spawned = std::thread::Builder::new().name("rknpu-sim".into()).spawn(move || {
                if let Some(kernel) = kernel.upgrade() {
                    kernel.work();
                }
            });
            // Without a worker the run waits for the next thread that waits inside.
            if spawned.is_ok() {
                state.time.workers += 1;
            }
        }
    }

    /// A worker: runs what no caller runs, and lets events come due that nobody waits for. It ends
    /// when there is nothing to do, so that it does not keep the machine alive.
    fn work(self: &Arc<Kernel>) {
        let mut state = self.lock();
        loop {
            if state.time.stopping {
                break;
            }
            if let Some(job) = state.time.pending.pop_front() {
                state = self.run(state, job);
                continue;
            }
            self.tick(&mut state);
            if self.config.clock == Clock::Real && self.advance(&mut state) {
                continue;
            }
            let wait = if self.idle_events(&state) {
                let due = state.time.next_event().unwrap_or(0);
                Duration::from_nanos(due.saturating_sub(state.time.now))
            } else {
                Duration::from_millis(100)
            };
            state.time.idle_workers += 1;
            let waited = self.work.wait_timeout(state, wait);
            let (guard, out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.time.idle_workers -= 1;
            if out.timed_out() && state.time.pending.is_empty() {
                if self.idle_events(&state) {
                    self.advance(&mut state);
                } else if wait == Duration::from_millis(100) {
                    break;
                }
            }
        }
        state.time.workers -= 1;
    }

    /// Lets the engines of all jobs that were started come to their end, in this thread where nobody
    /// else runs them. Time does not go on: the jobs' interrupts are still to come.
    pub(crate) fn settle(self: &Arc<Kernel>) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.time.pending.pop_front() {
                state = self.run(state, job);
            } else if state.time.engines > 0 {
                let waited = self.wake.wait_timeout(state, Duration::from_micros(200));
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                break;
            }
        }
        if self.idle_events(&state) {
            self.need_worker(&mut state);
        }
    }

    /// Lets what is on the calendar come, as long as that is the interrupt of a job that is computed.
    pub(crate) fn finish_jobs(self: &Arc<Kernel>) {
        self.settle();
        let mut state = self.lock();
        while let Some(Reverse((when, _, Event::Interrupt { .. }))) = state.time.events.peek() {
            let when = *when;
            self.fire(&mut state, when);
            // What came behind it in its queue is computed, too.
            while let Some(job) = state.time.pending.pop_front() {
                state = self.run(state, job);
            }
        }
        self.notify(&mut state);
    }

    /// Ends the workers; the machine is going away.
    pub(crate) fn stop(&self) {
        self.lock().time.stopping = true;
        self.work.notify_all();
    }
}

/// A thread inside the kernel, holding its lock.
#[derive(Debug)]
pub(crate) struct Call<'k> {
    kernel: &'k Arc<Kernel>,
    /// `None` only while the lock is given up inside a function of this type.
    state: Option<MutexGuard<'k, State>>,
    counted: bool,
}

impl<'k> Call<'k> {
    pub(crate) fn config(&self) -> &'k Config {
        &self.kernel.config
    }

    /// Waits for a channel or a deadline, and says whether it was the channel. Meanwhile it runs
    /// engines that nobody else runs.
    pub(crate) fn wait(&mut self, channel: Channel, deadline: Option<u64>) -> bool {
        let kernel = self.kernel;
        let Some(mut state) = self.state.take() else { return false };
        let id = state.time.serial + 1;
        state.time.serial = id;
        state.time.waiters.push(Waiter { id, channel, deadline, woken: None });
        state.time.active -= 1;
        if state.time.pending.len() > 1 {
            kernel.need_worker(&mut state);
        }
        let signalled = loop {
            if let Some(signalled) = state.time.turn(id) {
                state.time.untold = !state.time.ready.is_empty();
                kernel.notify(&mut state);
                break signalled;
            }
            if let Some(job) = state.time.pending.pop_front() {
                state = kernel.run(state, job);
                continue;
            }
            if kernel.advance(&mut state) {
                continue;
            }
            kernel.notify(&mut state);
            state.time.asleep += 1;
            state = match kernel.sleep_for(&state) {
                Some(time) => {
                    let waited = kernel.wake.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => kernel.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.time.asleep -= 1;
        };
        self.state = Some(state);
        signalled
    }

    /// Sleeps, uninterruptibly.
    pub(crate) fn sleep(&mut self, ns: u64) {
        let until = self.time.now().saturating_add(ns);
        self.wait(Channel::Sleep, Some(until));
    }

    /// On a machine with noise, lets others in: every other time for up to 40 ms.
    pub(crate) fn dawdle(&mut self) {
        let late = self.time.noise(80 * MS);
        if late > 40 * MS {
            self.sleep(late - 40 * MS);
        }
    }

    /// Gives up the lock for the length of `f`; time still stands still.
    pub(crate) fn unlocked<T>(&mut self, f: impl FnOnce() -> T) -> T {
        self.state = None;
        let value = f();
        self.state = Some(self.kernel.lock());
        value
    }
}

impl Kernel {
    /// How long a waiting thread may sleep before it must look at the clock again.
    fn sleep_for(&self, state: &State) -> Option<Duration> {
        if self.config.clock == Clock::Virtual {
            return None;
        }
        let time = &state.time;
        let next = [time.next_event(), time.next_deadline()].into_iter().flatten().min();
        next.map(|when| Duration::from_nanos(when.saturating_sub(time.now)))
    }
}

impl Deref for Call<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        // Present outside the functions above, which put it back before they return.
        self.state.as_ref().expect("the lock is held")
    }
}

impl DerefMut for Call<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("the lock is held")
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Some(state) = self.state.as_mut() else { return };
        if self.counted {
            state.time.active -= 1;
        }
        self.kernel.leave(state);
    }
}

/// A thread that holds the clock between its calls.
#[derive(Debug)]
pub(crate) struct Actor {
    kernel: Arc<Kernel>,
    nested: bool,
    /// What it holds the clock by is the thread's own, so that it may not leave it.
    thread: PhantomData<*const ()>,
}

impl Drop for Actor {
    fn drop(&mut self) {
        if !self.nested {
            ACTOR.set(0);
            let mut state = self.kernel.lock();
            state.time.active -= 1;
            self.kernel.leave(&mut state);
        }
    }
}
