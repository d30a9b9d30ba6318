//! Each promise beside the test that fails when it is broken.
//!
//! A promise is kept only as long as a test notices the opposite. Here each one has a small fault that breaks
//! it, and the test that must then fail; `lab promises` plants the faults in a copy of the workspace, one after
//! the other, and runs that test alone. `docs/promises.md` is this table for readers.

mod plant;
mod table;
mod tree;

use std::fmt::Write as _;
use std::process::ExitCode;

pub use plant::Verdict;
pub use table::all;

/// A promise, a fault that breaks it, and the test that notices.
#[derive(Debug)]
pub struct Promise {
    /// What is promised, in a sentence.
    pub says: &'static str,
    /// The file that keeps it, from the workspace's folder.
    pub file: &'static str,
    /// A piece of that file that occurs once.
    pub right: &'static str,
    /// What stands there when the fault is planted. It compiles.
    pub wrong: &'static str,
    /// The test that then fails.
    pub test: Test,
}

/// A test, as cargo finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// The package's name.
    pub package: &'static str,
    /// `lib`, `loom` (the library's models) or the name of a file in `tests`.
    pub target: &'static str,
    /// The path within it.
    pub name: &'static str,
}

/// `lab promises`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the table of docs/promises.md and plant nothing.
    #[arg(long)]
    table: bool,
    /// Only promises whose file, test or sentence contains this.
    only: Option<String>,
}

/// Plants every fault and says what became of it: 1 when one passed unnoticed.
///
/// # Errors
/// A workspace that cannot be copied, or a cargo that cannot be started.
pub fn run(args: &Args) -> crate::Result<ExitCode> {
    if args.table {
        print!("{}", markdown());
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = |promise: &&Promise| match &args.only {
        Some(part) => {
            let Promise { says, file, test, .. } = promise;
            [*says, *file, test.name].iter().any(|text| text.contains(part.as_str()))
        }
        None => true,
    };
    let promises: Vec<&Promise> = all().filter(wanted).collect();
    let unnoticed = plant::every(&promises)?;
    println!("{} of {} faults were noticed", promises.len() - unnoticed, promises.len());
    let kept = unnoticed == 0 && !promises.is_empty();
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The table for readers.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Promises, and the tests that fail without them\n\n\
         Made by `cargo run -p lab -- promises --table`; `cargo run --release -p lab -- promises` breaks each promise\n\
         in a copy of the workspace and runs its test, which must then fail.\n",
    );
    let mut package = "";
    for Promise { says, file, test, .. } in all() {
        if package != test.package {
            package = test.package;
            let _ = write!(text, "\n## {package}\n\n| promise | kept in | test |\n|---|---|---|\n");
        }
        let file = file.split_once("/src/").map_or(*file, |(_, file)| file);
        let Test { target, name, .. } = test;
        let _ = writeln!(text, "| {says} | `{file}` | {target}: `{name}` |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_can_still_be_planted() {
        let root = tree::root();
        for Promise { says, file, right, wrong, .. } in all() {
            let text =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            let found = text.matches(right).count();
            assert_eq!(
                found, 1,
                "{file} no longer has once what keeps \"{says}\": give table/ its new words"
            );
            assert_ne!(right, wrong, "{says}");
        }
    }

    #[test]
    fn the_page_is_the_table() {
        let page =
            std::fs::read_to_string(tree::root().join("docs/promises.md")).unwrap_or_default();
        assert_eq!(
            page,
            markdown(),
            "make it again: cargo run -p lab -- promises --table > docs/promises.md"
        );
    }

    #[test]
    fn what_is_promised_once_stands_once() {
        let mut said: Vec<&str> = all().map(|promise| promise.says).collect();
        let all = said.len();
        said.sort_unstable();
        said.dedup();
        assert_eq!(said.len(), all);
    }
}
