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
    assert!(
        report.findings.iter().any(|found| found.finding.text.contains("missing sync")),
        "{report:?}"
    );
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

/// The card node, by request words: first word of the answer, or the errno.
fn card(file: &rknpu_sim::File, word: u32, first: u32) -> Result<u32, Errno> {
    let mut bytes = [0; 64];
    bytes[..4].copy_from_slice(&first.to_le_bytes());
    file.call_bytes(word, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes[..4].try_into().unwrap()))
}

#[test]
fn the_card_has_a_master_and_lets_it_vouch_for_others() {
    const GET_MAGIC: u32 = 0x8004_6402;
    const AUTH_MAGIC: u32 = 0x4004_6411;
    const SET_MASTER: u32 = 0x641e;
    const DROP_MASTER: u32 = 0x641f;
    let machine = machine(Mode::Fast);
    let [first, other] = [(); 2].map(|()| machine.open_as(Node::Card, false));
    let root = machine.open_as(Node::Card, true);
    let render = machine.open();
    assert_eq!(card(&first, SET_MASTER, 0), Ok(0));
    assert_eq!(card(&other, SET_MASTER, 0), Err(Errno::ACCESS));
    assert_eq!(card(&root, SET_MASTER, 0), Err(Errno::BUSY));
    assert_eq!(card(&render, SET_MASTER, 0), Err(Errno::ACCESS));
    // Naming objects takes the master's word.
    let flink = |file, handle| card(file, 0xC008_640A, handle);
    assert_eq!(flink(&other, 1), Err(Errno::ACCESS));
    assert_eq!(flink(&root, 1), Err(Errno::NOENT));
    let magic = card(&other, GET_MAGIC, 0).unwrap();
    assert_eq!(card(&other, AUTH_MAGIC, magic), Err(Errno::ACCESS));
    assert_eq!(card(&first, AUTH_MAGIC, magic), Ok(magic));
    assert_eq!(card(&first, AUTH_MAGIC, magic), Err(Errno::INVAL)); // once
    assert_eq!(flink(&other, 1), Err(Errno::NOENT));
    // A master that has gone leaves its place to the next who opens the card.
    assert_eq!(card(&root, DROP_MASTER, 0), Err(Errno::INVAL));
    drop(first);
    assert_eq!(card(&machine.open_as(Node::Card, false), SET_MASTER, 0), Ok(0));
}

#[test]
fn a_name_opens_its_object_elsewhere_as_long_as_it_has_handles() {
    let machine = machine(Mode::Fast);
    let [one, other] = [(); 2].map(|()| machine.open_node(Node::Card));
    let buffer = create(&one, 0x403, 8192, 0).unwrap();
    let named = |file: &rknpu_sim::File, word: u32, first: u32| {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&first.to_le_bytes());
        file.call_bytes(word, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes[4..8].try_into().unwrap()))
    };
    let (flink, open) = (0xC008_640A, 0xC010_640B);
    let name = named(&one, flink, buffer.handle).unwrap();
    assert_eq!(named(&one, flink, buffer.handle), Ok(name));
    let handle = named(&other, open, name).unwrap();
    assert_eq!(named(&other, open, name), Ok(handle + 1)); // a new one each time
    let mut query = MemCreate { handle, ..MemCreate::default() };
    call(&other, &mut query).unwrap();
    assert_eq!((query.dma_addr, query.size), (buffer.dma_addr, 8192));
    drop((one, other));
    assert_eq!(machine.report().objects, 0);
    assert_eq!(named(&machine.open_node(Node::Card), open, name), Err(Errno::NOENT));
}

#[test]
fn texts_and_versions_of_the_card() {
    let machine = machine(Mode::Fast);
    let file = machine.open_node(Node::Card);
    // GET_UNIQUE tells a length, of nothing before SET_VERSION has asked for interface 1.1 or later.
    assert_eq!(card(&file, 0xC010_6401, 0), Ok(0));
    let mut version = [0; 16];
    for (at, number) in [1, 1, -1, 0i32].into_iter().enumerate() {
        version[4 * at..][..4].copy_from_slice(&number.to_le_bytes());
    }
    file.call_bytes(0xC010_6407, &mut version).unwrap();
    assert_eq!(version, *b"\x01\0\0\0\x04\0\0\0\0\0\0\0\x09\0\0\0");
    assert_eq!(card(&file, 0xC010_6401, 0), Ok("fdab0000.npu".len() as u32));
    assert_eq!(card(&file, 0xC028_6405, 1), Err(Errno::INVAL)); // the second client
    assert_eq!(card(&file, 0xC028_6405, 0), Ok(0));
    assert_eq!(card(&file, 0x4010_640D, 1), Err(Errno::OPNOTSUPP));
}

#[test]
fn an_idle_npu_has_no_power() {
    let machine = machine(Mode::Fast);
    let power = || machine.knob("power").unwrap();
    assert_eq!(power(), "off\n");
    let file = machine.open();
    create(&file, 0x3, 4096, 0).unwrap();
    assert_eq!(power(), "on\n");
    machine.sleep(std::time::Duration::from_secs(3));
    assert_eq!(power(), "off\n");
}
