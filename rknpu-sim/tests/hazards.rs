//! What would hurt the kernel: each misuse is named in the report.

mod common;

use common::{call, create, job, machine, map, put, sync, tasks};
use rknpu_sim::config::{Mode, OnHazard};
use rknpu_sim::{Config, File, Hazard, Machine};
use rknpu_sys::uapi::{Action, MemCreate, MemDestroy, MemSync, SubcoreTask, Task};
use rustix::io::Errno;
use std::mem::offset_of;

/// Whether a machine has met a hazard.
fn met(machine: &Machine, is: impl Fn(&Hazard) -> bool) -> bool {
    machine.report().hazards.iter().any(|met| is(&met.hazard) && !met.text.is_empty())
}

/// A machine with a task buffer of one page and a data buffer.
fn ready() -> (Machine, File, MemCreate, rknpu_sim::Mapping, MemCreate) {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let (task_buffer, view) = tasks(&file);
    let data = create(&file, 0x403, 4096, 0).unwrap();
    (machine, file, task_buffer, view, data)
}

#[test]
fn a_task_range_past_its_buffer() {
    let (machine, file, task_buffer, _view, data) = ready();
    let mut args = job(&task_buffer, &data);
    args.subcore_task[0] = SubcoreTask { task_start: 100, task_number: 50 };
    assert_eq!(call(&file, &mut args), Err(Errno::FAULT));
    assert!(met(&machine, |h| matches!(h, Hazard::TasksOutside { first: 100, count: 50, .. })));
}

#[test]
fn a_task_range_of_none() {
    let (machine, file, task_buffer, _view, data) = ready();
    let mut args = job(&task_buffer, &data);
    args.subcore_task[0].task_number = 0;
    assert_eq!(call(&file, &mut args), Err(Errno::FAULT));
    assert!(met(&machine, |h| matches!(h, Hazard::TasksOutside { count: 0, .. })));
}

#[test]
fn tasks_that_the_kernel_has_not_mapped() {
    let (machine, file, _, _view, data) = ready();
    assert_eq!(call(&file, &mut job(&data, &data)), Err(Errno::FAULT));
    assert!(met(&machine, |h| matches!(h, Hazard::TasksNotMapped { .. })));
}

#[test]
fn a_buffer_freed_under_a_job() {
    let (machine, file, task_buffer, view, data) = ready();
    put(&view, offset_of!(Task, regcmd_addr), 500_000);
    let mut args = job(&task_buffer, &data);
    args.flags = 0x7;
    args.timeout = 5_000_000;
    call(&file, &mut args).unwrap();
    // The job is executed by a worker; it holds its buffers for half a second of the machine's time.
    machine.sleep(std::time::Duration::from_millis(1));
    call(&file, &mut MemDestroy { handle: data.handle, ..MemDestroy::default() }).unwrap();
    assert!(met(&machine, |h| matches!(h, Hazard::FreedUnderJob { core: 0, .. })));
}

/// Three cores hang at once, each caller is told after its timeout, and resets. The recordings decide what
/// comes then: who waits until the reset is over goes on; a job that is submitted to core 1 or 2 while it
/// runs is freed without being taken from the queue.
#[test]
fn three_cores_that_hang_at_once() {
    let run = |wait: bool| {
        let machine = machine(Mode::Fast);
        let (over, together) = (std::sync::Barrier::new(3), std::sync::Barrier::new(3));
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3u32)
                .map(|core| {
                    let (machine, over, together) = (&machine, &over, &together);
                    scope.spawn(move || {
                        let file = machine.open();
                        let (task_buffer, _view) = tasks(&file);
                        let data = create(&file, 0x403, 4096, 0).unwrap();
                        let mut good = job(&task_buffer, &data);
                        good.core_mask = 1 << core;
                        good.subcore_task = [SubcoreTask { task_start: 0, task_number: 1 }; 5];
                        let mut bad = good;
                        bad.task_base_addr = 0x1000; // nothing is mapped there
                        let _acting = machine.actor();
                        together.wait();
                        let first = call(&file, &mut bad);
                        let reset = call(&file, &mut Action { flags: 6, value: 0 });
                        if wait {
                            machine.sleep(std::time::Duration::from_secs(1));
                        }
                        let again = call(&file, &mut { good });
                        machine.sleep(std::time::Duration::from_secs(5));
                        drop(_acting);
                        over.wait();
                        (first, reset, again)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        (machine, results)
    };
    let (machine, results) = run(true);
    for (first, reset, again) in results {
        assert_eq!((first, reset, again), (Err(Errno::TIMEDOUT), Ok(()), Ok(())));
    }
    assert!(machine.report().hazards.is_empty(), "{:?}", machine.report().hazards);
    let (machine, results) = run(false);
    assert!(results.iter().any(|(.., again)| *again == Err(Errno::INVAL)), "{results:?}");
    assert!(met(&machine, |h| matches!(h, Hazard::FreedJobLinked { core: 1 | 2 })), "{results:?}");
}

#[test]
fn a_job_in_the_wrong_domain() {
    let (machine, file, task_buffer, _view, _) = ready();
    create(&file, 0x3, 1 << 20, 2).unwrap();
    let other = create(&file, 0x3, 1 << 20, 2).unwrap();
    assert_eq!(call(&file, &mut job(&task_buffer, &other)), Err(Errno::TIMEDOUT));
    let findings = machine.report().findings;
    assert!(findings.iter().any(|found| found.finding.text.contains("domain 2")), "{findings:?}");
}

#[test]
fn an_interrupt_mask_that_cannot_come() {
    let (machine, file, task_buffer, view, data) = ready();
    put(&view, offset_of!(Task, int_mask), 0x100);
    assert_eq!(call(&file, &mut job(&task_buffer, &data)), Err(Errno::TIMEDOUT));
    assert!(met(&machine, |h| matches!(h, Hazard::HalfInterruptMask { mask: 0x100, .. })));
    // The slot still points to the freed job.
    assert!(met(&machine, |h| matches!(h, Hazard::FreedJobLinked { core: 0 })));
    put(&view, offset_of!(Task, int_mask), 0xc00);
    let mut args = job(&task_buffer, &data);
    args.core_mask = 2;
    args.subcore_task[1].task_number = 1;
    assert_eq!(call(&file, &mut args), Err(Errno::TIMEDOUT));
    let findings = machine.report().findings;
    assert!(findings.iter().any(|found| found.finding.text.contains("0xc00")), "{findings:?}");
}

#[test]
fn submits_that_the_driver_should_refuse() {
    let (machine, file, task_buffer, _view, data) = ready();
    let mut without_pc = job(&task_buffer, &data);
    without_pc.flags = 0x4;
    assert_eq!(call(&file, &mut without_pc), Err(Errno::INVAL));
    assert!(met(&machine, |h| matches!(h, Hazard::WithoutPc { busy: false })));
    let mut mask = job(&task_buffer, &data);
    mask.core_mask = 5;
    assert_eq!(call(&file, &mut mask), Err(Errno::INVAL));
    assert!(met(&machine, |h| matches!(h, Hazard::MaskNeverRuns { mask: 5 })));
    let mut domain = job(&task_buffer, &data);
    domain.iommu_domain_id = 16;
    assert_eq!(call(&file, &mut domain), Err(Errno::INVAL));
    assert!(met(&machine, |h| matches!(h, Hazard::CountBelowZero { count: -1 })));
    // After which no switch succeeds.
    assert_eq!(call(&file, &mut Action { flags: 25, value: 1 }), Err(Errno::INVAL));
}

#[test]
fn a_timeout_with_its_top_bit_set() {
    let (machine, file, task_buffer, _view, data) = ready();
    let mut args = job(&task_buffer, &data);
    args.timeout = u32::MAX;
    assert_eq!(call(&file, &mut args), Err(Errno::NOENT));
    assert!(met(&machine, |h| matches!(h, Hazard::EndlessTimeout { .. })));
}

#[test]
fn sizes_that_wrap_and_objects_that_are_none() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let empty = create(&file, 0x3, u64::MAX, 0).unwrap();
    assert_eq!((empty.size, empty.dma_addr), (0, 0));
    assert!(met(&machine, |h| matches!(h, Hazard::SizeWrapped { size: u64::MAX })));
    assert_eq!(sync(&file, &empty, 1), Err(Errno::FAULT));
    assert!(met(&machine, |h| matches!(h, Hazard::EmptySynced { .. })));
    let mut forged = MemSync { flags: 1, obj_addr: 0x1000, size: 64, ..MemSync::default() };
    assert_eq!(call(&file, &mut forged), Err(Errno::FAULT));
    assert!(met(&machine, |h| matches!(h, Hazard::StaleObject { was: false, .. })));
}

#[test]
fn a_contiguous_buffer_that_is_none() {
    let machine = Machine::new(Config { cma: 0, ..Config::default() });
    let file = machine.open();
    let buffer = create(&file, 0x2, 64 << 20, 0).unwrap();
    let mut args = rknpu_sys::uapi::MemMap { handle: buffer.handle, ..Default::default() };
    call(&file, &mut args).unwrap();
    assert_eq!(file.mmap(args.offset, 4096).err(), Some(Errno::NXIO));
    assert!(met(&machine, |h| matches!(h, Hazard::FallbackMapped { .. })));
    call(&file, &mut MemDestroy { handle: buffer.handle, ..Default::default() }).unwrap();
    assert!(met(&machine, |h| matches!(h, Hazard::FallbackFreed { .. })));
    assert_eq!(machine.report().domains[0].mapped, 64 << 20);
}

#[test]
fn a_sync_of_another_drivers_buffer_and_its_end_in_the_wrong_domain() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    call(&file, &mut Action { flags: 25, value: 1 }).unwrap();
    let foreign = machine.foreign_buffer(65536).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&foreign);
    let mut import = rknpu_sys::drm::PrimeHandle { fd, ..Default::default() };
    // SAFETY: the word takes a `PrimeHandle`.
    unsafe {
        file.ioctl(rknpu_sys::ioctl::PRIME_FD_TO_HANDLE, (&raw mut import).cast()).unwrap();
    }
    let mut query = MemCreate { handle: import.handle, ..MemCreate::default() };
    call(&file, &mut query).unwrap();
    assert_eq!(sync(&file, &query, 1), Err(Errno::INVAL));
    call(&file, &mut MemDestroy { handle: import.handle, ..Default::default() }).unwrap();
    assert!(met(&machine, |h| matches!(h, Hazard::ForeignUnmapped { mapped_in: 1, .. })));
}

#[test]
#[should_panic(expected = "which is an object that was destroyed")]
fn a_machine_can_stop_at_the_first() {
    let machine = Machine::new(Config { on_hazard: OnHazard::Panic, ..Config::default() });
    let file = machine.open();
    let buffer = create(&file, 0x3, 4096, 0).unwrap();
    call(&file, &mut MemDestroy { handle: buffer.handle, ..Default::default() }).unwrap();
    let _ = sync(&file, &buffer, 1);
}

#[test]
fn a_forgotten_first_sync_is_found_in_fast_mode_too() {
    let (machine, file, task_buffer, _view, data) = ready();
    let view = map(&file, &data);
    put(&view, 0, 1);
    call(&file, &mut job(&task_buffer, &data)).unwrap();
    let findings = machine.report().findings;
    assert!(
        findings.iter().any(|found| found.finding.text.contains("missing sync")),
        "{findings:?}"
    );
}
