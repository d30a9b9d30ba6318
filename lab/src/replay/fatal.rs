//! The call in which a recorded process died. It is not recorded itself; the kernel's log names the
//! function that oopsed, and what the steps made last is what it was about.

use crate::replay::layout::put;
use crate::replay::run::Run;
use rknpu_sim::File;
use rknpu_sim::Hazard;
use rknpu_sys::ioctl;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// An address that was never an object's.
const FORGED: u64 = 0x1000;
/// More tasks than any buffer holds.
const TOO_MANY: u64 = 0x10_0000;
/// Nobody's call: what the kernel does when a job has ended or timed out.
const JOB_ENDED: &str = "end of a job";
/// Longer than any job's timeout in a recording.
const UNTIL_ALL_TIMED_OUT: Duration = Duration::from_secs(120);

/// How a recording ended that the kernel's death ended, and what the model says to the same call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fatal {
    /// The kernel function that oopsed.
    pub function: String,
    /// The call that was made; none when the function does not tell which.
    pub call: Option<String>,
    /// The hazard that the model reported, in words.
    pub hazard: Option<String>,
}

impl Fatal {
    /// Whether the model let a call pass that the kernel died of.
    pub fn is_silent(&self) -> bool {
        self.call.is_some() && self.hazard.is_none()
    }
}

/// The function in which the kernel oopsed, by its log. Warnings before it also have an address.
pub(crate) fn oopsed(log: &[String]) -> Option<&str> {
    let fatal = |line: &String| {
        line.starts_with("BUG: kernel NULL")
            || line.starts_with("BUG: unable")
            || line.starts_with("general protection")
    };
    let after = log.iter().skip_while(|line| !fatal(line));
    let address = after.filter_map(|line| line.strip_prefix("RIP: ")?.split_once(':')).next()?.1;
    address.split(['.', '+']).next()
}

/// Makes the call that ends in `function`: about `object`, or about none.
pub(crate) fn die(
    run: &Run<'_>,
    function: &str,
    file: Option<&File>,
    object: Option<u64>,
) -> Fatal {
    let object = object.unwrap_or(FORGED);
    let before = hazards(run);
    let mut bytes = [0; 104];
    let submit = |bytes: &mut [u8], tasks: u64| {
        // Flags, timeout, task number, core mask, no fence, and the first core's range.
        let words =
            [(0, 5), (4, 100), (12, tasks), (56, 1), (60, u64::from(u32::MAX)), (68, tasks)];
        for (at, value) in words {
            put(bytes, at, 4, value);
        }
        put(bytes, 24, 8, object);
        Some(("SUBMIT", ioctl::SUBMIT))
    };
    let is = |name: &str| function.starts_with(name);
    let call = match () {
        () if is("rknpu_gem_sync") => {
            put(&mut bytes, 0, 4, 1);
            put(&mut bytes, 8, 8, object);
            put(&mut bytes, 24, 8, 4096);
            Some(("MEM_SYNC", ioctl::MEM_SYNC))
        }
        () if is("rknpu_job_subcore_commit") || is("rknpu_job_commit") => submit(&mut bytes, 1),
        () if is("rknpu_submit") => submit(&mut bytes, TOO_MANY),
        () if is("regulator_get_voltage") => {
            put(&mut bytes, 0, 4, rknpu_sys::action::GET_VOLT.into());
            Some(("ACTION", ioctl::ACTION))
        }
        () => None,
    };
    let (call, made) = match (call, file) {
        (Some((name, request)), Some(file)) => {
            // It dies; what it would return is seen by nobody.
            let _ = file.call_bytes(request, &mut bytes);
            (Some(name), true)
        }
        _ => {
            run.machine.sleep(UNTIL_ALL_TIMED_OUT);
            ((is("rknpu_job") || is("rknpu_irq")).then_some(JOB_ENDED), false)
        }
    };
    let now = hazards(run);
    let met = now.into_iter().find(|(hazard, (times, _))| {
        let grew = *times > before.get(hazard).map_or(0, |(times, _)| *times);
        if made { grew && hazard.kills() } else { corrupts_jobs(hazard) }
    });
    let hazard = met.map(|(_, (_, text))| text);
    Fatal { function: function.to_owned(), call: call.map(str::to_owned), hazard }
}

fn hazards(run: &Run<'_>) -> BTreeMap<Hazard, (u64, String)> {
    let met = run.machine.report().hazards.into_iter();
    met.map(|met| (met.hazard, (met.times, met.text))).collect()
}

/// Whether a hazard leaves the kernel with a job that is freed.
fn corrupts_jobs(hazard: &Hazard) -> bool {
    use Hazard as H;
    matches!(hazard, H::FreedJobLinked { .. } | H::FreedJobStarted { .. } | H::JobFreedTwice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_is_that_of_the_oops() {
        let log = [
            "refcount_t: addition on 0; use-after-free.",
            "RIP: 0010:refcount_warn_saturate+0x87/0xf0",
            "BUG: kernel NULL pointer dereference, address: 0000000000000020",
            "RIP: 0010:rknpu_job_subcore_commit_pc.isra.0+0x18f/0x2b0",
        ];
        let log = log.map(str::to_owned);
        assert_eq!(oopsed(&log), Some("rknpu_job_subcore_commit_pc"));
        assert_eq!(oopsed(&log[..2]), None);
    }
}
