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
    /// Play a trace of uses through every eviction policy.
    Policies(lab::policies::Args),
    /// Break each promise, and see whether its test notices.
    Promises(lab::promises::Args),
    /// The figures that plans, policies and prefetching are judged by.
    Figures,
}

fn main() -> ExitCode {
    let done = match Lab::parse().experiment {
        Experiment::Replay(args) => return lab::replay::command::run(&args),
        Experiment::Promises(args) => match lab::promises::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Experiment::Policies(args) => lab::policies::run(&args),
        Experiment::Figures => lab::figures::run(lab::figures::Size::Full).map(|()| String::new()),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
