//! What machine is simulated: driver version, kernel options, hardware, modes, faults.

use crate::engine::Engine;
use crate::npu::Npu;
use std::fmt;
use std::sync::Arc;

/// Vendor driver version.
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
    pub const fn code(self) -> u32 {
        let (major, minor, patch) = self.parts();
        major * 10_000 + minor * 100 + patch
    }

    /// Major, minor and patch level.
    pub const fn parts(self) -> (u32, u32, u32) {
        match self {
            Version::V0_8 => (0, 8, 0),
            Version::V0_9_5 => (0, 9, 5),
            Version::V0_9_6 => (0, 9, 6),
            Version::V0_9_7 => (0, 9, 7),
            Version::V0_9_8 => (0, 9, 8),
        }
    }

    /// The date in DRM VERSION. Those of 0.8 is not known; it is left empty there.
    pub const fn date(self) -> &'static str {
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
    pub const fn has_unaligned(self) -> bool {
        matches!(self, Version::V0_9_7 | Version::V0_9_8)
    }

    /// Whether POWER_ON and POWER_OFF are refused, as from 0.9.5 on.
    pub const fn refuses_power(self) -> bool {
        !matches!(self, Version::V0_8)
    }

    /// Whether jobs hold the domain, and a switch waits for them.
    pub const fn counts_domain(self) -> bool {
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// CACHEABLE buffers have a CPU view and a device view, joined by MEM_SYNC only.
    Strict,
    /// One view; syncs are counted and otherwise without effect.
    #[default]
    Fast,
}

/// How the kernel was built with respect to domains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domains {
    /// CONFIG_NO_GKI: 16 domains.
    #[default]
    Real,
    /// Stubs: any id is accepted and ignored, one space for all.
    Stub,
}

/// How the DMA API aligns addresses.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// Each object has its own, so that every use of a stale one is found.
    #[default]
    Unique,
    /// The last one freed comes next, as a slab hands them out: a stale address names another
    /// object.
    Reused,
}

/// Which clock waits go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// When every thread inside the simulator waits, time jumps to the next deadline.
    #[default]
    Virtual,
    /// Waits take their time.
    Real,
}

/// What happens where the real kernel would corrupt memory or oops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnHazard {
    /// It is recorded; a call that would kill its process in the kernel returns EFAULT.
    #[default]
    Record,
    /// It is recorded and the thread panics with the report.
    Panic,
}

/// A range of IOVA that is taken before the first call, as left behind by earlier users.
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
            version: Version::default(),
            mode: Mode::default(),
            iommu: true,
            domains: Domains::default(),
            fences: true,
            sram: 0,
            cma: 256 << 20,
            memory: None,
            alignment: Alignment::default(),
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
