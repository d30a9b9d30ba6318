//! All steps, in the order in which they are taken: what is known to be safe first.

use rknpu::OpenOptions;
use serde::{Deserialize, Serialize};

use super::record::{Outcome, Verdict};
use super::{facts, measures, products};
use crate::cli::CheckArgs;
use crate::device::{DeviceChoice, OpenDevice};
use crate::error::{Error, Result};
use crate::output::Report;

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// What must be right.
    Product,
    /// What is only believed.
    Fact,
    /// What plans need.
    Measure,
}

/// What may come of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Danger {
    /// A wrong result at most, or a job that times out.
    Safe,
    /// Something of its kind was seen to fail in a way that only a reboot may end.
    MayWedge,
}

/// A step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What is believed, or done.
    pub(super) says: &'static str,
    /// Who says so.
    pub(super) source: &'static str,
    /// What holds until it is known.
    pub(super) careful: &'static str,
    pub(super) danger: Danger,
    /// Longest that it may take.
    pub(super) seconds: u64,
    pub(super) run: fn(&Board) -> Result<Outcome>,
}

/// What a step works with.
pub(super) struct Board<'a> {
    choice: &'a DeviceChoice,
    report: Report,
    /// A file beside which there is room on a disk.
    pub(super) beside: &'a std::path::Path,
}

impl Board<'_> {
    /// The device, with careful defaults.
    pub(super) fn open(&self) -> Result<OpenDevice> {
        self.open_with(&OpenOptions::new())
    }

    pub(super) fn open_with(&self, options: &OpenOptions) -> Result<OpenDevice> {
        self.choice.open_with(self.report, options)
    }
}

/// All steps.
pub(super) fn all() -> impl Iterator<Item = &'static Step> {
    let facts = |danger| facts::FACTS.iter().filter(move |fact| fact.danger == danger);
    products::PRODUCTS
        .iter()
        .chain(facts(Danger::Safe))
        .chain(measures::MEASURES)
        .chain(facts(Danger::MayWedge))
}

pub(super) fn find(name: &str) -> Option<&'static Step> {
    all().find(|step| step.name == name)
}

/// Takes one step in this process, and says what it found as one line.
pub(super) fn run(name: &str, args: &CheckArgs, report: Report) -> Result<()> {
    let step = find(name).ok_or_else(|| Error::Usage(format!("there is no step {name:?}")))?;
    let board = Board { choice: &args.device.device, report, beside: &args.report };
    let verdict = match (step.run)(&board) {
        Ok(outcome) => Verdict::Found { outcome },
        Err(Error::Device(error)) if is_opening(&error) => {
            Verdict::NoDevice { reason: ork_cache::chain(&error) }
        }
        Err(error @ Error::Node { .. }) => Verdict::NoDevice { reason: error.to_string() },
        Err(error) => Verdict::Failed { reason: ork_cache::chain(&error) },
    };
    Report { json: true }.print(&verdict, String::new)
}

/// Whether the device was not even opened.
fn is_opening(error: &rknpu::Error) -> bool {
    use rknpu::Error as E;
    matches!(
        error,
        E::NoDevice { .. }
            | E::NoNode { .. }
            | E::Permission { .. }
            | E::Open { .. }
            | E::OtherDriver { .. }
    )
}
