//! Arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use ork_weights::model::Read;

use crate::device::DeviceChoice;
use crate::size::Size;

/// Exit codes, as `ork --help` prints them.
const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  a check failed: outputs differ, a pack is damaged, a recording is not met
  2  wrong arguments or settings, or a budget that cannot work; `ork probe stream`: memory leaked
  3  a file cannot be used or written: missing, of another kind, damaged, changed meanwhile, of another
     model, no room
  4  the NPU cannot be used, or failed

Sizes are bytes, or take K, M, G, KiB, MiB, GiB (powers of 1024) or kB, MB, GB (of 1000).";

/// What the columns of `ork stream` are, below its options.
const AFTER_STREAM: &str = "\
Columns, a line for each pass over the weights:
  wall     time of the pass
  compute  time in matmuls and in reading their results
  waited   time in which a matmul waited for its weight
  hits     weights that were in device memory when they were needed
  loads    weights, or parts of weights, brought into device memory
  packed   weights made from the model's values; with a pack, none
  evicted  weights that lost their place to others
  loaded   bytes of the loads
Below: most device memory mapped at once (weights, slots and scratch), most memory of the process (a
simulated device's included), and a digest of all results, which must not depend on the budget.";

/// Runs models larger than the NPU's window on an RK3588.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "--json", "verify", "model.orkpack"]);
/// let Command::Verify(args) = cli.command else { panic!() };
/// assert!(cli.json && args.model.is_none());
/// ```
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
///
/// ```
/// use clap::Parser;
/// use ork::cli::Cli;
///
/// assert!(Cli::try_parse_from(["ork", "no-such-command"]).is_err());
/// ```
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a model running through a budget smaller than itself, and that nothing changes by it.
    Demo(DemoArgs),
    /// Turn a model into a pack: dequantise, quantise, tile, write.
    Convert(ConvertArgs),
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
    #[command(after_help = AFTER_STREAM)]
    Stream(StreamArgs),
    /// Say what will be resident and what will be streamed, and what a pass costs, before loading.
    Plan(PlanArgs),
    /// Measure what the device and its driver really do.
    #[command(subcommand)]
    Probe(ProbeCommand),
    /// The simulated device.
    #[command(subcommand)]
    Sim(SimCommand),
    /// Show NPU load, memory traffic and window use as they are now.
    Top(TopArgs),
}

/// Which device to use.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "demo", "--device", "sim"]);
/// let Command::Demo(args) = cli.command else { panic!() };
/// assert_eq!(args.device.device, ork::device::DeviceChoice::Simulator);
/// ```
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// auto (the NPU if there is one, otherwise the simulator), sim, or a device node's path.
    #[arg(long, value_name = "auto|sim|PATH", default_value = "auto")]
    pub device: DeviceChoice,
}

/// `ork demo`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "demo", "--size", "1GiB"]);
/// let Command::Demo(args) = cli.command else { panic!() };
/// assert_eq!((args.size.0, args.rows, args.passes), (1 << 30, 32, 2));
/// ```
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// A GGUF or safetensors model; without one a small Llama-shaped model is made and removed.
    pub model: Option<PathBuf>,
    /// Bytes of packed weights of the model that is made.
    #[arg(long, value_name = "SIZE", default_value = "100MiB", conflicts_with = "model")]
    pub size: Size,
    /// Device memory for weights and scratch; by default 40 % of the packed weights, and scratch.
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

/// What turns a model's values into codes.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "convert", "m.gguf", "--tier", "int4:128", "--tier-map", "output*=int8"]);
/// let Command::Convert(args) = cli.command else { panic!() };
/// assert_eq!(args.quantise.tier.as_deref(), Some("int4:128"));
/// assert_eq!(args.quantise.tier_map, ["output*=int8"]);
/// ```
#[derive(Args, Clone, Debug, Default)]
pub struct QuantiseArgs {
    /// Storage of every weight: int8, o4n1, nf4, int4, rotated-int8, int4-as-int8, or source, which goes by the bits of the model's values. Groups of scales as in int4:128.
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,
    /// Storage by name: PATTERN=TIER, where * stands for anything; the first that fits counts.
    #[arg(long, value_name = "PATTERN=TIER")]
    pub tier_map: Vec<String>,
    /// Importance of inputs, from an imatrix file: clips are searched to weigh errors by it.
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Round at random, in proportion to the remainder, with this seed.
    #[arg(long, value_name = "SEED")]
    pub stochastic: Option<u64>,
    /// Also convert the output head that shares its values with the token embedding.
    #[arg(long)]
    pub tied_head: bool,
}

/// A container version that is written.
fn pack_version(text: &str) -> Result<u32, String> {
    match text {
        "2" => Ok(2),
        "5" => Ok(5),
        "7" => Ok(7),
        _ => Err("packs are written as version 2, 5 or 7".into()),
    }
}

/// `ork convert`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "convert", "m.gguf", "-o", "m.orkpack", "--report"]);
/// let Command::Convert(args) = cli.command else { panic!() };
/// assert_eq!((args.pack_version, args.report), (2, Some(None))); // printed, and no file
/// ```
#[derive(Args, Clone, Debug)]
pub struct ConvertArgs {
    /// A GGUF file (the first of a split one), a safetensors file, or a safetensors index.
    pub model: PathBuf,
    /// The pack; by default beside the model, with the extension .orkpack.
    #[arg(short, long, value_name = "PACK")]
    pub output: Option<PathBuf>,
    /// Codes.
    #[command(flatten)]
    pub quantise: QuantiseArgs,
    /// Container version: 2 by default; 5 and 7 for readers of the C project that want them.
    #[arg(long, value_name = "2|5|7", default_value = "2", value_parser = pack_version)]
    pub pack_version: u32,
    /// Put a stamp page in front of each tiled blob, as the newest loaders of the C project want.
    #[arg(long)]
    pub stamped: bool,
    /// Overwrite a pack of another model, or of other settings.
    #[arg(long)]
    pub replace: bool,
    /// Hash the whole model instead of its header and a sample, for the identity in the pack.
    #[arg(long)]
    pub full_hash: bool,
    /// How to read the model: pread, by position; direct, so past the page cache; mmap, through a mapping, for files that nobody shortens meanwhile.
    #[arg(long, value_name = "pread|mmap|direct", default_value = "pread")]
    pub read: Read,
    /// Drop the model's pages from memory behind the conversion; also set by ORK_EVICT_SRC=1.
    #[arg(long)]
    pub evict_src: bool,
    /// Print error, bits and bytes of every weight, and write them as JSON to FILE if one is given.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    pub report: Option<Option<PathBuf>>,
    /// Threads, 256 at most; 0 takes all cores.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=256))]
    pub threads: u16,
}

/// `ork inspect`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "inspect", "m.orkpack"]);
/// let Command::Inspect(args) = cli.command else { panic!() };
/// assert_eq!(args.file.to_str(), Some("m.orkpack"));
/// ```
#[derive(Args, Clone, Debug)]
pub struct InspectArgs {
    /// A pack or a model.
    pub file: PathBuf,
}

/// `ork verify`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "verify", "m.orkpack", "--model", "m.gguf"]);
/// let Command::Verify(args) = cli.command else { panic!() };
/// assert_eq!(args.model.unwrap().to_str(), Some("m.gguf"));
/// ```
#[derive(Args, Clone, Debug)]
pub struct VerifyArgs {
    /// The pack.
    pub pack: PathBuf,
    /// Also check that it was made from this model.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
}

/// `ork diff`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "diff", "a.orkpack", "b.orkpack"]);
/// let Command::Diff(args) = cli.command else { panic!() };
/// assert_ne!(args.a, args.b);
/// ```
#[derive(Args, Clone, Debug)]
pub struct DiffArgs {
    /// One pack.
    pub a: PathBuf,
    /// The other.
    pub b: PathBuf,
}

/// `ork extract`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "extract", "m.orkpack", "blk.0.attn_q.weight"]);
/// let Command::Extract(args) = cli.command else { panic!() };
/// assert!(args.weight.is_some() && !args.stub);
/// ```
#[derive(Args, Clone, Debug)]
pub struct ExtractArgs {
    /// The pack.
    pub pack: PathBuf,
    /// Name of the weight; written as NAME.npy (int8, N × K) and NAME.scales.npy (f32).
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
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "upgrade", "old.orkpack"]);
/// let Command::Upgrade(args) = cli.command else { panic!() };
/// assert!(args.output.is_none()); // the one read is replaced
/// ```
#[derive(Args, Clone, Debug)]
pub struct UpgradeArgs {
    /// The pack to read.
    pub pack: PathBuf,
    /// The pack to write; by default the one read is replaced.
    #[arg(short, long, value_name = "PACK")]
    pub output: Option<PathBuf>,
    /// Container version to write.
    #[arg(long, value_name = "2|5|7", default_value = "2", value_parser = pack_version)]
    pub pack_version: u32,
    /// Overwrite what stands at the output.
    #[arg(long)]
    pub replace: bool,
    /// The model it was made from, to be recorded in a pack that names none; of it only names and shapes can be checked.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
}

/// `ork stream`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "stream", "m.orkpack", "--budget", "2GiB"]);
/// let Command::Stream(args) = cli.command else { panic!() };
/// assert_eq!((args.budget.map(|size| size.0), args.rows), (Some(2 << 30), 128));
/// ```
#[derive(Args, Clone, Debug)]
pub struct StreamArgs {
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
    /// Compare every output with the CPU's.
    #[arg(long)]
    pub verify: bool,
    /// Load each weight when it is needed instead of ahead of it.
    #[arg(long)]
    pub no_prefetch: bool,
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
    /// Rows of the largest batch, for which scratch memory is kept.
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Option<u32>,
    /// Upper bound of device memory, scratch included; by default what the board can hold.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Play a trace of uses through every policy: a line NAME BYTES for the first use of a weight,
    /// NAME for others.
    #[arg(long, value_name = "TRACE")]
    pub simulate: Option<PathBuf>,
    /// Draw the residency map as one self-contained page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `ork probe …`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "cores", "--device", "sim"]);
/// let Command::Probe(ProbeCommand::Cores(args)) = cli.command else { panic!() };
/// assert_eq!(args.device, ork::device::DeviceChoice::Simulator);
/// ```
#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// Allocate until the driver refuses, in each domain, created only and mapped: the window.
    Window(WindowArgs),
    /// Stream weights through one window, one at a time; exit code 2 on a leak.
    Stream(StreamProbeArgs),
    /// Pack a weight, dump it, load the dump and dump that: equality, times, ratio.
    Persist(PersistArgs),
    /// Fill several domains and alternate jobs between them, checked against the CPU.
    Domains(DomainsArgs),
    /// Run a tiny job on each core, checked against the CPU.
    Cores(DeviceArgs),
    /// Copy rates into cacheable, write-combined and uncached buffers.
    Fill(FillArgs),
}

/// `ork probe window`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "window", "--domain", "3"]);
/// let Command::Probe(ProbeCommand::Window(args)) = cli.command else { panic!() };
/// assert_eq!((args.size.0, args.domain), (64 << 20, Some(3)));
/// ```
#[derive(Args, Clone, Debug)]
pub struct WindowArgs {
    /// Bytes of each buffer.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub size: Size,
    /// One domain only.
    #[arg(long, value_name = "INDEX")]
    pub domain: Option<u32>,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe stream`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "stream"]);
/// let Command::Probe(ProbeCommand::Stream(args)) = cli.command else { panic!() };
/// assert_eq!((args.size.0, args.rounds), (256 << 20, 100));
/// ```
#[derive(Args, Clone, Debug)]
pub struct StreamProbeArgs {
    /// Bytes of each weight.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub size: Size,
    /// Weights.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rounds: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe persist`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "persist", "-k", "512"]);
/// let Command::Probe(ProbeCommand::Persist(args)) = cli.command else { panic!() };
/// assert_eq!((args.k, args.n), (512, 4096));
/// ```
#[derive(Args, Clone, Debug)]
pub struct PersistArgs {
    /// Inputs of the weight.
    #[arg(short, value_name = "K", default_value_t = 4096)]
    pub k: u32,
    /// Output channels of the weight.
    #[arg(short, value_name = "N", default_value_t = 4096)]
    pub n: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe domains`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "domains", "--count", "2"]);
/// let Command::Probe(ProbeCommand::Domains(args)) = cli.command else { panic!() };
/// assert_eq!((args.count, args.rounds), (Some(2), 25));
/// ```
#[derive(Args, Clone, Debug)]
pub struct DomainsArgs {
    /// Domains to use; by default 4, or as many as there are.
    #[arg(long, value_name = "N")]
    pub count: Option<u32>,
    /// Bytes to fill each with.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: Size,
    /// Jobs in each.
    #[arg(long, value_name = "N", default_value_t = 25)]
    pub rounds: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe fill`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "fill", "--size", "1M"]);
/// let Command::Probe(ProbeCommand::Fill(args)) = cli.command else { panic!() };
/// assert_eq!(args.size.0, 1 << 20);
/// ```
#[derive(Args, Clone, Debug)]
pub struct FillArgs {
    /// Bytes of each buffer.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub size: Size,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork sim …`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, SimCommand};
///
/// let cli = Cli::parse_from(["ork", "sim", "replay", "recordings"]);
/// let Command::Sim(SimCommand::Replay(args)) = cli.command else { panic!() };
/// assert_eq!(args.folder.to_str(), Some("recordings"));
/// ```
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Replay recordings of the real driver against the simulated one.
    Replay(ReplayArgs),
}

/// `ork sim replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// Folder of recorded scenarios.
    pub folder: PathBuf,
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
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Stop after this many samples; without it, at Ctrl-C or when the command ends.
    #[arg(long, value_name = "N")]
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
