//! A model is streamed through a budget smaller than itself while the driver, the NPU or the disk
//! fails: an error or the right results, never wrong ones, and nothing is left behind.

#[path = "../../rknpu/tests/support/drivers.rs"]
mod drivers;

use std::collections::BTreeMap;

use ork_tests::bench::{Bench, assert_nothing_left, machine_with, passes, session};
use ork_weights::model::synth::Shape;
use rknpu::Device;
use rknpu::sim::Machine;
use rknpu::sim::config::{Config, Driver};
use rknpu::sim::report::Calls;
use rknpu::sim::{CallKind, Fault};
use rustix::io::Errno;

/// Calls of a kind that are tried one by one; beyond them, every so many.
const EACH: u64 = 12;
const STRIDE: usize = 17;

fn any_call_of_the_driver_may_fail_while_a_model_is_streamed(driver: Driver) {
    let bench = Bench::new(Shape::tiny());
    let want = bench.digest();
    let machine = || machine_with(driver);
    let budget = bench.budget_on(&Device::simulated_on(&machine()).unwrap());
    let kinds = match driver {
        Driver::Rknpu => &[
            (CallKind::Action, Errno::FAULT),
            (CallKind::Submit, Errno::INVAL),
            (CallKind::MemCreate, Errno::NOMEM),
            (CallKind::MemMap, Errno::INVAL),
            (CallKind::Mmap, Errno::NOMEM),
            (CallKind::MemSync, Errno::INVAL),
            (CallKind::MemDestroy, Errno::INVAL),
        ][..],
        // It tells nothing of jobs but that it could not look at them.
        Driver::Rocket(_) => &[
            (CallKind::Submit, Errno::NOMEM),
            (CallKind::CreateBo, Errno::NOMEM),
            (CallKind::Mmap, Errno::NOMEM),
            (CallKind::PrepBo, Errno::INTR),
            (CallKind::FiniBo, Errno::INVAL),
            (CallKind::GemClose, Errno::INVAL),
        ],
    };
    let (mut points, mut failed) = (0, 0);
    for prefetch in [false, true] {
        let sound = machine();
        let device = Device::simulated_on(&sound).unwrap();
        let opening = sound.report().calls;
        let digest = passes(&mut session(&device, bench.store(), budget, prefetch).unwrap());
        assert_eq!(digest.unwrap(), want, "no fault, prefetch {prefetch}");
        let calls = sound.report().calls;
        drop(device);
        assert_nothing_left(&sound, "no fault");

        for &(kind, errno) in kinds {
            let count = |calls: &BTreeMap<_, Calls>| calls.get(&kind).map_or(0, |calls| calls.ok);
            let made = count(&calls) - count(&opening);
            assert!(made > 0, "{kind:?} is never called");
            for after in (0..made.min(EACH)).chain((EACH..made).step_by(STRIDE)) {
                points += 1;
                let context = format!("{kind:?} number {after}: {errno}, prefetch {prefetch}");
                let machine = machine();
                let device = Device::simulated_on(&machine).unwrap();
                machine.inject(Fault::Call { kind, after: after as u32, times: 1, errno });
                let run = || passes(&mut session(&device, bench.store(), budget, prefetch)?);
                match run() {
                    Ok(digest) => assert_eq!(digest, want, "{context}"),
                    Err(error) => {
                        failed += 1;
                        assert!(!error.to_string().is_empty(), "{context}");
                    }
                }
                // The same device serves the next run.
                machine.clear_faults();
                assert_eq!(run().unwrap(), want, "{context}, afterwards");
                drop(device);
                assert_nothing_left(&machine, &context);
            }
        }
    }
    println!("{points} points of failure, {failed} of them an error");
    assert!(points > 100 && failed > 20 && failed < points, "{points} points, {failed} errors");
}

fn a_job_that_hangs_once_costs_time_and_nothing_else(driver: Driver) {
    let bench = Bench::new(Shape::tiny());
    let want = bench.digest();
    for after in [0, 1, 7, 20] {
        let machine = machine_with(driver);
        let device = Device::simulated_on(&machine).unwrap();
        machine.inject(Fault::Hang { core: None, after, times: 1 });
        let budget = bench.budget_on(&device);
        let mut session = session(&device, bench.store(), budget, true).unwrap();
        assert_eq!(passes(&mut session).unwrap(), want, "hang number {after}");
        assert_eq!(device.health().recovered, 1, "hang number {after}");
        drop((session, device));
        assert_nothing_left(&machine, "a hang");
    }
}

fn a_job_that_hangs_again_ends_the_run_and_the_next_process_has_an_npu(driver: Driver) {
    let bench = Bench::new(Shape::tiny());
    let machine = machine_with(driver);
    let device = Device::simulated_on(&machine).unwrap();
    // A product and its repetition, in each space that has a part of it.
    let times = 2 * device.capabilities().spaces.lanes() as u32;
    machine.inject(Fault::Hang { core: None, after: 5, times });
    let budget = bench.budget_on(&device);
    let mut wedged = session(&device, bench.store(), budget, true).unwrap();
    let error = passes(&mut wedged).unwrap_err().to_string();
    assert!(error.contains("matmul") && error.contains("core"), "{error}");
    let again = wedged.pass(0).unwrap_err().to_string();
    assert!(again.contains("wedged"), "{again}");
    drop(wedged);
    assert!(device.health().quarantined_buffers > 0, "the NPU may still write to them");
    drop(device);
    machine.clear_faults();

    let device = Device::simulated_on(&machine).unwrap();
    let mut session = session(&device, bench.store(), budget, true).unwrap();
    assert_eq!(passes(&mut session).unwrap(), bench.digest());
}

#[test]
fn a_board_with_too_little_memory_is_an_error_and_no_leak() {
    let bench = Bench::new(Shape::tiny());
    let machine = Machine::new(Config { memory: Some(bench.budget() / 2), ..Config::default() });
    let device = Device::simulated_on(&machine).unwrap();
    let run = |budget| passes(&mut session(&device, bench.store(), budget, true)?);
    let error = run(bench.budget()).unwrap_err().to_string();
    assert!(error.contains("MEM_CREATE") || error.contains("no room"), "{error}");
    drop(device);
    assert_nothing_left(&machine, "out of memory");
}

drivers::on_both_drivers!(
    any_call_of_the_driver_may_fail_while_a_model_is_streamed,
    a_job_that_hangs_once_costs_time_and_nothing_else,
    a_job_that_hangs_again_ends_the_run_and_the_next_process_has_an_npu,
);
