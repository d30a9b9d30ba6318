//! A machine with an NPU, and the files that programs open on it.

mod dma_bufs;
mod file;
mod mapping;

use crate::access::Accesses;
use crate::config::Config;
use crate::fault::Fault;
use crate::fence::FenceInfo;
use crate::files::Node;
use crate::kernel::{Actor, Channel, Event, Kernel, MS};
use crate::report::{CallKind, Report};
use rustix::fd::RawFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

pub use dma_bufs::sync_dma_buf;
pub use file::File;
pub use mapping::{Mapping, Reservation};

/// A machine: one NPU, one driver. Clones are the same machine.
///
/// ```
/// use rknpu_sim::{Config, Machine};
/// use rknpu_sys::{action, uapi::Action};
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// let mut version = Action { flags: action::GET_DRV_VERSION, value: 0 };
/// file.call(&mut version)?;
/// assert_eq!(version.value, 908);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Debug)]
pub struct Machine(Arc<Owned>);

/// The handle whose end ends the workers.
#[derive(Debug)]
struct Owned(Arc<Kernel>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Machine {
    /// A freshly booted machine.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config { sram: 1 << 20, ..Config::default() });
    /// assert_eq!(machine.report().files, 0);
    /// ```
    pub fn new(config: Config) -> Machine {
        Machine(Arc::new(Owned(Kernel::new(config))))
    }

    pub(crate) fn kernel(&self) -> &Arc<Kernel> {
        &self.0.0
    }

    /// What it was made with.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// assert!(Machine::new(Config::default()).config().iommu);
    /// ```
    pub fn config(&self) -> &Config {
        &self.kernel().config
    }

    /// Opens the render node.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// assert_eq!(machine.report().files, 1);
    /// drop(file);
    /// assert_eq!(machine.report().files, 0);
    /// ```
    pub fn open(&self) -> File {
        self.open_node(Node::Render)
    }

    /// Opens a node, as root.
    pub fn open_node(&self, node: Node) -> File {
        self.open_as(node, true)
    }

    /// Opens a node, as root or as somebody else. Whoever opens the card first is its master.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine, Node};
    ///
    /// const SET_MASTER: u32 = 0x641e;
    /// let machine = Machine::new(Config::default());
    /// let (root, other) = (machine.open_node(Node::Card), machine.open_as(Node::Card, false));
    /// root.call_bytes(SET_MASTER, &mut [])?; // it is the master already
    /// assert_eq!(other.call_bytes(SET_MASTER, &mut []), Err(rustix::io::Errno::ACCESS));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn open_as(&self, node: Node, root: bool) -> File {
        let mut call = self.kernel().enter();
        let rocket = crate::rocket::is(call.config());
        let id = call.files.open(if rocket { Node::Accel } else { node }, root);
        if rocket {
            call.rocket.open(id);
        }
        drop(call);
        File::new(self.clone(), id)
    }

    /// What happened so far, and what is held.
    ///
    /// ```
    /// use rknpu_sim::{CallKind, Config, Machine};
    /// use rknpu_sys::uapi::MemCreate;
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// file.call(&mut MemCreate { flags: 0x403, size: 1 << 20, ..Default::default() })?;
    /// let report = machine.report();
    /// assert_eq!(report.calls[&CallKind::MemCreate].ok, 1);
    /// assert_eq!((report.live, report.handles), (1 << 20, 1));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn report(&self) -> Report {
        Report::of(&self.kernel().enter())
    }

    /// From now on, writes down what the cores read and write through the IOMMU, where they do it, up
    /// to `most` entries; 0 ends it.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine, engine::Unit};
    /// use rknpu_sys::uapi::MemCreate;
    ///
    /// let machine = Machine::new(Config::default());
    /// machine.record_accesses(1000);
    /// let file = machine.open();
    /// let mut program = MemCreate { flags: 0x403, size: 4096, ..Default::default() };
    /// file.call(&mut program)?; // all zero: it is fetched, and starts nothing
    /// file.call(&mut rknpu_sim::doc::job(&file, program.dma_addr)?).unwrap_err();
    /// let fetch = machine.take_accesses().list[0];
    /// assert_eq!((fetch.unit, fetch.iova, fetch.len), (Unit::Pc, program.dma_addr, 32 * 8));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn record_accesses(&self, most: usize) {
        self.kernel().recorder.record(most);
    }

    /// Takes what was recorded since the last time.
    pub fn take_accesses(&self) -> Accesses {
        self.kernel().recorder.take()
    }

    /// Lets the NPU model work off, in this thread, what NONBLOCK jobs have to compute, so that it is
    /// known what they touch. They are not complete before their time has passed on the machine's
    /// clock.
    pub fn settle(&self) {
        self.kernel().settle();
    }

    /// Lets the interrupts of all jobs come that are computed, as if somebody had waited for them; jobs that
    /// hang stay.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// # use rknpu_sim::doc::job;
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// let mut job = job(&file, 0)?;
    /// job.flags |= 0x2; // NONBLOCK
    /// file.call(&mut job)?;
    /// machine.finish();
    /// assert_eq!(machine.report().jobs_pending, 1); // its program lies nowhere, so it hangs
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn finish(&self) {
        self.kernel().finish_jobs();
    }

    /// Arms a fault.
    ///
    /// ```
    /// use rknpu_sim::{Config, Fault, Machine};
    /// use rknpu_sys::uapi::MemCreate;
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// // Another process sits in domain 1 for 10 s: a buffer in domain 2 waits its 6 s in vain.
    /// machine.inject(Fault::BusyDomain { domain: 1, for_ms: 10_000 });
    /// let mut create =
    ///     MemCreate { flags: 0x403, size: 4096, iommu_domain_id: 2, ..Default::default() };
    /// assert_eq!(file.call(&mut create), Err(rustix::io::Errno::INVAL));
    /// assert!(machine.now().as_secs() >= 6);
    /// ```
    pub fn inject(&self, fault: Fault) {
        let mut call = self.kernel().enter();
        match fault {
            Fault::BusyDomain { domain, for_ms } => {
                if let Some(Ok(())) = call.try_domain(self.config(), domain) {
                    let until = call.time.now() + u64::from(for_ms) * MS;
                    call.time.at(until, Event::LetGo);
                }
            }
            _ => call.faults.arm(fault),
        }
    }

    /// Of `len` bytes of a program's direct I/O with a mapped buffer, how many an armed fault leaves: all of
    /// them where none is due. For those who see the program's calls: what the host's kernel answers to the
    /// others is what a board's does.
    ///
    /// ```
    /// use rknpu_sim::{CallKind, Config, Fault, Machine};
    /// use rustix::io::Errno;
    ///
    /// let machine = Machine::new(Config::default());
    /// machine.inject(Fault::ShortDirectIo { after: 0, times: 1 });
    /// assert_eq!(machine.direct_io(65536), Ok(32768));
    /// let (kind, errno) = (CallKind::DirectIo, Errno::FAULT);
    /// machine.inject(Fault::Call { kind, after: 0, times: 1, errno });
    /// assert_eq!(machine.direct_io(65536), Err(errno));
    /// assert_eq!(machine.direct_io(65536), Ok(65536));
    /// ```
    ///
    /// # Errors
    /// That of the fault.
    pub fn direct_io(&self, len: usize) -> Result<usize, Errno> {
        let mut call = self.kernel().enter();
        if let Some(errno) = call.faults.call(CallKind::DirectIo) {
            return Err(errno);
        }
        Ok(if call.faults.short_direct_io() { len / 2 / 4096 * 4096 } else { len })
    }

    /// Disarms all faults.
    ///
    /// ```
    /// use rknpu_sim::{CallKind, Config, Fault, Machine};
    /// use rknpu_sys::{action, uapi::Action};
    /// use rustix::io::Errno;
    ///
    /// let machine = Machine::new(Config::default());
    /// machine.inject(Fault::Call { kind: CallKind::Action, after: 0, times: 9, errno: Errno::IO });
    /// machine.clear_faults();
    /// machine.open().call(&mut Action { flags: action::GET_DRV_VERSION, value: 0 })?;
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn clear_faults(&self) {
        self.kernel().enter().faults.clear();
    }

    /// What a fence's descriptor shows, when it is one.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// let fd = machine.foreign_fence()?;
    /// assert!(machine.fence(fd).is_some_and(|fence| !fence.signalled));
    /// assert!(machine.fence(0).is_none()); // standard input
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn fence(&self, fd: RawFd) -> Option<FenceInfo> {
        let call = self.kernel().enter();
        call.fences.info(call.fences.of(fd)?)
    }

    /// Another driver's fence, not signalled: a descriptor that FENCE_IN takes and waits for.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::time::Duration;
    /// # use rustix::io::Errno;
    /// # use rknpu_sim::doc::job;
    /// # use rknpu_sys::uapi::Submit;
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// let fence_fd = machine.foreign_fence()?;
    /// // FENCE_IN: the job waits for the fence as long as its timeout lasts.
    /// let mut waits = Submit { flags: 5 | 8, fence_fd, ..job(&file, 0)? };
    /// assert!(file.call(&mut waits).is_err());
    /// assert!(machine.now() >= Duration::from_millis(100));
    /// # Ok::<(), Errno>(())
    /// ```
    ///
    /// # Errors
    /// What the host says when no descriptor can be had.
    pub fn foreign_fence(&self) -> Result<RawFd, Errno> {
        let mut call = self.kernel().enter();
        let fence = call.fences.add_foreign();
        call.fences.open(fence)
    }

    /// Signals a fence; whether the descriptor is one.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// let fd = machine.foreign_fence()?;
    /// assert!(machine.signal_fence(fd));
    /// assert!(machine.fence(fd).is_some_and(|fence| fence.signalled));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn signal_fence(&self, fd: RawFd) -> bool {
        let mut call = self.kernel().enter();
        let fence = call.fences.of(fd);
        if let Some(fence) = fence {
            call.signal(fence);
        }
        fence.is_some()
    }

    /// Waits on the machine's clock until a fence is signalled, or `timeout` has passed; whether it
    /// was. A descriptor that is no fence is never signalled.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::time::Duration;
    ///
    /// let machine = Machine::new(Config::default());
    /// let fd = machine.foreign_fence()?;
    /// assert!(!machine.wait_fence(fd, Duration::from_secs(60))); // a minute of the machine's clock
    /// machine.signal_fence(fd);
    /// assert!(machine.wait_fence(fd, Duration::ZERO));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn wait_fence(&self, fd: RawFd, timeout: Duration) -> bool {
        let mut call = self.kernel().enter();
        let deadline = call.time.now().saturating_add(nanos(timeout));
        loop {
            let info = call.fences.of(fd).and_then(|fence| call.fences.info(fence));
            if info.is_some_and(|info| info.signalled) {
                return true;
            }
            if call.time.now() >= deadline {
                return false;
            }
            call.wait(Channel::Fence, Some(deadline));
        }
    }

    /// The text of one of the driver's files under debugfs and procfs: `version`, `load`, `power`,
    /// `freq`, `volt`, `delayms`, `reset`, and `mm` where there is SRAM.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// assert_eq!(machine.knob("version").as_deref(), Some("RKNPU driver: v0.9.8\n"));
    /// assert_eq!(machine.knob("mm"), None); // no SRAM
    /// ```
    pub fn knob(&self, name: &str) -> Option<String> {
        self.kernel().enter().knob(self.config(), name)
    }

    /// Lets time pass on the machine's clock.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::time::Duration;
    ///
    /// let machine = Machine::new(Config::default());
    /// machine.sleep(Duration::from_secs(3));
    /// assert_eq!(machine.now(), Duration::from_secs(3));
    /// ```
    pub fn sleep(&self, time: Duration) {
        self.kernel().enter().sleep(nanos(time));
    }

    /// Time since the machine was made, on its own clock.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// assert!(Machine::new(Config::default()).now().is_zero());
    /// ```
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.kernel().enter().time.now())
    }

    /// Waits on the machine's clock as long as `holds` says: it is asked now and after each
    /// [`Machine::notify`]. It is asked inside the machine and must not call it.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use std::time::Duration;
    ///
    /// let (machine, done) = (Machine::new(Config::default()), AtomicBool::new(false));
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         machine.sleep(Duration::from_secs(2));
    ///         done.store(true, Ordering::Relaxed);
    ///         machine.notify();
    ///     });
    ///     machine.wait_while(|| !done.load(Ordering::Relaxed));
    /// });
    /// assert_eq!(machine.now(), Duration::from_secs(2)); // of the machine's clock
    /// ```
    pub fn wait_while(&self, mut holds: impl FnMut() -> bool) {
        let mut call = self.kernel().enter();
        while holds() {
            call.wait(Channel::Notice, None);
        }
    }

    /// Lets every thread in [`Machine::wait_while`] ask again.
    pub fn notify(&self) {
        self.kernel().enter().time.wake(Channel::Notice);
    }

    /// Makes the calling thread one for which the virtual clock waits even between its calls, until
    /// the value is dropped.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    /// use std::time::Duration;
    ///
    /// let machine = Machine::new(Config::default());
    /// let acting = machine.actor();
    /// // Other threads' waits do not end before this thread waits or stops acting.
    /// assert_eq!(machine.now(), Duration::ZERO);
    /// drop(acting);
    /// ```
    pub fn actor(&self) -> Acting {
        Acting { _actor: self.kernel().act() }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// See [`Machine::actor`]. Bound to its thread:
///
/// ```compile_fail,E0277
/// let acting = rknpu_sim::Machine::new(Default::default()).actor();
/// std::thread::spawn(move || drop(acting)); // cannot be sent
/// ```
#[derive(Debug)]
#[must_use = "the thread counts as acting until this is dropped"]
pub struct Acting {
    _actor: Actor,
}

/// Sets the CPU that this thread's calls count as coming from. The kernel keeps freed addresses per
/// CPU; without this every thread counts as CPU 0.
///
/// ```
/// use rknpu_sim::{config::Alignment, iova::Space};
///
/// // What CPU 1 freed, CPU 0 does not find.
/// rknpu_sim::set_cpu(1);
/// let mut space = Space::new(Alignment::PowerOfTwo);
/// let first = space.alloc_aligned(4096, 0).expect("an empty space");
/// space.free_aligned(first, 4096, 1);
/// assert_ne!(space.alloc_aligned(4096, 0), Some(first));
/// ```
pub fn set_cpu(cpu: usize) {
    crate::kernel::set_cpu(cpu);
}
