//! One step in a process of its own, with a time limit.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::record::Verdict;
use super::steps::Step;
use crate::cli::CheckArgs;
use crate::error::{Error, Result};

/// How often a process is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// What a process has to end in once it is told to.
const LAST: Duration = Duration::from_secs(3);

/// Takes a step.
///
/// # Errors
/// The process can't be started.
pub(super) fn run(step: &Step, args: &CheckArgs) -> Result<Verdict> {
    // Files and no pipes: who is stuck in the kernel keeps its ends open.
    let mut said =
        tempfile::tempfile().map_err(Error::file("make", "a temporary file".as_ref()))?;
    let mut complained =
        tempfile::tempfile().map_err(Error::file("make", "a temporary file".as_ref()))?;
    let to = |file: &File| file.try_clone().map(Stdio::from).map_err(Error::Thread);
    let program = std::env::current_exe().map_err(Error::file("find", "this program".as_ref()))?;
    let mut child = Command::new(&program)
        .args(["check", "--step", step.name, "--device"])
        .arg(args.device.device.to_string())
        .arg("--report")
        .arg(&args.report)
        .stdin(Stdio::null())
        .stdout(to(&said)?)
        .stderr(to(&complained)?)
        .spawn()
        .map_err(Error::file("start", &program))?;
    let seconds = args.limit.unwrap_or(step.seconds);
    let limit = Duration::from_secs(seconds);
    let start = Instant::now();
    let mut killed = false;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if killed && start.elapsed() > limit + LAST => return Ok(Verdict::Stuck),
            Ok(None) => {}
            Err(error) => return Ok(Verdict::Failed { reason: error.to_string() }),
        }
        if !killed && start.elapsed() > limit {
            // A process that is gone by now needs none.
            let _ = child.kill();
            killed = true;
        }
        std::thread::sleep(LOOK);
    };
    if killed {
        return Ok(Verdict::TooLong { seconds });
    }
    let text = read(&mut said);
    Ok(serde_json::from_str(&text).unwrap_or_else(|_| {
        let complaint = read(&mut complained);
        let last = complaint.lines().last().unwrap_or("it said nothing");
        Verdict::Failed { reason: format!("{status}: {last}") }
    }))
}

fn read(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    read.map_or(String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
}
