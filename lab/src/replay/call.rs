//! One ioctl of a recording: its struct built, issued and compared.

use crate::replay::compare::{errno, same_field};
use crate::replay::format::{Step, number};
use crate::replay::layout::{SUBCORES, fields, get, put};
use crate::replay::observe::compare as compare_value;
use crate::replay::run::{Run, low};
use rknpu_sim::Fault;
use rustix::io::Errno;
use serde_json::Value;

/// Bytes behind a struct that must stay as they are.
const TAIL: u8 = 0xaa;
const ROOM: usize = 256;
/// Added to literal descriptors: beyond what a process has open.
const NO_FENCE: u64 = 1 << 24;

/// What a call left in its struct.
#[derive(Clone, Debug)]
pub(super) struct Left {
    op: String,
    before: Vec<u8>,
    now: Vec<u8>,
}

impl Left {
    /// Whether a byte lies behind the fields of the struct.
    fn is_tail(&self, at: usize) -> bool {
        at >= fields(&self.op).iter().map(|(_, at, len)| at + len).max().unwrap_or(0)
    }

    fn tail_kept(&self) -> bool {
        let mut bytes = self.before.iter().zip(&self.now).enumerate();
        bytes.all(|(at, (before, now))| !self.is_tail(at) || before == now)
    }
}

impl Run<'_> {
    pub(super) fn ioctl(&self, n: usize, step: &Step) {
        let Some(request) = step.req.as_deref().and_then(|word| number(&Value::from(word))) else {
            return self.not_compared(n, "it has no request word");
        };
        let Some(file) = self.file(step) else {
            self.differ(n, "fd", &Value::from(step.fd.clone()), "not open");
            return;
        };
        self.arm(step);
        let size = (request >> 16) as usize & 0x3fff;
        let before = self.build(step, size);
        let mut bytes = before.clone();
        let result = file.call_bytes(low(Some(request)), &mut bytes);
        drop(file);
        self.outcome(n, step, &result);
        self.learn(step, &bytes, result.is_ok());
        self.compare(n, step, &before, &bytes);
        let left = Left { op: step.op.clone(), before, now: bytes };
        self.world().left.insert(step.thread.clone(), left);
    }

    /// Whether the step before, of the same thread, was an ioctl.
    pub(crate) fn follows_a_call(&self, n: usize) -> bool {
        let thread = &self.scenario.steps[n].thread;
        let before = self.scenario.steps[..n].iter().rev().find(|step| &step.thread == thread);
        before.is_some_and(|step| step.req.is_some())
    }

    /// Whether the thread's last call left the bytes behind its struct alone.
    pub(crate) fn tail_kept(&self, step: &Step) -> bool {
        self.world().left.get(&step.thread).is_some_and(Left::tail_kept)
    }

    /// The thread's last struct as the recorder shows it: its words, or some of its fields.
    pub(crate) fn words(&self, n: usize, step: &Step) {
        let world = self.world();
        let Some(left) = world.left.get(&step.thread).cloned() else { return };
        drop(world);
        for (at, recorded) in step.value.as_array().into_iter().flatten().enumerate() {
            let word = |bytes: &[u8]| get(bytes, 4 * at, 4);
            // What the recorder had there before is only known if the call changed it, or if it lies
            // behind the struct.
            let known = word(&left.now) != word(&left.before) || left.is_tail(4 * at);
            if known {
                compare_value(self, n, &format!("word {at}"), recorded, word(&left.now));
            }
        }
        for (name, field) in [("size", "size"), ("obj", "obj_addr")] {
            let place = fields(&left.op).iter().find(|(of, ..)| *of == field);
            if let (Some(recorded), Some((_, at, len))) = (step.value.get(name), place) {
                compare_value(self, n, name, recorded, get(&left.now, *at, *len));
            }
        }
    }

    /// The struct that a step hands in.
    fn build(&self, step: &Step, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; ROOM.max(size)];
        let fields = fields(&step.op);
        let end = fields.iter().map(|(_, at, len)| at + len).max().unwrap_or(size);
        bytes[if step.op == "SUBMIT" { SUBCORES + 40 } else { end }.min(ROOM)..].fill(TAIL);
        let world = self.world();
        for (name, at, len) in fields {
            let Some(value) = step.input.get(*name) else { continue };
            let literal = value.as_str().is_some_and(|text| text.starts_with("fd:"));
            let known = world.tokens.value(value).unwrap_or(0);
            // A descriptor of the recorder's that was no fence must not be one here.
            put(&mut bytes, *at, *len, if literal { known + NO_FENCE } else { known });
        }
        let pairs = step.input.get("subcore_task").and_then(Value::as_array);
        for (at, value) in
            pairs.into_iter().flatten().filter_map(Value::as_array).flatten().enumerate()
        {
            put(&mut bytes, SUBCORES + 4 * at, 4, number(value).unwrap_or(0));
        }
        bytes
    }

    /// The environment's faults are not recorded, but some errnos come from nowhere else.
    fn arm(&self, step: &Step) {
        if step.op == "SUBMIT" && step.number("flags").is_some_and(|flags| flags & 0x8 != 0) {
            self.foreign_fence(step);
        }
        let Some(errno) = step.errno().and_then(errno) else { return };
        if step.op == "ACTION" {
            match step.number("flags") {
                Some(6) => self.machine.inject(Fault::ResetLines(errno)),
                Some(25) if errno != Errno::INVAL => self.machine.inject(Fault::Attach(errno)),
                _ => {}
            }
        }
    }

    /// A fence that is waited for and that no step has made is another driver's; a literal descriptor
    /// is none.
    fn foreign_fence(&self, step: &Step) {
        let Some(token) = step.text("fence_fd") else { return };
        let literal = token.starts_with("fd:") || number(&Value::from(token)).is_some();
        if literal || self.world().tokens.get(token).is_some() {
            return;
        }
        if let Some(fd) = self.machine.foreign_fence().ok().and_then(|fd| u64::try_from(fd).ok()) {
            self.world().tokens.set(token, fd);
        }
    }

    /// Remembers what later steps refer to.
    fn learn(&self, step: &Step, bytes: &[u8], ok: bool) {
        if !ok {
            return;
        }
        let field = |name: &str| {
            let found = fields(&step.op).iter().find(|(of, ..)| *of == name);
            found.map_or(0, |&(_, at, len)| get(bytes, at, len))
        };
        let mut world = self.world();
        match step.op.as_str() {
            "MEM_CREATE" if step.number("handle").unwrap_or(0) == 0 => {
                world.objects.insert(field("handle"), low(step.number("flags")));
            }
            "PRIME_HANDLE_TO_FD" => {
                world.made.extend(i32::try_from(field("fd")));
            }
            "SUBMIT" if step.number("flags").is_some_and(|flags| flags & 0x10 != 0) => {
                let fd = low(Some(field("fence_fd"))).cast_signed();
                world.made.extend((fd >= 0).then_some(fd));
            }
            "MEM_MAP" => {
                let flags = world.objects.get(&field("handle")).copied().unwrap_or(0);
                world.offsets.insert(field("offset"), flags);
            }
            _ => {}
        }
    }

    fn compare(&self, n: usize, step: &Step, before: &[u8], now: &[u8]) {
        let Some(changed) = step.expect.get("out_changed").and_then(Value::as_object) else {
            return;
        };
        if let Some(old) = &step.addr_reused_from {
            self.world().tokens.forget(old);
        }
        if step.op == "PRIME_HANDLE_TO_FD"
            && let Some(token) = changed.get("fd").and_then(Value::as_str)
        {
            // The recorder's name for whatever comes out here.
            self.world().tokens.forget(token);
        }
        let request = step.req.as_deref().and_then(|word| number(&Value::from(word)));
        let gives = request.is_some_and(|word| word & 0x8000_0000 != 0);
        let mut known = vec![false; now.len()];
        for (name, at, len) in fields(&step.op) {
            known[*at..at + len].fill(true);
            let simulated = get(now, *at, *len);
            let same = match changed.get(*name) {
                // Nothing was copied out, but the recorder names whatever it finds in the field.
                Some(_) if !gives && step.rule(name) == "token" => {
                    get(before, *at, *len) == simulated
                }
                Some(recorded) => {
                    same_field(step.rule(name), recorded, simulated, &mut self.world().tokens)
                }
                None => get(before, *at, *len) == simulated,
            };
            if !same {
                let unchanged = Value::from("unchanged");
                let recorded = changed.get(*name).unwrap_or(&unchanged);
                // In the base that the recording has, to be read side by side.
                let simulated = if recorded.is_number() {
                    simulated.to_string()
                } else {
                    format!("{simulated:#x}")
                };
                self.differ(n, name, recorded, &simulated);
            }
        }
        let mut rest = before.iter().zip(now).zip(known).filter(|(_, known)| !known);
        if rest.any(|((before, now), _)| before != now) {
            self.differ(n, "bytes behind the struct", &Value::from("unchanged"), "changed");
        }
    }
}
