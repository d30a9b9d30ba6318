//! Arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::device::DeviceChoice;
use crate::size::Size;

/// Exit codes, as `ork --help` prints them.
const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  a check failed: outputs differ, a pack is damaged, a recording is not met
  2  wrong arguments, or a budget that cannot work; `ork probe stream`: memory leaked
  3  a file cannot be used: missing, of another kind, damaged, of another model
  4  the NPU cannot be used, or failed

Sizes are bytes, or take K, M, G, KiB, MiB, GiB (powers of 1024) or kB, MB, GB (of 1000).";

/// Runs models larger than the NPU's window on an RK3588.
#[derive(Debug, Parser)]
#[command(name = "ork", version, after_help = AFTER_HELP, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print one JSON document on standard output instead of tables.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a model running through a budget smaller than itself, and that nothing changes by it.
    Demo(DemoArgs),
    /// Show what a pack or a model holds.
    Inspect(InspectArgs),
    /// Check every byte of a pack against its checksums.
    Verify(VerifyArgs),
    /// Compare two packs: entries, codes and scales.
    Diff(DiffArgs),
    /// Take one weight out of a pack as .npy files, or the embedded model skeleton as a GGUF.
    Extract(ExtractArgs),
    /// Rewrite a pack of any version in the present form, without the model.
    Upgrade(UpgradeArgs),
    /// Run every weight of a pack or model through a budget, pass after pass.
    Stream(StreamArgs),
    /// Show NPU load, memory traffic and window use as they are now.
    Top(TopArgs),
}

/// Which device to use.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// auto (the NPU if there is one, otherwise the simulator), sim, or a device node's path.
    #[arg(long, value_name = "auto|sim|PATH", default_value = "auto")]
    pub device: DeviceChoice,
}

/// `ork demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// A GGUF or safetensors model; without one a small Llama-shaped model is made and removed.
    pub model: Option<PathBuf>,
    /// Bytes of packed weights of the model that is made.
    #[arg(long, value_name = "SIZE", default_value = "100MiB", conflicts_with = "model")]
    pub size: Size,
    /// Device memory for weights; by default 40 % of the packed weights.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Rows of activations in each matmul.
    #[arg(long, value_name = "M", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rows: u32,
    /// Passes over the weights.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork inspect`.
#[derive(Args, Clone, Debug)]
pub struct InspectArgs {
    /// A pack or a model.
    pub file: PathBuf,
}

/// `ork verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// The pack.
    pub pack: PathBuf,
    /// Also check that it was made from this model.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
}

/// `ork diff`.
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// One pack.
    pub a: PathBuf,
    /// The other.
    pub b: PathBuf,
}

/// `ork extract`.
#[derive(Args, Clone, Debug)]
pub struct ExtractArgs {
    /// The pack.
    pub pack: PathBuf,
    /// Name of the weight; written as NAME.npy (int8 [N][K]) and NAME.scales.npy (f32).
    #[arg(required_unless_present = "stub")]
    pub weight: Option<String>,
    /// Write the model skeleton that packs of version 6 and later may embed, as a sparse GGUF.
    #[arg(long, conflicts_with = "weight")]
    pub stub: bool,
    /// Folder for the .npy files, or the path of the stub.
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// `ork upgrade`.
#[derive(Args, Clone, Debug)]
pub struct UpgradeArgs {
    /// The pack to read.
    pub pack: PathBuf,
    /// The pack to write; by default the one read is replaced.
    #[arg(short, long, value_name = "PACK")]
    pub output: Option<PathBuf>,
    /// Container version to write.
    #[arg(long, value_name = "2|5|7", default_value_t = 2)]
    pub pack_version: u32,
    /// Overwrite what stands at the output.
    #[arg(long)]
    pub replace: bool,
}

/// `ork stream`.
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
    /// A pack, or a model that is packed while it runs.
    pub file: PathBuf,
    /// Device memory for weights; by default ORK_WCACHE_BUDGET_MB, or 3072 MiB.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Rows of activations in each matmul.
    #[arg(long, value_name = "M", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rows: u32,
    /// Passes over the weights.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Compare every output with the CPU's.
    #[arg(long)]
    pub verify: bool,
    /// Load each weight when it is needed instead of ahead of it.
    #[arg(long)]
    pub no_prefetch: bool,
    /// Write a trace that Perfetto and Chrome (chrome://tracing) show.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Draw the timeline as one self-contained page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Seconds between samples.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Stop after this many samples; without it, at Ctrl-C or when the command ends.
    #[arg(long, value_name = "N")]
    pub samples: Option<u64>,
    /// Write the samples as CSV, and print median and maximum at the end.
    #[arg(long, value_name = "FILE.csv")]
    pub record: Option<PathBuf>,
    /// Command to run while sampling, after --.
    #[arg(last = true)]
    pub run: Vec<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
