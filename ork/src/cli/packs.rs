//! Commands that make, show and check packs.

use std::path::PathBuf;

use clap::Args;
use ork_weights::model::Read;

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
    /// Storage of every weight: rotated-int8 (what `ork run` and llama.cpp compute with), int8, o4n1, nf4, int4, int4-as-int8, fp16, or source, which goes by the bits of the model's values; groups of scales as in int4:128. By default rotated-int8.
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,
    /// Storage by name: PATTERN=TIER, where * stands for anything; the first that fits counts.
    #[arg(long, value_name = "PATTERN=TIER")]
    pub tier_map: Vec<String>,
    /// Importance of inputs, from an imatrix file: clips are searched to weigh errors by it.
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Take tensors of this name as weights, whatever they are for; * stands for anything.
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,
    /// Leave tensors of this name out; * stands for anything.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
}

/// A container version that is written.
fn pack_version(text: &str) -> Result<u32, String> {
    match text {
        "2" => Ok(2),
        "3" => Ok(3),
        "5" => Ok(5),
        "7" => Ok(7),
        _ => Err("packs are written as version 2, 3, 5 or 7".into()),
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
/// assert_eq!((args.pack_version, args.report), (3, Some(None))); // printed, and no file
/// ```
#[derive(Args, Clone, Debug)]
pub struct ConvertArgs {
    /// A GGUF file (any of a split one), a safetensors file or index, or the folder of the hub that holds them.
    pub model: PathBuf,
    /// The pack; by default beside the model, with the extension .orkpack.
    #[arg(short, long, value_name = "PACK")]
    pub output: Option<PathBuf>,
    /// Codes.
    #[command(flatten)]
    pub quantise: QuantiseArgs,
    /// Container version: 3 is the one that the C project's public reader takes; 2, 5 and 7 are for its older and newer ones.
    #[arg(long, value_name = "2|3|5|7", default_value = "3", value_parser = pack_version)]
    pub pack_version: u32,
    /// Overwrite a pack of another model, or of other settings.
    #[arg(long)]
    pub replace: bool,
    /// Hash the whole model instead of its header and a sample, for the identity in the pack.
    #[arg(long)]
    pub full_hash: bool,
    /// How to read the model: pread, by position; direct, so past the page cache.
    #[arg(long, value_name = "pread|direct", default_value = "pread")]
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
    #[arg(long, value_name = "2|3|5|7", default_value = "3", value_parser = pack_version)]
    pub pack_version: u32,
    /// Overwrite what stands at the output.
    #[arg(long)]
    pub replace: bool,
    /// The model it was made from, to be recorded in a pack that names none; of it only names and shapes can be checked.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
}
