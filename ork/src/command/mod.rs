//! One module per command.

mod bench;
mod check;
mod convert;
mod demo;
mod inspect;
mod models;
mod plan;
mod probe;
mod quality;
mod run;
mod top;
mod upgrade;
mod verify;

use crate::cli::{Cli, Command};
use crate::error::Result;
use crate::output::Report;

/// Runs the command that the arguments name.
///
/// ```
/// use clap::Parser;
///
/// let cli = ork::cli::Cli::parse_from(["ork", "plan", "gemma-2-9b", "--board", "rk3588-8g"]);
/// ork::command::run(&cli)?;
/// # Ok::<(), ork::error::Error>(())
/// ```
///
/// # Errors
/// Why it ends without having done what it was asked; see [`Error::exit_code`](crate::error::Error::exit_code).
pub fn run(cli: &Cli) -> Result<()> {
    let report = Report { json: cli.json };
    match &cli.command {
        Command::Run(args) => run::run(args, report),
        Command::Demo(args) => demo::run(args, report),
        Command::Quality(args) => quality::run(args, report),
        Command::Bench(args) => bench::run(args, report),
        Command::Inspect(args) => inspect::run(args, report),
        Command::Verify(args) => verify::run(args, report),
        Command::Upgrade(args) => upgrade::run(args, report),
        Command::Convert(args) => convert::run(args, report),
        Command::Plan(args) => plan::run(args, report),
        Command::Check(args) => check::run(args, report),
        Command::Probe(command) => probe::run(command, report),
        Command::Top(args) => top::run(args, report),
        Command::Keep => Ok(rknpu::keeper::keep(std::io::stdin())?),
    }
}
