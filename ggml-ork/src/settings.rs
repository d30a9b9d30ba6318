//! What the environment asks for.

use std::ffi::OsString;
use std::path::PathBuf;

use ork_cache::environment::{BadSetting, Environment};
use ork_cache::profile::Profile;
use ork_linear::{Depth, NPU_ROWS, packs_on_the_way};
use ork_weights::quantise::Tier;
use rknpu_sim::config::{Driver, Form};

/// Settings of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Those that `ork` has, too.
    pub environment: Environment,
    /// `ORK_DEVICE`.
    pub device: DeviceChoice,
    /// `ORK_MIN_ROWS`: from how many rows on products are taken.
    pub min_rows: usize,
    /// `ORK_CORES`: cores of the NPU at most.
    pub cores: usize,
    /// `ORK_ACTIVATIONS`: 8 or 16 bits for each value.
    pub depth: Depth,
    /// `ORK_TIER`: the form of weights that are not in a pack.
    pub tier: Tier,
    /// `ORK_LOG`: what happens goes to standard error, too.
    pub verbose: bool,
    /// `ORK_RPC`: a second device for llama.cpp's RPC server, which takes whole graphs.
    pub rpc: bool,
    /// `ORK_TAKE_ALL`: products of any size with any tensor are taken, for tests of ggml's.
    pub take_all: bool,
}

/// What `ORK_DEVICE` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The NPU if this machine has one, otherwise the simulator.
    Auto,
    /// The simulator, as one of the drivers.
    Simulator(Driver),
    /// This device node.
    Path(PathBuf),
}

impl Settings {
    /// Settings from any source of variables. Empty values count as unset.
    ///
    /// ```
    /// use ggml_ork::Settings;
    ///
    /// let settings = Settings::from_lookup(|name| (name == "ORK_MIN_ROWS").then(|| "8".into()))?;
    /// assert_eq!(settings.min_rows, 8);
    /// assert!(Settings::from_lookup(|name| (name == "ORK_TIER").then(|| "int3".into())).is_err());
    /// # Ok::<(), ork_cache::environment::BadSetting>(())
    /// ```
    ///
    /// # Errors
    /// The first variable whose value means nothing.
    pub fn from_lookup(
        lookup: impl Fn(&'static str) -> Option<OsString>,
    ) -> Result<Settings, BadSetting> {
        let environment = Environment::from_lookup(&lookup)?;
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        let device = match set("ORK_DEVICE") {
            None => DeviceChoice::Auto,
            Some(value) if value == "auto" => DeviceChoice::Auto,
            Some(value) if value == "sim" => DeviceChoice::Simulator(Driver::Rknpu),
            Some(value) if value == "sim:rocket" => {
                DeviceChoice::Simulator(Driver::Rocket(Form::default()))
            }
            Some(path) => DeviceChoice::Path(path.into()),
        };
        let min_rows = parse(set("ORK_MIN_ROWS"), "ORK_MIN_ROWS", "a number above 0", |text| {
            text.parse().ok().filter(|rows| *rows > 0)
        })?;
        let cores = parse(set("ORK_CORES"), "ORK_CORES", "a number above 0", |text| {
            text.parse().ok().filter(|cores| *cores > 0)
        })?;
        let depth =
            parse(set("ORK_ACTIVATIONS"), "ORK_ACTIVATIONS", "8 or 16", |text| text.parse().ok())?;
        let expected = "int8, rotated-int8 or fp16";
        let tier = parse(set("ORK_TIER"), "ORK_TIER", expected, |text| {
            let tier = text.parse::<Tier>().ok()?;
            packs_on_the_way(tier).then_some(tier)
        })?;
        let flag = |name| {
            let value = parse(set(name), name, "1 (yes) or 0 (no)", |text| match text {
                "1" => Some(true),
                "0" => Some(false),
                _ => None,
            });
            value.map(|value| value.unwrap_or(false))
        };
        Ok(Settings {
            environment,
            device,
            min_rows: min_rows.or_else(|| profile(&lookup)).unwrap_or(NPU_ROWS),
            cores: cores.unwrap_or(usize::MAX),
            depth: depth.unwrap_or(Depth::Bits16),
            tier: tier.unwrap_or_default(),
            verbose: flag("ORK_LOG")?,
            rpc: flag("ORK_RPC")?,
            take_all: flag("ORK_TAKE_ALL")?,
        })
    }
}

/// What this user's profile of the board says.
fn profile(lookup: impl Fn(&'static str) -> Option<OsString>) -> Option<usize> {
    let profile = Profile::load(&Profile::path(false, lookup)?).ok().flatten()?;
    profile.npu_rows.map(|rows| rows.max(1) as usize)
}

fn parse<T>(
    value: Option<OsString>,
    name: &'static str,
    expected: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, BadSetting> {
    let Some(value) = value else { return Ok(None) };
    let parsed = value.to_str().and_then(|text| read(text.trim()));
    parsed.map(Some).ok_or(BadSetting { name, value, expected })
}
