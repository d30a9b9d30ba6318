//! What a driver can do, as it answers.

use std::fmt;

use crate::driver::{DriverVersion, Spaces};
use crate::error::{Error, Result};
use crate::limits;

/// Which kernel driver it is.
///
/// ```
/// use rknpu::{Device, capabilities::DriverName, sim};
///
/// let driver = sim::config::Driver::Rocket(Default::default());
/// let device = Device::simulated(sim::Config { driver, ..Default::default() })?;
/// assert_eq!(device.capabilities().driver, DriverName::Rocket);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverName {
    /// The vendor's `rknpu`.
    Rknpu,
    /// Mainline's `rocket`, which has no version.
    Rocket,
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DriverName::Rknpu => rknpu_sys::drm::DRIVER_NAME,
            DriverName::Rocket => rknpu_sys::rocket::DRIVER_NAME,
        })
    }
}

/// How many address spaces the driver gives.
///
/// ```
/// use rknpu::{Device, capabilities::Domains, sim};
///
/// let stub = sim::Config { domains: sim::config::Domains::Stub, ..Default::default() };
/// assert_eq!(Device::simulated(stub)?.capabilities().domains, Domains::Stub);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domains {
    /// 16 of 4 GiB each: the driver switches and counts who uses one.
    Real,
    /// 16 of 4 GiB each: every open file has its own, and this process opens as many. There is no switch.
    Files,
    /// One: the driver was built with stubs that accept any index and ignore it.
    Stub,
    /// One: the driver is older than 0.9.8, which alone switches safely, or there is no IOMMU.
    None,
}

impl Domains {
    /// Domains that can be leased.
    ///
    /// ```
    /// use rknpu::capabilities::Domains;
    ///
    /// assert_eq!((Domains::Real.count(), Domains::Stub.count()), (16, 1));
    /// ```
    pub const fn count(self) -> u32 {
        match self {
            Domains::Real | Domains::Files => limits::DOMAINS,
            Domains::Stub | Domains::None => 1,
        }
    }
}

/// What an open device can do.
///
/// Detected when it is opened, by calls without effect, except that a driver with domains is switched to
/// domain 1 and back. What needs a job to find out, the cores and fences, is
/// [`probe::cores`](crate::probe::cores)' business.
///
/// ```
/// use rknpu::{Device, driver::DriverVersion};
///
/// let device = Device::simulated(Default::default())?;
/// let has = device.capabilities();
/// assert_eq!(has.version, DriverVersion::SAFE_DOMAINS);
/// assert!(has.iommu && has.unaligned_iova);
/// assert!(has.to_string().contains("domains  16"));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Where the device is.
    pub node: String,
    /// The driver.
    pub driver: DriverName,
    /// The driver's version; 0.0.0 of one that has none.
    pub version: DriverVersion,
    /// Whether the NPU sits behind an IOMMU.
    pub iommu: bool,
    /// Domains.
    pub domains: Domains,
    /// Address spaces, of which those domains are some.
    pub spaces: Spaces,
    /// Whether addresses are given page by page (0.9.7 and later), not aligned to the size's next power
    /// of two.
    pub unaligned_iova: bool,
    /// Bytes of SRAM in all; 0 where none is configured.
    pub sram_total: u64,
    /// Free bytes of SRAM when the device was opened.
    pub sram_free: u64,
}

impl Capabilities {
    /// Refuses a device that has no more than one domain, for programs that need more.
    ///
    /// ```
    /// use rknpu::{Device, Error, sim};
    ///
    /// let old = sim::Config { version: sim::config::Version::V0_9_7, ..Default::default() };
    /// let error = Device::simulated(old)?.capabilities().require_domains().unwrap_err();
    /// assert!(matches!(error, Error::Unsupported { .. }));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`].
    pub fn require_domains(&self) -> Result<()> {
        if matches!(self.domains, Domains::Real | Domains::Files) {
            return Ok(());
        }
        Err(Error::Unsupported {
            feature: "more than one domain",
            needs: "driver 0.9.8 with an IOMMU, built with CONFIG_NO_GKI",
            has: self.version,
        })
    }
}

impl fmt::Display for Domains {
    /// ```
    /// use rknpu::capabilities::Domains;
    ///
    /// assert_eq!(Domains::Real.to_string(), "the device has 16, numbered from 0");
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domains::Real | Domains::Files => {
                write!(f, "the device has {}, numbered from 0", limits::DOMAINS)
            }
            Domains::Stub => f.write_str(
                "the driver has one, number 0, as its kernel was built without CONFIG_NO_GKI",
            ),
            Domains::None => {
                f.write_str("the driver has one, number 0; more need an IOMMU and driver 0.9.8")
            }
        }
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "node     {}", self.node)?;
        match self.driver {
            DriverName::Rknpu => writeln!(f, "driver   {} {}", self.driver, self.version)?,
            DriverName::Rocket => writeln!(f, "driver   {}", self.driver)?,
        }
        writeln!(
            f,
            "IOMMU    {}",
            if self.iommu { "yes" } else { "no: buffers are physically contiguous" }
        )?;
        let domains = match self.domains {
            Domains::Real => "16 of 4 GiB - 4 KiB each",
            Domains::Files => {
                "16 of 4 GiB - 4 KiB each, an open file for each; none excludes another"
            }
            Domains::Stub => "1 of 4 GiB - 4 KiB (the kernel was built without CONFIG_NO_GKI)",
            Domains::None => "1 (more need an IOMMU and driver 0.9.8)",
        };
        writeln!(f, "domains  {domains}")?;
        let iova = if self.unaligned_iova {
            "by pages"
        } else {
            "aligned to powers of two (page granularity needs 0.9.7)"
        };
        writeln!(f, "IOVA     {iova}")?;
        match self.sram_total {
            0 => write!(f, "SRAM     none"),
            total => write!(f, "SRAM     {total} bytes, {} free", self.sram_free),
        }
    }
}
