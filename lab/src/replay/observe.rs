//! What the recorder looked at between calls: done and answered by the model, as far as it can be.

use crate::replay::compare::{name, outcome};
use crate::replay::format::{Step, number};
use crate::replay::layout::{get, put};
use crate::replay::run::Run;
use crate::replay::{descriptors, fatal, seen, version, vma};
use rknpu_sim::Fault;
use rknpu_sim::config::Domains;
use rknpu_sim::report::DomainUse;
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use serde_json::Value;
use std::sync::Arc;

/// What a process gets that died in the kernel.
const SIGKILL: u64 = 9;
/// The request words of pictures on the card node.
const CREATE_DUMB: u32 = 0xC020_64B2;
const MAP_DUMB: u32 = 0xC010_64B3;
/// Pages of the recorder's udmabuf.
const UDMABUF: u64 = 3 * 4096;

/// Does what an observation did, and compares what it saw.
pub(crate) fn observe(run: &Run<'_>, n: usize, step: &Step) {
    let (value, name) = (&step.value, step.step.as_str());
    let has = |field: &str| value.get(field).is_some();
    let see = |field: &str| value.get(field).and_then(number);
    if name == "tasks" {
        run.write_tasks(n, step);
    } else if let Some(statuses) = value.as_array().filter(|_| name.starts_with("int_status_of")) {
        run.statuses(n, statuses);
    } else if has("jobs") && has("failed") {
        run.jobs(n, step);
    } else if has("cap") {
        version::capability(run, n, step);
    } else if has("pass") {
        version::version(run, n, step);
    } else if let Some(call) = value.get("ioctl").and_then(Value::as_str).filter(|_| !has("pitch"))
    {
        version::named(run, n, step, call);
    } else if let Some(path) = value.get("path").and_then(Value::as_str).filter(|_| has("mode")) {
        version::listed(run, n, path, value);
    } else if let Some(counts) = value.as_array().filter(|_| name == "n") {
        let all = run.world().counts.clone();
        let last = all.len().saturating_sub(counts.len());
        for (at, (recorded, count)) in counts.iter().zip(&all[last..]).enumerate() {
            compare(run, n, &format!("[{at}]"), recorded, *count as u64);
        }
    } else if let Some(each) = value.as_array().filter(|_| name == "cloexec") {
        exported(run, n, step, each);
    } else if let Some(path) = value.get("path").and_then(Value::as_str) {
        knob(run, n, path, value);
    } else if has("destroyed") {
        let buffers = see("destroyed").unwrap_or(0).saturating_add(see("failed").unwrap_or(0));
        let (destroyed, failed) = run.drain(step, buffers);
        compare_in(run, n, value, "destroyed", destroyed);
        compare_in(run, n, value, "failed", failed);
    } else if has("pitch") {
        dumb(run, n, step);
    } else if has("offset") {
        map_dumb(run, n, value);
    } else if has("r") && has("size") {
        foreign(run, n, "dmabuf:heap", see("size").unwrap_or(0));
    } else if name.starts_with("udmabuf") {
        foreign(run, n, "dmabuf:udma", UDMABUF);
    } else if has("poll") {
        poll(run, n, value);
    } else if has("fstatus") {
        fence(run, n, value);
    } else if has("page") {
        seen::page(run, n, step, value.get("value").unwrap_or(&Value::Null));
    } else if has("rb") {
        seen::touch(run, n, step);
    } else if has("signal") {
        let mapped = run.world().views.iter().any(|view| view.thread == step.thread);
        let dies = !mapped && !vma::survives_fork();
        compare_in(run, n, value, "signal", if dies { vma::SIGSEGV } else { 0 });
    } else if has("private") {
        run.not_compared(n, "a private copy of a page is the kernel's, not the driver's");
    } else if let Some(answer) = vma::answer(name).filter(|_| has("errno")) {
        compare_text(run, n, value, "errno", &outcome(&answer.result));
        if let Some(ret) = value.get("ret").filter(|ret| ret.as_i64() != Some(answer.ret)) {
            run.differ(n, "ret", ret, &answer.ret.to_string());
        }
    } else if has("errno") {
        bad_argument(run, n, step);
    } else if run.follows_a_call(n) && (value.is_array() || has("obj")) {
        run.words(n, step);
    } else if let Some(text) = value.as_str().filter(|_| name.starts_with("tail")) {
        // One digit for each byte behind the struct, all as they were.
        let kept = text.chars().all(|c| c == 'a' || c == ' ');
        compare(run, n, "kept", &Value::from(kept), u64::from(run.tail_kept(step)));
    } else if let Some(bytes) = value.as_array() {
        seen::ends(run, n, step, bytes);
    } else if let Some(word) = value.get("seen_in_second") {
        seen::value(run, n, step, "seen_in_second", word);
    } else {
        single(run, n, step);
    }
}

/// Observations of one number, told apart by their names.
fn single(run: &Run<'_>, n: usize, step: &Step) {
    let (value, name) = (&step.value, step.step.as_str());
    let is = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    if is(&["fds_exhausted"]) {
        run.machine.inject(Fault::FenceFile(Errno::MFILE));
    } else if is(&["killed_by_signal"]) {
        killed(run, n, value);
    } else if name.starts_with("nice") {
        let nice = run.machine.report().nice;
        compare(run, n, "nice", value, i64::from(nice).cast_unsigned());
    } else if is(&["alive"]) {
        compare(run, n, "alive", value, u64::from(alive(run)));
    } else if is(&["cloexec"]) {
        compare(run, n, "cloexec", value, cloexec(run, n).cast_unsigned());
    } else if is(&["same_inode"]) {
        let [one, other] = last_exports(run, n);
        let same = one.zip(other).is_some_and(|(one, other)| descriptors::same_file(one, other));
        compare(run, n, "same", value, u64::from(same));
    } else if name == "size" {
        let size = last_exports(run, n)[1].and_then(descriptors::size);
        compare(run, n, "size", value, size.unwrap_or(0));
    } else if is(&["reexport_same"]) {
        compare(run, n, "same", value, u64::from(same_dma_buf(run, n)));
    } else if name == "n" {
        let count = run.world().counts.last().copied().unwrap_or(0);
        compare(run, n, "n", value, count as u64);
    } else if name == "v" || is(&["read", "sees", "usable"]) {
        seen::value(run, n, step, "value", value);
    } else if is(&["now_"]) {
        run.not_compared(n, "it only announces the next step");
    } else if is(&["us"]) {
        run.not_compared(n, "a time of the recording machine");
    } else {
        run.not_compared(n, "an observation that the model has no answer to");
    }
}

/// Compares a number, whose recorded form may be signed.
pub(crate) fn compare(run: &Run<'_>, n: usize, field: &str, recorded: &Value, simulated: u64) {
    if number(recorded) != Some(simulated) {
        run.differ(n, field, recorded, &simulated.cast_signed().to_string());
    }
}

pub(crate) fn compare_in(run: &Run<'_>, n: usize, value: &Value, field: &str, simulated: u64) {
    if let Some(recorded) = value.get(field) {
        compare(run, n, field, recorded, simulated);
    }
}

pub(crate) fn compare_text(run: &Run<'_>, n: usize, value: &Value, field: &str, simulated: &str) {
    if let Some(recorded) = value.get(field).filter(|text| text.as_str() != Some(simulated)) {
        run.differ(n, field, recorded, simulated);
    }
}

/// Whether the driver still answers.
fn alive(run: &Run<'_>) -> bool {
    let file = run.world().files.values().next().cloned();
    let file = file.unwrap_or_else(|| Arc::new(run.machine.open()));
    let mut bytes = [0; 8];
    put(&mut bytes, 0, 4, rknpu_sys::action::GET_DRV_VERSION.into());
    file.call_bytes(rknpu_sys::ioctl::ACTION, &mut bytes).is_ok()
}

/// FD_CLOEXEC of the last fence's descriptor; -1 where there is none.
fn cloexec(run: &Run<'_>, n: usize) -> i64 {
    let fd = last_fence(run, n).and_then(|fence| i32::try_from(fence).ok());
    fd.and_then(descriptors::closes_on_exec).map_or(-1, i64::from)
}

/// Whether the last two dma-bufs that the steps speak of are one: what was imported, and its export.
fn same_dma_buf(run: &Run<'_>, n: usize) -> bool {
    let before = || run.scenario.steps[..n].iter().rev();
    let imported = before()
        .find(|step| step.op == "PRIME_FD_TO_HANDLE")
        .and_then(|step| run.world().tokens.get(step.text("fd")?));
    let exported = before().find(|step| step.op == "PRIME_HANDLE_TO_FD").and_then(|step| {
        run.world().tokens.get(step.expect.get("out_changed")?.get("fd")?.as_str()?)
    });
    let fd = |token: Option<u64>| i32::try_from(token?).ok();
    match (fd(imported), fd(exported)) {
        (Some(one), Some(other)) => descriptors::same_file(one, other),
        _ => false,
    }
}

/// MEM_CREATE with an argument that is nowhere, or cannot be written: the latter leaves a handle
/// behind.
fn bad_argument(run: &Run<'_>, n: usize, step: &Step) {
    let name = step.step.as_str();
    let fault = match name {
        _ if name.contains("null") || name.contains("efault") => Fault::CopyIn,
        _ if name.contains("readonly") => Fault::CopyOut,
        _ => return run.not_compared(n, "an errno of a call that the model does not know"),
    };
    let file = run.world().files.values().next().cloned();
    let Some(file) = file else { return run.not_compared(n, "no file is open") };
    let mut bytes = [0; 48];
    put(&mut bytes, 4, 4, 0x3);
    put(&mut bytes, 8, 8, 4096);
    run.machine.inject(fault);
    let result = file.call_bytes(rknpu_sys::ioctl::MEM_CREATE, &mut bytes);
    compare_text(run, n, &step.value, "errno", &outcome(&result));
}

/// CREATE_DUMB: the recorder's picture is 100 wide, 10 high and has 32 bits per pixel, as far as
/// pitch and size tell.
fn dumb(run: &Run<'_>, n: usize, step: &Step) {
    let value = &step.value;
    let see = |field: &str| value.get(field).and_then(number).unwrap_or(0);
    let (pitch, size) = (see("pitch").max(4), see("size"));
    let mut bytes = [0; 32];
    // A refused one tells nothing of its sizes.
    let sizes = if size > 0 { [size / pitch, pitch / 4, 32] } else { [10, 100, 32] };
    for (at, value) in [0, 4, 8].into_iter().zip(sizes) {
        put(&mut bytes, at, 4, value);
    }
    let Some(file) = run.named_file(&step.step).or_else(|| run.card()) else {
        return run.not_compared(n, "no file is open");
    };
    let result = file.call_bytes(CREATE_DUMB, &mut bytes);
    compare_text(run, n, value, "errno", &outcome(&result));
    for (field, at, len) in [("handle", 16, 4), ("pitch", 20, 4), ("size", 24, 8)] {
        compare_in(run, n, value, field, get(&bytes, at, len));
    }
    run.world().dumb = get(&bytes, 16, 4);
}

/// The descriptors that the last two exports before a step made, the older one first.
fn last_exports(run: &Run<'_>, n: usize) -> [Option<i32>; 2] {
    let before = run.scenario.steps[..n].iter().rev();
    let exports = before.filter(|step| step.op == "PRIME_HANDLE_TO_FD");
    let mut fds = exports.map(|step| {
        let token = step.expect.get("out_changed")?.get("fd")?.as_str()?;
        i32::try_from(run.world().tokens.get(token)?).ok()
    });
    let last = fds.next().flatten();
    [fds.next().flatten(), last]
}

/// FD_CLOEXEC of the last exports.
fn exported(run: &Run<'_>, n: usize, step: &Step, recorded: &[Value]) {
    if recorded.len() != 2 {
        return seen::ends(run, n, step, recorded);
    }
    for (at, (recorded, fd)) in recorded.iter().zip(last_exports(run, n)).enumerate() {
        let closes = fd.and_then(descriptors::closes_on_exec).map_or(-1, i64::from);
        compare(run, n, &format!("[{at}]"), recorded, closes.cast_unsigned());
    }
}

/// MAP_DUMB of the last such picture.
fn map_dumb(run: &Run<'_>, n: usize, value: &Value) {
    let card = run.card();
    let Some(card) = card else { return run.not_compared(n, "no card is open") };
    let mut bytes = [0; 16];
    put(&mut bytes, 0, 4, run.world().dumb);
    let result = card.call_bytes(MAP_DUMB, &mut bytes);
    compare_text(run, n, value, "errno", &outcome(&result));
    compare_in(run, n, value, "offset", get(&bytes, 8, 8));
}

/// A buffer of another driver.
fn foreign(run: &Run<'_>, n: usize, token: &str, size: u64) {
    let len = usize::try_from(size).unwrap_or(0);
    let Ok(fd) = run.machine.foreign_buffer(len) else {
        return run.not_compared(n, "the host gives no such buffer");
    };
    let mut world = run.world();
    world.tokens.set(token, u64::try_from(fd.as_raw_fd()).unwrap_or(0));
    world.kept.push(fd);
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
    let ready = value.get("poll").and_then(number) == Some(1);
    // What was waited for came when the recorder said; what was not was not there by then.
    let limit = if ready { 10_000_000 } else { micros };
    // Without a fence the recorder polled descriptor -1, of which nothing comes.
    let signalled = last_fence(run, n).is_some_and(|fence| run.poll(fence, limit));
    for field in ["poll", "revents"] {
        // POLLIN is 1.
        compare_in(run, n, value, field, u64::from(signalled));
    }
}

fn fence(run: &Run<'_>, n: usize, value: &Value) {
    let fd = last_fence(run, n).and_then(|fence| i32::try_from(fence).ok());
    let info = fd.and_then(|fd| run.machine.fence(fd));
    let errno = if info.is_some() { "0".to_owned() } else { name(Errno::BADF) };
    compare_text(run, n, value, "errno", &errno);
    let signalled = info.as_ref().is_some_and(|info| info.signalled);
    let texts = info.as_ref().map_or(["", "", ""], |info| [&info.name, info.timeline, info.driver]);
    for (field, text) in ["name", "obj", "drv"].into_iter().zip(texts) {
        compare_text(run, n, value, field, text);
    }
    for field in ["status", "fstatus"] {
        compare_in(run, n, value, field, u64::from(signalled));
    }
    if info.is_some() {
        compare_in(run, n, value, "num", 1);
    }
}

/// A child died inside a call that was not recorded; the kernel's log names the function.
fn killed(run: &Run<'_>, n: usize, value: &Value) {
    let last = run
        .scenario
        .steps
        .iter()
        .rev()
        .find(|step| step.op == "MEM_CREATE" && step.thread.as_deref() == Some("child"));
    let object = last.and_then(|step| run.object_of(step));
    match fatal::oopsed(&run.scenario.kernel_log) {
        Some(function) => {
            let file = run.child_file();
            let fatal = fatal::die(run, function, file.as_deref(), object);
            let signal = if fatal.hazard.is_some() { SIGKILL } else { 0 };
            run.died(fatal);
            compare(run, n, "signal", value, signal);
        }
        None => run.not_compared(n, "a signal that did not come from the driver"),
    }
    run.child_dies();
}

/// A text file of the driver's.
fn knob(run: &Run<'_>, n: usize, path: &str, value: &Value) {
    let folders = ["/sys/kernel/debug/rknpu/", "/proc/rknpu/"];
    let Some(file) = folders.iter().find_map(|folder| path.strip_prefix(folder)) else {
        return run.not_compared(n, "a file that is not the driver's");
    };
    let simulated = run.machine.knob(file);
    let errno = if simulated.is_some() { "0".to_owned() } else { name(Errno::NOENT) };
    compare_text(run, n, value, "errno", &errno);
    let simulated = simulated.unwrap_or_default();
    let Some(recorded) = value.get("text").filter(|text| text.as_str() != Some(&simulated)) else {
        return;
    };
    match file {
        "freq" | "volt" | "delayms" => run.not_compared(n, "a setting of the recording machine"),
        "load" if same_load(run, recorded.as_str().unwrap_or_default(), &simulated) => {
            run.not_compared(n, "a share of a second whose moment is not recorded");
        }
        _ => run.differ(n, file, recorded, &simulated),
    }
}

/// Whether two texts of `load` differ only in the shares of cores that have worked.
fn same_load(run: &Run<'_>, recorded: &str, simulated: &str) -> bool {
    let worked = run.machine.report().cores.map(|core| core.starts > 0);
    let share = |piece: &str| {
        let core = worked.iter().enumerate().filter(|(_, worked)| **worked);
        let mut names = core.map(|(core, _)| format!("Core{core}:"));
        let name = names.find(|name| piece.contains(name.as_str()))?;
        let at = piece.find(&name)? + name.len();
        piece[at..].trim().trim_end_matches('%').parse().ok().filter(|share: &u32| *share <= 100)
    };
    let (recorded, simulated) = (recorded.split(','), simulated.split(','));
    recorded.clone().count() == simulated.clone().count()
        && recorded
            .zip(simulated)
            .all(|(one, other)| one == other || share(one).is_some() && share(other).is_some())
}

/// The driver's internals against the recorded ones.
pub(crate) fn internals(run: &Run<'_>, step: &Step) -> impl Iterator<Item = String> + use<> {
    let mut found = Vec::new();
    let report = run.machine.report();
    let mut check = |name: &str, recorded: Option<&Value>, simulated: i64| {
        if let Some(recorded) = recorded.and_then(Value::as_i64).filter(|r| *r != simulated) {
            found.push(format!("{name} was {recorded}, is {simulated}"));
        }
    };
    check("refcount", step.value.get("refcount"), report.domain_count);
    check("cur_domain", step.value.get("cur_domain"), report.current_domain.into());
    let config = run.machine.config();
    if config.iommu {
        let made = i64::try_from(report.domains.len()).unwrap_or(0);
        // Without domains in the build nobody counts the one that there is.
        let counted = if config.domains == Domains::Stub { 0 } else { made };
        check("domain_num", step.value.get("domain_num"), counted);
        for DomainUse { domain: id, mapped, .. } in &report.domains {
            let pages = i64::try_from(mapped / 4096).unwrap_or(0);
            let recorded = step.value.get("mapped_pages").and_then(|map| map.get(id.to_string()));
            check(&format!("pages of {id}"), recorded, pages);
        }
    }
    for (n, core) in report.cores.iter().enumerate() {
        let Some(recorded) = step.value.get("cores").and_then(|cores| cores.get(n)) else {
            continue;
        };
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (name, simulated) in [
            ("job", i64::from(core.busy)),
            ("queue_empty", i64::from(core.queued == 0)),
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
