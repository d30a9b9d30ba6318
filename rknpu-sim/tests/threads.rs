//! Many threads on one machine: nothing deadlocks, nothing times out that should not.

mod common;

use common::{call, create, get, job, machine, map, put, tasks};
use rknpu_sim::config::Mode;
use rknpu_sys::uapi::{MemDestroy, SubcoreTask};
use std::time::Duration;

/// Jobs per thread.
const JOBS: u32 = 300;

#[test]
fn three_cores_and_two_other_domains_at_once() {
    let machine = machine(Mode::Fast);
    std::thread::scope(|scope| {
        for core in 0..3 {
            let machine = &machine;
            scope.spawn(move || {
                let file = machine.open();
                let (task_buffer, _tasks) = tasks(&file);
                let data = create(&file, 0x403, 4096, 0).unwrap();
                let view = map(&file, &data);
                let mut args = job(&task_buffer, &data);
                args.core_mask = 1 << core;
                args.timeout = 60_000;
                args.subcore_task = [SubcoreTask { task_start: 0, task_number: 1 }; 5];
                put(&view, 0, 0);
                for _ in 0..JOBS {
                    call(&file, &mut args).unwrap();
                }
                assert_eq!(get(&view, 0), JOBS);
            });
        }
        for domain in 1..3 {
            let machine = &machine;
            scope.spawn(move || {
                let file = machine.open();
                for _ in 0..50 {
                    let buffer = create(&file, 0x3, 1 << 20, domain).unwrap();
                    let mut args = MemDestroy { handle: buffer.handle, ..MemDestroy::default() };
                    call(&file, &mut args).unwrap();
                }
            });
        }
    });
    let report = machine.report();
    assert_eq!(report.jobs_done, 3 * u64::from(JOBS));
    assert_eq!((report.domain_count, report.objects, report.jobs_pending), (0, 0, 0));
    assert!(report.hazards.is_empty(), "{:?}", report.hazards);
    // 100 µs each, at most one after the other.
    assert!(machine.now() <= Duration::from_millis(100), "{:?}", machine.now());
}

#[test]
fn a_job_on_all_cores_runs_on_all() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let (task_buffer, _tasks) = tasks(&file);
    let data = create(&file, 0x403, 4096, 0).unwrap();
    let mut args = job(&task_buffer, &data);
    args.core_mask = 7;
    call(&file, &mut args).unwrap();
    // Together, not one after the other.
    assert_eq!((args.task_counter, args.hw_elapse_time), (1, 100_000));
}
