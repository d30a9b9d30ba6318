//! What was found out on this machine's NPU, by `ork check`: kept for all programs that use it.
//!
//! Without a profile the careful defaults hold: those of [`Chains::seen_on_boards`], and what callers have for
//! the rest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rknpu::chains::Chains;
use rknpu::{Device, OpenOptions, Precision};
use serde::{Deserialize, Serialize};

use crate::plan::Speeds;

/// Version of the file's form; others are passed over.
const FORM: u32 = 1;

/// What a chain may hold, as a file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRules {
    /// Weights at most.
    pub weights: u32,
    /// Whether these may lie in several buffers.
    pub buffers: bool,
    /// Whether a chain may go on from one N slice to the next.
    pub n_slices: bool,
}

impl From<Chains> for ChainRules {
    fn from(Chains { weights, buffers, n_slices }: Chains) -> ChainRules {
        ChainRules { weights, buffers, n_slices }
    }
}

impl From<ChainRules> for Chains {
    fn from(ChainRules { weights, buffers, n_slices }: ChainRules) -> Chains {
        Chains { weights, buffers, n_slices }
    }
}

/// What is known of a board.
///
/// ```
/// use ork_cache::profile::Profile;
///
/// let profile = Profile { npu_rows: Some(48), ..Profile::careful("rknpu") };
/// let file = tempfile::NamedTempFile::new()?;
/// profile.save(file.path())?;
/// assert_eq!(Profile::load(file.path())?, Some(profile));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Version of the file's form.
    pub form: u32,
    /// The driver that it was made with, `rknpu` or `rocket`. With another it does not count.
    pub driver: String,
    /// Chains of int8 programs.
    pub int8: ChainRules,
    /// Chains of fp16 programs.
    pub fp16: ChainRules,
    /// Chains of int4 programs.
    pub int4: ChainRules,
    /// From how many rows on the NPU is faster than this CPU.
    pub npu_rows: Option<u32>,
    /// What a submit costs.
    pub submit_seconds: Option<f64>,
    /// Bytes a second that the disk gives to streamed weights.
    pub disk_bytes_per_second: Option<f64>,
}

impl Profile {
    /// What holds as long as nothing is known.
    pub fn careful(driver: impl Into<String>) -> Profile {
        let chains = |precision| Chains::seen_on_boards(precision).into();
        Profile {
            form: FORM,
            driver: driver.into(),
            int8: chains(Precision::Int8),
            fp16: chains(Precision::Fp16),
            int4: chains(Precision::Int4),
            npu_rows: None,
            submit_seconds: None,
            disk_bytes_per_second: None,
        }
    }

    /// Where the profile of an NPU in hardware, or of the simulator, is kept: in the user's folder for settings
    /// (XDG_CONFIG_HOME, or `.config` in HOME). `None` where there is no such folder.
    ///
    /// ```
    /// use ork_cache::profile::Profile;
    ///
    /// let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
    /// let path = Profile::path(false, home);
    /// assert_eq!(path, Some("/home/me/.config/ork/board.json".into()));
    /// ```
    pub fn path(
        simulated: bool,
        variable: impl Fn(&'static str) -> Option<OsString>,
    ) -> Option<PathBuf> {
        let set = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder =
            set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
        let name = if simulated { "simulator.json" } else { "board.json" };
        folder.map(|folder| folder.join("ork").join(name))
    }

    /// Reads one; `None` where there is none, or one of another form.
    ///
    /// # Errors
    /// Those of reading; [`io::ErrorKind::InvalidData`] for a file that is none.
    pub fn load(path: &Path) -> io::Result<Option<Profile>> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let invalid = |error: serde_json::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let value: serde_json::Value = serde_json::from_str(&text).map_err(invalid)?;
        if value["form"] != FORM {
            return Ok(None);
        }
        serde_json::from_value(value).map(Some).map_err(invalid)
    }

    /// Writes it, whole or not at all, and makes its folder.
    ///
    /// # Errors
    /// Those of writing.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let beside = path.with_extension("new");
        fs::write(&beside, serde_json::to_string_pretty(self)? + "\n")?;
        fs::rename(&beside, path)
    }

    /// What a plan's cost is reckoned with; the defaults for what was not measured, or measured as nothing.
    ///
    /// ```
    /// use ork_cache::plan::Speeds;
    /// use ork_cache::profile::Profile;
    ///
    /// let profile = Profile { submit_seconds: Some(200e-6), ..Profile::careful("rknpu") };
    /// assert_eq!(profile.speeds(), Speeds { submit_seconds: 200e-6, ..Speeds::default() });
    /// ```
    pub fn speeds(&self) -> Speeds {
        let measured = |figure: Option<f64>| figure.filter(|f| f.is_finite() && *f > 0.0);
        let Speeds { disk_bytes_per_second, submit_seconds } = Speeds::default();
        Speeds {
            disk_bytes_per_second: measured(self.disk_bytes_per_second)
                .unwrap_or(disk_bytes_per_second),
            submit_seconds: measured(self.submit_seconds).unwrap_or(submit_seconds),
        }
    }

    /// How a device is to be opened.
    pub fn options(&self, options: OpenOptions) -> OpenOptions {
        options
            .chains(Precision::Int8, self.int8.into())
            .chains(Precision::Fp16, self.fp16.into())
            .chains(Precision::Int4, self.int4.into())
    }

    /// This user's profile of an NPU in hardware, or of the simulator. One that can't be read is passed over: then
    /// careful defaults hold, as without it.
    pub fn of_user(simulated: bool) -> Option<Profile> {
        Profile::load(&Profile::path(simulated, std::env::var_os)?).ok().flatten()
    }
}

/// Opens the NPU, at this node or wherever it is found, with these options and what this user's profile has, and
/// gives that: `None` where there is none, or one of another driver.
///
/// # Errors
/// As [`OpenOptions::open`].
pub fn open(
    node: Option<&Path>,
    options: &OpenOptions,
) -> rknpu::Result<(Device, Option<Profile>)> {
    let with = |options: OpenOptions| match node {
        Some(path) => options.open_path(path),
        None => options.open(),
    };
    let Some(profile) = Profile::of_user(false) else {
        return Ok((with(options.clone())?, None));
    };
    let device = with(profile.options(options.clone()))?;
    if device.capabilities().driver.to_string() == profile.driver {
        return Ok((device, Some(profile)));
    }
    // Only now is the driver known; two at a time there can't be.
    drop(device);
    Ok((with(options.clone())?, None))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_profile_is_told_and_another_form_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/board.json");
        assert_eq!(Profile::load(&path).unwrap(), None);
        let none = Chains::NONE.into();
        let profile = Profile { int8: none, ..Profile::careful("rknpu") };
        profile.save(&path).unwrap();
        let loaded = Profile::load(&path).unwrap().unwrap();
        assert_eq!(loaded, profile);
        let options = format!("{:?}", loaded.options(OpenOptions::new()));
        assert!(options.contains("int8: Chains { weights: 1, buffers: false"), "{options}");
        fs::write(&path, "{").unwrap();
        assert_eq!(Profile::load(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(&path, r#"{"form": 2}"#).unwrap();
        assert_eq!(Profile::load(&path).unwrap(), None);
    }
}
