//! Texts of the driver's debugfs and procfs files and of devfreq.

use rknpu_sim::Config;

/// A text file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    /// `RKNPU driver: v0.9.8`.
    Version,
    /// Load of each core.
    Load,
    /// Whether the NPU has power.
    Power,
    /// Clock in Hz.
    Frequency,
    /// Supply in microvolts.
    Voltage,
    /// Milliseconds until an idle NPU is switched off.
    Delay,
    /// Whether soft resets are allowed.
    Reset,
    /// devfreq's load.
    DevfreqLoad,
    /// devfreq's governor.
    Governor,
    /// The memory's governor.
    MemoryGovernor,
    /// What the board and its SoC are compatible with, each with a zero byte behind it.
    Compatible,
}

impl Text {
    /// The file's contents now. `busy` says whether a job is under way; a simulated job takes no time
    /// that a load could be measured over.
    pub(crate) fn contents(self, config: &Config, busy: bool) -> String {
        let load = if busy { 100 } else { 0 };
        let hertz = config.hardware.frequency;
        match self {
            Text::Version => format!("RKNPU driver: v{}\n", config.version),
            Text::Load => {
                format!("NPU load:  Core0: {load:2}%, Core1: {load:2}%, Core2: {load:2}%,\n")
            }
            Text::Power => "on\n".to_owned(),
            Text::Frequency => format!("{hertz}\n"),
            Text::Voltage => format!("{}\n", config.hardware.microvolts.unwrap_or(0)),
            Text::Delay => "3000\n".to_owned(),
            Text::Reset => "on\n".to_owned(),
            Text::DevfreqLoad => format!("{load}@{hertz}Hz\n"),
            Text::Governor => "rknpu_ondemand\n".to_owned(),
            Text::MemoryGovernor => "performance\n".to_owned(),
            Text::Compatible => "radxa,rock-5b\0rockchip,rk3588\0".to_owned(),
        }
    }
}
