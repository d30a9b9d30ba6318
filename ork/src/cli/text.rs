//! Commands that write text.

use std::path::PathBuf;

use clap::Args;
use ork_weights::quantise::Tier;

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
    #[arg(long, value_name = "TIER", default_value = "rotated-int8")]
    pub tier: Arithmetic,
    /// Device memory for weights and scratch; by default ORK_WCACHE_BUDGET_MB, or 3072 MiB.
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<Size>,
    /// Where the packed weights are kept for the next run: without a path in the user's cache folder. By
    /// default what ORK_PERSIST says (a path, or 1 for that folder), or nowhere.
    #[arg(long, value_name = "PACK")]
    pub persist: Option<Option<PathBuf>>,
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

/// How linear layers are computed.
///
/// ```
/// use ork::cli::Arithmetic;
/// use ork_weights::quantise::Tier;
///
/// assert_eq!("f32".parse(), Ok(Arithmetic::F32));
/// assert_eq!("int8".parse(), Ok(Arithmetic::Packed(Tier::Int8)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arithmetic {
    /// In f32, on the CPU.
    F32,
    /// From weights as the NPU reads them.
    Packed(Tier),
}

impl std::str::FromStr for Arithmetic {
    type Err = <Tier as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<Arithmetic, Self::Err> {
        match text {
            "f32" => Ok(Arithmetic::F32),
            tier => tier.parse().map(Arithmetic::Packed),
        }
    }
}
