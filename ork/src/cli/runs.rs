//! Commands that run models, plan runs, and watch them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ork_cache::Access;

use super::DeviceArgs;
use crate::size::Size;

/// `ork demo`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "demo", "--size", "1GiB"]);
/// let Command::Demo(args) = cli.command else { panic!() };
/// assert_eq!((args.size.map(|size| size.0), args.rows, args.passes), (Some(1 << 30), 32, 2));
/// ```
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// A GGUF model that writes; without one, a small model that writes stories.
    pub model: Option<PathBuf>,
    /// What it goes on from.
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Tokens that are written at most; by default 300 of a story and 48 of a model.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// How far from the most likely words it may go; 0 takes the most likely every time.
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    pub temperature: f32,
    /// Another seed, another story.
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub seed: u64,
    /// A model that proposes tokens, of the vocabulary of MODEL; without it, what the text repeats does.
    #[arg(long, value_name = "MODEL", requires = "model")]
    pub draft: Option<PathBuf>,
    /// Device memory for weights and scratch, by default a part of what all weights take.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// No text, but made-up activations times so many bytes of made-up weights.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["model", "prompt", "max_tokens", "temperature", "seed"])]
    pub size: Option<Size>,
    /// With --size: rows of activations in each matmul.
    #[arg(long, value_name = "M", default_value_t = 32, requires = "size", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rows: u32,
    /// With --size: passes over the weights.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "size", value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork bench`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "bench", "m.orkpack", "--budget", "2GiB"]);
/// let Command::Bench(args) = cli.command else { panic!() };
/// assert_eq!((args.budget.map(|size| size.0), args.rows), (Some(2 << 30), 128));
/// ```
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// A pack, or a model that is packed while it runs.
    pub file: PathBuf,
    /// Device memory for weights and scratch; by default ORK_WCACHE_BUDGET_MB, or 3072 MiB.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Rows of activations in each matmul.
    #[arg(long, value_name = "M", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rows: u32,
    /// Passes over the weights.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Check a pack's checksums first, then compare every output with the CPU's.
    #[arg(long)]
    pub verify: bool,
    /// Load each weight when it is needed instead of ahead of it.
    #[arg(long)]
    pub no_prefetch: bool,
    /// Read weights through the page cache, or past it: the disk writes a pack's into device memory. By default
    /// what ORK_ACCESS says, or past it when they do not fit into available memory beside the budget.
    #[arg(long, value_name = "auto|buffered|direct")]
    pub access: Option<Access>,
    /// Send each row to N experts of every layer, as made-up routers decide, and load no others;
    /// without it every pass uses all experts.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub active: Option<u32>,
    /// Exponent of Zipf's law, which the popularity of experts follows; 0 makes all alike.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = exponent, requires = "active")]
    pub zipf: f64,
    /// Experts of the next layer to guess and load before its router has decided.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "active",
        conflicts_with = "no_prefetch"
    )]
    pub guesses: usize,
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

fn exponent(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=8.0).contains(value));
    value.ok_or_else(|| "a number from 0 to 8 is expected".into())
}

/// A time between samples.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds));
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "seconds from 0.001 to 86400 (a day) are expected".into())
}

/// `ork plan`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "plan", "gemma-2-9b", "--board", "rk3588-8g", "--board", "rk3588-16g"]);
/// let Command::Plan(args) = cli.command else { panic!() };
/// assert_eq!(args.board.len(), 2);
/// ```
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// A pack, a model, a file of shapes, or the name of a model whose shapes are known.
    #[arg(value_name = "PACK|MODEL|SHAPES")]
    pub file: PathBuf,
    /// The machine: rk3588-4g, -8g, -16g or -32g. May be given several times.
    #[arg(long, value_name = "BOARD", default_value = "rk3588-16g")]
    pub board: Vec<String>,
    /// The kernel driver: the vendor's, or mainline's, where each weight is split over the cores' address spaces.
    #[arg(long, value_name = "rknpu|rocket", default_value = "rknpu")]
    pub driver: PlanDriver,
    /// Rows of the largest batch, for which scratch memory is kept.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Option<u32>,
    /// Upper bound of device memory, scratch included; by default what the board can hold.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Draw the residency map as one self-contained page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// The kernel driver of a board that is planned for.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanDriver {
    /// The vendor's.
    Rknpu,
    /// Mainline's.
    Rocket,
}

/// `ork top`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "top", "--record", "load.csv", "--", "sleep", "1"]);
/// let Command::Top(args) = cli.command else { panic!() };
/// assert_eq!(args.run, ["sleep", "1"]);
/// ```
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Seconds between samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval, allow_negative_numbers = true)]
    pub interval: Duration,
    /// Stop after this many samples; without it, at Ctrl-C or when the command ends.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,
    /// Write the samples as CSV, and print median and maximum at the end.
    #[arg(long, value_name = "FILE.csv")]
    pub record: Option<PathBuf>,
    /// Folder in which sys/ and proc/ are: another machine's, mounted or copied.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    pub root: PathBuf,
    /// Command to run while sampling, after --. With --json its standard output goes to standard
    /// error, so that ours holds one document.
    #[arg(last = true)]
    pub run: Vec<String>,
}
