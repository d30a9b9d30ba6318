//! Paths that lead into the simulation.

use rknpu_sim::config::Driver;

use crate::text::Text;

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The node of the mainline driver.
    Accel,
    /// `/dev/dri/card1`.
    Card,
    /// `/dev/dri/renderD129`.
    Render,
    /// `/dev/dma_heap/system`.
    Heap,
    /// A text file of the driver.
    Text(Text),
    /// A directory of such places, which the system may have as well.
    Directory,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// `DT_` type.
    pub(crate) kind: u8,
}

/// Major number of DRM devices.
const DRM_MAJOR: u32 = 226;
/// Of accel nodes, as the mainline kernel has it.
const ACCEL: (u32, u32) = (261, 0);
/// Major and minor number that the heap shows.
const HEAP: (u32, u32) = (250, 0);

/// Every simulated path. The numbers are those that RK3588 boards usually show.
const PLACES: [(&str, Place); 30] = [
    ("/dev/accel/accel0", Place::Accel),
    ("/dev/dri/card1", Place::Card),
    ("/dev/dri/renderD129", Place::Render),
    ("/dev/dri/by-path/platform-fdab0000.npu-card", Place::Card),
    ("/dev/dri/by-path/platform-fdab0000.npu-render", Place::Render),
    ("/dev/dma_heap/system", Place::Heap),
    ("/sys/kernel/debug/rknpu/version", Place::Text(Text::Version)),
    ("/sys/kernel/debug/rknpu/load", Place::Text(Text::Load)),
    ("/sys/kernel/debug/rknpu/power", Place::Text(Text::Power)),
    ("/sys/kernel/debug/rknpu/freq", Place::Text(Text::Frequency)),
    ("/sys/kernel/debug/rknpu/volt", Place::Text(Text::Voltage)),
    ("/sys/kernel/debug/rknpu/delayms", Place::Text(Text::Delay)),
    ("/sys/kernel/debug/rknpu/reset", Place::Text(Text::Reset)),
    ("/proc/rknpu/version", Place::Text(Text::Version)),
    ("/proc/rknpu/load", Place::Text(Text::Load)),
    ("/proc/rknpu/power", Place::Text(Text::Power)),
    ("/proc/rknpu/freq", Place::Text(Text::Frequency)),
    ("/proc/rknpu/volt", Place::Text(Text::Voltage)),
    ("/proc/rknpu/delayms", Place::Text(Text::Delay)),
    ("/proc/rknpu/reset", Place::Text(Text::Reset)),
    ("/sys/class/devfreq/fdab0000.npu/load", Place::Text(Text::DevfreqLoad)),
    ("/sys/class/devfreq/fdab0000.npu/cur_freq", Place::Text(Text::Frequency)),
    ("/sys/class/devfreq/fdab0000.npu/min_freq", Place::Text(Text::Frequency)),
    ("/sys/class/devfreq/fdab0000.npu/max_freq", Place::Text(Text::Frequency)),
    ("/sys/class/devfreq/fdab0000.npu/available_frequencies", Place::Text(Text::Frequency)),
    ("/sys/class/devfreq/fdab0000.npu/governor", Place::Text(Text::Governor)),
    ("/sys/class/devfreq/dmc/load", Place::Text(Text::DevfreqLoad)),
    ("/sys/class/devfreq/dmc/governor", Place::Text(Text::MemoryGovernor)),
    ("/proc/device-tree/compatible", Place::Text(Text::Compatible)),
    ("/sys/firmware/devicetree/base/compatible", Place::Text(Text::Compatible)),
];

/// Directories of these places.
const DIRECTORIES: [&str; 9] = [
    "/dev/accel",
    "/dev/dri",
    "/dev/dri/by-path",
    "/dev/dma_heap",
    "/sys/kernel/debug/rknpu",
    "/proc/rknpu",
    "/sys/class/devfreq",
    "/sys/class/devfreq/fdab0000.npu",
    "/sys/class/devfreq/dmc",
];

/// Whether a path is there with a driver: the card and the files under debugfs are the vendor's.
fn is_of(name: &str, driver: Driver) -> bool {
    let rocket = matches!(driver, Driver::Rocket(_));
    let mainline = name.starts_with("/dev/accel");
    let vendor = name.starts_with("/dev/dri") || name.contains("/rknpu");
    if rocket { !vendor } else { !mainline }
}

/// What stands at `path`, if it is simulated. Relative paths never are.
pub(crate) fn find(path: &[u8], driver: Driver) -> Option<Place> {
    let ours = [&b"/dev/d"[..], b"/dev/a", b"/sys/", b"/proc/r", b"/proc/d"];
    if !ours.iter().any(|prefix| path.starts_with(prefix)) {
        return None;
    }
    let mut places = PLACES.iter().filter(|(name, _)| is_of(name, driver));
    let place = places.find(|(name, _)| name.as_bytes() == path).map(|(_, place)| *place);
    let folder = || directory(path).filter(|name| is_of(name, driver)).map(|_| Place::Directory);
    place.or_else(folder)
}

/// The directory that `path` names, with or without a slash at its end.
fn directory(path: &[u8]) -> Option<&'static str> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    DIRECTORIES.into_iter().find(|name| name.as_bytes() == path)
}

/// The entries of the directory at `path`, itself and the one above not among them.
pub(crate) fn entries(path: &[u8], driver: Driver) -> Vec<Entry> {
    let Some(directory) = directory(path) else { return Vec::new() };
    let below = |name: &'static str| {
        let name = Some(name).filter(|name| is_of(name, driver))?;
        let rest = name.strip_prefix(directory)?.strip_prefix('/')?;
        (!rest.contains('/')).then_some(rest)
    };
    let folders = DIRECTORIES.into_iter().filter_map(below);
    let folders = folders.map(|name| Entry { name, kind: libc::DT_DIR });
    let files = PLACES.into_iter().filter_map(|(name, place)| {
        let kind = if place.device().is_some() { libc::DT_CHR } else { libc::DT_REG };
        Some(Entry { name: below(name)?, kind })
    });
    folders.chain(files).collect()
}

impl Place {
    /// Major and minor number of the device; `None` for what is none.
    pub(crate) fn device(self) -> Option<(u32, u32)> {
        match self {
            Place::Accel => Some(ACCEL),
            Place::Card => Some((DRM_MAJOR, 1)),
            Place::Render => Some((DRM_MAJOR, 129)),
            Place::Heap => Some(HEAP),
            Place::Text(_) | Place::Directory => None,
        }
    }

    /// Type and permissions, as stat shows them.
    pub(crate) fn mode(self) -> u32 {
        match self {
            Place::Accel | Place::Card | Place::Render | Place::Heap => libc::S_IFCHR | 0o660,
            Place::Text(_) => libc::S_IFREG | 0o444,
            Place::Directory => libc::S_IFDIR | 0o755,
        }
    }
    /// Makes a stat of whatever stands in for this place one of it.
    pub(crate) fn disguise(self, stat: &mut libc::stat) {
        stat.st_mode = self.mode();
        if let Some((major, minor)) = self.device() {
            stat.st_rdev = libc::makedev(major, minor);
            stat.st_size = 0;
        }
    }
}
