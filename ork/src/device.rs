//! Which device a command uses.

use std::convert::Infallible;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;

use rknpu::Device;
use rknpu_sim::config::{Driver, Form};

use crate::ending::AtSuddenEnd;
use crate::error::Result;
use crate::output::Report;

/// What a simulated device calls itself, by its driver.
const SIMULATED: [&str; 2] = ["sim", "sim:rocket"];

/// What `--device` asks for.
///
/// ```
/// use ork::device::DeviceChoice;
///
/// assert_eq!("sim".parse(), Ok(DeviceChoice::Simulator(Default::default())));
/// assert_eq!("/dev/dri/card1".parse(), Ok(DeviceChoice::Path("/dev/dri/card1".into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The NPU if this machine has one, otherwise the simulator.
    Auto,
    /// The simulator, with this kernel driver.
    Simulator(Driver),
    /// This device node.
    Path(PathBuf),
}

impl FromStr for DeviceChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<DeviceChoice, Infallible> {
        Ok(match text {
            "auto" => DeviceChoice::Auto,
            "sim" => DeviceChoice::Simulator(Driver::Rknpu),
            "sim:rocket" => DeviceChoice::Simulator(Driver::Rocket(Form::default())),
            path => DeviceChoice::Path(path.into()),
        })
    }
}

impl DeviceChoice {
    /// Opens it. Says on standard error when `auto` comes down to the simulator.
    ///
    /// ```
    /// use ork::device::DeviceChoice;
    /// use ork::output::Report;
    ///
    /// let device = DeviceChoice::Simulator(Default::default()).open(Report { json: false })?;
    /// assert_eq!(device.node(), "sim");
    /// # Ok::<(), ork::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Device`](crate::error::Error::Device): an NPU that is there and cannot be used is an
    /// error, never a reason to simulate it.
    pub fn open(&self, report: Report) -> Result<OpenDevice> {
        let device = self.find(report)?;
        let ending = device.clone();
        Ok(OpenDevice { _ending: AtSuddenEnd::new(move || ending.shut_down())?, device })
    }

    fn find(&self, report: Report) -> Result<Device> {
        let simulated = |driver| {
            Ok(Device::simulated(rknpu_sim::Config { driver, ..rknpu_sim::Config::default() })?)
        };
        match self {
            DeviceChoice::Simulator(driver) => simulated(*driver),
            DeviceChoice::Path(path) => Ok(Device::open_path(path)?),
            DeviceChoice::Auto => match Device::open() {
                Err(rknpu::Error::NoDevice { .. }) => {
                    report.note("note: there is no NPU here, so it is simulated (--device sim does that without looking)");
                    simulated(Driver::default())
                }
                found => Ok(found?),
            },
        }
    }
}

/// Whether a device's NPU is one in software.
pub(crate) fn is_simulated(device: &Device) -> bool {
    SIMULATED.contains(&device.node())
}

/// A device whose buffers go back to the driver when a signal ends the program: space that a killed process
/// leaves in a domain can be lost until a reboot.
#[derive(Debug)]
pub struct OpenDevice {
    _ending: AtSuddenEnd,
    device: Device,
}

impl OpenDevice {
    /// Whether the NPU is one in software.
    pub fn is_simulated(&self) -> bool {
        is_simulated(&self.device)
    }
}

impl Deref for OpenDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}
