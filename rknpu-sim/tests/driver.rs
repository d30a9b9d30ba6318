//! The driver's calls, one after the other, on small machines.

mod common;

use common::{call, create, get, job, machine, map, put, sync, tasks};
use rknpu_sim::config::{Clock, Mode, Version};
use rknpu_sim::{Config, Fault, Hazard, Machine, Node};
use rknpu_sys::drm::PrimeHandle;
use rknpu_sys::ioctl;
use rknpu_sys::uapi::{Action, MemCreate, MemDestroy};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

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

#[test]
fn a_large_window_costs_nothing_until_it_is_written() {
    let file = machine(Mode::Strict).open();
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = resident();
    let all: Vec<_> = (0..31).map(|_| create(&file, 0x403, 128 << 20, 0).unwrap()).collect();
    assert_eq!(all[30].dma_addr, 0xFFFF_FFFF + 1 - 31 * (128 << 20));
    assert_eq!(create(&file, 0x403, 128 << 20, 0), Err(Errno::FAULT));
    // In pages; other tests of the process run beside this one.
    assert!(resident().saturating_sub(before) < 16 << 10, "{} pages", resident() - before);
}

#[test]
fn two_files_share_a_domain_and_not_their_handles() {
    let machine = machine(Mode::Fast);
    let (a, b) = (machine.open(), machine.open());
    let first = create(&a, 0x3, 4096, 0).unwrap();
    let second = create(&b, 0x3, 4096, 0).unwrap();
    assert_eq!((first.handle, second.handle), (1, 1));
    assert_eq!((first.dma_addr, second.dma_addr), (0xFFFF_F000, 0xFFFF_E000));
    let mut destroy = MemDestroy { handle: 2, ..MemDestroy::default() };
    assert_eq!(call(&b, &mut destroy), Err(Errno::INVAL));
    drop(a);
    let report = machine.report();
    assert_eq!((report.files, report.handles, report.live), (1, 1, 4096));
}

#[test]
fn a_mapping_keeps_the_buffer_and_its_file() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let buffer = create(&file, 0x3, 8192, 0).unwrap();
    let view = map(&file, &buffer);
    put(&view, 4096, 7);
    drop(file);
    assert_eq!(get(&view, 4096), 7);
    assert_eq!((machine.report().files, machine.report().mappings), (1, 1));
    drop(view);
    let report = machine.report();
    assert_eq!((report.files, report.objects, report.mappings, report.live), (0, 0, 0, 0));
}

#[test]
fn a_domain_held_by_somebody_else_is_waited_for() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    machine.inject(Fault::BusyDomain { domain: 3, for_ms: 2_000 });
    create(&file, 0x3, 4096, 1).unwrap();
    assert_eq!(machine.now(), Duration::from_secs(2));
    machine.inject(Fault::BusyDomain { domain: 3, for_ms: 10_000 });
    assert_eq!(create(&file, 0x3, 4096, 1), Err(Errno::INVAL));
    assert_eq!(machine.now(), Duration::from_secs(8));
}

#[test]
fn faults_come_when_they_were_armed_for() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let kind = rknpu_sim::CallKind::MemCreate;
    machine.inject(Fault::Call { kind, after: 1, times: 2, errno: Errno::NOMEM });
    let results: Vec<_> = (0..4).map(|_| create(&file, 0x3, 4096, 0).map(|b| b.handle)).collect();
    assert_eq!(results, [Ok(1), Err(Errno::NOMEM), Err(Errno::NOMEM), Ok(2)]);
    let (task_buffer, _tasks) = tasks(&file);
    let data = create(&file, 0x3, 4096, 0).unwrap();
    machine.inject(Fault::Hang { core: Some(0), after: 0, times: 1 });
    assert_eq!(call(&file, &mut job(&task_buffer, &data)), Err(Errno::TIMEDOUT));
    call(&file, &mut job(&task_buffer, &data)).unwrap();
    machine.inject(Fault::ResetLines(Errno::IO));
    assert_eq!(call(&file, &mut Action { flags: 6, value: 0 }), Err(Errno::IO));
    assert_eq!(call(&file, &mut job(&task_buffer, &data)), Err(Errno::INVAL));
    call(&file, &mut Action { flags: 6, value: 0 }).unwrap();
    call(&file, &mut job(&task_buffer, &data)).unwrap();
}

#[test]
fn memory_and_address_space_run_out_with_the_drivers_errnos() {
    let machine = Machine::new(Config { memory: Some(64 << 10), ..Config::default() });
    let file = machine.open();
    assert_eq!(create(&file, 0x3, 128 << 10, 0), Err(Errno::NOMEM));
    let plain = Machine::new(Config::default()).open();
    // Aligned to powers of two, 2 GiB is the most; with 0x400 all but a page.
    assert_eq!(create(&plain, 0x3, 3 << 30, 0), Err(Errno::FAULT));
    assert_eq!(create(&plain, 0x2, 3 << 30, 0), Err(Errno::INVAL));
    // A size that failed is remembered until something is freed.
    assert_eq!(create(&plain, 0x403, (4 << 30) - 4096, 0), Err(Errno::FAULT));
    let fresh = Machine::new(Config::default()).open();
    assert_eq!(create(&fresh, 0x403, (4 << 30) - 4096, 0).unwrap().dma_addr, 4096);
}

#[test]
fn dumb_buffers_are_for_the_card_node() {
    let machine = machine(Mode::Fast);
    let mut dumb = [0u32; 8];
    dumb[..3].copy_from_slice(&[10, 100, 32]);
    for (node, expected) in [(Node::Card, Ok(0)), (Node::Render, Err(Errno::ACCESS))] {
        // SAFETY: CREATE_DUMB takes 32 bytes.
        let made = unsafe { machine.open_node(node).ioctl(0xC020_64B2, (&raw mut dumb).cast()) };
        assert_eq!(made, expected, "{node:?}");
    }
    assert_eq!((dumb[4], dumb[5], dumb[6]), (1, 400, 4000));
}

#[test]
fn bad_pointers_and_foreign_words_are_refused() {
    let file = machine(Mode::Fast).open();
    for (word, errno) in [(ioctl::ACTION, Errno::FAULT), (0xC008_7240, Errno::NOTTY)] {
        // SAFETY: nothing is mapped at the null page; the call says so before it reads.
        let refused = unsafe { file.ioctl(word, std::ptr::null_mut()) };
        assert_eq!(refused, Err(errno));
    }
}

#[test]
fn the_real_clock_takes_its_time() {
    let config =
        Config { clock: Clock::Real, engine: Arc::new(common::Increment), ..Config::default() };
    let machine = Machine::new(config);
    let file = machine.open();
    let data = create(&file, 0x3, 4096, 0).unwrap();
    let (task_buffer, view) = tasks(&file);
    put(&view, std::mem::offset_of!(rknpu_sys::uapi::Task, regcmd_addr), 20_000);
    let begun = std::time::Instant::now();
    let mut args = job(&task_buffer, &data);
    args.timeout = 60_000;
    call(&file, &mut args).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(20), "{:?}", begun.elapsed());
    assert!(args.hw_elapse_time >= 20_000_000);
}

#[test]
fn nonblocking_jobs_end_without_anybody_inside() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let data = create(&file, 0x3, 4096, 0).unwrap();
    let (task_buffer, _view) = tasks(&file);
    let mut args = job(&task_buffer, &data);
    args.flags = 0x17;
    call(&file, &mut args).unwrap();
    let fence = machine.fence(args.fence_fd).unwrap();
    assert_eq!(fence.name, "rknpu-rknpu1-1");
    assert!(machine.wait_fence(args.fence_fd, Duration::from_secs(1)));
    assert_eq!(machine.report().jobs_done, 1);
    assert!(machine.descriptor_closed(args.fence_fd));
}

#[test]
fn without_an_iommu_memory_is_as_its_last_user_left_it() {
    for mode in [Mode::Fast, Mode::Strict] {
        let machine = Machine::new(Config { iommu: false, mode, ..Config::default() });
        let file = machine.open();
        let used = |flags: u32, size: u64| {
            let buffer = create(&file, flags, size, 0).unwrap();
            let view = map(&file, &buffer);
            let found = get(&view, 4096);
            put(&view, 4096, 41);
            drop(view);
            let mut destroy = MemDestroy { handle: buffer.handle, ..MemDestroy::default() };
            call(&file, &mut destroy).unwrap();
            (buffer.dma_addr, found)
        };
        let (place, fresh) = used(0x1, 8192);
        assert_eq!(fresh, 0);
        // ZEROING changes nothing, a kernel mapping does.
        assert_eq!(used(0x2, 8192), (place, 41));
        assert_eq!(used(0x23, 8192), (place, 41));
        assert_eq!(used(0xb, 8192), (place, 0));
        assert_eq!(used(0x3, 12288).1, 0);
    }
}

#[test]
fn an_import_without_an_iommu_gives_its_place_back() {
    let machine = Machine::new(Config { iommu: false, ..Config::default() });
    let file = machine.open();
    // Three times what there is of address space.
    for n in 0..12 {
        let buffer = machine.foreign_buffer(1 << 30).unwrap();
        let fd = buffer.as_raw_fd();
        let mut import = PrimeHandle { fd, ..PrimeHandle::default() };
        // SAFETY: the word takes a `PrimeHandle`.
        unsafe { file.ioctl(ioctl::PRIME_FD_TO_HANDLE, (&raw mut import).cast()) }
            .unwrap_or_else(|errno| panic!("import {n}: {errno}"));
        let mut destroy = MemDestroy { handle: import.handle, ..MemDestroy::default() };
        call(&file, &mut destroy).unwrap();
        machine.descriptor_closed(fd);
    }
}
