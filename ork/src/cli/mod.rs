//! Arguments: the commands here, what they take in a file for each group.

mod check;
mod packs;
mod probes;
mod runs;
mod text;

use clap::{Args, Parser, Subcommand};

pub use check::CheckArgs;
pub use packs::{ConvertArgs, InspectArgs, QuantiseArgs, UpgradeArgs, VerifyArgs};
pub use probes::{CapacityArgs, DomainsArgs, FillArgs, PersistArgs, ProbeCommand, StreamProbeArgs};
pub use runs::{BenchArgs, DemoArgs, PlanArgs, PlanDriver, TopArgs};
pub use text::{Arithmetic, Form, QualityArgs, RunArgs};

use crate::device::DeviceChoice;

/// Exit codes, as `ork --help` prints them.
const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  a check failed: outputs differ from the CPU's, a pack is damaged, a command under `ork top` failed
  2  wrong arguments or settings, or a budget that cannot work; `ork probe stream`: memory leaked
  3  a file cannot be used or written: missing, of another kind, damaged, changed meanwhile, of another
     model, no room
  4  the NPU cannot be used, or failed

Sizes are bytes, or take K, M, G, KiB, MiB, GiB (powers of 1024) or kB, MB, GB (of 1000).";

/// What `ork check` does, below its options.
const AFTER_CHECK: &str = "\
Looks at the machine, multiplies shapes of models against the CPU, tries each thing that is only believed of
boards, in a process of its own with a time limit, and measures what plans need. The report has nothing
personal in it: attach it to an issue. What was found out is kept in $XDG_CONFIG_HOME/ork/board.json, and
used by `ork run`, `ork bench` and llama.cpp. Exit code 1: products are wrong, or the NPU stopped working.";

/// What the columns of `ork bench` are, below its options.
const AFTER_BENCH: &str = "\
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

/// What the columns of `ork quality` are, below its options.
const AFTER_QUALITY: &str = "\
Columns:
  activations  bits of the values that weights are multiplied by; 16 are two int8 rows of one product
  time         time of the passes over the text, 32 tokens at a time
  memory       weights as they are computed with
  pack         weights in a pack of this form
  KL           how far the shares of all tokens are from those of f32: the mean over the text, in nats
  worst        the largest of these
  1st token    how often the most likely token is that of f32
  perplexity   among how many equally likely tokens the model guesses, on average";

/// Runs models on the NPU of an RK3588, also larger ones than it can address.
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
#[command(
    name = "ork",
    version,
    about = "Runs models on the NPU of an RK3588, also larger ones than it can address",
    long_about = None,
    after_help = AFTER_HELP,
    arg_required_else_help = true
)]
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
    /// Tell a story, with the model in memory and through budgets smaller than itself: the same one.
    Demo(DemoArgs),
    /// Write: answer a prompt, or hold a conversation.
    Run(RunArgs),
    /// Turn a model into a pack: dequantise, quantise, tile, write.
    Convert(ConvertArgs),
    /// Show what a pack or a model holds.
    Inspect(InspectArgs),
    /// Check every byte of a pack against its checksums.
    Verify(VerifyArgs),
    /// Rewrite a pack of any version in the present form, without the model.
    Upgrade(UpgradeArgs),
    /// Measure what each form of weights costs and how much it changes what a model says.
    #[command(after_help = AFTER_QUALITY)]
    Quality(QualityArgs),
    /// Benchmark: multiply made-up activations by every weight of a pack or model, through a budget.
    #[command(after_help = AFTER_BENCH)]
    Bench(BenchArgs),
    /// Say what will be resident and what will be streamed, and what a pass costs, before loading.
    Plan(PlanArgs),
    /// Find out what holds on this board: one report, and a profile that other commands use.
    #[command(after_help = AFTER_CHECK)]
    Check(CheckArgs),
    /// Measure what the device and its driver really do.
    #[command(subcommand)]
    Probe(ProbeCommand),
    /// Show the load of NPU cores and memory, and what running programs have mapped.
    Top(TopArgs),
    /// Hold the mainline driver's files for another `ork`, which starts this by itself.
    #[command(name = KEEP, hide = true)]
    Keep,
}

/// The command that holds files of the mainline driver.
pub(crate) const KEEP: &str = "keep-npu-files";

/// Which device to use.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command};
///
/// let cli = Cli::parse_from(["ork", "demo", "--device", "sim"]);
/// let Command::Demo(args) = cli.command else { panic!() };
/// assert_eq!(args.device.device, ork::device::DeviceChoice::Simulator(Default::default()));
/// ```
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// auto (the NPU if there is one, otherwise the simulator), sim, sim:rocket (with the mainline driver), or a
    /// device node's path. In tests also sim:NAME,… with what that board does otherwise.
    #[arg(long, value_name = "auto|sim|sim:rocket|PATH", default_value = "auto")]
    pub device: DeviceChoice,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }

    /// Examples are for readers of the reference.
    #[test]
    fn no_help_shows_an_example_of_the_library() {
        fn check(command: &mut clap::Command) {
            let text = command.render_long_help().to_string();
            assert!(!text.contains("```") && !text.contains("use clap"), "{text}");
            command.get_subcommands_mut().for_each(check);
        }
        check(&mut super::Cli::command());
    }
}
