//! Which device a command uses.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use ork_cache::profile::{self, Profile};
use ork_linear::NPU_ROWS;
use rknpu::{Device, OpenOptions};
use rknpu_sim::config::{Driver, Form};
use rknpu_sim::npu::Npu;
use rknpu_sim::otherwise::{Disbelieved, Otherwise};
use rknpu_sim::{Config, Machine};

use crate::cli::KEEP;
use crate::ending::AtSuddenEnd;
use crate::error::{Error, Result};
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
    /// The simulator.
    Simulator(Simulated),
    /// This device node.
    Path(PathBuf),
}

/// A simulated board.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Its kernel driver.
    pub driver: Driver,
    /// What is not on it as it is believed of boards, for tests of what finds that out.
    pub otherwise: Vec<Otherwise>,
}

impl Simulated {
    /// Behind `sim:`, names with commas between them: `rocket`, or something that is otherwise.
    fn parse(text: &str) -> Option<Simulated> {
        let mut board = Simulated::default();
        for name in text.split(',') {
            match name {
                "rocket" => board.driver = Driver::Rocket(Form::default()),
                name => board.otherwise.push(name.parse().ok()?),
            }
        }
        Some(board)
    }

    fn config(&self) -> Config {
        let mut config = Config { driver: self.driver, ..Config::default() };
        if !self.otherwise.is_empty() {
            config.engine = Arc::new(Disbelieved::new(Npu::default(), self.otherwise.clone()));
        }
        config
    }

    fn open(&self, options: Option<&OpenOptions>) -> Result<(Device, Option<Profile>)> {
        let driver = rknpu::driver::simulated(&Machine::new(self.config()))?;
        let name = driver.capabilities().driver.to_string();
        let profile = match options {
            Some(_) => None,
            None => Profile::of_user(true).filter(|profile| profile.driver == name),
        };
        let options = options.cloned().unwrap_or_default();
        let options = profile.iter().fold(options, |options, profile| profile.options(options));
        Ok((Device::with_driver(driver, &options)?, profile))
    }
}

impl fmt::Display for DeviceChoice {
    /// As it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Path(path) => path.display().fmt(f),
            DeviceChoice::Simulator(board) => {
                let rocket = matches!(board.driver, Driver::Rocket(_)).then(|| "rocket".to_owned());
                let names = board.otherwise.iter().map(Otherwise::to_string);
                let names: Vec<String> = rocket.into_iter().chain(names).collect();
                let colon = if names.is_empty() { "" } else { ":" };
                write!(f, "sim{colon}{}", names.join(","))
            }
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        Ok(match text {
            "auto" => DeviceChoice::Auto,
            "sim" => DeviceChoice::Simulator(Simulated::default()),
            other => match other.strip_prefix("sim:") {
                Some(names) => match Simulated::parse(names) {
                    Some(board) => DeviceChoice::Simulator(board),
                    None => {
                        let names = Otherwise::ALL.map(|one| one.to_string()).join(", ");
                        return Err(format!(
                            "behind sim: are rocket, and what is otherwise on a board: {names}"
                        ));
                    }
                },
                None => DeviceChoice::Path(other.into()),
            },
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
    /// [`Error::Device`]: an NPU that is there and cannot be used is an
    /// error, never a reason to simulate it.
    pub fn open(&self, report: Report) -> Result<OpenDevice> {
        OpenDevice::new(self.find(report, None)?)
    }

    /// Opens it with these options, whatever this user's profile of the board says.
    pub(crate) fn open_with(&self, report: Report, options: &OpenOptions) -> Result<OpenDevice> {
        OpenDevice::new(self.find(report, Some(options))?)
    }

    fn find(
        &self,
        report: Report,
        options: Option<&OpenOptions>,
    ) -> Result<(Device, Option<Profile>)> {
        let npu = |path: Option<&Path>| match (options, path) {
            (None, path) => profile::open(path, &kept(OpenOptions::new())),
            (Some(options), Some(path)) => Ok((kept(options.clone()).open_path(path)?, None)),
            (Some(options), None) => Ok((kept(options.clone()).open()?, None)),
        };
        match self {
            DeviceChoice::Simulator(board) => board.open(options),
            DeviceChoice::Path(path) => npu(Some(path)).map_err(|error| {
                let reason = match error {
                    rknpu::Error::NoNode { .. } => "does not exist".into(),
                    rknpu::Error::OtherDriver { driver, .. } => {
                        format!("is no NPU's node: {driver}")
                    }
                    error => return error.into(),
                };
                Error::Node { path: path.clone(), reason }
            }),
            DeviceChoice::Auto => match npu(None) {
                Err(rknpu::Error::NoDevice { .. }) => {
                    report.note("note: there is no NPU here, so it is simulated (--device sim does that without looking)");
                    Simulated::default().open(options)
                }
                found => Ok(found?),
            },
        }
    }
}

/// With the mainline driver another process of this program holds its files: a kill then ends clean.
fn kept(options: OpenOptions) -> OpenOptions {
    match std::env::current_exe() {
        // Not where the library is used in another program, which has no such command.
        Ok(this) if this.file_stem().is_some_and(|name| name == "ork") => {
            options.keeper(this, [KEEP])
        }
        _ => options,
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
    profile: Option<Profile>,
}

impl OpenDevice {
    fn new((device, profile): (Device, Option<Profile>)) -> Result<OpenDevice> {
        let ending = device.clone();
        Ok(OpenDevice { _ending: AtSuddenEnd::new(move || ending.shut_down())?, device, profile })
    }

    /// From how many rows on the NPU is to compute: what this user's profile of the board says, if there is one.
    pub fn npu_rows(&self) -> usize {
        let rows = self.profile.as_ref().and_then(|profile| profile.npu_rows);
        rows.map_or(NPU_ROWS, |rows| rows.max(1) as usize)
    }

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
