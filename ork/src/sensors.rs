//! Loads that the kernel reports: NPU cores and memory.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Files in which kernels report a load, under a root that tests replace.
///
/// ```
/// use ork::sensors::Sensors;
///
/// let nowhere = tempfile::tempdir()?;
/// assert!(Sensors::under(nowhere.path()).is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sensors {
    cores: Option<PathBuf>,
    npu: Option<PathBuf>,
    memory: Option<PathBuf>,
}

/// Loads at one moment, in percent; `None` where the kernel has no such file.
///
/// ```
/// let nothing = ork::sensors::Loads::default();
/// assert_eq!((nothing.cores, nothing.npu), (None, None));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Loads {
    /// Each NPU core, over the driver's last window of one second.
    pub cores: Option<Vec<f64>>,
    /// The NPU as its frequency governor sees it.
    pub npu: Option<f64>,
    /// DDR memory.
    pub memory: Option<f64>,
    /// DDR clock in MHz.
    pub memory_mhz: Option<f64>,
}

impl Sensors {
    /// Finds the files of the machine whose file system is at `root`.
    ///
    /// ```
    /// use ork::sensors::Sensors;
    ///
    /// let root = tempfile::tempdir()?;
    /// let folder = root.path().join("sys/class/devfreq/dmc");
    /// std::fs::create_dir_all(&folder)?;
    /// std::fs::write(folder.join("load"), "13@1560000000Hz\n")?;
    /// let loads = Sensors::under(root.path()).read();
    /// assert_eq!((loads.memory, loads.memory_mhz), (Some(13.0), Some(1560.0)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn under(root: &Path) -> Sensors {
        let devfreq = root.join("sys/class/devfreq");
        let existing = |path: PathBuf| fs::read(&path).is_ok().then_some(path);
        let npu = fs::read_dir(&devfreq).into_iter().flatten().flatten().find_map(|folder| {
            let name = folder.file_name();
            let is_npu = name.to_str().is_some_and(|name| name.ends_with("npu"));
            is_npu.then(|| folder.path().join("load")).and_then(existing)
        });
        // debugfs needs root, procfs does not; kernels are built with either or both.
        let cores = existing(root.join("sys/kernel/debug/rknpu/load"))
            .or_else(|| existing(root.join("proc/rknpu/load")));
        Sensors { cores, npu, memory: existing(devfreq.join("dmc/load")) }
    }

    /// Whether this machine reports anything.
    pub fn is_empty(&self) -> bool {
        self.cores.is_none() && self.npu.is_none() && self.memory.is_none()
    }

    /// Reads all files once.
    pub fn read(&self) -> Loads {
        let text = |path: &Option<PathBuf>| fs::read_to_string(path.as_ref()?).ok();
        let memory = text(&self.memory).and_then(|t| devfreq_load(&t));
        Loads {
            cores: text(&self.cores).and_then(|t| core_loads(&t)),
            npu: text(&self.npu).and_then(|t| devfreq_load(&t)).map(|(load, _)| load),
            memory: memory.map(|(load, _)| load),
            memory_mhz: memory.and_then(|(_, hz)| hz).map(|hz| hz / 1e6),
        }
    }
}

/// `NPU load:  Core0:  0%, Core1: 99%, Core2:  0%,`, or `NPU load:  0%` with a single core: the
/// texts of driver 0.9.8.
fn core_loads(text: &str) -> Option<Vec<f64>> {
    let loads: Option<Vec<f64>> = text
        .trim()
        .strip_prefix("NPU load:")?
        .split(',')
        .map(|part| part.rsplit(':').next().unwrap_or(part).trim())
        .filter(|part| !part.is_empty())
        .map(|part| part.strip_suffix('%')?.trim().parse().ok())
        .collect();
    loads.filter(|loads| !loads.is_empty())
}

/// `NN@FREQHz`, as devfreq drivers of the vendor's kernel print it.
fn devfreq_load(text: &str) -> Option<(f64, Option<f64>)> {
    let (load, clock) = text.trim().split_once('@').unwrap_or((text.trim(), ""));
    Some((load.parse().ok()?, clock.strip_suffix("Hz").and_then(|hz| hz.parse().ok())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_texts_are_read() {
        let three = "NPU load:  Core0:  0%, Core1: 99%, Core2:  7%,\n";
        assert_eq!(core_loads(three), Some(vec![0.0, 99.0, 7.0]));
        assert_eq!(core_loads("NPU load:  42%\n"), Some(vec![42.0]));
        assert_eq!(core_loads("NPU load:\n"), None);
        assert_eq!(core_loads("GPU load: 1%"), None);
        assert_eq!(devfreq_load("13@1560000000Hz\n"), Some((13.0, Some(1.56e9))));
        assert_eq!(devfreq_load("7"), Some((7.0, None)));
        assert_eq!(devfreq_load("?@1Hz"), None);
    }

    #[test]
    fn files_are_found_where_boards_have_them() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(Sensors::under(root.path()).is_empty());
        put("proc/rknpu/load", "NPU load:  Core0:  1%, Core1:  2%, Core2:  3%,\n");
        put("sys/class/devfreq/fdab0000.npu/load", "5@1000000000Hz");
        put("sys/class/devfreq/dmc/load", "2@2112000000Hz");
        let loads = Sensors::under(root.path()).read();
        assert_eq!(loads.cores, Some(vec![1.0, 2.0, 3.0]));
        assert_eq!((loads.npu, loads.memory), (Some(5.0), Some(2.0)));
        assert_eq!(loads.memory_mhz, Some(2112.0));
    }
}
