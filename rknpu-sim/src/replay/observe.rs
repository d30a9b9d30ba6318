//! What the recorder looked at between calls, as far as it changed something or can be looked at.

use crate::Fault;
use crate::files::Node;
use crate::job::CORES;
use crate::machine::File;
use crate::replay::format::{Step, number};
use crate::replay::layout::{get, put};
use crate::replay::run::Run;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use serde_json::Value;
use std::sync::Arc;

/// Pages of the recorder's udmabuf.
const UDMABUF: u64 = 3 * 4096;

/// Does what an observation did, and compares what it saw.
pub(crate) fn observe(run: &Run<'_>, n: usize, step: &Step) {
    let value = &step.value;
    let has = |field: &str| value.get(field).is_some();
    let see = |field: &str| value.get(field).and_then(number);
    if has("destroyed") {
        let buffers = see("destroyed").unwrap_or(0) + see("failed").unwrap_or(0);
        let (destroyed, failed) = run.drain(buffers);
        for (field, simulated) in [("destroyed", destroyed), ("failed", failed)] {
            compare(run, n, value, field, simulated);
        }
    } else if has("pitch") {
        dumb(run, n, value);
    } else if has("r") && has("size") {
        foreign(run, "dmabuf:heap", see("size").unwrap_or(0));
    } else if step.step.starts_with("udmabuf") {
        foreign(run, "dmabuf:udma", UDMABUF);
    } else if has("poll") {
        poll(run, n, value);
    } else if has("fstatus") {
        fence(run, n, value);
    } else if step.step == "fds_exhausted" {
        run.machine.inject(Fault::FenceFile(Errno::MFILE));
    } else if step.step == "readonly_arg" {
        lost_handle(run);
    } else if step.step == "child_killed_by_signal" {
        killed(run);
    } else if let Some(name) = value.get("path").and_then(Value::as_str) {
        knob(run, n, name, value);
    }
}

fn compare(run: &Run<'_>, n: usize, value: &Value, field: &str, simulated: u64) {
    if let Some(recorded) = value.get(field).filter(|recorded| number(recorded) != Some(simulated))
    {
        run.differ(n, field, recorded, &simulated.to_string());
    }
}

/// CREATE_DUMB: the recorder's picture is 100 wide, 10 high and has 32 bits per pixel, as far as
/// pitch and size tell.
fn dumb(run: &Run<'_>, n: usize, value: &Value) {
    let see = |field: &str| value.get(field).and_then(number).unwrap_or(0);
    let (pitch, size) = (see("pitch").max(4), see("size"));
    let mut bytes = [0; 32];
    for (at, value) in [(0, size / pitch), (4, pitch / 4), (8, 32)] {
        put(&mut bytes, at, 4, value);
    }
    let card = run.world().files.values().find(|file| node(file) == Some(Node::Card)).cloned();
    let Some(card) = card else { return };
    if card.call(crate::calls::CREATE_DUMB, &mut bytes).is_err() {
        run.differ(n, "errno", &Value::from("0"), "refused");
    }
    for (field, at, len) in [("handle", 16, 4), ("pitch", 20, 4), ("size", 24, 8)] {
        compare(run, n, value, field, get(&bytes, at, len));
    }
}

fn node(file: &Arc<File>) -> Option<Node> {
    file.enter().files.get(file.id()).map(|open| open.node)
}

/// A buffer of another driver.
fn foreign(run: &Run<'_>, token: &str, size: u64) {
    let len = usize::try_from(size).unwrap_or(0);
    if let Ok(fd) = run.machine.foreign_buffer(len) {
        let mut world = run.world();
        let raw = u64::try_from(fd.as_raw_fd()).unwrap_or(0);
        world.tokens.set(token, raw);
        world.kept.push(fd);
    }
}

/// Which fence is meant is not recorded: the one made last.
fn last_fence(run: &Run<'_>, n: usize) -> Option<u64> {
    let before = run.scenario.steps[..n].iter().rev();
    let made = |step: &&Step| step.op == "SUBMIT" && step.expect.get("errno").is_some();
    let token = before.filter(made).find_map(|step| {
        let changed = step.expect.get("out_changed")?.get("fence_fd")?.as_str()?;
        changed.starts_with("fence@").then(|| changed.to_owned())
    })?;
    run.world().tokens.get(&token)
}

fn poll(run: &Run<'_>, n: usize, value: &Value) {
    let micros = value.get("us").and_then(number).unwrap_or(0);
    let Some(fence) = last_fence(run, n) else { return };
    let ready = value.get("poll").and_then(number) == Some(1);
    // What was waited for came when the recorder said; what was not was not there by then.
    let limit = if ready { 10_000_000 } else { micros };
    let signalled = run.poll(fence, limit);
    compare(run, n, value, "poll", u64::from(signalled));
}

fn fence(run: &Run<'_>, n: usize, value: &Value) {
    let Some(fence) = last_fence(run, n) else { return };
    let info = run.machine.fence(i32::try_from(fence).unwrap_or(-1));
    let Some(info) = info else { return };
    compare(run, n, value, "status", u64::from(info.signalled));
    if let Some(name) = value.get("name").filter(|name| name.as_str() != Some(&info.name)) {
        run.differ(n, "name", name, &info.name);
    }
}

/// MEM_CREATE with an argument that cannot be written: it leaves a handle behind.
fn lost_handle(run: &Run<'_>) {
    let file = run.world().files.values().next().cloned();
    let mut bytes = [0; 48];
    put(&mut bytes, 4, 4, 0x3);
    put(&mut bytes, 8, 8, 4096);
    if let Some(file) = file {
        // What it returns goes nowhere, as in the recording.
        let _ = file.call(rknpu_sys::ioctl::MEM_CREATE, &mut bytes);
    }
}

/// A child died inside a call that was not recorded; the kernel's log names the function.
fn killed(run: &Run<'_>) {
    let log = run.scenario.kernel_log.join("\n");
    let last = run
        .scenario
        .steps
        .iter()
        .rev()
        .find(|step| step.op == "MEM_CREATE" && step.thread.as_deref() == Some("child"));
    let object = last.and_then(|step| {
        let token = step.expect.get("out_changed")?.get("obj_addr")?.as_str()?;
        run.world().tokens.get(token)
    });
    if let (Some(file), Some(object)) = (run.child_file(), object) {
        let mut bytes = [0; 104];
        let request = if log.contains("rknpu_gem_sync_ioctl") {
            put(&mut bytes, 0, 4, 1);
            put(&mut bytes, 8, 8, object);
            put(&mut bytes, 24, 8, 4096);
            Some(rknpu_sys::ioctl::MEM_SYNC)
        } else if log.contains("rknpu_job_subcore_commit_pc") {
            for (at, value) in
                [(0, 5), (4, 100), (12, 1), (56, 1), (60, u64::from(u32::MAX)), (68, 1)]
            {
                put(&mut bytes, at, 4, value);
            }
            put(&mut bytes, 24, 8, object);
            Some(rknpu_sys::ioctl::SUBMIT)
        } else {
            None
        };
        if let Some(request) = request {
            // It dies; what it would return is seen by nobody.
            let _ = file.call(request, &mut bytes);
        }
    }
    run.child_dies();
}

/// Texts that depend on nothing but the driver's state.
fn knob(run: &Run<'_>, n: usize, path: &str, value: &Value) {
    let Some(name) = path.strip_prefix("/sys/kernel/debug/rknpu/") else { return };
    if !matches!(name, "mm" | "version") {
        return;
    }
    let simulated = run.machine.knob(name).unwrap_or_default();
    if let Some(recorded) = value.get("text").filter(|text| text.as_str() != Some(&simulated)) {
        run.differ(n, name, recorded, &simulated);
    }
}

/// The driver's internals against the recorded ones.
pub(crate) fn internals(run: &Run<'_>, step: &Step) -> impl Iterator<Item = String> + use<> {
    let mut found = Vec::new();
    let call = run.machine.kernel().enter();
    let mut check = |name: &str, recorded: Option<&Value>, simulated: i64| {
        if let Some(recorded) = recorded.and_then(Value::as_i64).filter(|r| *r != simulated) {
            found.push(format!("{name} was {recorded}, is {simulated}"));
        }
    };
    check("refcount", step.value.get("refcount"), call.domains.count);
    check("cur_domain", step.value.get("cur_domain"), call.domains.current.into());
    if run.machine.config().iommu {
        let made = i64::try_from(call.domains.made().count()).unwrap_or(0);
        check("domain_num", step.value.get("domain_num"), made);
        for (id, domain) in call.domains.made() {
            let pages = i64::try_from(domain.map.bytes() / 4096).unwrap_or(0);
            let recorded = step.value.get("mapped_pages").and_then(|map| map.get(id.to_string()));
            check(&format!("pages of {id}"), recorded, pages);
        }
    }
    for n in 0..CORES {
        let Some(recorded) = step.value.get("cores").and_then(|cores| cores.get(n)) else {
            continue;
        };
        let core = &call.cores[n];
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (name, simulated) in [
            ("job", i64::from(core.slot.is_some())),
            ("queue_empty", i64::from(core.queue.is_empty())),
            ("task_num", core.tasks),
            ("starts", number(core.starts)),
            ("irqs", number(core.interrupts)),
            ("resets", number(core.resets)),
        ] {
            check(&format!("core {n} {name}"), recorded.get(name), simulated);
        }
    }
    found.into_iter()
}
