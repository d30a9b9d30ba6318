//! Every call that the driver answers, failing once at every place where it is made.

#[path = "support/drivers.rs"]
mod drivers;

use std::sync::LazyLock;
use std::time::Duration;

use rknpu::health::{Health, Recovery};
use rknpu::sim::config::{Config, Driver, Mode};
use rknpu::sim::report::Leaks;
use rknpu::sim::{CallKind, Fault, Machine};
use rknpu::{Arena, Device, Error, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};
use rustix::io::Errno;

const K: u32 = 1056;
const N: u32 = 128;
const M: usize = 3;

fn machine() -> Machine {
    machine_with(Driver::Rknpu)
}

fn machine_with(driver: Driver) -> Machine {
    Machine::new(Config { mode: Mode::Strict, ..drivers::with(driver) })
}

fn activations() -> Vec<i8> {
    (0..M * K as usize).map(|i| (i * 7 % 255) as u8 as i8).collect()
}

/// A weight, and what the activations give with it.
struct Made {
    tiled: Vec<u8>,
    want: Vec<i32>,
}

/// Two of them, made once: the walk is thousands of runs.
static MADE: LazyLock<[Made; 2]> = LazyLock::new(|| {
    [1, 2].map(|seed| {
        let layout = Layout::new(K, N, Precision::Int8).unwrap();
        let mut tiled = vec![0; layout.bytes() as usize];
        reference::fill(layout, seed, &mut tiled);
        let want = reference::matmul_i8(layout, &tiled, &activations());
        Made { tiled, want }
    })
});

/// Pack, load, run, evict and drop, in two domains; what the device has to say of itself afterwards
/// goes into `health`, also when a step fails.
fn scenario(machine: &Machine, health: &mut Health) -> Result<(), Error> {
    let device = Device::simulated_on(machine)?;
    let result = steps(&device);
    *health = device.health();
    result
}

fn steps(device: &Device) -> Result<(), Error> {
    let layout = Layout::new(K, N, Precision::Int8)?;
    let bytes = layout.bytes() as usize;
    let cores = device.cores()?;
    let activations = activations();
    let [Made { tiled, want }, second] = &*MADE;
    for index in [0, 3] {
        let domain = device.domain(index)?;
        let limits = MatmulLimits { rows: M as u32, k: K, n: N };
        let mut matmul = Matmul::int8(&domain, &cores, limits)?;
        // Pack into a buffer of its own, run, evict.
        let mut packed = domain.alloc(bytes)?;
        packed.as_mut_slice().copy_from_slice(tiled);
        let packed = packed.to_device()?;
        let mut out = vec![0; M * N as usize];
        matmul.run(&WeightRef::new(&packed, 0, layout)?, &activations, &mut out)?;
        assert_eq!(&out, want, "a run that reports success has run");
        // The same without copies: rows and results where the NPU has them.
        let mut rows = matmul.activations().lease(M, K)?;
        for (row, inputs) in activations.chunks(K as usize).enumerate() {
            rows.write_row(row, inputs)?;
        }
        let rows = rows.to_device()?;
        let weight = WeightRef::new(&packed, 0, layout)?;
        out.fill(-1);
        let mut product = matmul.multiply(&weight, &rows)?;
        while let Some(outputs) = product.next_columns()? {
            outputs.copy_to(&mut out)?;
        }
        assert_eq!(&out, want, "columns that are given have been multiplied");
        drop(rows);
        // Another weight through the same buffer.
        let mut slot = packed.reclaim()?;
        slot.as_mut_slice().copy_from_slice(&second.tiled);
        let slot = slot.to_device()?;
        matmul.run(&WeightRef::new(&slot, 0, layout)?, &activations, &mut out)?;
        assert_eq!(out, second.want);
        drop(slot);
        // Load a pack into an arena.
        let arena = Arena::new(&domain, 2 * bytes)?;
        let mut part = arena.alloc(bytes)?;
        part.as_mut_slice().copy_from_slice(tiled);
        let part = part.to_device()?;
        let back = part.to_host()?;
        assert_eq!(back.as_slice(), tiled);
    }
    Ok(())
}

/// Everything has been given back to the driver.
fn assert_nothing_left(machine: &Machine, context: &str) {
    let report = machine.report();
    assert_eq!(report.leaks(), Leaks::default(), "{context}");
    assert_eq!((report.live, report.files), (0, 0), "{context}: bytes, files");
    assert!(report.hazards.is_empty(), "{context}: {:?}", report.hazards);
    assert_eq!(report.discarded, 0, "{context}: dirty bytes thrown away");
    assert_eq!(report.domain_count, 0, "{context}: references to the domain");
}

fn a_sound_run_leaves_nothing(driver: Driver) {
    let machine = machine_with(driver);
    let mut health = Health::default();
    scenario(&machine, &mut health).unwrap();
    assert!(health.is_good());
    assert_nothing_left(&machine, "no fault");
    assert!(machine.report().is_clean());
}

/// What an error must say for a failure of this kind of call.
fn names(kind: CallKind) -> &'static [&'static str] {
    match kind {
        CallKind::Action => &["ACTION", "switches domains"],
        CallKind::Submit => &["matmul"],
        CallKind::MemCreate | CallKind::CreateBo => &["MEM_CREATE", "no room"],
        CallKind::FiniBo => &["MEM_SYNC", "matmul"],
        CallKind::PrepBo => &["matmul"],
        CallKind::MemMap | CallKind::Mmap => &["MEM_MAP/mmap"],
        CallKind::MemSync => &["MEM_SYNC"],
        _ => &[],
    }
}

fn every_call_may_fail_once(driver: Driver) {
    let clean = machine_with(driver);
    scenario(&clean, &mut Health::default()).unwrap();
    let calls = clean.report().calls;
    let errnos = |kind| -> &[Errno] {
        match kind {
            CallKind::MemCreate => &[Errno::NOMEM, Errno::FAULT, Errno::INVAL, Errno::INTR],
            CallKind::CreateBo => &[Errno::NOMEM, Errno::INTR],
            CallKind::PrepBo => &[Errno::INTR],
            CallKind::Submit => &[Errno::INVAL, Errno::TIMEDOUT, Errno::NOMEM, Errno::INTR],
            CallKind::Action => &[Errno::INVAL, Errno::FAULT, Errno::INTR],
            CallKind::Mmap => &[Errno::NOMEM, Errno::ACCESS],
            _ => &[Errno::INVAL, Errno::INTR],
        }
    };
    let kinds = match driver {
        Driver::Rknpu => &[
            CallKind::Action,
            CallKind::Submit,
            CallKind::MemCreate,
            CallKind::MemMap,
            CallKind::Mmap,
            CallKind::MemSync,
            CallKind::MemDestroy,
        ][..],
        Driver::Rocket(_) => &[
            CallKind::Submit,
            CallKind::CreateBo,
            CallKind::Mmap,
            CallKind::PrepBo,
            CallKind::FiniBo,
            CallKind::GemClose,
        ],
    };
    let (mut points, mut survived) = (0, 0);
    for &kind in kinds {
        let made = calls.get(&kind).map_or(0, |calls| calls.ok);
        assert!(made > 0, "{kind:?} is never called");
        for after in 0..made as u32 {
            for &errno in errnos(kind) {
                points += 1;
                let context = format!("{kind:?} number {after}: {errno}");
                let machine = machine_with(driver);
                machine.inject(Fault::Call { kind, after, times: 1, errno });
                let mut health = Health::default();
                match scenario(&machine, &mut health) {
                    Ok(()) => survived += 1,
                    Err(error) => {
                        let text = error.to_string();
                        let named = names(kind).iter().any(|name| text.contains(name));
                        assert!(named, "{context}: {text}");
                    }
                }
                // A handle that would not go is the driver's until the file is closed.
                let gives = matches!(kind, CallKind::MemDestroy | CallKind::GemClose);
                let refused = gives && errno != Errno::INTR;
                assert_eq!(health.incidents, u64::from(refused), "{context}");
                assert_eq!(health.leaked_buffers, u64::from(refused), "{context}");
                assert!(health.wedged.is_none(), "{context}");
                assert_nothing_left(&machine, &context);
                // The machine is none the worse for it.
                machine.clear_faults();
                scenario(&machine, &mut health).unwrap_or_else(|e| panic!("{context}: {e}"));
            }
        }
    }
    println!("{points} points of failure, {survived} of them survived without an error");
    assert!(points > 120);
}

#[test]
fn a_hanging_job_is_run_again_after_a_reset() {
    let clean = machine();
    scenario(&clean, &mut Health::default()).unwrap();
    let starts = clean.report().calls[&CallKind::Submit].ok as u32;
    assert!(starts >= 6);
    for after in 0..starts {
        let machine = machine();
        machine.inject(Fault::Hang { core: None, after, times: 1 });
        let mut health = Health::default();
        scenario(&machine, &mut health).unwrap();
        assert_eq!((health.recovered, health.incidents), (1, 0));
        let report = health.last_failure.unwrap();
        assert_eq!(report.errno, Some(Errno::TIMEDOUT));
        assert_eq!(report.recovery, Recovery::Reset);
        assert_eq!((report.m, report.k, report.n), (M as u64, K, N));
        assert_nothing_left(&machine, "a hang");
    }
}

/// Columns that could not be multiplied come again with the next call.
#[test]
fn a_product_goes_on_after_a_call_that_failed() {
    let machine = machine();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let layout = Layout::new(64, 64, Precision::Int8).unwrap();
    let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
    let weight = WeightRef::new(&weight, 0, layout).unwrap();
    let limits = MatmulLimits { rows: 1, k: 64, n: 64 };
    let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
    let fail = |after| {
        let (kind, errno) = (CallKind::MemSync, Errno::INVAL);
        machine.inject(Fault::Call { kind, after, times: 1, errno });
    };
    // Handing rows over gives them back when it fails.
    let mut rows = matmul.activations().lease(1, 64).unwrap();
    rows.write_row(0, &[1; 64]).unwrap();
    fail(0);
    let rejected = rows.to_device().unwrap_err();
    assert!(matches!(rejected.error, Error::Driver { .. }), "{rejected}");
    let rows = rejected.kept.to_device().unwrap();
    let mut product = matmul.multiply(&weight, &rows).unwrap();
    // The programs' sync, and the results'.
    for after in [0, 1] {
        fail(after);
        let error = product.next_columns().unwrap_err();
        assert!(matches!(error, Error::Driver { .. }), "{error}");
    }
    let outputs = product.next_columns().unwrap().unwrap();
    assert_eq!(outputs.columns(), 0..64);
    assert!(product.next_columns().unwrap().is_none());
    assert!(device.health().is_good());
}

#[test]
fn a_job_that_hangs_twice_wedges_the_device_which_then_keeps_its_buffers() {
    let machine = machine();
    machine.inject(Fault::Hang { core: None, after: 0, times: 2 });
    let device = Device::simulated_on(&machine).unwrap();
    let error = steps(&device).unwrap_err();
    let Error::JobFailed(report) = &error else { panic!("{error}") };
    assert_eq!((report.attempts, report.core, report.domain), (2, 0, 0));
    assert!(error.to_string().contains("matmul M=3 K=1056 N=128 on core 0 in domain 0"));

    let health = device.health();
    assert!(!health.is_good());
    assert_eq!(health.wedged.as_deref(), Some(&**report));
    // The matmul's four buffers and the weight: the NPU may still write to them.
    assert_eq!((health.quarantined_buffers, health.leaked_buffers), (5, 0));
    let domain = device.domain(5).unwrap();
    assert!(matches!(domain.alloc(4096), Err(Error::Wedged(_))));
    assert_eq!(machine.report().handles, 5);

    // Another process would find a usable NPU.
    scenario(&machine, &mut Health::default()).unwrap();
}

#[test]
fn a_reset_that_fails_is_told() {
    let machine = machine();
    let device = Device::simulated_on(&machine).unwrap();
    let layout = Layout::new(64, 32, Precision::Int8).unwrap();
    let domain = device.domain(0).unwrap();
    let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
    let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
    let weight = WeightRef::new(&weight, 0, layout).unwrap();
    matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap();

    // The driver's own reset after the timeout, and the one that is asked for.
    machine.inject(Fault::Hang { core: None, after: 0, times: 1 });
    machine.inject(Fault::ResetLines(Errno::IO));
    machine.inject(Fault::ResetLines(Errno::IO));
    let error = matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap_err();
    let Error::JobFailed(report) = error else { panic!("{error}") };
    assert_eq!(report.recovery, Recovery::ResetFailed(Errno::IO));
    assert!(device.health().wedged.is_some());
}

#[test]
fn an_npu_whose_domains_no_longer_switch_is_given_up() {
    let machine = machine();
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let layout = Layout::new(64, 32, Precision::Int8).unwrap();
    let weight = domain.alloc(layout.bytes() as usize).unwrap().to_device().unwrap();
    let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
    let weight = WeightRef::new(&weight, 0, layout).unwrap();
    machine.inject(Fault::Hang { core: None, after: 0, times: 1 });
    machine.inject(Fault::Attach(Errno::TIMEDOUT));
    let error = matmul.run(&weight, &[1; 64], &mut [0; 32]).unwrap_err();
    let Error::JobFailed(report) = error else { panic!("{error}") };
    assert_eq!(report.recovery, Recovery::DomainsStuck(Errno::TIMEDOUT));
}

#[test]
fn a_domain_held_by_another_process_is_an_error_not_a_hang() {
    let machine = machine();
    let (ours, theirs) =
        (Device::simulated_on(&machine).unwrap(), Device::simulated_on(&machine).unwrap());
    let domain = ours.domain(7).unwrap();
    std::thread::scope(|scope| {
        machine.inject(Fault::Hang { core: None, after: 0, times: 1 });
        let holder = scope.spawn(|| steps(&theirs));
        // The clock stands still unless this thread waits, too.
        let acting = machine.actor();
        while machine.report().jobs == 0 {
            machine.sleep(Duration::from_millis(1));
        }
        // Their job hangs for 10 s in domain 0; the driver gives up waiting for it after 6.
        let error = domain.alloc(4096).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::INVAL), "{error}");
        assert!(error.to_string().contains("MEM_CREATE"), "{error}");
        drop(acting);
        holder.join().unwrap().unwrap();
    });
    assert!(machine.now() >= Duration::from_secs(6));
    assert!(ours.health().is_good());
}

#[test]
fn memory_that_runs_out_is_no_leak() {
    let machine = Machine::new(Config { memory: Some(8 << 20), ..Config::default() });
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let kept = domain.alloc(6 << 20).unwrap();
    let error = domain.alloc(4 << 20).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.errno(), Some(Errno::NOMEM));
    drop(kept);
    assert_eq!(domain.alloc(4 << 20).unwrap().len(), 4 << 20);
}

drivers::on_both_drivers!(a_sound_run_leaves_nothing, every_call_may_fail_once);
