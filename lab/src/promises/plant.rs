//! Plants faults and runs the tests that must notice them.

use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::tree::Tree;
use super::{Promise, Test};

/// How long a build and a test may take.
const LIMIT: Duration = Duration::from_secs(600);

/// What a test said of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It failed.
    Noticed,
    /// It passed.
    Unnoticed,
    /// It did not end.
    Hung,
    /// It was not run: there is none of this name, or the fault does not compile.
    NotRun,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Noticed => "noticed",
            Verdict::Unnoticed => "NOT NOTICED",
            Verdict::Hung => "HUNG",
            Verdict::NotRun => "NOT RUN",
        })
    }
}

/// Plants each fault in turn; how many were not noticed. A test that fails without a fault notices nothing.
pub(super) fn every(promises: &[&Promise]) -> io::Result<usize> {
    let tree = Tree::copy()?;
    let mut unnoticed = 0;
    let mut sound: Vec<Test> = Vec::new();
    for promise in promises {
        let since = Instant::now();
        if !sound.contains(&promise.test) {
            let (verdict, said) = run(tree.folder(), &promise.test)?;
            if verdict != Verdict::Unnoticed {
                println!("{:?} does not pass without a fault: {verdict}\n{said}", promise.test);
                unnoticed += 1;
                continue;
            }
            sound.push(promise.test);
        }
        let planted = tree.plant(promise)?;
        let (verdict, said) = run(tree.folder(), &promise.test)?;
        drop(planted);
        println!("{verdict:<11} {:>4} s  {}", since.elapsed().as_secs(), promise.says);
        if verdict != Verdict::Noticed {
            println!("{said}");
            unnoticed += 1;
        }
    }
    Ok(unnoticed)
}

/// Runs one test: what it said, and the end of its output.
fn run(folder: &Path, test: &Test) -> io::Result<(Verdict, String)> {
    let log = folder.with_file_name("log");
    let out = std::fs::File::create(&log)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder).args(["test", "--quiet", "--package", test.package]);
    let target = folder.with_file_name("built");
    match test.target {
        "lib" => cargo.arg("--lib"),
        "loom" => cargo.args(["--lib", "--release"]).env("RUSTFLAGS", "--cfg loom"),
        file => cargo.args(["--test", file]),
    };
    cargo.args(["--", "--exact", test.name]);
    cargo.env("CARGO_TARGET_DIR", if test.target == "loom" { target.join("loom") } else { target });
    let mut child =
        cargo.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0).spawn()?;
    let begin = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begin.elapsed() > LIMIT {
            if let Some(group) = Pid::from_raw(child.id() as i32) {
                kill_process_group(group, Signal::KILL)?;
            }
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let said = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    let verdict = match ended {
        None => Verdict::Hung,
        Some(status) if status.success() && said.contains("test result: ok. 1 passed") => {
            Verdict::Unnoticed
        }
        // A test that ends its process leaves no result, only cargo's line about the test program.
        Some(status) if !status.success() && said.contains("running 1 test") => Verdict::Noticed,
        Some(_) => Verdict::NotRun,
    };
    let lines: Vec<&str> = said.lines().collect();
    Ok((verdict, lines[lines.len().saturating_sub(12)..].join("\n")))
}
