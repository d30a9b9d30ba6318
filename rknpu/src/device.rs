//! The NPU: an open driver, and what has been leased of it.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rknpu_sys::layout::Precision;
use rknpu_sys::regs::CORES;

use crate::allocation::ToFree;
use crate::capabilities::Capabilities;
use crate::chains::{ChainRules, Chains};
use crate::cores::{Core, Cores};
use crate::domain::Domain;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::health::{Health, JobFailure, PostMortem, Record, Recovery};
use crate::limits;
use crate::lock::DeviceLock;
use crate::npu_turns::{Entry, Inside, Mode, Stay, Turns, Want};
use crate::open::{self, OpenOptions};

/// What a reset and what it stops need before the NPU takes work again.
const SETTLE: Duration = Duration::from_millis(300);

/// An open NPU; clones are the same.
///
/// Buffers, domains and cores keep it open. It is the one owner of the NPU: opening takes a lock that
/// other processes with this crate respect.
///
/// ```
/// use rknpu::Device;
///
/// let device = Device::simulated(Default::default())?;
/// println!("{}", device.capabilities());
/// assert_eq!(device.capabilities().version.to_string(), "0.9.8");
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    turns: Turns,
    record: Record,
    leases: Mutex<Leases>,
    core_returned: Condvar,
    pool: Mutex<Weak<crate::cores::Pool>>,
    timeout_ms: u32,
    pin: bool,
    chains: ChainRules,
    /// What the last one led to.
    recovery: Mutex<Recovery>,
    /// Memory that the NPU may still write to.
    quarantine: Mutex<Vec<ToFree>>,
    /// Resets so far: a job that failed before one need not ask for another.
    resets: AtomicU64,
    driver: Arc<dyn Driver>,
    /// Last, so that nobody else opens the NPU while the driver still takes things back.
    _lock: Option<DeviceLock>,
}

#[derive(Default)]
struct Leases {
    domains: u32,
    cores: u32,
    /// Those of them that are in the pool that everybody shares.
    pooled: u32,
    /// Those that no job may be run on any more.
    lost: u32,
}

impl Leases {
    fn lease(&mut self, device: &Device, index: u32) -> Domain {
        self.domains |= 1 << index;
        Domain::lease(device.clone(), index)
    }
}

/// Counters of a device.
///
/// ```
/// use rknpu::Device;
///
/// let device = Device::simulated(Default::default())?;
/// let (a, b) = (device.domain(0)?, device.domain(1)?);
/// for domain in [&a, &b, &a] {
///     let _buffer = domain.alloc(4096)?;
/// }
/// let stats = device.stats();
/// assert_eq!((stats.domains, stats.cores, stats.recoveries), (2, 0, 0));
/// assert!(stats.domain_switches >= 2);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Changes of domain.
    pub domain_switches: u64,
    /// Resets of the NPU after a failed job.
    pub recoveries: u64,
    /// Domains leased now.
    pub domains: u32,
    /// Cores leased now.
    pub cores: u32,
}

impl Device {
    /// Opens the NPU, wherever it is: tries every DRM node and takes the one whose driver is `rknpu` or `rocket`.
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what each node answered; otherwise as [`Device::open_path`].
    ///
    /// ```no_run
    /// let device = rknpu::Device::open()?;
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn open() -> Result<Device> {
        OpenOptions::new().open()
    }

    /// Opens the NPU behind one node, such as `/dev/dri/card1`.
    ///
    /// # Errors
    /// [`Error::NoNode`], [`Error::Permission`], [`Error::OtherDriver`], [`Error::Locked`],
    /// [`Error::Open`].
    ///
    /// ```
    /// use rknpu::{Device, Error};
    ///
    /// assert!(matches!(Device::open_path("/dev/dri/card99"), Err(Error::NoNode { .. })));
    /// assert!(matches!(Device::open_path("/dev/null"), Err(Error::OtherDriver { .. })));
    /// ```
    pub fn open_path(path: impl AsRef<Path>) -> Result<Device> {
        OpenOptions::new().open_path(path)
    }

    /// The simulated NPU: a machine of its own in this process, which runs the same register programs.
    ///
    /// ```
    /// use rknpu::{Device, sim::{Config, config::Mode}};
    ///
    /// // Caches as a board has them: what is not synced is not seen.
    /// let device = Device::simulated(Config { mode: Mode::Strict, ..Config::default() })?;
    /// assert_eq!(device.node(), "sim");
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// None with an ordinary configuration; with injected faults, what opening meets.
    #[cfg(feature = "sim")]
    pub fn simulated(config: rknpu_sim::Config) -> Result<Device> {
        Device::simulated_on(&rknpu_sim::Machine::new(config))
    }

    /// A device on a simulated machine that the caller keeps, to look into it or to open it twice.
    ///
    /// ```
    /// use rknpu::{Device, sim::Machine};
    ///
    /// let machine = Machine::new(Default::default());
    /// let device = Device::simulated_on(&machine)?;
    /// let buffer = device.domain(0)?.alloc(1 << 20)?;
    /// assert_eq!(machine.report().live, 1 << 20);
    /// drop(buffer);
    /// assert_eq!(machine.report().live, 0);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Device::simulated`].
    #[cfg(feature = "sim")]
    pub fn simulated_on(machine: &rknpu_sim::Machine) -> Result<Device> {
        Device::with_driver(crate::driver::simulated(machine)?, &OpenOptions::new())
    }

    /// A device on another driver.
    ///
    /// ```
    /// use rknpu::{Device, OpenOptions, driver, sim::Machine};
    ///
    /// let machine = Machine::new(Default::default());
    /// let driver = driver::simulated(&machine)?; // or one of your own, see `Driver`
    /// let device = Device::with_driver(driver, &OpenOptions::new().pin_threads(false))?;
    /// assert_eq!(device.node(), "sim");
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] when the driver would misread the options'.
    pub fn with_driver(driver: Arc<dyn Driver>, options: &OpenOptions) -> Result<Device> {
        Device::new(driver, options, None)
    }

    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        options: &OpenOptions,
        lock: Option<DeviceLock>,
    ) -> Result<Device> {
        Ok(Device(Arc::new(Inner {
            turns: Turns::new(driver.capabilities().spaces.exclusive),
            record: Record::new(),
            leases: Mutex::default(),
            core_returned: Condvar::new(),
            pool: Mutex::default(),
            timeout_ms: open::timeout_ms(options.timeout)?,
            pin: options.pin,
            chains: options.chains,
            recovery: Mutex::new(Recovery::None),
            quarantine: Mutex::default(),
            resets: AtomicU64::new(0),
            driver,
            _lock: lock,
        })))
    }

    /// What this driver can do.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert!(device.capabilities().iommu);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn capabilities(&self) -> &Capabilities {
        self.0.driver.capabilities()
    }

    /// What has gone wrong so far, in particular in `Drop`.
    ///
    /// ```
    /// use rknpu::sim::{CallKind, Fault, Machine};
    ///
    /// let machine = Machine::new(Default::default());
    /// let device = rknpu::Device::simulated_on(&machine)?;
    /// let buffer = device.domain(0)?.alloc(4096)?;
    /// // The driver refuses to take it back, and `Drop` cannot return an error.
    /// let errno = rknpu::Errno::INVAL;
    /// machine.inject(Fault::Call { kind: CallKind::MemDestroy, after: 0, times: 1, errno });
    /// drop(buffer);
    /// let health = device.health();
    /// assert_eq!((health.incidents, health.leaked_bytes), (1, 4096));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn health(&self) -> Health {
        self.0.record.snapshot()
    }

    /// Counters.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let _core = device.core(0)?;
    /// assert_eq!(device.stats().cores, 1);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn stats(&self) -> DeviceStats {
        let leases = self.leases();
        DeviceStats {
            domain_switches: self.0.turns.switches(),
            recoveries: self.0.resets.load(Ordering::Relaxed),
            domains: leases.domains.count_ones(),
            cores: leases.cores.count_ones(),
        }
    }

    /// Where it is: the node's path, or `sim`.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert_eq!(device.node(), "sim"); // on a board, `/dev/dri/renderD129` or the like
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn node(&self) -> &str {
        &self.capabilities().node
    }

    /// Leases a domain.
    ///
    /// # Errors
    /// [`Error::NoDomain`], [`Error::DomainLeased`].
    ///
    /// ```
    /// use rknpu::{Device, Error};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let first = device.domain(5)?;
    /// assert!(matches!(device.domain(5), Err(Error::DomainLeased { index: 5 })));
    /// drop(first);
    /// assert!(device.domain(5).is_ok());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn domain(&self, index: u32) -> Result<Domain> {
        let domains = self.capabilities().domains;
        if index >= domains.count() {
            return Err(Error::NoDomain { index, domains });
        }
        let mut leases = self.leases();
        if leases.domains & 1 << index != 0 {
            return Err(Error::DomainLeased { index });
        }
        Ok(leases.lease(self, index))
    }

    /// Leases the free domain with the lowest index.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let zero = device.domain(0)?;
    /// assert_eq!(device.new_domain()?.index(), 1);
    /// drop(zero);
    /// assert_eq!(device.new_domain()?.index(), 0);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DomainsExhausted`].
    pub fn new_domain(&self) -> Result<Domain> {
        let domains = self.capabilities().domains;
        let mut leases = self.leases();
        let index = leases.domains.trailing_ones();
        if index >= domains.count() {
            return Err(Error::DomainsExhausted { domains });
        }
        Ok(leases.lease(self, index))
    }

    /// Leases a core.
    ///
    /// # Errors
    /// [`Error::NoCore`], [`Error::CoreLeased`], [`Error::CoreLost`].
    ///
    /// ```
    /// use rknpu::{Device, Error};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let core = device.core(1)?;
    /// assert!(matches!(device.core(1), Err(Error::CoreLeased { core: 1 })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn core(&self, core: u32) -> Result<Core> {
        if core as usize >= CORES {
            return Err(Error::NoCore { core, cores: CORES as u32 });
        }
        let mut leases = self.leases();
        if leases.lost & 1 << core != 0 {
            return Err(Error::CoreLost { core });
        }
        if leases.cores & 1 << core != 0 {
            return Err(Error::CoreLeased { core });
        }
        leases.cores |= 1 << core;
        Ok(Core::lease(self.clone(), core))
    }

    /// All cores as one pool, which every caller shares as long as one of them keeps it. A pool whose
    /// last holder is just letting it go is waited for.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let mine = device.cores()?;
    /// let yours = device.cores()?; // the same three
    /// assert!(device.core(0).is_err());
    /// # drop((mine, yours));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::CoreLeased`] when a core is leased on its own; [`Error::NoCore`] when every core is lost.
    pub fn cores(&self) -> Result<Cores> {
        let mut pool = self.0.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pool.upgrade() {
            return Ok(Cores::from_pool(pool));
        }
        let mut leases = self.leases();
        while leases.pooled != 0 {
            // Nobody holds that pool any more: whoever did is giving its cores back.
            let returned = self.0.core_returned.wait(leases);
            leases = returned.unwrap_or_else(PoisonError::into_inner);
        }
        drop(leases);
        let cores = (0..CORES as u32).map(|core| self.core(core));
        let working = cores.filter(|core| !matches!(core, Err(Error::CoreLost { .. })));
        let cores = working.collect::<Result<Vec<_>>>()?;
        let cores = Cores::new(cores)?;
        let mut leases = self.leases();
        leases.pooled = leases.cores;
        drop(leases);
        *pool = cores.downgrade();
        Ok(cores)
    }

    /// Whether both are the same open device.
    pub(crate) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.0.driver
    }

    pub(crate) fn share_driver(&self) -> Arc<dyn Driver> {
        Arc::clone(&self.0.driver)
    }

    pub(crate) fn record(&self) -> &Record {
        &self.0.record
    }

    /// What a chain of programs may hold.
    pub(crate) fn chains(&self, precision: Precision) -> &Chains {
        self.0.chains.of(precision)
    }

    /// Cores that work in a domain at a time: more would wait for each other.
    pub(crate) fn cores_in_a_domain(&self) -> usize {
        self.capabilities().spaces.cores.max(1) as usize
    }

    pub(crate) fn timeout_ms(&self) -> u32 {
        self.0.timeout_ms
    }

    pub(crate) fn pins_threads(&self) -> bool {
        self.0.pin
    }

    pub(crate) fn resets(&self) -> u64 {
        self.0.resets.load(Ordering::Acquire)
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.0.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn return_domain(&self, index: u32) {
        self.leases().domains &= !(1 << index);
    }

    pub(crate) fn return_core(&self, core: u32, lost: bool) {
        let mut leases = self.leases();
        leases.lost |= u32::from(lost) << core;
        leases.cores &= !(1 << core);
        leases.pooled &= !(1 << core);
        drop(leases);
        self.0.core_returned.notify_all();
    }

    /// An error when the NPU is wedged.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.0.record.is_wedged() {
            return Ok(());
        }
        match self.health().wedged {
            Some(report) => Err(Error::Wedged(report)),
            None => Ok(()),
        }
    }

    /// Enters a domain for one call on memory.
    pub(crate) fn enter_for_memory(&self, domain: u32) -> Result<Entered> {
        self.enter(domain, None, Stay::Work, true)
    }

    /// Enters a domain for jobs; `bound` to this thread unless it outlives the caller.
    pub(crate) fn enter_for_jobs(
        &self,
        domain: u32,
        precision: Precision,
        bound: bool,
    ) -> Result<Entered> {
        let mode = match precision {
            Precision::Int8 | Precision::Fp16 => Mode::Wide,
            Precision::Int4 => Mode::Int4,
        };
        self.check()?;
        self.enter(domain, Some(mode), Stay::Work, bound)
    }

    /// Keeps a domain active without working in it.
    pub(crate) fn hold(&self, domain: u32) -> Result<Entered> {
        self.check()?;
        self.enter(domain, None, Stay::Hold, true)
    }

    fn enter(&self, domain: u32, mode: Option<Mode>, stay: Stay, bound: bool) -> Result<Entered> {
        let caller = thread::current().id();
        let inside = Inside { thread: bound.then_some(caller), stay };
        let entry = self
            .0
            .turns
            .enter(Want { domain, mode }, caller, inside)
            .map_err(|busy| Error::DomainBusy { active: busy.active, wanted: domain })?;
        let entered = Entered { device: self.clone(), inside };
        if let Entry::Prepare { reset } = entry {
            self.0.driver.pause(limits::SWITCH_SETTLE);
            if !reset {
                self.0.turns.prepared(None);
                return Ok(entered);
            }
            // The first int8 job of a cold NPU, and a change to or from int4, hang without it.
            let reset = self.0.driver.reset();
            self.0.turns.prepared(Some(mode.filter(|_| reset.is_ok())));
            reset.map_err(|refused| refused.on(domain, 0))?;
        }
        Ok(entered)
    }

    /// Frees memory now, or when no other domain is active.
    pub(crate) fn free(&self, to_free: ToFree) {
        if self.0.record.is_wedged() {
            return self.quarantine(to_free);
        }
        let inside = Inside { thread: Some(thread::current().id()), stay: Stay::Work };
        let domain = to_free.domain().index();
        if let Some(to_free) = self.0.turns.enter_or_keep(domain, inside, to_free) {
            to_free.free_or_record();
            self.leave(inside);
        }
    }

    fn leave(&self, inside: Inside) {
        let mut to_free = self.0.turns.leave(inside);
        while !to_free.is_empty() {
            for memory in to_free {
                if self.0.record.is_wedged() {
                    self.quarantine(memory);
                } else {
                    memory.free_or_record();
                }
            }
            to_free = self.0.turns.freed();
        }
    }

    /// Keeps memory that the NPU may still write to, until a reset succeeds.
    fn quarantine(&self, memory: ToFree) {
        self.0.record.quarantined(memory.bytes());
        self.0.quarantine.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
    }

    /// Resets an NPU that is wedged once more. When that helps, it takes work again, and what was kept from
    /// it is freed. An NPU that is not wedged is left alone.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// device.reset()?; // nothing to do
    /// assert_eq!(device.stats().recoveries, 0);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Wedged`]: it did not help.
    pub fn reset(&self) -> Result<()> {
        let Err(Error::Wedged(report)) = self.check() else { return Ok(()) };
        let recovery = self.recover(self.resets());
        if recovery != Recovery::Reset {
            return Err(Error::Wedged(Box::new(PostMortem { recovery, ..*report })));
        }
        self.0.record.unwedge();
        let kept =
            std::mem::take(&mut *self.0.quarantine.lock().unwrap_or_else(PoisonError::into_inner));
        kept.into_iter().for_each(|memory| self.free(memory));
        Ok(())
    }

    /// Brings the NPU back after a job that failed and whose owner is gone.
    pub(crate) fn abandon(&self, failure: &JobFailure, seen: u64) {
        let report = PostMortem { recovery: self.recover(seen), ..failure.report(self, None) };
        self.record().failed(&report);
        if report.recovery != Recovery::Reset {
            self.record().wedge(&report);
        }
    }

    /// Brings the NPU back after a failed job: waits until nothing of this process runs, resets, and sees
    /// whether domains still switch. `seen` is [`Device::resets`] from before the job: when somebody
    /// else has recovered since, that was enough. The caller works in no domain.
    pub(crate) fn recover(&self, seen: u64) -> Recovery {
        let mut last = self.0.recovery.lock().unwrap_or_else(PoisonError::into_inner);
        if self.resets() != seen {
            return *last;
        }
        self.0.turns.close();
        let recovery = self.reset_now();
        *last = recovery;
        self.0.resets.fetch_add(1, Ordering::Release);
        self.0.turns.prepared(Some(None));
        recovery
    }

    /// Gives every live buffer back to the driver, domain by domain, when nothing runs any more: for a process
    /// that is about to end without dropping them. What uses the device afterwards waits for ever.
    /// [`clean_up_on_signals`](crate::cleanup::clean_up_on_signals) does it when a signal comes.
    ///
    /// ```
    /// use rknpu::{Device, sim::Machine};
    ///
    /// let machine = Machine::new(Default::default());
    /// let device = Device::simulated_on(&machine)?;
    /// let buffer = device.domain(3)?.alloc(4096)?;
    /// device.shut_down();
    /// assert_eq!(machine.report().handles, 0);
    /// std::mem::forget(buffer); // the process ends
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn shut_down(&self) {
        self.0.turns.close();
        if self.0.record.is_wedged() {
            return;
        }
        for (domain, bytes, refused) in self.0.driver.shut_down() {
            self.0.record.incident(refused.call, domain, bytes, refused.errno);
        }
    }

    fn reset_now(&self) -> Recovery {
        let driver = &*self.0.driver;
        // The driver's own abort and reset take 200 ms; a job that ends meanwhile is harmless then.
        driver.pause(SETTLE);
        if let Err(refused) = driver.reset() {
            return Recovery::ResetFailed(refused.errno);
        }
        driver.pause(SETTLE);
        match driver.check_spaces() {
            Ok(()) => Recovery::Reset,
            Err(refused) => Recovery::DomainsStuck(refused.errno),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("node", &self.node())
            .field("capabilities", self.capabilities())
            .field("stats", &self.stats())
            .finish()
    }
}

/// A place inside a domain.
pub(crate) struct Entered {
    device: Device,
    inside: Inside,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.device.leave(self.inside);
    }
}
