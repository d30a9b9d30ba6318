//! The driver's text files under debugfs and procfs.

use crate::config::Config;
use crate::hazard::Hazard;
use crate::job::CORES;
use crate::state::State;

/// How long an idle NPU keeps its power.
const POWER_OFF_DELAY: u64 = 3_000_000_000;
/// Window of the `load` file.
const WINDOW: u64 = 1_000_000_000;

/// How long a core was busy, per window of a second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Start of the current window.
    start: u64,
    /// Busy nanoseconds in it so far, those of a job that still runs excluded.
    busy: u64,
    /// Busy nanoseconds of the window before.
    last: u64,
    /// Since when a job holds the core.
    since: Option<u64>,
}

impl Load {
    /// A job gets the core.
    pub(crate) fn begin(&mut self, now: u64) {
        self.roll(now);
        self.since = Some(now);
    }

    /// A job gives the core up.
    pub(crate) fn end(&mut self, now: u64) {
        self.roll(now);
        if let Some(since) = self.since.take() {
            self.busy += now - since;
        }
    }

    fn roll(&mut self, now: u64) {
        let windows = (now - self.start) / WINDOW;
        if windows == 0 {
            return;
        }
        let end = self.start + WINDOW;
        let running = self.since.map_or(0, |since| end - since);
        self.last = if windows == 1 { self.busy + running } else { 0 };
        self.start += windows * WINDOW;
        self.busy = 0;
        if let Some(since) = &mut self.since {
            *since = self.start;
            if windows > 1 {
                self.last = WINDOW;
            }
        }
    }

    /// Per cent of the last whole window.
    fn percent(&mut self, now: u64) -> u64 {
        self.roll(now);
        (self.last * 100 / WINDOW).min(100)
    }
}

impl State {
    /// Whether the NPU has power: from the first call on, until it has been idle for a while. A call
    /// in which the kernel would have died never lets go of it.
    fn has_power(&self) -> bool {
        let busy = self.cores.iter().any(|core| core.slot.is_some());
        let held = self.report.hazards.keys().any(Hazard::kills);
        let recent = |at| self.time.now() < at + POWER_OFF_DELAY;
        busy || held || self.powered_ns.is_some_and(recent)
    }

    /// A file's text: `version`, `load`, `power`, `freq`, `volt`, `delayms`, `reset`, and `mm` where
    /// there is SRAM.
    pub(crate) fn knob(&mut self, config: &Config, name: &str) -> Option<String> {
        Some(match name {
            "version" => format!("RKNPU driver: v{}\n", config.version),
            "load" => {
                let now = self.time.now();
                let core = |core: usize| {
                    format!(" Core{core}: {:2}%,", self.cores[core].load.percent(now))
                };
                format!("NPU load: {}\n", (0..CORES).map(core).collect::<String>())
            }
            "power" => if self.has_power() { "on\n" } else { "off\n" }.into(),
            "freq" => format!("{}\n", config.hardware.frequency),
            "volt" => format!("{}\n", config.hardware.microvolts?),
            "delayms" => "3000\n".into(),
            // Whether soft resets are allowed, not whether one is under way.
            "reset" => "on\n".into(),
            "mm" if self.sram.total() > 0 => self.sram.text(),
            _ => return None,
        })
    }
}
