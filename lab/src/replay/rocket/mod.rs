//! Recordings of the mainline driver, held against its model: one process, one step after the other, at the
//! recorded times of the virtual clock.
//!
//! What the recorder did without saying so (which bytes it stored, what its programs were) is in
//! [`programs`]; the call in which the kernel stopped in [`ending`].

mod calls;
mod ending;
mod memory;
mod programs;
mod standin;
mod state;

use crate::replay::compare::{outcome, same_outcome};
use crate::replay::format::{Scenario, Step, number};
use crate::replay::{Difference, Fatal, NotCompared, Replayed};
use rknpu_sim::config::{Config, Driver, Form};
use rknpu_sim::{File, Machine, Mapping, Node};
use rustix::fd::RawFd;
use rustix::io::Errno;
use serde_json::Value;
use standin::StandIn;
use state::Seen;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// A mapping of a file's object, or of a dma-buf.
struct View {
    /// As the recording names the descriptor.
    of: String,
    offset: u64,
    mapping: Mapping,
}

/// A replay under way.
struct Run<'s> {
    machine: Machine,
    scenario: &'s Scenario,
    files: HashMap<String, Arc<File>>,
    /// Files made by the thousand, without names.
    many: Vec<Arc<File>>,
    views: Vec<View>,
    /// What the last exports gave, by the names that the recording has for them.
    dma_bufs: HashMap<String, RawFd>,
    flink_name: u32,
    seen: Seen,
    differences: Vec<Difference>,
    not_compared: Vec<NotCompared>,
    fatal: Option<Fatal>,
    at: usize,
}

/// Replays a scenario.
pub(super) fn once(scenario: &Scenario) -> Replayed {
    let first = scenario.config.driver.contains("first merged");
    let form = if first { Form::FirstMerged } else { Form::Later };
    let config =
        Config { driver: Driver::Rocket(form), engine: Arc::new(StandIn), ..Config::default() };
    let mut run = Run {
        machine: Machine::new(config),
        scenario,
        files: HashMap::new(),
        many: Vec::new(),
        views: Vec::new(),
        dma_bufs: HashMap::new(),
        flink_name: 0,
        seen: Seen::default(),
        differences: Vec::new(),
        not_compared: Vec::new(),
        fatal: None,
        at: 0,
    };
    // The clock stands still between the calls.
    let acting = run.machine.actor();
    for (at, step) in scenario.steps.iter().enumerate() {
        run.at = at;
        run.until(step);
        run.step(step);
    }
    if !scenario.completed {
        run.fatal = ending::end(&mut run);
    }
    run.exit();
    drop(acting);
    let unequal: BTreeSet<usize> = run.differences.iter().map(|found| found.step).collect();
    run.not_compared.retain(|found| !unequal.contains(&found.step));
    let not_compared: BTreeSet<usize> = run.not_compared.iter().map(|found| found.step).collect();
    let steps = scenario.steps.len();
    Replayed {
        name: scenario.name.clone(),
        file: String::new(),
        steps,
        equal: steps - unequal.len(),
        unequal: unequal.len(),
        not_compared: not_compared.len(),
        racy: scenario.racy.is_some(),
        fatal: run.fatal,
        differences: run.differences,
        skipped: run.not_compared,
        internals: Vec::new(),
    }
}

impl Run<'_> {
    /// Lets time pass until a step began.
    fn until(&self, step: &Step) {
        let at = Duration::from_millis(step.at_ms.unwrap_or(0));
        self.machine.sleep(at.saturating_sub(self.machine.now()));
    }

    fn step(&mut self, step: &Step) {
        self.unmapped_unsaid(step);
        let race = self.scenario.racy.as_deref().is_some_and(|racy| racy.starts_with("all"));
        match step.op.as_str() {
            "CREATE_BO" | "stand_in_state" if race => self.skip("everything is a race"),
            "note" => self.note(step),
            "open" => self.open(step),
            "open_repeat" => self.open_many(step),
            "close" => self.close(step),
            "close_repeat" => self.many.clear(),
            "exit" => {
                self.outcome(step, &Ok(()));
                self.exit();
            }
            "wait_child" => self.wait_child(step),
            "stand_in_state" => self.state(step),
            "mmap" => self.mmap(step),
            "load" | "store" => self.touch(step),
            "CREATE_BO_repeat" => self.create_many(step),
            "SUBMIT_repeat" => self.submit_many(step),
            "PREP_BO_repeat" => self.prepare_many(step),
            "lseek_end"
            | "poll"
            | "read"
            | "mremap_grow"
            | "madvise_DONTNEED"
            | "mlock"
            | "msync"
            | "process_vm_readv"
            | "pread_buffered_into_object"
            | "write_from_object"
            | "pread_O_DIRECT_into_object"
            | "DMA_BUF_SYNC" => self.kernels(step),
            _ => self.ioctl(step),
        }
    }

    /// Remarks hold nothing that the driver answers, except for the words that programs moved.
    fn note(&mut self, step: &Step) {
        let text = step.text.as_deref().unwrap_or_default();
        if text.starts_with("child wait status") {
            self.files.remove("U");
        }
        programs::noted(self, text);
    }

    fn open(&mut self, step: &Step) {
        let name = step.fd.clone().unwrap_or_default();
        if step.errno() == Some("EACCES") {
            return self.skip("the node's permissions are the file system's");
        }
        let file = Arc::new(self.machine.open_as(Node::Accel, name != "U"));
        self.files.insert(name, file);
        self.outcome(step, &Ok(()));
    }

    fn open_many(&mut self, step: &Step) {
        let count = step.number("repeat").unwrap_or(0).min(1 << 16);
        self.many = (0..count).map(|_| Arc::new(self.machine.open())).collect();
        self.field(step, "succeeded", self.many.len() as u64);
    }

    fn close(&mut self, step: &Step) {
        let file = self.files.remove(step.fd.as_deref().unwrap_or_default());
        let (busy, before) = (self.machine.report().jobs_pending > 0, self.machine.now());
        self.outcome(step, &file.as_ref().map(drop).ok_or(Errno::BADF));
        drop(file);
        if busy {
            self.took(step, before);
        }
    }

    /// A child process has ended, and what was its own with it.
    fn wait_child(&mut self, step: &Step) {
        let before = self.machine.now();
        if step.input.contains_key("child") {
            self.views.retain(|view| view.of != "C");
            self.files.remove("C");
        }
        self.outcome(step, &Ok(()));
        if before.as_millis() as u64 >= step.at_ms.unwrap_or(0) && step.us > Some(900_000) {
            self.took(step, before);
        }
    }

    /// A process ends.
    fn exit(&mut self) {
        self.views.clear();
        self.files.clear();
        self.many.clear();
        self.close_dma_bufs();
    }

    fn file(&self, step: &Step) -> Option<Arc<File>> {
        let name = step.fd.as_deref()?;
        self.files.get(name.trim_end_matches("(child)")).cloned()
    }

    fn differ(&mut self, field: &str, recorded: impl ToString, simulated: impl ToString) {
        let step = &self.scenario.steps[self.at];
        self.differences.push(Difference {
            step: self.at,
            call: format!("{} {}", step.op, step.step).trim().to_owned(),
            field: field.to_owned(),
            recorded: recorded.to_string(),
            simulated: simulated.to_string(),
        });
    }

    fn skip(&mut self, why: &str) {
        let step = &self.scenario.steps[self.at];
        let call = format!("{} {}", step.op, step.step).trim().to_owned();
        self.not_compared.push(NotCompared { step: self.at, call, why: why.to_owned() });
    }

    fn outcome<T>(&mut self, step: &Step, result: &Result<T, Errno>) {
        let simulated = outcome(result);
        match step.errno() {
            Some(recorded) if same_outcome(recorded, &simulated) => {}
            recorded => self.differ("errno", recorded.unwrap_or("none"), simulated),
        }
    }

    /// Compares a field that a call gave back, where it is recorded.
    fn field(&mut self, step: &Step, name: &str, simulated: u64) {
        let Some(recorded) = step.expect.get("out").and_then(|out| out.get(name)) else { return };
        if number(recorded) != Some(simulated) {
            self.differ(name, recorded, format!("{simulated:#x}"));
        }
    }

    fn text_field(&mut self, step: &Step, name: &str, simulated: &str) {
        let recorded = step.expect.get("out").and_then(|out| out.get(name)).and_then(Value::as_str);
        if let Some(recorded) = recorded.filter(|recorded| *recorded != simulated) {
            self.differ(name, recorded, simulated);
        }
    }

    /// Compares how long a wait took. Below 100 ms the recordings mean nothing; above, the machine that they
    /// were made on was late by up to 60 ms for each limit that ran out, and by a tenth.
    fn took(&mut self, step: &Step, since: Duration) {
        let simulated = (self.machine.now() - since).as_millis() as u64;
        let recorded = step.us.unwrap_or(0) / 1000;
        let tolerance = 60 + recorded / 10;
        if recorded.max(simulated) >= 100 && recorded.abs_diff(simulated) > tolerance {
            self.differ("milliseconds", recorded, simulated);
        }
    }
}
