//! Benches that print a measured ratio beside its target.
//!
//! A speed in bytes per second says more about the machine than about the code; a ratio to
//! something everybody knows (memcpy, `cat`, a plain loop), taken in the same run, carries over.
//! [`Bench::compare`] runs a subject and a baseline in turn, so that both meet the same clock
//! frequency and the same neighbours, and compares their median times. It prints and returns; it
//! never fails a run, because a loaded machine is no error of the code.
//!
//! ```
//! use ratio::Bench;
//!
//! let (source, mut a, mut b) = (vec![1u8; 4096], vec![0u8; 4096], vec![0u8; 4096]);
//! let bench = Bench::with_rounds(3);
//! let measured = bench.compare(
//!     "copy_by_byte/memcpy",
//!     0.01,
//!     4096,
//!     || a.iter_mut().zip(&source).for_each(|(to, from)| *to = *from),
//!     || b.copy_from_slice(&source),
//! );
//! assert!(measured.is_some_and(|m| m.ratio() > 0.0));
//! ```
//!
//! Under `cargo bench` a bench takes 15 rounds of each; started without `--bench`, as
//! `cargo test --benches` does, it takes one, which only shows that it runs.

mod alloc;
mod pages;

use std::time::{Duration, Instant};

pub use alloc::{Counting, allocations, peak_bytes};
pub use pages::Pages;

/// Rounds under `cargo bench`.
const ROUNDS: usize = 15;

/// Settings of one bench program.
#[derive(Clone, Debug)]
pub struct Bench {
    rounds: usize,
    filter: Vec<String>,
}

impl Bench {
    /// From the arguments cargo passes: `--bench`, `--rounds N`, and names; only comparisons whose
    /// name contains one of the names run.
    pub fn from_args() -> Bench {
        Bench::from_iter(std::env::args().skip(1))
    }

    /// Every comparison, `rounds` times (at least once).
    pub fn with_rounds(rounds: usize) -> Bench {
        Bench { rounds: rounds.max(1), filter: Vec::new() }
    }

    fn from_iter(args: impl Iterator<Item = String>) -> Bench {
        let mut bench = Bench::with_rounds(1);
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--bench" => bench.rounds = bench.rounds.max(ROUNDS),
                "--rounds" => {
                    if let Some(rounds) = args.next().and_then(|n| n.parse().ok()) {
                        bench.rounds = 1.max(rounds);
                    }
                }
                flag if flag.starts_with('-') => {}
                name => bench.filter.push(name.to_owned()),
            }
        }
        bench
    }

    /// Whether a comparison of this name is asked for; to skip an expensive set-up.
    pub fn wants(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| name.contains(f.as_str()))
    }

    /// Whether this is a real run rather than a check that the bench works; benches may take
    /// smaller shapes when it is not.
    pub fn measures(&self) -> bool {
        self.rounds > 1
    }

    /// Runs `subject` and `baseline` alternately, prints one line and returns the medians; `None`
    /// when the arguments filter `name` out. The ratio is the subject's speed in the baseline's:
    /// 1 is equally fast. `bytes` is what either moves in one call.
    pub fn compare(
        &self,
        name: &str,
        target: f64,
        bytes: u64,
        mut subject: impl FnMut(),
        mut baseline: impl FnMut(),
    ) -> Option<Measured> {
        if !self.wants(name) {
            return None;
        }
        // First touches of the buffers are not what is measured.
        baseline();
        subject();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            theirs.push(timed(&mut baseline));
            ours.push(timed(&mut subject));
        }
        let measured = Measured { subject: median(ours), baseline: median(theirs), target, bytes };
        println!("{name:<44} {measured}");
        Some(measured)
    }
}

/// Median times of one comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Of the subject.
    pub subject: Duration,
    /// Of the baseline.
    pub baseline: Duration,
    /// The least ratio wanted.
    pub target: f64,
    /// Bytes moved by one call of either.
    pub bytes: u64,
}

impl Measured {
    /// The subject's speed in the baseline's.
    pub fn ratio(&self) -> f64 {
        self.baseline.as_secs_f64() / self.subject.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Whether the target is met.
    pub fn ok(&self) -> bool {
        self.ratio() >= self.target
    }
}

impl std::fmt::Display for Measured {
    /// `ratio  target  ok|below  subject's GB/s  baseline's GB/s`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let speed =
            |time: Duration| self.bytes as f64 / 1e9 / time.as_secs_f64().max(f64::MIN_POSITIVE);
        write!(
            f,
            "{:>8.3}  target {:>6.2}  {:<5}  {:>8.2} GB/s against {:.2} GB/s",
            self.ratio(),
            self.target,
            if self.ok() { "ok" } else { "below" },
            speed(self.subject),
            speed(self.baseline),
        )
    }
}

fn timed(work: &mut impl FnMut()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(args: &[&str]) -> Bench {
        Bench::from_iter(args.iter().map(|a| (*a).to_owned()))
    }

    #[test]
    fn arguments_choose_rounds_and_names() {
        assert_eq!(bench(&[]).rounds, 1);
        assert!(!bench(&[]).measures());
        assert_eq!(bench(&["--bench"]).rounds, ROUNDS);
        assert_eq!(bench(&["--bench", "--rounds", "3"]).rounds, 3);
        assert_eq!(bench(&["--rounds", "0"]).rounds, 1);
        assert!(bench(&["tile"]).wants("tile/4096"));
        assert!(!bench(&["tile", "--quiet"]).wants("dequant/q4_k"));
    }

    #[test]
    fn a_filtered_comparison_never_runs() {
        let run = || unreachable!("filtered out");
        assert_eq!(bench(&["other"]).compare("name", 1.0, 1, run, run), None);
    }

    #[test]
    fn subject_and_baseline_alternate() {
        let log = std::cell::RefCell::new(String::new());
        let measured = Bench::with_rounds(2)
            .compare("n", 0.0, 1, || log.borrow_mut().push('s'), || log.borrow_mut().push('b'))
            .unwrap();
        assert_eq!(log.into_inner(), "bsbsbs");
        assert!(measured.ok());
    }

    #[test]
    fn the_ratio_is_a_ratio_of_speeds() {
        let ms = Duration::from_millis;
        let measured = Measured { subject: ms(4), baseline: ms(2), target: 0.6, bytes: 1 << 20 };
        assert_eq!(measured.ratio(), 0.5);
        assert!(!measured.ok());
        assert!(measured.to_string().contains("below"));
        assert_eq!(median(vec![ms(9), ms(1), ms(5)]), ms(5));
    }
}
