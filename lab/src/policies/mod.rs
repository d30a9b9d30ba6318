//! Eviction policies beside each other and beside the optimum.

mod next_use;
mod s3fifo;
mod trace;

use std::path::PathBuf;

use ork_cache::internals::{Lfu, Lru, PinnedRing, Policy};

pub(crate) use next_use::NextUse;
pub(crate) use s3fifo::S3Fifo;
pub(crate) use trace::Trace;

use crate::Result;

/// Half-life of the frequency policy, in uses.
const LFU_HALF_LIFE: u32 = 4096;

/// `lab policies`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A use a line: NAME BYTES for the first of a weight, NAME for others.
    pub trace: PathBuf,
    /// Room for weights, in bytes.
    pub bytes: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Plays the trace through every policy: a line each, or JSON.
///
/// # Errors
/// A file that cannot be read, or a line that is no use.
pub fn run(args: &Args) -> Result<String> {
    let trace = Trace::parse(&std::fs::read_to_string(&args.trace)?)?;
    let mut policies: Vec<Box<dyn Policy>> = vec![
        Box::new(PinnedRing::new(&[])),
        Box::new(NextUse::once_with_bypass(&trace.uses)),
        Box::new(Lru::new()),
        Box::new(Lfu::new(LFU_HALF_LIFE)),
        Box::new(S3Fifo::new()),
    ];
    let compared = trace.compare(&mut policies, args.bytes, 0);
    Ok(match args.json {
        true => serde_json::to_string_pretty(&compared)?,
        false => compared.iter().map(|row| format!("{row}\n")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_row_and_a_trace_that_is_not_understood_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let args = |json| Args { trace: trace.clone(), bytes: 8192, json };
        std::fs::write(&trace, "a 4096\nb 4096\na\nb\n").unwrap();
        let rows: serde_json::Value = serde_json::from_str(&run(&args(true)).unwrap()).unwrap();
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 5);
        assert!(rows.iter().all(|row| row["outcome"]["hits"] == 2), "{rows:?}");
        assert_eq!(run(&args(false)).unwrap().lines().count(), 5);
        std::fs::write(&trace, "a\n").unwrap();
        let error = run(&args(false)).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
