//! The mainline driver on the simulator.
#![cfg(feature = "sim")]

use rknpu::driver::{self, Allocate, Caching, Purpose};
use rknpu::sim::config::{Clock, Driver, Form, Mode, OnHazard};
use rknpu::sim::{self, Fault, Machine};
use rknpu::{Device, Errno, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};

fn machine(form: Form) -> Machine {
    Machine::new(sim::Config {
        driver: Driver::Rocket(form),
        mode: Mode::Strict,
        on_hazard: OnHazard::Panic,
        clock: Clock::Virtual,
        ..Default::default()
    })
}

/// A product of small numbers, and what it must be.
fn product(device: &Device, m: usize, k: u32, n: u32) -> rknpu::Result<(Vec<i32>, Vec<i32>)> {
    let domain = device.new_domain()?;
    let layout = Layout::new(k, n, Precision::Int8)?;
    let weight = |k: u32, n: u32| ((k * 7 + n * 13) % 255) as i8;
    let mut buffer = domain.alloc(layout.bytes() as usize)?;
    reference::tile_i8(layout, weight, buffer.as_mut_slice());
    let buffer = buffer.to_device()?;
    let input: Vec<i8> = (0..m * k as usize).map(|at| (at * 31 % 251) as i8).collect();
    let mut want = vec![0; m * n as usize];
    for (row, want) in want.chunks_exact_mut(n as usize).enumerate() {
        for (column, want) in want.iter_mut().enumerate() {
            let row = &input[row * k as usize..][..k as usize];
            let terms = row.iter().enumerate();
            *want = terms
                .map(|(at, x)| i32::from(*x) * i32::from(weight(at as u32, column as u32)))
                .sum();
        }
    }
    let limits = MatmulLimits { rows: m as u32, k, n };
    let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    let mut out = vec![0; want.len()];
    matmul.run(&WeightRef::new(&buffer, 0, layout)?, &input, &mut out)?;
    Ok((out, want))
}

#[test]
fn products_are_right_and_nothing_is_left_or_hurt() {
    for form in [Form::Later, Form::FirstMerged] {
        let machine = machine(form);
        let device = Device::simulated_on(&machine).unwrap();
        for (m, k, n) in [(1, 64, 32), (3, 1024, 256), (70, 4096, 96), (9, 11008, 64)] {
            let (out, want) = product(&device, m, k, n).unwrap();
            assert!(out == want, "{m} x {k} x {n}");
        }
        assert_eq!(device.health().incidents, 0);
        drop(device);
        let report = machine.report();
        assert!(report.is_clean(), "{:?} {:?}", report.hazards, report.findings);
        assert_eq!((report.files, report.objects, report.mappings), (0, 0, 0));
        assert_eq!((report.jobs_dropped, report.lost_domains), (0, 0));
    }
}

#[test]
fn a_dropped_job_and_one_that_hangs_are_seen_and_repeated_once() {
    for (fault, timed_out) in [
        (Fault::DroppedJob { after: 0, times: 1 }, 0),
        (Fault::Hang { core: None, after: 0, times: 1 }, 1),
    ] {
        let machine = machine(Form::Later);
        let device = Device::simulated_on(&machine).unwrap();
        machine.inject(fault);
        let (out, want) = product(&device, 3, 1024, 64).unwrap();
        assert!(out == want, "{fault:?}");
        assert_eq!(device.health().recovered, 1, "{fault:?}");
        assert_eq!(machine.report().jobs_timed_out, timed_out);
    }
}

#[test]
fn a_job_that_never_runs_is_an_error_with_numbers() {
    let machine = machine(Form::Later);
    let device = Device::simulated_on(&machine).unwrap();
    machine.inject(Fault::DroppedJob { after: 0, times: 9 });
    let error = product(&device, 3, 1024, 64).unwrap_err();
    assert!(matches!(&error, rknpu::Error::JobFailed(report) if report.attempts == 2), "{error}");
    assert!(error.to_string().contains("1024"), "{error}");
}

#[test]
fn the_kernel_is_never_asked_for_addresses_that_it_has_not() {
    let machine = machine(Form::FirstMerged);
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.new_domain().unwrap();
    let largest = device.capabilities().spaces.largest as usize;
    assert!(matches!(domain.alloc(largest + 1), Err(rknpu::Error::Size { .. })));
    let mut all = Vec::new();
    let full = loop {
        match domain.alloc(1 << 30) {
            Ok(buffer) => all.push(buffer),
            Err(error) => break error,
        }
    };
    assert_eq!(all.len(), 3);
    assert!(matches!(full, rknpu::Error::IovaExhausted { .. }), "{full}");
    all.push(domain.alloc((1 << 30) - 4096).unwrap());
    assert!(domain.alloc(4096).is_err());
    assert_eq!(domain.stats().largest_free, 0);
    drop(all);
    assert_eq!(domain.stats().used, 0);
    assert!(machine.report().hazards.is_empty());
}

#[test]
fn the_driver_itself_counts_addresses_also_where_nobody_above_does() {
    for form in [Form::Later, Form::FirstMerged] {
        let machine = machine(form);
        let driver = driver::simulated(&machine).unwrap();
        let allocate = |size| {
            let (purpose, caching) = (Purpose::Data, Caching::Cached);
            driver.allocate(&Allocate { space: 2, size, purpose, caching })
        };
        let mut all: Vec<_> = (0..3).map(|_| allocate(1 << 30).unwrap()).collect();
        assert_eq!(allocate(1 << 30).unwrap_err().errno, Errno::FAULT);
        // A hole between two is found, and no more than it holds.
        driver.free(all.remove(1)).unwrap();
        assert_eq!(allocate((1 << 30) + 4096).unwrap_err().errno, Errno::FAULT);
        all.push(allocate(1 << 30).unwrap());
        assert_eq!(allocate(1 << 31).unwrap_err().errno, Errno::INVAL);
        assert!(machine.report().hazards.is_empty());
        for object in all {
            driver.free(object).unwrap();
        }
    }
}
