//! Resident memory of this process, as Linux counts it.

use std::fs;

/// Measures the peak of resident memory from its creation on.
///
/// ```
/// use ork::memory::PeakRss;
///
/// let peak = PeakRss::start();
/// let buffer = std::hint::black_box(vec![1u8; 8 << 20]);
/// assert!(peak.bytes().is_none_or(|bytes| bytes >= 8 << 20));
/// drop(buffer);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeakRss {
    /// Whether the kernel's high-water mark could be set back.
    reset: bool,
}

impl PeakRss {
    /// Sets the high-water mark back to what is resident now. Where the kernel does not allow that
    /// (it needs CONFIG_PROC_PAGE_MONITOR), peaks are those since the process began.
    ///
    /// ```
    /// # use ork::memory::PeakRss;
    /// let peak = PeakRss::start();
    /// println!("at most {:?} bytes since then", peak.bytes());
    /// ```
    pub fn start() -> PeakRss {
        PeakRss { reset: fs::write("/proc/self/clear_refs", "5").is_ok() }
    }

    /// Whether [`PeakRss::bytes`] counts from [`PeakRss::start`] on.
    pub fn is_exact(self) -> bool {
        self.reset
    }

    /// Most bytes that were resident at once; `None` where /proc does not tell.
    pub fn bytes(self) -> Option<u64> {
        status("VmHWM:")
    }
}

/// Bytes resident now; `None` where /proc does not tell.
///
/// ```
/// assert!(ork::memory::resident().is_none_or(|bytes| bytes > 0));
/// ```
pub fn resident() -> Option<u64> {
    status("VmRSS:")
}

fn status(name: &str) -> Option<u64> {
    field("/proc/self/status", name)
}

fn field(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_seen_and_forgotten() {
        let before = PeakRss::start();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let held = before.bytes().unwrap();
        assert!(held > 64 << 20, "{held}");
        drop(block);
        let after = PeakRss::start();
        assert!(!after.is_exact() || after.bytes().unwrap() < held);
        assert!(resident().unwrap() > 0);
    }
}
