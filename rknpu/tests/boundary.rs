//! What safe code may not do to memory, and is refused when it tries. What does not even compile stands beside
//! the types as `compile_fail` examples.

mod support;

use std::os::fd::OwnedFd;

use rknpu::driver::{self, Allocate, Caching, Purpose};
use rknpu::import::DmaBuf;
use rknpu::program::{self, AMOUNT};
use rknpu::sim::config::{Config, Mode};
use rknpu::sim::{CallKind, Fault, Machine};
use rknpu::{
    Arena, Buffer, Device, Domain, Errno, Error, Job, Layout, Matmul, MatmulLimits, OnDevice,
    OpenOptions, Precision, WeightRef,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use support::{NoOp, Wrong};

fn strict() -> Machine {
    Machine::new(Config { mode: Mode::Strict, ..Config::default() })
}

fn allocate() -> Allocate {
    let (purpose, caching) = (Purpose::Data, Caching::Cached);
    Allocate { space: 0, size: 8192, purpose, caching }
}

#[test]
fn an_object_is_mapped_once_and_freed_when_nobody_holds_its_mapping() {
    let machine = strict();
    let driver = driver::simulated(&machine).unwrap();
    let mut object = driver.allocate(&allocate()).unwrap();
    let range = driver.map(&mut object).unwrap();
    assert_eq!(range.len(), 8192);
    assert_eq!(driver.map(&mut object).unwrap_err().errno, Errno::BUSY);
    let (object, refused) = driver.free(object).unwrap_err();
    assert_eq!(refused.errno, Errno::BUSY);
    assert_eq!(machine.report().handles, 1);
    drop(range);
    driver.free(object).unwrap();
    assert_eq!(machine.report().handles, 0);
}

#[test]
fn a_driver_refuses_what_another_made_and_what_it_cannot_have() {
    let (ours, theirs) =
        (driver::simulated(&strict()).unwrap(), driver::simulated(&strict()).unwrap());
    let mut object = theirs.allocate(&allocate()).unwrap();
    assert_eq!(ours.map(&mut object).unwrap_err().errno, Errno::XDEV);
    let (object, refused) = ours.free(object).unwrap_err();
    assert_eq!(refused.errno, Errno::XDEV);
    theirs.free(object).unwrap();
    // Sizes that wrap, and spaces that are not there, are not asked for.
    for (size, space) in [(0, 0), (u64::MAX - 4000, 0), (1 << 40, 0), (4096, 16), (4096, u32::MAX)]
    {
        let refused = ours.allocate(&Allocate { size, space, ..allocate() }).unwrap_err();
        assert_eq!(refused.errno, Errno::INVAL, "{size} in {space}");
    }
}

#[test]
fn after_the_end_every_call_is_refused() {
    let machine = strict();
    let driver = driver::simulated(&machine).unwrap();
    let mut objects: Vec<_> = (0..3).map(|_| driver.allocate(&allocate()).unwrap()).collect();
    let range = driver.map(&mut objects[0]).unwrap();
    assert!(driver.shut_down().is_empty());
    assert_eq!(machine.report().handles, 0);
    for object in objects {
        let (_, refused) = driver.free(object).unwrap_err();
        assert_eq!(refused.errno, Errno::SHUTDOWN);
    }
    assert_eq!(driver.allocate(&allocate()).unwrap_err().errno, Errno::SHUTDOWN);
    assert_eq!(driver.reset().unwrap_err().errno, Errno::SHUTDOWN);
    drop(range);
    assert!(machine.report().hazards.is_empty(), "nothing named an object that was gone");
}

#[test]
fn a_sync_ends_with_its_buffer() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let arena = Arena::new(&domain, 1 << 20).unwrap();
    for mut buffer in [domain.alloc(4096).unwrap(), arena.alloc(4096).unwrap()] {
        for len in [4097, 1 << 40, u64::MAX] {
            let unchanged = buffer.to_device_up_to(len).unwrap_err();
            assert!(matches!(unchanged.error, Error::Range { size: 4096, .. }), "{len}");
            buffer = unchanged.buffer;
        }
        assert!(buffer.to_device_up_to(4096).is_ok());
    }
}

#[test]
fn only_memory_that_cannot_be_cut_is_taken() {
    let refuse = |fd: OwnedFd, len| match DmaBuf::from_fd(fd, len).unwrap_err() {
        Error::NotDmaBuf { sealed, size, .. } => (sealed, size),
        error => panic!("{error}"),
    };
    let file = |seal: bool| {
        let fd = memfd_create("cut", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 8192).unwrap();
        if seal {
            fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        }
        fd
    };
    assert_eq!(refuse(file(false), 8192), (false, 8192), "it can be cut under the mapping");
    assert_eq!(refuse(file(true), 8193), (true, 8192), "it is shorter than said");
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(8192).unwrap();
    assert_eq!(refuse(disk.into(), 8192), (false, 8192));

    // What is taken cannot be cut any more, and two who have it share it, by copies.
    let fd = file(true);
    let same = fd.try_clone().unwrap();
    let (mut a, b) = (DmaBuf::from_fd(fd, 8192).unwrap(), same.try_clone().unwrap());
    let b = DmaBuf::from_fd(b, 8192).unwrap();
    assert_eq!(ftruncate(&same, 0), Err(Errno::PERM));
    a.write(4095, &[7; 3]).unwrap();
    let mut back = [0; 4];
    b.read(4094, &mut back).unwrap();
    assert_eq!(back, [0, 7, 7, 7]);
}

#[test]
fn memory_is_imported_once_and_comes_back() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let fd = machine.foreign_buffer(4096).unwrap();
    let again = || DmaBuf::from_fd(fd.try_clone().unwrap(), 4096).unwrap();
    let buffer = domain.import(again()).unwrap();
    let iova = buffer.iova();
    for _ in 0..2 {
        let refused = domain.import(again()).unwrap_err();
        assert!(matches!(refused.error, Error::ImportedAlready), "{refused}");
        assert_eq!(machine.report().handles, 1, "what was refused ended nothing");
    }
    // Whoever takes it back may import it again.
    let memory = buffer.into_dma_buf().unwrap();
    assert_eq!((domain.stats().used, machine.report().handles), (0, 0));
    let buffer = domain.import(memory).unwrap();
    assert_eq!(buffer.iova(), iova);
    drop(buffer);
    assert!(domain.import(again()).is_ok());
}

/// A free that fails is an answer, and the buffer is not lost.
#[test]
fn a_buffer_that_would_not_go_comes_back() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let buffer = device.domain(0).unwrap().alloc(4096).unwrap();
    let (kind, errno) = (CallKind::MemDestroy, Errno::INVAL);
    machine.inject(Fault::Call { kind, after: 0, times: 1, errno });
    let unchanged = buffer.free().unwrap_err();
    assert_eq!(unchanged.error.errno(), Some(Errno::INVAL));
    unchanged.buffer.free().unwrap();
    assert_eq!(machine.report().handles, 0);
    assert!(device.health().is_good());
}

/// A part that is given back joins whatever is free beside it, before and behind.
#[test]
fn an_arena_is_whole_again_in_whatever_order_parts_go() {
    let device = Device::simulated_on(&strict()).unwrap();
    let arena = Arena::new(&device.domain(0).unwrap(), 4 * 4096).unwrap();
    for order in
        [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [0, 2, 1, 3], [1, 2, 0, 3], [2, 0, 3, 1]]
    {
        let mut parts: Vec<_> = (0..4).map(|_| Some(arena.alloc(4096).unwrap())).collect();
        for (gone, at) in order.into_iter().enumerate() {
            drop(parts[at].take());
            assert_eq!(arena.free_bytes(), 4096 * (gone as u64 + 1));
        }
        assert!(arena.alloc(4 * 4096).is_ok(), "{order:?}: not one piece");
    }
}

fn weight(domain: &Domain) -> (Buffer<OnDevice>, Layout) {
    let layout = Layout::new(64, 32, Precision::Int8).unwrap();
    let buffer = domain.alloc(layout.bytes() as usize).unwrap();
    (buffer.to_device().unwrap(), layout)
}

fn matmul(domain: &Domain) -> Matmul {
    let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    Matmul::int8(domain, &domain.device().cores().unwrap(), limits).unwrap()
}

/// The reset that a cold NPU gets.
fn warm_up(matmul: &mut Matmul, buffer: &Buffer<OnDevice>, layout: Layout) {
    let weight = WeightRef::new(buffer, 0, layout).unwrap();
    matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap();
}

/// The next job hangs, and so many resets fail. The first of them is the driver's own, after the timeout.
fn wedge(machine: &Machine, resets: u32) {
    machine.inject(Fault::Hang { core: None, after: 0, times: 1 });
    for _ in 0..resets {
        machine.inject(Fault::ResetLines(Errno::IO));
    }
}

#[test]
fn what_a_job_may_still_write_to_is_kept_until_a_reset_succeeds() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let arena = Arena::new(&domain, 64 << 10).unwrap();
    let part = arena.alloc(4096).unwrap().to_device().unwrap();
    let (buffer, layout) = weight(&domain);
    let mut matmul = matmul(&domain);
    warm_up(&mut matmul, &buffer, layout);
    let rows = matmul.activations().lease(1, 64).unwrap().to_device().unwrap();

    wedge(&machine, 3);
    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
    let mut product = matmul.multiply(&weight, &rows).unwrap();
    let error = product.next_columns().unwrap_err();
    assert!(matches!(error, Error::JobFailed(_)), "{error}");

    // No way to the memory: not by reclaiming, not by a sync, not by another owner.
    let wedged = |error: &Error| assert!(matches!(error, Error::Wedged(_)), "{error}");
    let unchanged = buffer.reclaim().unwrap_err();
    wedged(&unchanged.error);
    let unchanged = unchanged.buffer.to_host().unwrap_err();
    wedged(&unchanged.error);
    let unchanged = unchanged.buffer.free().unwrap_err();
    wedged(&unchanged.error);
    let rejected = rows.reclaim().unwrap_err();
    wedged(&rejected.error);
    drop(rejected);
    wedged(&matmul.activations().lease(1, 64).unwrap_err());
    drop(part);
    wedged(&arena.alloc(4096).unwrap_err());
    wedged(&domain.alloc(4096).unwrap_err());
    let fd = machine.foreign_buffer(4096).unwrap();
    let foreign = DmaBuf::from_fd(fd, 4096).unwrap();
    wedged(&domain.import(foreign).unwrap_err().error);
    let handles = machine.report().handles;
    drop((unchanged, matmul));
    assert_eq!(machine.report().handles, handles, "nothing was freed");
    let health = device.health();
    assert_eq!((health.quarantined_buffers, health.leaked_buffers), (5, 0));
    assert!(health.quarantined_bytes >= 5 * 4096 && health.to_string().contains("kept from use"));

    // A reset that fails changes nothing; one that succeeds ends it.
    wedged(&device.reset().unwrap_err());
    assert_eq!(machine.report().handles, handles);
    device.reset().unwrap();
    assert_eq!(device.health().quarantined_buffers, 0);
    assert!(device.health().is_good());
    assert_eq!(machine.report().handles, 1, "the arena");
    assert_eq!(arena.alloc(64 << 10).unwrap().len(), 64 << 10, "its bytes are whole again");
    assert!(machine.report().hazards.is_empty());
}

#[test]
fn a_running_job_that_is_dropped_is_still_asked_how_it_ended() {
    for (resets, kept) in [(0, 0), (2, 5)] {
        let machine = strict();
        let device = Device::simulated_on(&machine).unwrap();
        let domain = device.domain(0).unwrap();
        let (buffer, layout) = weight(&domain);
        warm_up(&mut matmul(&domain), &buffer, layout);
        drop(buffer);
        let buffers = vec![
            domain.alloc(64).unwrap().to_device().unwrap(),
            weight(&domain).0,
            domain.alloc(128).unwrap().to_device().unwrap(),
        ];
        let program = program::MatmulProgram {
            precision: Precision::Int8,
            m: 1,
            k: 64,
            n: 32,
            input: buffers[0].iova(),
            weights: buffers[1].iova(),
            output: buffers[2].iova(),
            next: None,
        };
        let commands = program.encode().unwrap();
        let job = Job::new(&domain, &[&commands[..AMOUNT as usize]], buffers).unwrap();
        wedge(&machine, resets);
        drop(job.submit(device.core(1).unwrap()).unwrap());
        let health = device.health();
        assert!(health.last_failure.is_some());
        assert_eq!(health.wedged.is_some(), resets > 0);
        assert_eq!(health.quarantined_buffers, kept);
        assert_eq!(machine.report().handles as u64, kept, "list, programs and three buffers");
    }
}

#[test]
fn a_core_on_which_another_jobs_interrupt_came_takes_no_more_jobs() {
    let driver = NoOp::failing(0, 1, Wrong::ForeignStatus);
    let device = Device::with_driver(driver, &OpenOptions::new()).unwrap();
    let domain = device.domain(0).unwrap();
    let (buffer, layout) = weight(&domain);
    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
    let mut matmul = matmul(&domain);
    // The repetition goes to another core, and core 0 is never used again.
    let stats = matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap();
    assert_eq!((stats.cores, stats.retries), (1, 1));
    assert_eq!(device.health().last_failure.unwrap().core, 0);
    for _ in 0..3 {
        assert_eq!(matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap().retries, 0);
    }
    drop(matmul);
    assert!(matches!(device.core(0), Err(Error::CoreLost { core: 0 })));
    assert_eq!(device.cores().unwrap().count(), 2);
}

/// Memory of another domain that is dropped while a domain is held goes when that is left: not to the driver,
/// if the device has been wedged meanwhile.
#[test]
fn memory_that_waits_for_its_domain_is_kept_when_the_device_wedges_meanwhile() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let (domain, other) = (device.domain(0).unwrap(), device.domain(1).unwrap());
    let (buffer, layout) = weight(&domain);
    let mut matmul = matmul(&domain);
    warm_up(&mut matmul, &buffer, layout);
    let waits = other.alloc(4096).unwrap();
    let held = domain.enter().unwrap();
    drop(waits);
    wedge(&machine, 3);
    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
    let error = matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap_err();
    assert!(matches!(error, Error::JobFailed(_)), "{error}");
    let (handles, before) = (machine.report().handles, device.health().quarantined_buffers);
    drop(held);
    assert_eq!(machine.report().handles, handles, "nothing was freed");
    assert_eq!(device.health().quarantined_buffers, before + 1);
}

/// The last atom of each operand counts.
#[test]
fn a_job_whose_buffers_are_an_atom_short_is_refused() {
    let device = Device::simulated_on(&strict()).unwrap();
    let domain = device.domain(0).unwrap();
    // A row of 32 inputs, 32 weights for each of 32 outputs, 32 sums of 4 bytes.
    let exact = [32, 1024, 128];
    for short in [None, Some(0), Some(1), Some(2)] {
        let mut sizes = exact;
        if let Some(operand) = short {
            sizes[operand] -= 16;
        }
        let alloc = |size| domain.alloc(size).unwrap().to_device().unwrap();
        let buffers = sizes.map(alloc);
        let [input, weights, output] = buffers.each_ref().map(Buffer::iova);
        let (precision, next) = (Precision::Int8, None);
        let program =
            program::MatmulProgram { precision, m: 1, k: 32, n: 32, input, weights, output, next };
        let commands = program.encode().unwrap();
        let job = Job::new(&domain, &[&commands[..AMOUNT as usize]], buffers.into());
        match (short, job) {
            (None, job) => drop(job.unwrap()),
            (Some(operand), job) => {
                let error = job.unwrap_err().error.to_string();
                let name = ["input", "weights", "output"][operand];
                assert!(error.contains(name), "{name}: {error}");
            }
        }
    }
}
