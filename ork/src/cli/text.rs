//! Commands that write text.

use std::path::PathBuf;

use clap::Args;
use ork_cache::Access;
use ork_linear::{Depth, ParseDepthError};
use ork_weights::quantise::{ParseTierError, Tier};

use super::DeviceArgs;
use crate::size::Size;

/// `ork run`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "run", "m.gguf", "Hello", "--temperature", "0"]);
/// let Command::Run(args) = cli.command else { panic!() };
/// assert_eq!((args.prompt.as_deref(), args.temperature, args.raw), (Some("Hello"), 0.0, false));
/// ```
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// A GGUF model.
    pub model: PathBuf,
    /// What to answer, or with --raw to continue; `-` takes it from standard input. Without it, a
    /// conversation.
    pub prompt: Option<String>,
    /// Tokens of an answer at most; it ends earlier where the model ends it.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_tokens: usize,
    /// How far from the most likely words it may go; 0 takes the most likely every time.
    #[arg(long, value_name = "T", default_value_t = 0.7)]
    pub temperature: f32,
    /// Choose among the most likely tokens that together have this share.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,
    /// The same seed gives the same text; without one, each run has its own, and says it.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Continue the prompt as it is, without the model's chat template.
    #[arg(long)]
    pub raw: bool,
    /// Tokens of prompt and answers that fit; by default what the model was made for, at most 8192.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    pub context: Option<u32>,
    /// How linear layers are computed: `f32` by the CPU alone, or from weights in a form that packs
    /// have: rotated-int8, int8, fp16.
    #[arg(long, value_name = "TIER", default_value_t)]
    pub tier: Arithmetic,
    /// Device memory for weights and scratch; by default ORK_WCACHE_BUDGET_MB, or 3072 MiB.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Read weights through the page cache, or past it: what streams from the disk then leaves the cache to
    /// others. By default what ORK_ACCESS says, or past it when they do not fit into available memory.
    #[arg(long, value_name = "auto|buffered|direct")]
    pub access: Option<Access>,
    /// Where the packed weights are kept for the next run: without a path in the user's cache folder. By
    /// default what ORK_PERSIST says (a path, or 1 for that folder), or nowhere.
    #[arg(long, value_name = "PACK", require_equals = true)]
    pub persist: Option<Option<PathBuf>>,
    /// Take the weights from this pack of the model, whatever their tier.
    #[arg(long, value_name = "PACK", conflicts_with_all = ["persist", "tier"])]
    pub pack: Option<PathBuf>,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Propose tokens that the model verifies many at a time: a smaller model of the same vocabulary,
    /// or `ngrams` for what the text itself repeats. The text is the same as without.
    #[arg(long, value_name = "MODEL|ngrams")]
    pub draft: Option<PathBuf>,
    /// Tokens that are proposed at a time.
    #[arg(long, value_name = "N", default_value_t = 6, requires = "draft", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub draft_tokens: u32,
}

/// `ork quality`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "quality", "m.gguf", "--text", "t.txt", "--form", "int8/8"]);
/// let Command::Quality(args) = cli.command else { panic!() };
/// assert_eq!((args.form[0].to_string(), args.tokens), ("int8/8".into(), 2048));
/// ```
#[derive(Args, Clone, Debug)]
pub struct QualityArgs {
    /// A GGUF model.
    pub model: PathBuf,
    /// A text, UTF-8, that the model is to guess.
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Tokens of the text that are used, from its beginning.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..))]
    pub tokens: u32,
    /// Tokens that are read as one text; at most what the model was made for.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    pub window: u32,
    /// What to measure beside f32: a tier of weights, and behind a slash the bits of activations, 16 or 8.
    /// May be given several times; by default every one that is computed.
    #[arg(long, value_name = "TIER[/BITS]")]
    pub form: Vec<Form>,
    /// Device memory for weights and scratch; by default ORK_WCACHE_BUDGET_MB, or 3072 MiB.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Device. On the simulator the CPU computes, with the same results.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// A form in which linear layers are computed: how weights are stored, and how finely activations are
/// quantised.
///
/// ```
/// use ork::cli::Form;
///
/// let form: Form = "rotated-int8".parse()?;
/// assert_eq!(form.to_string(), "rotated-int8/16");
/// assert!("int4".parse::<Form>().is_err()); // not computed: its sums saturate
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Form {
    /// Of the weights.
    pub tier: Tier,
    /// Of the activations; not of those that fp16 weights are multiplied by, which stay f32.
    pub depth: Depth,
}

impl Form {
    /// Every form that is computed, but for groups of scales.
    pub fn all() -> impl Iterator<Item = Form> {
        let tiers = ["fp16/16", "int8/8", "int8/16", "rotated-int8/8", "rotated-int8/16"];
        let four_bits = ["nf4/16", "o4n1/16", "int4-as-int8/16"];
        tiers.into_iter().chain(four_bits).filter_map(|form| form.parse().ok())
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.tier, self.depth)
    }
}

impl std::str::FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Form, String> {
        let (tier, bits) = text.split_once('/').unwrap_or((text, "16"));
        let tier = tier.parse().map_err(|error: ParseTierError| error.to_string())?;
        ork_linear::multiplies(tier).map_err(|error| error.to_string())?;
        let depth = bits.parse().map_err(|error: ParseDepthError| error.to_string())?;
        Ok(Form { tier, depth })
    }
}

/// How linear layers are computed.
///
/// ```
/// use ork::cli::Arithmetic;
/// use ork_weights::quantise::Tier;
///
/// assert_eq!("f32".parse(), Ok(Arithmetic::F32));
/// assert_eq!("int8".parse(), Ok(Arithmetic::Packed(Tier::Int8)));
/// assert!("nf4".parse::<Arithmetic>().is_err()); // from a pack only
/// assert_eq!(Arithmetic::default().to_string(), "rotated-int8");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arithmetic {
    /// In f32, on the CPU.
    F32,
    /// From weights as the NPU reads them.
    Packed(Tier),
}

impl Default for Arithmetic {
    fn default() -> Arithmetic {
        Arithmetic::Packed(Tier::default())
    }
}

impl std::fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Arithmetic::F32 => f.write_str("f32"),
            Arithmetic::Packed(tier) => tier.fmt(f),
        }
    }
}

impl std::str::FromStr for Arithmetic {
    type Err = String;

    fn from_str(text: &str) -> Result<Arithmetic, String> {
        let tier = text.parse().ok().filter(|tier| ork_linear::packs_on_the_way(*tier));
        match (text, tier) {
            ("f32", _) => Ok(Arithmetic::F32),
            (_, Some(tier)) => Ok(Arithmetic::Packed(tier)),
            _ => {
                Err("a model runs as f32, rotated-int8, int8 or fp16; in another form from a pack \
                      (`ork convert`, and --pack)"
                    .into())
            }
        }
    }
}
