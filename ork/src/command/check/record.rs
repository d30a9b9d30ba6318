//! The report: what was found so far, as one file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ork_cache::profile::Profile;
use serde::{Deserialize, Serialize};

use super::steps::{Kind, Step};
use crate::device::DeviceChoice;
use crate::error::{Error, Result};
use crate::target::write_bytes;

/// Something that was looked at.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(super) struct Look {
    pub(super) what: String,
    pub(super) found: String,
    pub(super) wanted: String,
    /// What to do where these differ.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) todo: Option<String>,
}

/// What a step found.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(super) struct Outcome {
    /// Whether it is as believed.
    pub(super) holds: bool,
    pub(super) detail: String,
    #[serde(default)]
    pub(super) figures: BTreeMap<String, f64>,
}

/// How a step ended.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", tag = "ended")]
pub(super) enum Verdict {
    /// It said what it found.
    Found {
        #[serde(flatten)]
        outcome: Outcome,
    },
    /// It is one of those that need --risky.
    Skipped,
    /// It failed.
    Failed { reason: String },
    /// The device can't be used.
    NoDevice { reason: String },
    /// It took too long, and was ended.
    TooLong { seconds: u64 },
    /// It took too long, and can't be ended: the kernel holds it.
    Stuck,
    /// It is under way, or this program ended before it did.
    Running,
}

impl Verdict {
    /// Whether what is believed was found to be so.
    pub(super) fn holds(&self) -> bool {
        matches!(self, Verdict::Found { outcome } if outcome.holds)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Found { outcome } if outcome.holds => write!(f, "yes: {}", outcome.detail),
            Verdict::Found { outcome } => write!(f, "NO: {}", outcome.detail),
            Verdict::Skipped => f.write_str("not tried (--risky)"),
            Verdict::Failed { reason } => write!(f, "FAILED: {reason}"),
            Verdict::NoDevice { reason } => write!(f, "no NPU: {reason}"),
            Verdict::TooLong { seconds } => write!(f, "DID NOT END within {seconds} s"),
            Verdict::Stuck => f.write_str("STUCK: it can't be ended"),
            Verdict::Running => f.write_str("under way"),
        }
    }
}

/// A step, and how it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) says: String,
    pub(super) source: String,
    pub(super) careful: String,
    pub(super) verdict: Verdict,
}

/// Everything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) ork: String,
    pub(super) device: String,
    pub(super) looks: Vec<Look>,
    pub(super) steps: Vec<Done>,
    /// Why it went no further.
    pub(super) stopped: Option<String>,
    /// Whether it came to its end: without, the last step says where it was.
    pub(super) ended: bool,
    /// What is kept for other programs.
    pub(super) profile: Option<Profile>,
}

impl Record {
    pub(super) fn new(device: &DeviceChoice) -> Record {
        Record {
            ork: env!("CARGO_PKG_VERSION").to_owned(),
            device: device.to_string(),
            looks: Vec::new(),
            steps: Vec::new(),
            stopped: None,
            ended: false,
            profile: None,
        }
    }

    pub(super) fn read(path: &Path) -> Result<Record> {
        let text = crate::input::read_text(path)?;
        serde_json::from_str(&text).map_err(Error::input(path))
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::Output(e.into()))?;
        write_bytes(path, format!("{text}\n").as_bytes())
    }

    fn push(&mut self, step: &Step, verdict: Verdict) {
        let [name, says, source, careful] =
            [step.name, step.says, step.source, step.careful].map(str::to_owned);
        self.steps.push(Done { name, kind: step.kind, says, source, careful, verdict });
    }

    pub(super) fn skip(&mut self, step: &Step) {
        self.push(step, Verdict::Skipped);
    }

    pub(super) fn begins(&mut self, step: &Step, path: &Path) -> Result<()> {
        self.push(step, Verdict::Running);
        self.write(path)
    }

    pub(super) fn ends(&mut self, step: &Step, verdict: Verdict, path: &Path) -> Result<()> {
        self.steps.pop();
        self.push(step, verdict);
        self.write(path)
    }

    /// How a step ended, if it was reached.
    pub(super) fn verdict(&self, name: &str) -> Option<&Verdict> {
        self.steps.iter().find(|done| done.name == name).map(|done| &done.verdict)
    }

    /// A figure of a step.
    pub(super) fn figure(&self, name: &str, figure: &str) -> Option<f64> {
        match self.verdict(name)? {
            Verdict::Found { outcome } => outcome.figures.get(figure).copied(),
            _ => None,
        }
    }

    /// What was looked at under this name.
    pub(super) fn look(&self, what: &str) -> Option<&str> {
        self.looks.iter().find(|look| look.what == what).map(|look| &*look.found)
    }

    pub(super) fn headline(&self) -> String {
        format!("ork {} on {}", self.ork, self.look("driver").unwrap_or(&self.device))
    }
}
