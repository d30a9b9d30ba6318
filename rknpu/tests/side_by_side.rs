//! A product over several address spaces of the mainline driver, each with its part of the columns.
#![cfg(feature = "sim")]

use rknpu::matmul::{Int8, JobStats};
use rknpu::sim::config::{Clock, Config, Driver, Form, Mode, OnHazard};
use rknpu::sim::{Fault, Machine};
use rknpu::{
    Buffer, Cores, Device, Domain, Error, Layout, Matmul, MatmulLimits, OnDevice, Precision,
    WeightRef, reference,
};

fn machine() -> Machine {
    Machine::new(Config {
        driver: Driver::Rocket(Form::Later),
        mode: Mode::Strict,
        on_hazard: OnHazard::Panic,
        clock: Clock::Virtual,
        ..Default::default()
    })
}

fn value(weight: usize, k: u32, n: u32) -> i8 {
    ((k * 7 + n * 13 + weight as u32 * 5) % 255) as i8
}

/// The columns of a weight from `first` on, in a domain.
fn part(domain: &Domain, weight: usize, layout: Layout, first: u32) -> Buffer<OnDevice> {
    let mut buffer = domain.alloc(layout.bytes() as usize).unwrap();
    reference::tile_i8(layout, |k, n| value(weight, k, first + n), buffer.as_mut_slice());
    buffer.to_device().unwrap()
}

/// Multiplies `m` rows by weights of `ns` columns, each split over the domains; compares every sum.
fn products(
    matmul: &mut Matmul,
    domains: &[Domain],
    (m, k, ns): (usize, u32, &[u32]),
) -> rknpu::Result<JobStats> {
    let mut parts = Vec::new();
    for (weight, n) in ns.iter().enumerate() {
        let each = (n / 32).div_ceil(domains.len() as u32) * 32;
        for (lane, domain) in domains.iter().enumerate() {
            let first = each * lane as u32;
            if first < *n {
                let layout = Layout::new(k, each.min(n - first), Precision::Int8).unwrap();
                parts.push((part(domain, weight, layout, first), layout, weight, first));
            }
        }
    }
    let mut rows = matmul.activations().lease(m, k)?;
    let input = |row: usize, k: usize| ((row * 31 + k * 17) % 251) as i8;
    for row in 0..m {
        let inputs: Vec<i8> = (0..k as usize).map(|k| input(row, k)).collect();
        rows.write_row(row, &inputs)?;
    }
    let rows = rows.to_device()?;
    let weights: Vec<WeightRef<'_>> = parts
        .iter()
        .map(|(buffer, layout, ..)| WeightRef::new(buffer, 0, *layout).unwrap())
        .collect();
    let mut seen = 0;
    let mut product = matmul.multiply_all(&weights, &rows)?;
    while let Some(outputs) = product.next_columns()? {
        let (_, _, weight, first) = &parts[outputs.weight()];
        for row in 0..m {
            for segment in outputs.row(row) {
                segment.sums(|columns, sums| {
                    for (n, sum) in (first + columns.start..).zip(sums) {
                        let term = |at: u32| {
                            i32::from(input(row, at as usize)) * i32::from(value(*weight, at, n))
                        };
                        assert_eq!((0..k).map(term).sum::<i32>(), *sum, "{weight} {row} {n}");
                        seen += 1;
                    }
                });
            }
        }
    }
    assert_eq!(seen, m * ns.iter().sum::<u32>() as usize);
    Ok(product.stats())
}

const LIMITS: MatmulLimits = MatmulLimits { rows: 64, k: 2080, n: 8256 };

#[test]
fn every_sum_is_right_on_three_cores_or_one() {
    for count in [1, 2, 3] {
        let machine = machine();
        let device = Device::simulated_on(&machine).unwrap();
        let domains = [(); 3].map(|()| device.new_domain().unwrap());
        let cores = (0..count).map(|core| device.core(core).unwrap()).collect();
        let cores = Cores::new(cores).unwrap();
        let mut matmul = Matmul::side_by_side(&domains, &cores, LIMITS).unwrap();
        for shape in [
            (1, 64, &[32][..]),
            (2, 64, &[64, 32]),
            (33, 2080, &[96, 160, 32]),
            // Parts of several N slices, and more columns than there is memory for results.
            (3, 32, &[24_768, 96]),
            (64, 96, &[24_576]),
        ] {
            let stats = products(&mut matmul, &domains, shape).unwrap();
            let wide = shape.2.iter().max().is_some_and(|n| *n >= 96);
            assert_eq!(stats.cores, if wide { count } else { stats.cores }, "{shape:?}");
            assert_eq!(stats.retries, 0);
        }
        assert_eq!(device.stats().domain_switches, 0);
        drop((matmul, cores, domains, device));
        let report = machine.report();
        assert!(report.is_clean(), "{:?} {:?}", report.hazards, report.findings);
    }
}

#[test]
fn memory_is_what_is_said_in_each_domain_and_nothing_is_there_twice() {
    let device = Device::simulated_on(&machine()).unwrap();
    let domains = [(); 3].map(|()| device.new_domain().unwrap());
    let matmul: Matmul = Matmul::side_by_side(&domains, &device.cores().unwrap(), LIMITS).unwrap();
    let scratch = LIMITS.scratch_bytes(Precision::Int8, 1).unwrap();
    assert!(domains.iter().all(|domain| domain.stats().used == scratch));
    assert!(scratch < LIMITS.scratch_bytes(Precision::Int8, 3).unwrap());
    assert_eq!(matmul.domains().len(), 3);
}

#[test]
fn a_job_that_fails_in_one_space_is_repeated_and_all_sums_are_right() {
    for after in 0..3 {
        let machine = machine();
        let device = Device::simulated_on(&machine).unwrap();
        let domains = [(); 3].map(|()| device.new_domain().unwrap());
        let mut matmul = Matmul::side_by_side(&domains, &device.cores().unwrap(), LIMITS).unwrap();
        machine.inject(Fault::DroppedJob { after, times: 1 });
        let stats = products(&mut matmul, &domains, (3, 64, &[96])).unwrap();
        assert_eq!((stats.retries, device.health().recovered), (1, 1));

        machine.inject(Fault::DroppedJob { after, times: 99 });
        let error = products(&mut matmul, &domains, (3, 64, &[96])).unwrap_err();
        assert!(matches!(&error, Error::JobFailed(report) if report.attempts == 2), "{error}");
    }
}

#[test]
fn what_does_not_work_side_by_side_is_refused() {
    let device = Device::simulated_on(&machine()).unwrap();
    let cores = device.cores().unwrap();
    let [a, b, c, d] = [(); 4].map(|()| device.new_domain().unwrap());
    let make = |domains: &[Domain]| Matmul::<Int8>::side_by_side(domains, &cores, LIMITS);
    let clone = Clone::clone;
    for (domains, limit) in [
        (vec![], 1),
        (vec![clone(&a), clone(&a)], 1),
        (vec![clone(&a), clone(&b), clone(&c), clone(&d)], 3),
    ] {
        let error = make(&domains).unwrap_err();
        assert!(matches!(error, Error::Shape { limit: l, .. } if l == limit), "{error}");
    }
    // One is enough, and a weight of another is none of its.
    let mut matmul = make(&[a]).unwrap();
    assert!(matches!(
        products(&mut matmul, &[b], (1, 64, &[32])),
        Err(Error::ForeignDomain { .. })
    ));

    // The vendor's driver works in one domain at a time.
    let device = Device::simulated(Default::default()).unwrap();
    let domains = [device.new_domain().unwrap(), device.new_domain().unwrap()];
    let cores = device.cores().unwrap();
    let error = Matmul::<Int8>::side_by_side(&domains, &cores, LIMITS).unwrap_err();
    assert!(matches!(error, Error::Shape { value: 2, limit: 1, .. }), "{error}");
}
