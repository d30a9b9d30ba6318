//! What the library adds to calls that are not for the NPU.
//!
//! The bench runs itself as a child twice, with and without the library, and compares the time of a
//! round of calls on an ordinary file, round by round.

#[path = "../tests/build/mod.rs"]
mod build;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use memmap2::MmapOptions;

/// Makes a child measure.
const CHILD: &str = "ORK_PRELOAD_BENCH_CHILD";
/// Calls in one measurement.
const CALLS: u32 = 20_000;
/// Nanoseconds that a call may take longer.
const TARGET: f64 = 1000.0;

fn main() {
    let measures = std::env::args().any(|argument| argument == "--bench");
    if std::env::var_os(CHILD).is_some() {
        child(measures);
        return;
    }
    let library = match build::library() {
        Ok(library) => library,
        Err(error) => {
            println!("preload: SKIPPED, the library cannot be built: {error}");
            return;
        }
    };
    let rounds = if measures { 9 } else { 1 };
    let mut with = Vec::new();
    let mut without = Vec::new();
    for _ in 0..rounds {
        without.push(run(None, measures));
        with.push(run(Some(&library), measures));
    }
    for (at, name) in ["open_close", "read", "mmap_munmap", "stat"].iter().enumerate() {
        let median = |runs: &[Vec<f64>]| {
            let mut times: Vec<f64> = runs.iter().filter_map(|run| run.get(at).copied()).collect();
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let (loaded, plain) = (median(&with), median(&without));
        let verdict = if loaded - plain <= TARGET { "ok" } else { "above" };
        println!(
            "preload/{name:<14} {:>8.0} ns more  target {TARGET:>5.0}  {verdict:<5}  {loaded:.0} ns against {plain:.0} ns",
            loaded - plain
        );
    }
}

fn run(library: Option<&Path>, measures: bool) -> Vec<f64> {
    let mut command = Command::new(std::env::current_exe().expect("the bench's own path"));
    command.env(CHILD, "1");
    if measures {
        command.arg("--bench");
    }
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output().expect("the bench's own program");
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Prints nanoseconds per call of each kind.
fn child(measures: bool) {
    let calls = if measures { CALLS } else { 10 };
    let path = "/proc/self/exe";
    let time = |mut call: Box<dyn FnMut()>| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    };
    let mapped = File::open(path).expect("the bench's own program");
    let mut open = File::open(path).expect("the bench's own program");
    let mut byte = [0];
    let times = [
        time(Box::new(|| drop(File::open(path).expect("the bench's own program")))),
        time(Box::new(move || drop(open.read(&mut byte)))),
        time(Box::new(|| {
            drop(MmapOptions::new().len(4096).map_raw_read_only(&mapped));
        })),
        time(Box::new(|| {
            std::hint::black_box(std::fs::metadata(path).map(|m| m.len()).ok());
        })),
    ];
    println!("{} {} {} {}", times[0], times[1], times[2], times[3]);
}
