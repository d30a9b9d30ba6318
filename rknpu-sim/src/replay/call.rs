//! One ioctl of a recording: its struct built, issued and compared.

use crate::fault::Fault;
use crate::replay::compare::{errno, same_field};
use crate::replay::format::{Step, number};
use crate::replay::layout::{SUBCORES, fields, get, put};
use crate::replay::run::{Run, low};
use rustix::io::Errno;
use serde_json::Value;

/// Bytes behind a struct that must stay as they are.
const TAIL: u8 = 0xaa;
const ROOM: usize = 256;
/// Added to literal descriptors: beyond what a process has open.
const NO_FENCE: u64 = 1 << 24;

impl Run<'_> {
    pub(super) fn ioctl(&self, n: usize, step: &Step) {
        let Some(request) = step.req.as_deref().and_then(|word| number(&Value::from(word))) else {
            return;
        };
        let Some(file) = self.file(step) else {
            self.differ(n, "fd", &Value::from(step.fd.clone()), "not open");
            return;
        };
        self.arm(step);
        let size = (request >> 16) as usize & 0x3fff;
        let before = self.build(step, size);
        let mut bytes = before.clone();
        let result = file.call(low(Some(request)), &mut bytes);
        drop(file);
        self.outcome(n, step, &result);
        self.learn(step, &bytes, result.is_ok());
        self.compare(n, step, &before, &bytes);
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
                self.differ(n, name, recorded, &format!("{simulated:#x}"));
            }
        }
        let rest = |bytes: &[u8]| -> Vec<u8> {
            bytes.iter().zip(&known).filter(|(_, known)| !**known).map(|(byte, _)| *byte).collect()
        };
        if rest(before) != rest(now) {
            self.differ(n, "bytes behind the struct", &Value::from("unchanged"), "changed");
        }
    }
}
