//! `ork check`'s arguments.

use std::path::PathBuf;

use clap::Args;

use super::DeviceArgs;

/// `ork check`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "check", "--device", "sim"]);
/// let Command::Check(args) = cli.command else { panic!() };
/// assert!(!args.risky && args.report.ends_with("ork-check.json"));
/// ```
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Try also what could leave the driver in a state that only a reboot ends.
    #[arg(long)]
    pub risky: bool,
    /// Where the report is written, after each step.
    #[arg(long, value_name = "FILE", default_value = "ork-check.json")]
    pub report: PathBuf,
    /// Longest that a step may take; by default a minute or two, by what it does.
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
    /// Leave this user's profile of the board as it is.
    #[arg(long)]
    pub no_profile: bool,
    /// Show what differs between two reports, and do nothing else.
    #[arg(long, num_args = 2, value_names = ["FILE", "FILE"])]
    pub compare: Option<Vec<PathBuf>>,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// One step, in a process of its own.
    #[arg(long, hide = true, value_name = "STEP")]
    pub step: Option<String>,
}
