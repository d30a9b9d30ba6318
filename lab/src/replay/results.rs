//! What came of a replay.

use crate::replay::Fatal;
use serde::Serialize;
use std::fmt;

/// A field that is not as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The step's number.
    pub step: usize,
    /// The call and the step's name.
    pub call: String,
    /// Which field.
    pub field: String,
    /// As recorded.
    pub recorded: String,
    /// As simulated.
    pub simulated: String,
}

/// A step whose answer, or part of it, was compared with nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotCompared {
    /// The step's number.
    pub step: usize,
    /// The call and the step's name.
    pub call: String,
    /// Why not.
    pub why: String,
}

/// Steps in all, by what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// All.
    pub steps: usize,
    /// Of which every field that the recording holds the driver to is as recorded.
    pub equal: usize,
    /// Of which one is not; together with `equal`, all.
    pub unequal: usize,
    /// Of the equal ones, those with something that was compared with nothing.
    pub not_compared: usize,
}

/// What came of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Name.
    pub name: String,
    /// File.
    pub file: String,
    /// Steps.
    pub steps: usize,
    /// Steps of which every field that the recording holds the driver to is as recorded.
    pub equal: usize,
    /// Steps of which a field is not; together with `equal`, all.
    pub unequal: usize,
    /// Of the equal steps, those that record something besides that this model does not answer;
    /// [`Replayed::skipped`] says what and why.
    pub not_compared: usize,
    /// Whether the recording says that outcomes were a race.
    pub racy: bool,
    /// How the recording ended, if the kernel ended it.
    pub fatal: Option<Fatal>,
    /// What differs.
    pub differences: Vec<Difference>,
    /// What was not compared, and why.
    pub skipped: Vec<NotCompared>,
    /// Driver internals that differ from the recording's: to explain, not owed.
    pub internals: Vec<String>,
}

/// What came of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Results {
    /// One per scenario.
    pub scenarios: Vec<Replayed>,
}

impl Replayed {
    /// Whether every field that was compared is as recorded, and the kernel's death, if it died, has
    /// its hazard.
    pub fn is_equal(&self) -> bool {
        self.unequal == 0 && !self.fatal.as_ref().is_some_and(Fatal::is_silent)
    }
}

impl Results {
    /// Whether every field that was compared is as recorded, and every death of the kernel has its
    /// hazard.
    pub fn all_equal(&self) -> bool {
        self.scenarios.iter().all(Replayed::is_equal)
    }

    /// Steps in all.
    pub fn totals(&self) -> Totals {
        let sum = |f: fn(&Replayed) -> usize| self.scenarios.iter().map(f).sum();
        Totals {
            steps: sum(|scenario| scenario.steps),
            equal: sum(|scenario| scenario.equal),
            unequal: sum(|scenario| scenario.unequal),
            not_compared: sum(|scenario| scenario.not_compared),
        }
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<36} {:>6} {:>6} {:>7} {:>12}",
            "scenario", "steps", "equal", "unequal", "not compared"
        )?;
        for scenario in &self.scenarios {
            let Replayed { name, steps, equal, unequal, not_compared, .. } = scenario;
            writeln!(f, "{name:<36} {steps:>6} {equal:>6} {unequal:>7} {not_compared:>12}")?;
            for NotCompared { step, call, why } in &scenario.skipped {
                writeln!(f, "    step {step}, {call}: not compared: {why}")?;
            }
            for d in &scenario.differences {
                let Difference { step, call, field, recorded, simulated } = d;
                writeln!(f, "    step {step}, {call}: {field} was {recorded}, is {simulated}")?;
            }
            if let Some(Fatal { function, call, hazard }) = &scenario.fatal {
                let call = call.as_deref().unwrap_or("not known");
                let hazard = hazard.as_deref().unwrap_or("no hazard was reported");
                writeln!(f, "    the kernel died in {function}, call {call}: {hazard}")?;
            }
        }
        let Totals { steps, equal, unequal, not_compared } = self.totals();
        let scenarios = self.scenarios.len();
        writeln!(
            f,
            "{scenarios} scenarios, {steps} steps, {equal} equal, {unequal} unequal; of the \
             equal, {not_compared} have a part that is not compared"
        )
    }
}
