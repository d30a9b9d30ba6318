//! When each step runs: at its recorded time, after what must have happened before.

use crate::replay::format::{Scenario, Step, after};

/// When threads that submit jobs one after the other begin, and by how much they are apart.
const FIRST_JOB_MS: u64 = 60;
const JOBS_APART_MS: u64 = 140;

/// When a step may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When {
    /// Not before this millisecond.
    pub(crate) at_ms: u64,
    /// Only after all steps listed before it have ended.
    pub(crate) after_listed: bool,
}

/// A thread's steps, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lane {
    /// `None` for the main thread.
    pub(crate) thread: Option<String>,
    pub(crate) steps: Vec<usize>,
    /// The CPU that it ran on.
    pub(crate) cpu: usize,
}

/// The threads of a scenario, the main one first. The recorder pinned the main thread and processes
/// to CPU 0, and threads to CPU 1 and 0 in turn; the order in which it made them is not recorded and
/// only mostly that of their first calls, so that a seed varies it.
pub(crate) fn lanes(scenario: &Scenario, seed: Option<u64>) -> Vec<Lane> {
    let mut lanes = vec![Lane::default()];
    for (n, step) in scenario.steps.iter().enumerate() {
        match lanes.iter_mut().find(|lane| lane.thread == step.thread) {
            Some(lane) => lane.steps.push(n),
            None => {
                lanes.push(Lane { thread: step.thread.clone(), steps: vec![n], cpu: 0 });
            }
        }
    }
    let begins = |lane: &Lane| lane.steps.iter().find_map(|&n| scenario.steps[n].at_ms);
    let mut threads: Vec<&mut Lane> = lanes.iter_mut().skip(1).collect();
    threads.sort_by_key(|lane| begins(lane));
    let threads = threads.into_iter().filter(|lane| lane.thread.as_deref() != Some("child"));
    for (n, lane) in threads.enumerate() {
        lane.cpu = match seed {
            None => 1 - n % 2,
            Some(seed) => usize::from(seed >> (1 + n % 8) & 1 == 1),
        };
    }
    lanes
}

/// A call that was under way when the recording process died, and therefore was not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) core: u32,
    /// When it began.
    pub(crate) at_ms: u64,
    /// The step whose object holds its tasks.
    pub(crate) tasks: usize,
}

/// The submit that must have started the first program of the log, where `started` programs, fewer
/// than logged, were started by the recorded steps. Its task is the one that the recorded steps
/// wrote, and it began before the first recorded submit.
pub(crate) fn lost(scenario: &Scenario, started: usize) -> Option<Lost> {
    if scenario.completed || started >= scenario.device_log.len() {
        return None;
    }
    let core = after(scenario.device_log.first()?, "core")?;
    let submit = scenario.steps.iter().find(|step| step.op == "SUBMIT")?;
    let of_tasks = |step: &Step| {
        step.op == "MEM_CREATE" && step.number("flags").is_some_and(|flags| flags & 0x8 != 0)
    };
    Some(Lost {
        core: u32::try_from(core).ok()?,
        at_ms: submit.at_ms?.saturating_sub(1),
        tasks: scenario.steps.iter().position(of_tasks)?,
    })
}

/// When a step begins. Calls carry their time. Steps without one took no time and follow what is
/// listed before them; those that only look are done as late as the calls that were under way allow.
pub(crate) fn when(scenario: &Scenario, n: usize) -> When {
    let step = &scenario.steps[n];
    if let Some(at_ms) = step.at_ms {
        return When { at_ms, after_listed: false };
    }
    let jobs =
        step.thread.as_deref().and_then(|thread| thread.strip_prefix('J')?.parse::<u64>().ok());
    if let (Some(core), Some(_)) = (jobs, step.value.get("jobs")) {
        // They overlap, and keep the domain from then on.
        return When { at_ms: FIRST_JOB_MS + core * JOBS_APART_MS, after_listed: false };
    }
    let at_ms = if looks(step) { late(scenario, n) } else { 0 };
    When { at_ms, after_listed: true }
}

fn looks(step: &Step) -> bool {
    matches!(step.op.as_str(), "internal_state" | "observe" | "read_task" | "internal_sync_log")
}

/// A little after the last call of another thread that began before the next thing ended.
fn late(scenario: &Scenario, n: usize) -> u64 {
    let me = &scenario.steps[n];
    let later = &scenario.steps[n + 1..];
    let next = later.iter().find(|step| step.thread == me.thread);
    let times = || later.iter().filter_map(|step| step.at_ms);
    if next.is_some_and(|step| step.op == "write_task") {
        // What is written next belongs to the first call that is still to begin.
        return times().min().map_or(0, |at| at.saturating_sub(2));
    }
    let own = later.iter().filter(|step| step.thread == me.thread).find_map(|step| step.at_ms);
    let power = me.value.get("path").and_then(|path| path.as_str()?.strip_suffix("/power"));
    if let (Some(_), Some(own)) = (power, own) {
        // It goes off after a while without calls.
        return own.saturating_sub(1);
    }
    let end = |step: &Step| Some(step.at_ms?.saturating_add(step.us.unwrap_or(0) / 1000));
    let bound = later.iter().find_map(end).unwrap_or(0).min(own.unwrap_or(u64::MAX));
    let others = later.iter().filter(|step| step.thread != me.thread);
    let begun = others.filter_map(|step| step.at_ms).filter(|&at| at < bound).max();
    begun.map_or(0, |at| at.saturating_add(5).min(bound.saturating_sub(1)))
}
