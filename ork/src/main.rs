//! The program `ork`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = ork::cli::Cli::parse();
    match ork::command::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done about a standard error that is closed.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr().lock(),
                format!("error: {}\n", ork::output::plain(&ork_cache::chain(&error))).as_bytes(),
            );
            ExitCode::from(error.exit_code())
        }
    }
}
