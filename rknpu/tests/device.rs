//! Domains, buffers, arenas, jobs and probes on the simulator.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use rknpu::capabilities::Domains;
use rknpu::import::DmaBuf;
use rknpu::program::{self, ProgramError};
use rknpu::sim::config::{self, Config, Mode, Version};
use rknpu::sim::{CallKind, Machine};
use rknpu::{
    Arena, Buffer, Device, Error, Host, Job, Layout, Matmul, MatmulLimits, OnDevice, Precision,
    WeightRef, probe, reference,
};
use rknpu_sys::regs::{Block, Command, cna, dpu, pc};

type NpuBuffer = Buffer<OnDevice>;

fn strict() -> Machine {
    Machine::new(Config { mode: Mode::Strict, ..Config::default() })
}

#[test]
fn capabilities_follow_the_driver() {
    let detect = |config: Config| Device::simulated(config).unwrap().capabilities().clone();
    let newest = detect(Config::default());
    assert_eq!((newest.domains, newest.unaligned_iova, newest.iommu), (Domains::Real, true, true));
    newest.require_domains().unwrap();

    let stub = detect(Config { domains: config::Domains::Stub, ..Config::default() });
    assert_eq!(stub.domains, Domains::Stub);
    assert!(matches!(stub.require_domains(), Err(Error::Unsupported { .. })));

    let none = detect(Config { iommu: false, ..Config::default() });
    assert_eq!((none.domains, none.unaligned_iova, none.iommu), (Domains::None, false, false));

    // 0.9.7 has domains but does not count who uses them.
    for (version, unaligned) in [
        (Version::V0_8, false),
        (Version::V0_9_5, false),
        (Version::V0_9_6, false),
        (Version::V0_9_7, true),
    ] {
        let old = detect(Config { version, ..Config::default() });
        assert_eq!((old.domains, old.unaligned_iova), (Domains::None, unaligned), "{version}");
        assert_eq!(old.domains.count(), 1);
    }

    let sram = detect(Config { sram: 956 << 10, ..Config::default() });
    assert_eq!((sram.sram_total, sram.sram_free), (956 << 10, 956 << 10));
    assert!(sram.to_string().contains("0.9.8"));
}

#[test]
fn a_matmul_runs_on_every_driver_version() {
    for version in Version::ALL {
        let machine = Machine::new(Config { version, mode: Mode::Strict, ..Config::default() });
        let device = Device::simulated_on(&machine).unwrap();
        let report = probe::cores(&device).unwrap();
        assert!(report.cores.iter().all(|core| core.works()), "{version}");
        assert_eq!(report.fences, Some(true), "{version}");
        assert!(machine.report().is_clean(), "{version}");
    }
}

#[test]
fn a_driver_without_fences_says_so() {
    let device = Device::simulated(Config { fences: false, ..Config::default() }).unwrap();
    let report = probe::cores(&device).unwrap();
    assert_eq!(report.fences, Some(false));
    assert!(report.cores.iter().all(|core| core.works()));
}

#[test]
fn every_domain_maps_4_gib_less_a_page_and_63_buffers_of_64_mib() {
    let device = Device::simulated(Config::default()).unwrap();
    for index in 0..16 {
        let domain = device.domain(index).unwrap();
        for map in [false, true] {
            // All that is mapped is touched: one domain is enough for that.
            if map && index > 0 {
                continue;
            }
            let report = probe::capacity(&domain, 64 << 20, map, 0).unwrap();
            assert_eq!(report.capacity, Some((4 << 30) - 4096));
            let bound = probe::Bound::Domain { errno: rknpu::Errno::FAULT };
            assert_eq!((report.buffers, report.bound), (63, bound));
            assert_eq!(format!("{:.2}", report.chunks() as f64 / 1e9), "4.23");
            assert_eq!(domain.stats().used, 0);
        }
    }
    assert!(device.health().is_good());
}

#[test]
fn sizes_are_bounded_before_the_driver_is_asked() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let before = machine.report().calls.get(&CallKind::MemCreate).copied();
    for size in [0, (4usize << 30) - 4095, usize::MAX, 1 << 63] {
        assert!(matches!(domain.alloc(size), Err(Error::Size { .. })), "{size}");
    }
    let all = domain.alloc((4 << 30) - 4096).unwrap();
    let error = domain.alloc(1).unwrap_err();
    assert!(
        matches!(error, Error::IovaExhausted { requested: 4096, largest_free: 0, errno: None, .. }),
        "{error}"
    );
    drop(all);
    assert_eq!(before, None);
    assert_eq!(machine.report().calls[&CallKind::MemCreate].failed, 0);
}

#[test]
fn fragmented_space_is_told_with_its_largest_gap() {
    let device = Device::simulated(Config::default()).unwrap();
    let domain = device.domain(2).unwrap();
    let mut buffers: Vec<_> = (0..15).map(|_| Some(domain.alloc(256 << 20).unwrap())).collect();
    for place in buffers.iter_mut().step_by(2) {
        *place = None;
    }
    let error = domain.alloc(1 << 30).unwrap_err();
    let Error::IovaExhausted { used, largest_free, capacity, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(used, 7 * (256 << 20));
    assert!((256 << 20..1 << 30).contains(&largest_free));
    assert_eq!(capacity, (4 << 30) - 4096);
}

#[test]
fn a_buffer_keeps_its_domain_and_device() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let buffer = device.domain(4).unwrap().alloc(4096).unwrap();
    assert!(matches!(device.domain(4), Err(Error::DomainLeased { index: 4 })));
    drop(device);
    assert_eq!(machine.report().files, 1);
    drop(buffer);
    assert_eq!(machine.report().files, 0);
}

#[test]
fn domains_are_numbered_leased_and_exhausted() {
    let device = Device::simulated(Config::default()).unwrap();
    assert!(matches!(
        device.domain(16),
        Err(Error::NoDomain { index: 16, domains: Domains::Real })
    ));
    assert!(matches!(device.core(3), Err(Error::NoCore { core: 3, cores: 3 })));
    let all: Vec<_> = (0..16).map(|_| device.new_domain().unwrap()).collect();
    assert_eq!(all.iter().map(|d| d.index()).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
    assert!(matches!(device.new_domain(), Err(Error::DomainsExhausted { domains: Domains::Real })));
    assert_eq!(device.stats().domains, 16);
}

#[test]
fn what_is_dropped_while_another_domain_is_active_is_freed_afterwards() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let (a, b) = (device.domain(0).unwrap(), device.domain(1).unwrap());
    let buffer = b.alloc(1 << 20).unwrap();
    let active = a.enter().unwrap();
    drop(buffer);
    assert_eq!(b.stats().used, 1 << 20, "accounted until it is really free");
    drop(active);
    assert_eq!((b.stats().used, machine.report().handles), (0, 0));
    assert!(device.health().is_good());
}

#[test]
fn a_new_buffer_is_zeroed_whatever_was_freed_before() {
    let device = Device::simulated(Config::default()).unwrap();
    let domain = device.domain(0).unwrap();
    for len in [4096, 64 << 20] {
        for _ in 0..2 {
            let mut buffer = domain.alloc(len).unwrap();
            assert!(buffer.as_slice().iter().all(|byte| *byte == 0));
            buffer.as_mut_slice().fill(9);
        }
    }
}

#[test]
fn room_that_is_about_to_be_freed_is_waited_for() {
    let device = Device::simulated(Config::default()).unwrap();
    let (a, b) = (device.domain(0).unwrap(), device.domain(1).unwrap());
    let big = b.alloc(3 << 30).unwrap();
    std::thread::scope(|scope| {
        let active = a.enter().unwrap();
        drop(big);
        let waits = scope.spawn(|| b.alloc(2 << 30).map(drop));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        drop(active);
        waits.join().unwrap().unwrap();
    });
}

/// Threads that work in different domains take turns; no call waits for the driver's 6 s.
#[test]
fn threads_in_different_domains_take_turns() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let layout = Layout::new(96, 64, Precision::Int8).unwrap();
    let cores = device.cores().unwrap();
    std::thread::scope(|scope| {
        for index in 0..4 {
            let (device, cores) = (&device, &cores);
            scope.spawn(move || {
                let domain = device.domain(index).unwrap();
                let limits = MatmulLimits { rows: 2, k: 96, n: 64 };
                let mut matmul = Matmul::int8(&domain, cores, limits).unwrap();
                for round in 0..20 {
                    let mut buffer = domain.alloc(layout.bytes() as usize).unwrap();
                    reference::fill(layout, round, buffer.as_mut_slice());
                    let activations = [index as i8 + 1; 2 * 96];
                    let want = reference::matmul_i8(layout, buffer.as_slice(), &activations);
                    let buffer = buffer.to_device().unwrap();
                    let mut out = [0; 2 * 64];
                    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
                    matmul.run(&weight, &activations, &mut out).unwrap();
                    assert_eq!(out[..], want);
                }
            });
        }
    });
    let report = machine.report();
    assert!(report.is_clean(), "{:?} {:?}", report.hazards, report.findings);
    // One reset at the first job; no wait of 6 s.
    assert!(machine.now() < Duration::from_secs(2), "{:?}", machine.now());
    assert!(device.health().is_good());
}

#[test]
fn precisions_may_follow_each_other() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let cores = device.cores().unwrap();
    let limits = MatmulLimits { rows: 1, k: 64, n: 64 };
    let mut int8 = Matmul::int8(&domain, &cores, limits).unwrap();
    let mut int4 = Matmul::int4(&domain, &cores, limits).unwrap();
    let buffer = domain.alloc(64 * 64).unwrap().to_device().unwrap();
    let layout = |precision| Layout::new(64, 64, precision).unwrap();
    let weight8 = WeightRef::new(&buffer, 0, layout(Precision::Int8)).unwrap();
    let weight4 = WeightRef::new(&buffer, 0, layout(Precision::Int4));
    // The smaller weight is padded to a page, as is the larger.
    let weight4 = weight4.unwrap();
    let resets = || machine.report().calls[&CallKind::Action].ok;
    let before = resets();
    int8.run(&weight8, &[1; 64], &mut [0; 64]).unwrap();
    int8.run(&weight8, &[1; 64], &mut [0; 64]).unwrap();
    assert_eq!(resets() - before, 1, "a cold NPU is reset once");
    int4.run(&weight4, &[1; 64], &mut [0; 64]).unwrap();
    int8.run(&weight8, &[1; 64], &mut [0; 64]).unwrap();
    assert_eq!(resets() - before, 3, "and at each change to or from int4");
    let error = int4.run(&weight4, &[8; 64], &mut [0; 64]).unwrap_err();
    assert!(matches!(error, Error::Int4Range { value: 8, row: 0, column: 0 }));
}

/// Input, weight and output buffers of a small program, and its commands.
fn small_job(device: &Device) -> (rknpu::Domain, Vec<Command>, Vec<NpuBuffer>) {
    let domain = device.domain(0).unwrap();
    let layout = Layout::new(32, 32, Precision::Int8).unwrap();
    let mut weights = domain.alloc(layout.bytes() as usize).unwrap();
    reference::tile_i8(layout, |k, n| (k == n) as i8, weights.as_mut_slice());
    let mut input = domain.alloc(32).unwrap();
    input.as_mut_slice().fill(9);
    let buffers = vec![
        input.to_device().unwrap(),
        weights.to_device().unwrap(),
        domain.alloc(128).unwrap().to_device().unwrap(),
    ];
    let program = program::MatmulProgram {
        precision: Precision::Int8,
        m: 1,
        k: 32,
        n: 32,
        input: buffers[0].iova(),
        weights: buffers[1].iova(),
        output: buffers[2].iova(),
        next: None,
    };
    let commands = program.encode().unwrap()[..program::AMOUNT as usize].to_vec();
    (domain, commands, buffers)
}

#[test]
fn programs_that_reach_outside_their_job_are_refused() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let (domain, good, mut buffers) = small_job(&device);
    let mut refuse = |change: &dyn Fn(&mut Vec<Command>)| -> ProgramError {
        let mut commands = good.clone();
        change(&mut commands);
        let refused = Job::new(&domain, &[&commands], std::mem::take(&mut buffers)).unwrap_err();
        buffers = refused.kept;
        match refused.error {
            Error::Program(error) => error,
            error => panic!("{error}"),
        }
    };
    let set = |register: u16, value: u32| {
        move |commands: &mut Vec<Command>| {
            for command in commands.iter_mut().filter(|c| c.register == register) {
                command.value = value;
            }
        }
    };
    for (register, what) in [
        (cna::FEATURE_DATA_ADDR, "input"),
        (cna::DCOMP_ADDR0, "weights"),
        (dpu::DST_BASE_ADDR, "output"),
    ] {
        let error = refuse(&set(register, 0x1000));
        assert!(matches!(error, ProgramError::Outside { what: w, .. } if w == what), "{error}");
        let error = refuse(&set(register, 0x1008));
        assert!(matches!(error, ProgramError::Address { what: w, .. } if w == what), "{error}");
    }
    // Ranges that grow out of their buffers.
    let error = refuse(&set(cna::WEIGHT_SIZE0, 8192));
    assert!(matches!(error, ProgramError::Outside { what: "weights", len: 8192, .. }));
    let error = refuse(&set(dpu::DATA_CUBE_HEIGHT, 99));
    assert!(matches!(error, ProgramError::Outside { what: "output", .. }));
    let error = refuse(&set(cna::DATA_SIZE0, 1 << 16 | 500));
    assert!(matches!(error, ProgramError::Outside { what: "input", .. }));
    // Commands that are not a program's business.
    for command in [
        Command::new(Block::Pc, pc::BASE_ADDRESS, 0x1000),
        Command::new(Block::Enable, pc::OPERATION_ENABLE, 0x0d),
        Command::new(Block::DpuRdma, 0x5018, 0x1000),
        Command::new(Block::Cna, cna::OPERATION_ENABLE, 1),
        Command { block: 0x7777, register: 0, value: 1 },
    ] {
        let error = refuse(&|commands: &mut Vec<Command>| commands.push(command));
        assert!(matches!(error, ProgramError::Command { command: 108, .. }), "{error}");
    }
    // Strides carry results and inputs further than their sizes say.
    let planes = |commands: &mut Vec<Command>| {
        set(dpu::DST_SURF_STRIDE, 0x100 << 4)(commands);
        set(dpu::SURFACE_ADD, 0x800 << 4)(commands);
    };
    let error = refuse(&planes);
    assert!(matches!(error, ProgramError::Outside { what: "output", len: 28_688, .. }), "{error}");
    let planes = |commands: &mut Vec<Command>| {
        set(cna::CONV_CON1, 0)(commands);
        set(cna::DMA_CON1, 4)(commands);
        set(cna::DMA_CON2, 0x100)(commands);
    };
    let error = refuse(&planes);
    assert!(matches!(error, ProgramError::Outside { what: "input", len: 4_176, .. }), "{error}");
    // Values whose effect is not known.
    for (register, value) in [(cna::DCOMP_CTRL, 1), (cna::PAD_CON0, 1), (dpu::BS_CFG, 0)] {
        let error = refuse(&set(register, value));
        assert!(matches!(error, ProgramError::Value { register: r, .. } if r == register));
    }
    let error = refuse(&|commands: &mut Vec<Command>| {
        commands.retain(|c| c.register != cna::WEIGHT_SIZE0);
    });
    assert_eq!(error, ProgramError::Missing { program: 0, register: cna::WEIGHT_SIZE0 });
    assert!(matches!(
        refuse(&|commands: &mut Vec<Command>| commands.clear()),
        ProgramError::Count { .. }
    ));
    assert_eq!(machine.report().jobs, 0, "none of them reached the driver");

    // And what is sound runs, chained too.
    let job = Job::new(&domain, &[&good, &good], buffers).unwrap();
    let (job, stats) = job.run(&mut device.core(2).unwrap()).unwrap();
    assert_eq!(stats.programs, 2);
    let output = job.into_buffers().pop().unwrap().to_host().unwrap();
    assert_eq!(output.as_slice()[..8], [9, 0, 0, 0, 9, 0, 0, 0]);
}

#[test]
fn a_submitted_job_runs_beside_its_caller_and_comes_back() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let (domain, commands, buffers) = small_job(&device);
    let job = Job::new(&domain, &[&commands], buffers).unwrap();
    let running = job.submit(device.core(1).unwrap()).unwrap();
    assert_eq!(running.core(), 1);
    let (core, result) = running.wait();
    let (job, stats) = result.unwrap();
    assert_eq!((core.index(), stats.programs), (1, 1));
    drop((job, core));
    // Dropped while it runs: waited for.
    drop(domain);
    let (domain, commands, buffers) = small_job(&device);
    let job = Job::new(&domain, &[&commands], buffers).unwrap();
    drop(job.submit(device.core(1).unwrap()).unwrap());
    assert!(device.core(1).is_ok());
    drop(domain);
    assert_eq!(machine.report().handles, 0);
    assert!(machine.report().is_clean());
}

#[test]
fn a_forgotten_job_leaks_its_memory_and_leaves_the_domain() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    let (domain, commands, buffers) = small_job(&device);
    let job = Job::new(&domain, &[&commands], buffers).unwrap();
    std::mem::forget(job.submit(device.core(0).unwrap()).unwrap());
    // Another domain can be had as soon as the job has ended.
    let other = device.domain(1).unwrap();
    assert!(other.alloc(4096).is_ok());
    assert_eq!(machine.report().jobs_done, 1);
    assert!(matches!(device.core(0), Err(Error::CoreLeased { core: 0 })));
    let report = machine.report();
    assert_eq!((report.handles, report.hazards.len()), (5, 0), "its five buffers are still there");
}

#[test]
fn foreign_memory_is_imported_into_domain_0_only() {
    let machine = strict();
    {
        let device = Device::simulated_on(&machine).unwrap();
        let layout = Layout::new(64, 32, Precision::Int8).unwrap();
        let fd = machine.foreign_buffer(layout.bytes() as usize).unwrap();
        let mut memory = DmaBuf::from_fd(fd, layout.bytes() as usize).unwrap();
        let mut tiled = vec![0; layout.bytes() as usize];
        reference::fill(layout, 4, &mut tiled);
        memory.write(0, &tiled).unwrap();
        let other = device.domain(3).unwrap();
        let refused = other.import(memory).unwrap_err();
        assert!(matches!(refused.error, Error::ImportDomain { domain: 3 }));
        // Domain 3 is the current one; the import must not land there.
        let busy = other.alloc(4096).unwrap().to_device().unwrap();

        let domain = device.domain(0).unwrap();
        let buffer = domain.import(refused.kept).unwrap();
        let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
        let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
        let mut out = [0; 32];
        let weight = WeightRef::new(&buffer, 0, layout).unwrap();
        matmul.run(&weight, &[3; 64], &mut out).unwrap();
        assert_eq!(out[..], reference::matmul_i8(layout, &tiled, &[3; 64]));
        drop((busy, buffer));
        assert!(device.health().is_good());
    }
    let report = machine.report();
    assert!(report.hazards.is_empty(), "{:?}", report.hazards);
}

#[test]
fn probes_report_what_they_found() {
    let device = Device::simulated(Config::default()).unwrap();
    let report = probe::domains(&device, 3, 1 << 20, 4).unwrap();
    assert_eq!((report.jobs, report.wrong, report.first_wrong), (12, 0, None));
    assert!(report.switches >= 11);
    let domain = device.domain(0).unwrap();
    let report = probe::persist(&domain, 1 << 16, |bytes| bytes.fill(7)).unwrap();
    assert_eq!(report.differs_at, None);
    let report = probe::stream(&domain, 1 << 20, 10, |_, bytes| bytes.fill(1)).unwrap();
    assert!(report.is_clean() && report.peak == 1 << 20, "{report}");
    // A leak shows.
    let _ballast = domain.alloc((4 << 30) - (1 << 20)).unwrap();
    let report = probe::stream(&domain, 2 << 20, 10, |_, _| ()).unwrap();
    assert!(!report.is_clean() && report.to_string().contains("LEAK"));
    assert_eq!(probe::fill(&domain, 4096).unwrap().rates.len(), 4);
}

#[test]
fn a_core_that_does_not_run_is_a_finding() {
    let machine = strict();
    let device = Device::simulated_on(&machine).unwrap();
    machine.inject(rknpu::sim::Fault::Hang { core: Some(1), after: 0, times: 1 });
    let report = probe::cores(&device).unwrap();
    let works: Vec<bool> = report.cores.iter().map(|core| core.works()).collect();
    assert_eq!(works, [true, false, true]);
    assert!(report.to_string().contains("core 1: does not run"));
    assert_eq!(device.stats().recoveries, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize),
    Free(usize),
    Toggle(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..20_000usize).prop_map(Step::Alloc),
        2 => any::<usize>().prop_map(Step::Free),
        2 => any::<usize>().prop_map(Step::Toggle),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A part, which keeps the byte that it was filled with in either state.
enum Part {
    Host(Buffer<Host>, u8),
    Device(NpuBuffer, u8),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Parts of an arena never share a byte, whatever order they come and go in.
    #[test]
    fn parts_of_an_arena_keep_what_was_written(steps in steps()) {
        let machine = strict();
        let device = Device::simulated_on(&machine).unwrap();
        let arena = Arena::new(&device.domain(0).unwrap(), 128 << 10).unwrap();
        let mut parts: Vec<Part> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc(len) => match arena.alloc(len) {
                    Ok(mut part) => {
                        part.as_mut_slice().fill(number as u8);
                        parts.push(Part::Host(part, number as u8));
                    }
                    Err(Error::ArenaFull { requested, largest, .. }) => {
                        prop_assert!(largest < requested);
                    }
                    Err(error) => panic!("{error}"),
                },
                Step::Free(at) if !parts.is_empty() => {
                    drop(parts.swap_remove(at % parts.len()));
                }
                Step::Toggle(at) if !parts.is_empty() => {
                    let at = at % parts.len();
                    let part = match parts.swap_remove(at) {
                        Part::Host(part, byte) => Part::Device(part.to_device().unwrap(), byte),
                        Part::Device(part, byte) => Part::Host(part.to_host().unwrap(), byte),
                    };
                    parts.push(part);
                }
                Step::Free(_) | Step::Toggle(_) => {}
            }
            for part in &parts {
                if let Part::Host(part, byte) = part {
                    prop_assert!(part.as_slice().iter().all(|b| b == byte));
                }
            }
        }
        let live: u64 = parts.iter().map(|part| match part {
            Part::Host(part, _) => part.len().next_multiple_of(4096) as u64,
            Part::Device(part, _) => part.len().next_multiple_of(4096) as u64,
        }).sum();
        prop_assert_eq!(arena.free_bytes(), arena.capacity() - live);
        drop(arena);
        drop(parts);
        prop_assert_eq!(machine.report().handles, 0);
        prop_assert!(machine.report().is_clean());
    }
}

/// A job of one thread does not keep another from allocating in the same domain.
#[test]
fn work_in_one_domain_runs_side_by_side() {
    let device = Device::simulated(Config::default()).unwrap();
    let domain = device.domain(0).unwrap();
    let entered = AtomicBool::new(false);
    let active = domain.enter().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _also = domain.enter().unwrap();
            entered.store(domain.alloc(4096).is_ok(), Ordering::SeqCst);
        });
    });
    assert!(entered.load(Ordering::SeqCst));
    assert_eq!(active.domain().index(), 0);
}

/// Probes take their sizes from a command line.
#[test]
fn probes_refuse_sizes_that_no_domain_has_before_they_ask_for_memory() {
    let device = Device::simulated(Config::default()).unwrap();
    let domain = device.domain(0).unwrap();
    for size in [0, (1 << 32) - 4095, u64::MAX - 4094, u64::MAX] {
        let len = size as usize;
        let errors = [
            probe::capacity(&domain, size, false, 0).map(drop),
            probe::fill(&domain, len).map(drop),
            probe::stream(&domain, len, 2, |_, _| ()).map(drop),
            probe::persist(&domain, len, |_| ()).map(drop),
        ];
        for (i, error) in errors.into_iter().enumerate() {
            assert!(matches!(error, Err(Error::Size { .. })), "{size}: probe {i}: {error:?}");
        }
    }
    for fill in [u64::MAX - 4094, u64::MAX] {
        let error = probe::domains(&device, 1, fill, 1).map(drop);
        assert!(matches!(error, Err(Error::Size { .. } | Error::DomainLeased { .. })), "{error:?}");
    }
}
