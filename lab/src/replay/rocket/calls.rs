//! The ioctls: structs built from what a step handed in, issued and compared.

use super::{Run, programs};

use crate::replay::format::{Step, number};
use rknpu_sim::{CallKind, Fault, File};
use rknpu_sys::drm::{PrimeHandle, Version};
use rknpu_sys::ioctl;
use rknpu_sys::rocket::{self, CreateBo, Job, PrepBo, Submit, Task};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Where no program has anything.
const BAD_POINTER: u64 = 0x10;
/// Room for any struct.
const ROOM: usize = 256;

/// A job's arrays, as they lie in the program's memory.
#[derive(Clone, Debug, Default)]
struct Arrays {
    tasks: Vec<Task>,
    read: Vec<u32>,
    write: Vec<u32>,
    /// Where a pointer is bad on purpose.
    bad: [bool; 3],
    task_count: Option<u32>,
    task_size: u32,
}

impl Arrays {
    fn job(&self) -> Job {
        let pointer = |at: usize, good: *const u8| {
            if self.bad[at] { BAD_POINTER } else { good.expose_provenance() as u64 }
        };
        Job {
            tasks: pointer(0, self.tasks.as_ptr().cast()),
            in_bo_handles: pointer(1, self.read.as_ptr().cast()),
            out_bo_handles: pointer(2, self.write.as_ptr().cast()),
            task_count: self.task_count.unwrap_or(self.tasks.len() as u32),
            task_struct_size: self.task_size,
            in_bo_handle_count: self.read.len() as u32,
            out_bo_handle_count: self.write.len() as u32,
        }
    }
}

/// The jobs of a SUBMIT.
#[derive(Clone, Debug)]
pub(super) struct Jobs {
    all: Vec<Arrays>,
    count: u32,
    size: u32,
    reserved: u64,
    /// The array lies nowhere, or its second half does.
    bad: Option<u64>,
    request: u32,
    bytes: usize,
}

impl Jobs {
    /// One job of one task.
    pub(super) fn one(regcmd: u32, regcmd_count: u32, read: &[u32], write: &[u32]) -> Jobs {
        let arrays = Arrays {
            tasks: vec![Task { regcmd, regcmd_count }],
            read: read.to_vec(),
            write: write.to_vec(),
            task_size: size_of::<Task>() as u32,
            ..Arrays::default()
        };
        let (count, size) = (1, size_of::<Job>() as u32);
        let (request, bytes) = (rocket::SUBMIT, size_of::<Submit>());
        Jobs { all: vec![arrays], count, size, reserved: 0, bad: None, request, bytes }
    }

    pub(super) fn submit(&self, file: &File) -> Result<(), Errno> {
        let stride = (self.size as usize).max(size_of::<Job>());
        let mut jobs = vec![0u64; stride * self.all.len().max(1) / 8 + 8];
        for (arrays, place) in self.all.iter().zip(jobs.as_mut_bytes().chunks_mut(stride)) {
            place[..size_of::<Job>()].copy_from_slice(arrays.job().as_bytes());
        }
        let mut submit = Submit {
            jobs: self.bad.unwrap_or(jobs.as_ptr().expose_provenance() as u64),
            job_count: self.count,
            job_struct_size: self.size,
            reserved: self.reserved,
        };
        let bytes = &mut submit.as_mut_bytes()[..self.bytes];
        let result = file.call_bytes(self.request, bytes);
        // The arrays lie here until the call has read them.
        drop(jobs);
        result.map(drop)
    }

    /// As a step describes them; where it describes none, as its name does.
    fn of(step: &Step) -> Jobs {
        let mut jobs = Jobs::one(0x8000_03e8, 16, &[1], &[2]);
        let number = |name: &str| step.number(name).and_then(|value| u32::try_from(value).ok());
        jobs.count = number("job_count").unwrap_or(1);
        jobs.size = number("job_struct_size").unwrap_or(jobs.size);
        jobs.reserved = step.number("reserved").unwrap_or(0);
        if let Some(described) = step.input.get("jobs").and_then(Value::as_array) {
            let known = described.iter().map(|job| arrays(job, &jobs.all[0]));
            jobs.all = known.collect();
        }
        let named = |name: &str| step.step.starts_with(name);
        if step.text("jobs") == Some("bad pointer") {
            jobs.bad = Some(BAD_POINTER);
        }
        if step.input.contains_key("second job") {
            jobs.bad = Some(last_job_before_a_gap());
        }
        if let Some(first) = jobs.all.first_mut() {
            first.bad = [
                named("tasks pointer NULL"),
                named("in list pointer bad"),
                named("out list pointer bad"),
            ];
        }
        match step.op.as_str() {
            "SUBMIT_16" => {
                (jobs.bytes, jobs.request) = (16, rocket::SUBMIT & !0x3fff_0000 | 16 << 16)
            }
            "SUBMIT_RW" => jobs.request |= 0x8000_0000,
            _ => {}
        }
        jobs
    }
}

/// A job of a step; where its lists are not described they are the usual ones.
fn arrays(job: &Value, usual: &Arrays) -> Arrays {
    let field = |name: &str| job.get(name).and_then(number).and_then(|n| u32::try_from(n).ok());
    let list = |name: &str| {
        let list = job.get(name).and_then(Value::as_array)?;
        Some(list.iter().filter_map(number).filter_map(|n| u32::try_from(n).ok()).collect())
    };
    let task = |task: &Value| {
        let field = |name| number(task.get(name)?)?.try_into().ok();
        Some(Task { regcmd: field("regcmd")?, regcmd_count: field("regcmd_count")? })
    };
    let tasks = job.get("tasks").and_then(Value::as_array);
    let tasks = tasks.map(|tasks| tasks.iter().filter_map(task).collect());
    let task_size = field("task_struct_size").unwrap_or(size_of::<Task>() as u32);
    let mut tasks: Vec<Task> = tasks.unwrap_or_else(|| usual.tasks.clone());
    let task_count = field("task_count");
    if task_size == 16 {
        // Each in the room of two.
        tasks = tasks.iter().flat_map(|task| [*task; 4]).collect();
    }
    let counted =
        |count: &str, list: Vec<u32>| if field(count) == Some(0) { Vec::new() } else { list };
    Arrays {
        tasks,
        read: counted("in_count", list("in").unwrap_or_else(|| usual.read.clone())),
        write: counted("out_count", list("out").unwrap_or_else(|| usual.write.clone())),
        bad: [false; 3],
        task_count,
        task_size,
    }
}

/// An address where a job can be read, and behind it nothing.
fn last_job_before_a_gap() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let range = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, rights) = rest.split_once(' ')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some((hex(start)?, hex(end)?, rights.starts_with('r') && !line.contains("[v")))
    };
    let ranges: Vec<_> = maps.lines().filter_map(range).collect();
    let gap = ranges.windows(2).find(|pair| pair[0].2 && pair[0].1 < pair[1].0);
    gap.map_or(BAD_POINTER, |pair| pair[0].1 - size_of::<Job>() as u64)
}

fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// A recorded time of PREP_BO.
fn deadline(text: &str) -> i64 {
    let millis = |text: &str| text.trim_end_matches("ms").parse::<i64>().unwrap_or(0) * 1_000_000;
    match text.split_once(' ').map_or(text, |(first, _)| first) {
        "INT64_MAX" => i64::MAX,
        text if text.starts_with("now+") => monotonic_ns() + millis(&text[4..]),
        text if text.starts_with("now-") => monotonic_ns() - millis(&text[4..]),
        text => text.parse().unwrap_or(0),
    }
}

impl Run<'_> {
    pub(super) fn ioctl(&mut self, step: &Step) {
        let request = step.req.as_deref().and_then(|word| number(&Value::from(word)));
        let Some(request) = request.and_then(|word| u32::try_from(word).ok()) else {
            return self.skip("it has no request word");
        };
        let Some(file) = self.file(step) else {
            return self.differ("fd", step.fd.clone().unwrap_or_default(), "not open");
        };
        match step.op.as_str() {
            "CREATE_BO" => self.create(step, &file),
            "SUBMIT" | "SUBMIT_RW" | "SUBMIT_16" => {
                let jobs = Jobs::of(step);
                let tasks = jobs.all.iter().flat_map(|arrays| &arrays.tasks);
                tasks.for_each(|task| programs::before_submit(self, task.regcmd.into()));
                let result = jobs.submit(&file);
                self.outcome(step, &result);
            }
            "PREP_BO" => self.prepare(step, &file),
            "PRIME_HANDLE_TO_FD" => self.export(step, &file),
            "PRIME_FD_TO_HANDLE" => self.import(step, &file),
            "VERSION" => self.version(step, &file),
            _ => self.plain(step, &file, request),
        }
    }

    fn create(&mut self, step: &Step, file: &File) {
        let mut args =
            CreateBo { size: step.number("size").unwrap_or(0) as u32, ..CreateBo::default() };
        let result = file.call_bytes(rocket::CREATE_BO, args.as_mut_bytes());
        self.outcome(step, &result);
        self.field(step, "handle", args.handle.into());
        self.field(step, "dma_address", args.dma_address);
        self.field(step, "offset", args.offset);
        self.field(step, "size", args.size.into());
    }

    pub(super) fn create_many(&mut self, step: &Step) {
        let mut made = Vec::new();
        let mut result = Ok(());
        let size = step.number("size").unwrap_or(0) as u32;
        let mut create = |file: &File| {
            let mut args = CreateBo { size, ..CreateBo::default() };
            let called = file.call_bytes(rocket::CREATE_BO, args.as_mut_bytes());
            made.extend(called.is_ok().then_some((args.dma_address, args.handle)));
            called.map(drop)
        };
        match self.file(step) {
            Some(file) => {
                let limit = step.number("limit").unwrap_or(0).min(1 << 20);
                for _ in 0..limit {
                    result = create(&file);
                    if result.is_err() {
                        break;
                    }
                }
            }
            None => result = self.many.iter().try_for_each(|file| create(file)),
        }
        self.outcome(step, &result);
        self.field(step, "succeeded", made.len() as u64);
        let ends = [made.first(), made.last()].map(|end| end.copied().unwrap_or_default());
        for (name, (dma, handle)) in ["first", "last"].into_iter().zip(ends) {
            self.field(step, &format!("{name}_dma"), dma);
            self.field(step, &format!("{name}_handle"), handle.into());
        }
    }

    pub(super) fn submit_many(&mut self, step: &Step) {
        let jobs = Jobs::one(0x8000_03e8, 16, &[], &[1]);
        let result = self.many.iter().try_for_each(|file| jobs.submit(file));
        self.outcome(step, &result);
    }

    pub(super) fn prepare_many(&mut self, step: &Step) {
        let wait = |file: &Arc<File>| {
            let timeout_ns = deadline("now+60000ms");
            let mut args = PrepBo { handle: 1, timeout_ns, ..PrepBo::default() };
            file.call_bytes(rocket::PREP_BO, args.as_mut_bytes()).map(drop)
        };
        let succeeded = self.many.iter().filter(|file| wait(file).is_ok()).count();
        self.field(step, "succeeded", succeeded as u64);
    }

    fn prepare(&mut self, step: &Step, file: &File) {
        let mut args = PrepBo {
            handle: step.number("handle").unwrap_or(0) as u32,
            reserved: step.number("reserved").unwrap_or(0) as u32,
            timeout_ns: deadline(step.text("timeout_ns").unwrap_or("0")),
        };
        if step.errno() == Some("EINTR") {
            // The signal came a while into the wait.
            self.machine.sleep(Duration::from_micros(step.us.unwrap_or(0)));
            let (kind, errno) = (CallKind::PrepBo, Errno::INTR);
            self.machine.inject(Fault::Call { kind, after: 0, times: 1, errno });
        }
        let before = self.machine.now();
        let result = file.call_bytes(rocket::PREP_BO, args.as_mut_bytes());
        self.outcome(step, &result);
        if step.errno() != Some("EINTR") {
            self.took(step, before);
        }
    }

    fn export(&mut self, step: &Step, file: &File) {
        let mut args = PrimeHandle {
            handle: step.number("handle").unwrap_or(0) as u32,
            flags: step.number("flags").unwrap_or(0) as u32,
            fd: -1,
        };
        let result = file.call_bytes(ioctl::PRIME_HANDLE_TO_FD, args.as_mut_bytes());
        self.outcome(step, &result);
        if result.is_ok() {
            let name = if self.dma_bufs.is_empty() { "dmabuf" } else { "dmabuf2" };
            self.dma_bufs.insert(name.to_owned(), args.fd);
        }
        // The recorder closes what a remark says is closed next, or what is not used again.
        let later = &self.scenario.steps[self.at + 1..];
        let used = |step: &Step| {
            step.fd.as_deref().is_some_and(|fd| fd.starts_with("dmabuf"))
                || step.op == "PRIME_FD_TO_HANDLE"
                || step
                    .text
                    .as_deref()
                    .is_some_and(|text| text.contains("while the dma-buf is open"))
        };
        if !later.iter().any(used) {
            self.close_dma_bufs();
        }
    }

    pub(super) fn close_dma_bufs(&mut self) {
        for (_, fd) in self.dma_bufs.drain() {
            self.machine.descriptor_closed(fd);
            crate::replay::descriptors::close(std::iter::once(fd));
        }
    }

    /// Of the first export, or, where it is refused, of something that is no object of this driver's.
    fn import(&mut self, step: &Step, file: &File) {
        let foreign = self.machine.foreign_buffer(4096);
        let own = self.dma_bufs.get("dmabuf").copied();
        let refused = step.errno() == Some("EINVAL");
        let theirs = foreign.as_ref().map(std::os::fd::AsRawFd::as_raw_fd).ok();
        let fd = if refused { theirs } else { own };
        let mut args = PrimeHandle { fd: fd.unwrap_or(-1), ..PrimeHandle::default() };
        let result = file.call_bytes(ioctl::PRIME_FD_TO_HANDLE, args.as_mut_bytes());
        self.outcome(step, &result);
        self.field(step, "handle", args.handle.into());
    }

    fn version(&mut self, step: &Step, file: &File) {
        let mut texts = [[0u8; 32]; 3];
        let [name, date, desc] =
            texts.each_mut().map(|text| text.as_mut_ptr().expose_provenance() as u64);
        let (name_len, date_len, desc_len) = (32, 32, 32);
        let mut version =
            Version { name, date, desc, name_len, date_len, desc_len, ..Version::default() };
        let result = super::super::version::ask(file, &mut version);
        self.outcome(step, &result);
        let lens = [version.name_len, version.date_len, version.desc_len];
        for ((field, text), len) in ["name", "date", "desc"].into_iter().zip(&texts).zip(lens) {
            let text = &text[..(len as usize).min(text.len())];
            self.text_field(step, field, &String::from_utf8_lossy(text));
            self.field(step, &format!("{field}_len"), len);
        }
        self.field(step, "major", u64::from(version.version_major.cast_unsigned()));
        self.field(step, "minor", u64::from(version.version_minor.cast_unsigned()));
        self.field(step, "patchlevel", u64::from(version.version_patchlevel.cast_unsigned()));
    }

    /// Calls whose struct is a few numbers in a row.
    fn plain(&mut self, step: &Step, file: &File, request: u32) {
        let mut bytes = [0u8; ROOM];
        let fields: &[(&str, usize, usize)] = match step.op.as_str() {
            "FINI_BO" => &[("handle", 0, 4), ("reserved", 4, 4)],
            "GET_CAP" => &[("cap", 0, 8)],
            "GEM_OPEN" => &[("name", 0, 4)],
            "GEM_CLOSE" | "GEM_FLINK" => &[("handle", 0, 4)],
            _ => &[("size", 0, 4), ("handle", 0, 4)],
        };
        for (name, at, len) in fields {
            let value = step.number(name).unwrap_or(0);
            if value > 0 {
                bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..*len]);
            }
        }
        if step.op == "GEM_OPEN" && step.number("name").is_none() {
            bytes[..4].copy_from_slice(&self.flink_name.to_le_bytes());
        }
        if step.op == "CREATE_BO_null" {
            self.machine.inject(Fault::CopyIn);
        }
        if step.op == "CREATE_BO_ro" {
            self.machine.inject(Fault::CopyOut);
        }
        let result = file.call_bytes(request, &mut bytes);
        self.outcome(step, &result);
        if step.op == "GET_CAP" {
            self.field(step, "value", u64::read_from_bytes(&bytes[8..16]).unwrap_or(u64::MAX));
        }
        if step.op == "GEM_FLINK" && result.is_ok() {
            self.flink_name = u32::read_from_bytes(&bytes[4..8]).unwrap_or(0);
        }
    }
}
