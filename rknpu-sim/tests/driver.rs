//! The driver's calls, one after the other, on small machines.

use rknpu_sim::config::{Mode, Version};
use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start};
use rknpu_sim::{Config, File, Hazard, Machine};
use rknpu_sys::ioctl::{self, Request};
use rknpu_sys::uapi::{Action, MemCreate, MemDestroy, MemMap, MemSync, SubcoreTask, Submit, Task};
use rustix::io::Errno;
use std::sync::Arc;

/// Issues a call whose struct belongs to its word.
fn call<T: Request>(file: &File, args: &mut T) -> Result<(), Errno> {
    // SAFETY: word and struct belong together by `Request`; no call here holds addresses.
    unsafe { file.ioctl(T::REQUEST, (&raw mut *args).cast()) }.map(drop)
}

fn create(file: &File, flags: u32, size: u64, domain: i32) -> Result<MemCreate, Errno> {
    let mut args = MemCreate { flags, size, iommu_domain_id: domain, ..MemCreate::default() };
    call(file, &mut args).map(|()| args)
}

/// Adds one to the u32 at `dma_base`, after 100 µs; hangs when it is not mapped.
#[derive(Debug)]
struct Increment;

impl Engine for Increment {
    fn run(&self, start: &Start, bus: &dyn Bus) -> Run {
        let at = u64::from(start.dma_base);
        let value = bus.read(at, 4).ok().and_then(|bytes| bytes.try_into().ok());
        let outcome = match value.map(u32::from_le_bytes) {
            Some(value) if bus.write(at, &(value + 1).to_le_bytes()).is_ok() => {
                Outcome::Done { int_status: 0x300, tasks_done: 1, busy_ns: 100_000 }
            }
            _ => Outcome::Hang { task_counter: 0 },
        };
        Run { outcome, findings: Vec::new() }
    }
}

fn machine(mode: Mode) -> Machine {
    Machine::new(Config { mode, engine: Arc::new(Increment), ..Config::default() })
}

fn map(file: &File, buffer: &MemCreate) -> rknpu_sim::Mapping {
    let mut args = MemMap { handle: buffer.handle, ..MemMap::default() };
    call(file, &mut args).unwrap();
    file.mmap(args.offset, buffer.size as usize).unwrap()
}

fn sync(file: &File, buffer: &MemCreate, flags: u32) -> Result<(), Errno> {
    let mut args =
        MemSync { flags, obj_addr: buffer.obj_addr, size: buffer.size, ..MemSync::default() };
    call(file, &mut args)
}

fn put(map: &rknpu_sim::Mapping, at: usize, value: u32) {
    assert!(at + 4 <= map.len());
    // SAFETY: inside the mapping.
    unsafe { map.as_ptr().add(at).cast::<u32>().write_volatile(value) };
}

fn get(map: &rknpu_sim::Mapping, at: usize) -> u32 {
    assert!(at + 4 <= map.len());
    // SAFETY: inside the mapping.
    unsafe { map.as_ptr().add(at).cast::<u32>().read_volatile() }
}

/// A task buffer with one task.
fn tasks(file: &File) -> (MemCreate, rknpu_sim::Mapping) {
    let buffer = create(file, 0xb, 4096, 0).unwrap();
    let mapping = map(file, &buffer);
    put(&mapping, std::mem::offset_of!(Task, int_mask), 0x300);
    put(&mapping, std::mem::offset_of!(Task, regcfg_amount), 100);
    (buffer, mapping)
}

fn job(tasks: &MemCreate, data: &MemCreate) -> Submit {
    Submit {
        flags: 0x5,
        timeout: 100,
        task_number: 1,
        task_obj_addr: tasks.obj_addr,
        task_base_addr: data.dma_addr,
        core_mask: 1,
        fence_fd: -1,
        subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
        ..Submit::default()
    }
}

#[test]
fn a_job_reads_and_writes_memory() {
    for mode in [Mode::Fast, Mode::Strict] {
        let machine = machine(mode);
        let file = machine.open();
        let data = create(&file, 0x403, 1 << 20, 0).unwrap();
        let (task_buffer, _tasks) = tasks(&file);
        let view = map(&file, &data);
        put(&view, 0, 41);
        sync(&file, &data, 1).unwrap();
        let mut args = job(&task_buffer, &data);
        call(&file, &mut args).unwrap();
        assert_eq!((args.task_counter, args.hw_elapse_time), (1, 100_000));
        sync(&file, &data, 2).unwrap();
        assert_eq!(get(&view, 0), 42, "{mode:?}");
        assert!(machine.report().is_clean(), "{:?}", machine.report());
    }
}

#[test]
fn strict_mode_shows_a_forgotten_sync() {
    let machine = machine(Mode::Strict);
    let file = machine.open();
    let data = create(&file, 0x403, 8192, 0).unwrap();
    let (task_buffer, _tasks) = tasks(&file);
    let view = map(&file, &data);
    put(&view, 0, 41);
    call(&file, &mut job(&task_buffer, &data)).unwrap();
    assert_eq!(get(&view, 0), 41);
    sync(&file, &data, 2).unwrap();
    // What the device read was never cleaned: the poison, plus one.
    assert_eq!(get(&view, 0), 0xA5A5_A5A6);
    let report = machine.report();
    assert!(report.findings.keys().any(|text| text.contains("missing sync")), "{report:?}");
}

#[test]
fn an_unmapped_address_times_out_on_the_virtual_clock() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let (task_buffer, _tasks) = tasks(&file);
    let mut args = job(&task_buffer, &MemCreate { dma_addr: 0x1000, ..MemCreate::default() });
    assert_eq!(call(&file, &mut args), Err(Errno::TIMEDOUT));
    // The timeout, 100 ms of the abort and 100 ms of the reset.
    assert!((300..310).contains(&machine.now().as_millis()), "{:?}", machine.now());
    let report = machine.report();
    assert_eq!((report.domain_count, report.jobs_timed_out), (0, 1));
}

#[test]
fn a_stale_object_is_named() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let data = create(&file, 0x3, 4096, 0).unwrap();
    call(&file, &mut MemDestroy { handle: data.handle, ..MemDestroy::default() }).unwrap();
    assert_eq!(sync(&file, &data, 1), Err(Errno::FAULT));
    let report = machine.report();
    assert!(matches!(report.hazards[0].hazard, Hazard::StaleObject { was: true, .. }));
    assert_eq!((report.live, report.objects), (0, 0));
}

#[test]
fn versions_say_who_they_are_and_old_ones_know_no_domains() {
    for version in Version::ALL {
        let machine = Machine::new(Config { version, ..Config::default() });
        let file = machine.open();
        let mut args = Action { flags: 1, value: 0 };
        call(&file, &mut args).unwrap();
        assert_eq!(args.value, version.code());
        let wide = create(&file, 0x3, 4096, 99);
        assert_eq!(wide.is_err(), version.has_domains(), "{version}");
        let mut set = Action { flags: 25, value: 3 };
        assert_eq!(call(&file, &mut set).is_ok(), version.has_domains(), "{version}");
    }
    assert_eq!(ioctl::MEM_CREATE, 0xC030_6442);
}
