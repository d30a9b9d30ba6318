//! What machine is simulated: driver version, kernel options, hardware, modes, faults.
//!
//! ```
//! use rknpu_sim::Config;
//! use rknpu_sim::config::{Domains, OnHazard, Taken, Version};
//!
//! // An older driver without domains, 3 GiB of whose window an earlier process has lost.
//! let config = Config {
//!     version: Version::V0_9_7,
//!     domains: Domains::Stub,
//!     taken: vec![Taken { domain: 0, count: 3, bytes: 1 << 30, gap: 0 }],
//!     on_hazard: OnHazard::Panic,
//!     ..Config::default()
//! };
//! assert_eq!(config.version.to_string(), "0.9.7");
//! ```

use crate::engine::Engine;
use crate::npu::Npu;
use std::fmt;
use std::sync::Arc;

/// Vendor driver version.
///
/// ```
/// use rknpu_sim::config::Version;
///
/// assert_eq!(Version::default().to_string(), "0.9.8");
/// assert!(Version::V0_9_5 < Version::V0_9_6);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.8: 40-byte MEM_CREATE, no domains, POWER_ON and POWER_OFF do something.
    V0_8,
    /// 0.9.5 (2024-02-26): 40-byte MEM_CREATE, no domains.
    V0_9_5,
    /// 0.9.6 (2024-03-18): domains, actions 24 and 25; no flag 0x400.
    V0_9_6,
    /// 0.9.7 (2024-04-24): flag 0x400; a domain switches under running jobs.
    V0_9_7,
    /// 0.9.8 (2024-08-28): the domain is counted, a switch waits.
    #[default]
    V0_9_8,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Version; 5] =
        [Version::V0_8, Version::V0_9_5, Version::V0_9_6, Version::V0_9_7, Version::V0_9_8];

    /// What GET_DRV_VERSION returns: major × 10000 + minor × 100 + patch.
    ///
    /// ```
    /// use rknpu_sim::config::Version;
    ///
    /// assert_eq!(Version::V0_9_8.code(), 908);
    /// ```
    pub const fn code(self) -> u32 {
        let (major, minor, patch) = self.parts();
        major * 10_000 + minor * 100 + patch
    }

    /// Major, minor and patch level.
    pub(crate) const fn parts(self) -> (u32, u32, u32) {
        match self {
            Version::V0_8 => (0, 8, 0),
            Version::V0_9_5 => (0, 9, 5),
            Version::V0_9_6 => (0, 9, 6),
            Version::V0_9_7 => (0, 9, 7),
            Version::V0_9_8 => (0, 9, 8),
        }
    }

    /// The date in DRM VERSION. That of 0.8 is not known and left empty.
    pub(crate) const fn date(self) -> &'static str {
        match self {
            Version::V0_8 => "",
            Version::V0_9_5 => "20240226",
            Version::V0_9_6 => "20240318",
            Version::V0_9_7 => "20240424",
            Version::V0_9_8 => "20240828",
        }
    }

    /// Whether MEM_CREATE and SUBMIT carry a domain.
    pub const fn has_domains(self) -> bool {
        matches!(self, Version::V0_9_6 | Version::V0_9_7 | Version::V0_9_8)
    }

    /// Whether the driver knows flag 0x400.
    pub(crate) const fn has_unaligned(self) -> bool {
        matches!(self, Version::V0_9_7 | Version::V0_9_8)
    }

    /// Whether POWER_ON and POWER_OFF are refused, as from 0.9.5 on.
    pub(crate) const fn refuses_power(self) -> bool {
        !matches!(self, Version::V0_8)
    }

    /// Whether jobs hold the domain, and a switch waits for them.
    pub(crate) const fn counts_domain(self) -> bool {
        matches!(self, Version::V0_9_8)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.parts();
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// How memory is modelled.
///
/// A sync that is forgotten, or goes the wrong way, shows in strict mode only.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Mode};
/// use rknpu_sys::uapi::{MemCreate, MemMap, MemSync};
///
/// for (mode, lost) in [(Mode::Fast, 0), (Mode::Strict, 64)] {
///     let machine = Machine::new(Config { mode, ..Config::default() });
///     let file = machine.open();
///     let mut buffer = MemCreate { flags: 0x403, size: 4096, ..Default::default() };
///     file.call(&mut buffer)?;
///     let mut map = MemMap { handle: buffer.handle, ..Default::default() };
///     file.call(&mut map)?;
///     file.mmap(map.offset, 4096)?.write(0, &[7]);
///     // The wrong way round: the line that the CPU wrote to is thrown away.
///     let obj_addr = buffer.obj_addr;
///     file.call(&mut MemSync { flags: 2, obj_addr, size: 4096, ..Default::default() })?;
///     assert_eq!(machine.report().discarded, lost);
/// }
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// CACHEABLE buffers have a CPU view and a device view, joined by MEM_SYNC only.
    Strict,
    /// One view; syncs are counted and otherwise without effect.
    #[default]
    Fast,
}

/// How the kernel was built with respect to domains.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Domains};
/// use rknpu_sys::{action, uapi::Action};
///
/// // How a program tells: after switching to domain 1, which is live?
/// for (domains, live) in [(Domains::Real, 1), (Domains::Stub, 0)] {
///     let file = Machine::new(Config { domains, ..Config::default() }).open();
///     file.call(&mut Action { flags: action::SET_IOMMU_DOMAIN_ID, value: 1 })?;
///     let mut domain = Action { flags: action::GET_IOMMU_DOMAIN_ID, value: 99 };
///     file.call(&mut domain)?;
///     assert_eq!(domain.value, live);
/// }
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domains {
    /// CONFIG_NO_GKI: 16 domains.
    #[default]
    Real,
    /// Stubs: any id is accepted and ignored, one space for all.
    Stub,
}

/// How the DMA API aligns addresses.
///
/// ```
/// use rknpu_sim::{config::Alignment, iova::Space};
///
/// // 3 MiB below a page that is taken.
/// for (alignment, at) in [
///     (Alignment::PowerOfTwo, 0xFFC0_0000),
///     (Alignment::Cap2MiB, 0xFFC0_0000),
///     (Alignment::None, 0xFFCF_F000),
/// ] {
///     let mut space = Space::new(alignment);
///     space.alloc_aligned(4096, 0);
///     assert_eq!(space.alloc_aligned(3 << 20, 0), Some(at));
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// To the next power of two of the size, as mainline does.
    #[default]
    PowerOfTwo,
    /// Likewise, but never beyond 2 MiB (an option of Android-derived kernels).
    Cap2MiB,
    /// To pages.
    None,
}

/// Which addresses `obj_addr` shows.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Addresses};
/// use rknpu_sys::uapi::{MemCreate, MemDestroy};
///
/// let file = Machine::new(Config { addresses: Addresses::Reused, ..Config::default() }).open();
/// let mut first = MemCreate { flags: 0x403, size: 4096, ..Default::default() };
/// let mut second = first;
/// file.call(&mut first)?;
/// file.call(&mut MemDestroy { handle: first.handle, ..Default::default() })?;
/// file.call(&mut second)?;
/// assert_eq!(first.obj_addr, second.obj_addr); // what makes stale addresses hard to find
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Each object has its own, so that every use of a stale one is found.
    #[default]
    Unique,
    /// The last one freed comes next, as a slab hands them out: a stale address names another
    /// object.
    Reused,
}

/// Which kernel driver the machine has.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Driver};
/// use rknpu_sys::rocket::CreateBo;
///
/// let driver = Driver::Rocket(Default::default());
/// let file = Machine::new(Config { driver, ..Config::default() }).open();
/// let mut object = CreateBo { size: 4096, ..Default::default() };
/// file.call(&mut object)?;
/// assert_eq!((object.handle, object.dma_address), (1, 0)); // the first one, at the lowest address
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// The vendor's `rknpu`, of [`Config::version`].
    #[default]
    Rknpu,
    /// Mainline's `rocket`. Of the configuration, what is about domains, versions, SRAM, contiguous memory and
    /// addresses is not looked at.
    Rocket(Form),
}

/// In which form `rocket` is built.
///
/// ```
/// use rknpu_sim::{Config, Hazard, Machine, config::{Driver, Form}};
/// use rknpu_sys::rocket::CreateBo;
///
/// // No address is left: later kernels say so, the first form follows a null pointer.
/// for (form, kills) in [(Form::Later, false), (Form::FirstMerged, true)] {
///     let machine = Machine::new(Config { driver: Driver::Rocket(form), ..Config::default() });
///     let file = machine.open();
///     let object = CreateBo { size: 0x7fff_f000, ..Default::default() };
///     let made = [object; 3].map(|mut object| file.call(&mut object).is_ok());
///     assert_eq!(made, [true, true, false]);
///     assert_eq!(machine.report().hazards[0].hazard.kills(), kills);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As in Linux 7.3.
    #[default]
    Later,
    /// As first merged for 6.18: jobs that are dropped, and creation without an address, are an oops.
    FirstMerged,
}

/// Which clock waits go by.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Clock};
/// use std::time::Duration;
///
/// let machine = Machine::new(Config { clock: Clock::Virtual, ..Config::default() });
/// machine.sleep(Duration::from_secs(3600)); // returns at once
/// assert!(machine.now() >= Duration::from_secs(3600));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// When every thread inside the simulator waits, time jumps to the next deadline.
    #[default]
    Virtual,
    /// Waits take their time.
    Real,
}

/// What happens where the real kernel would corrupt memory or oops.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::OnHazard};
/// use rknpu_sys::uapi::MemSync;
///
/// let file = Machine::new(Config { on_hazard: OnHazard::Record, ..Config::default() }).open();
/// let stale = file.call(&mut MemSync { flags: 1, obj_addr: 0x1234, size: 1, ..Default::default() });
/// assert_eq!(stale, Err(rustix::io::Errno::FAULT));
/// assert_eq!(file.machine().report().hazards.len(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHazard {
    /// It is recorded; a call that would kill its process in the kernel returns EFAULT.
    #[default]
    Record,
    /// It is recorded and the thread panics with the report.
    Panic,
}

/// A range of IOVA that is taken before the first call, as left behind by earlier users.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Taken};
/// use rknpu_sys::uapi::MemCreate;
///
/// // A window in pieces of 1 GiB and a page: no two gigabytes fit any more.
/// let taken = vec![Taken { domain: 0, count: 3, bytes: 4096, gap: 1 << 30 }];
/// let file = Machine::new(Config { taken, ..Config::default() }).open();
/// let mut large = MemCreate { flags: 0x403, size: 2 << 30, ..Default::default() };
/// assert_eq!(file.call(&mut large), Err(rustix::io::Errno::FAULT));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Domain, 0..=15.
    pub domain: u8,
    /// Number of ranges, one below the other.
    pub count: u32,
    /// Bytes of each, rounded up to pages.
    pub bytes: u64,
    /// Bytes left free between one and the next.
    pub gap: u64,
}

/// Figures that the hardware would give.
///
/// ```
/// use rknpu_sim::{Config, Machine, config::Hardware};
/// use rknpu_sys::{action, uapi::Action};
///
/// let hardware = Hardware { frequency: 600_000_000, ..Hardware::default() };
/// let file = Machine::new(Config { hardware, ..Config::default() }).open();
/// let mut clock = Action { flags: action::GET_FREQ, value: 0 };
/// file.call(&mut clock)?;
/// assert_eq!(clock.value, 600_000_000);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// GET_HW_VERSION. The default was read on RK3588 boards by others.
    pub version: u32,
    /// Clock in Hz.
    pub frequency: u32,
    /// Supply in microvolts, `None` where the device tree names none (GET_VOLT then oopses).
    pub microvolts: Option<u32>,
}

impl Default for Hardware {
    fn default() -> Hardware {
        Hardware { version: 0x4649_5245, frequency: 1_000_000_000, microvolts: Some(750_000) }
    }
}

/// A machine's description.
///
/// ```
/// use rknpu_sim::{Config, config::{Mode, Version}};
///
/// let config = Config { mode: Mode::Strict, version: Version::V0_9_7, ..Config::default() };
/// assert_eq!(config.version.code(), 907);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The kernel driver.
    pub driver: Driver,
    /// Driver version.
    pub version: Version,
    /// Memory model.
    pub mode: Mode,
    /// Whether the NPU sits behind its IOMMU.
    pub iommu: bool,
    /// Domain support of the kernel.
    pub domains: Domains,
    /// CONFIG_ROCKCHIP_RKNPU_FENCE.
    pub fences: bool,
    /// SRAM bytes given to the NPU; 0 for none.
    pub sram: u64,
    /// Contiguous memory (CMA) in bytes.
    pub cma: u64,
    /// Memory that buffers may take in all; `None` for no limit. Beyond it MEM_CREATE answers ENOMEM.
    pub memory: Option<u64>,
    /// Alignment of the DMA API.
    pub alignment: Alignment,
    /// The port of the driver to mainline kernels (w568w/rknpu-module): it ignores flag 0x400, and states
    /// no date. What else it does differently is not modelled.
    pub mainline_port: bool,
    /// Address space taken beforehand.
    pub taken: Vec<Taken>,
    /// Object addresses.
    pub addresses: Addresses,
    /// Clock.
    pub clock: Clock,
    /// What a hazard does.
    pub on_hazard: OnHazard,
    /// Freed kernel objects are filled with 0x6b (`slub_debug`).
    pub slab_poison: bool,
    /// The kernel's timer frequency: FENCE_IN takes its timeout in ticks of it.
    pub hz: u32,
    /// Nanoseconds that the reset lines take. With 0 the flag of a reset is cleared before any
    /// waiter has seen it, so that waiters sleep on to their own timeout; both happen on boards.
    pub reset_lines_ns: u64,
    /// A seed for what real machines do in an order of their own: which of several waiters goes on
    /// first, and by how much of a timer tick a timeout is late. `None`: first come first, on time.
    pub noise: Option<u64>,
    /// Hardware figures.
    pub hardware: Hardware,
    /// What executes jobs: the NPU model by default.
    pub engine: Arc<dyn Engine>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            driver: Driver::default(),
            version: Version::default(),
            mode: Mode::default(),
            iommu: true,
            domains: Domains::default(),
            fences: true,
            sram: 0,
            cma: 256 << 20,
            memory: None,
            alignment: Alignment::default(),
            mainline_port: false,
            taken: Vec::new(),
            addresses: Addresses::default(),
            clock: Clock::default(),
            on_hazard: OnHazard::default(),
            slab_poison: false,
            hz: 300,
            reset_lines_ns: 50_000,
            noise: None,
            hardware: Hardware::default(),
            engine: Arc::new(Npu::default()),
        }
    }
}
