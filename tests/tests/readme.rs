//! The commands of the README's section on models do what it says, in the order in which they stand there.

use std::fs::File;

use clap::Parser;
use ork::cli::{Cli, Command};
use ork_weights::model::synth::Shape;

/// The lines of the README's shell examples that begin with `ork`, without what they say about it.
fn commands() -> Vec<Vec<&'static str>> {
    let section = include_str!("../../README.md").split("```sh").skip(1);
    let examples = section.filter_map(|text| text.split("```").next());
    let lines = examples.flat_map(str::lines).filter(|line| line.starts_with("ork "));
    lines.map(|line| words(line.split('#').next().unwrap_or(""))).collect()
}

/// The words of a line; what stands in quotes is one.
fn words(line: &str) -> Vec<&str> {
    let pieces = line.split('"').enumerate();
    let words = pieces.flat_map(|(i, piece)| match i % 2 {
        0 => piece.split_whitespace().collect(),
        _ => vec![piece],
    });
    words.collect()
}

#[test]
fn every_command_runs() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = |shape: Shape, name| shape.write(File::create(at(name)).unwrap()).unwrap();
    make(Shape::tiny(), "model.gguf");
    make(Shape { experts: 8, ..Shape::tiny() }, "mixture.gguf");
    // The files are named as on the page.
    std::env::set_current_dir(folder.path()).unwrap();
    let run = |words: &[&str]| {
        let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        // The check runs its own program again, which this one is not.
        let elsewhere = matches!(
            cli.command,
            Command::Top(_) | Command::Probe(_) | Command::Run(_) | Command::Check(_)
        );
        if !elsewhere {
            ork::command::run(&cli).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }
        !elsewhere
    };
    assert!(run(&["ork", "convert", "mixture.gguf"]));
    let ran: Vec<bool> = commands().iter().map(|words| run(words)).collect();
    assert!(ran.iter().filter(|ran| **ran).count() >= 6, "{ran:?}");
}
