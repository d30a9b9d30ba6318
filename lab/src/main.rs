//! The experiments as commands.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own experiments.
#[derive(Parser)]
struct Lab {
    /// Which.
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Replay recordings of the real driver against the simulated one.
    Replay(lab::replay::command::Args),
}

fn main() -> ExitCode {
    match Lab::parse().experiment {
        Experiment::Replay(args) => lab::replay::command::run(&args),
    }
}
