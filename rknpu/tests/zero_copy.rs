//! Activations written and results read where the NPU has them, against copies of both.

#[path = "support/drivers.rs"]
mod drivers;

use std::fmt::Debug;

use half::f16;
use proptest::prelude::*;
use rknpu::matmul::{Activations, Element, Fp16, Int4, Int8, Rows};
use rknpu::sim::Machine;
use rknpu::sim::config::{Config, Driver, Mode};
use rknpu::sim::report::Leaks;
use rknpu::{
    Cores, Device, Domain, Error, Layout, Matmul, MatmulLimits, OnDevice, Precision, WeightRef,
    reference,
};

fn strict(driver: Driver) -> Machine {
    Machine::new(Config { mode: Mode::Strict, ..drivers::with(driver) })
}

fn weight(domain: &Domain, layout: Layout, seed: u64) -> rknpu::Buffer<OnDevice> {
    let mut buffer = domain.alloc(layout.bytes() as usize).unwrap();
    reference::fill(layout, seed, buffer.as_mut_slice());
    buffer.to_device().unwrap()
}

fn int8_with(device: &Device, index: u32, rows: u32) -> Matmul {
    let domain = device.domain(index).unwrap();
    Matmul::int8(&domain, &device.cores().unwrap(), MatmulLimits { rows, k: 64, n: 64 }).unwrap()
}

/// Everything that a case of the property needs besides its element type.
#[derive(Clone, Debug)]
struct Case {
    m: usize,
    layout: Layout,
    max: MatmulLimits,
    domain: u32,
    cores: u32,
    driver: Driver,
    seed: u64,
    /// Rows written in place; the others are copied.
    in_place: bool,
}

fn case(precision: Precision, k_max: u32) -> impl Strategy<Value = Case> {
    let tile = precision.tile_width();
    let m = prop_oneof![3 => Just(1usize), 6 => 1..40usize, 1 => 200..500usize];
    let more = (0..64u32, 0..3u32, 0..3u32);
    (m, 1..=k_max / 32, 1..5u32, more, 0..16u32, 1..4u32, any::<(u64, bool, bool)>()).prop_map(
        move |(m, k, n, more, domain, cores, (seed, in_place, first))| {
            let k = if m > 100 { k % 3 + 1 } else { k };
            let layout = Layout::new(k * 32, n * tile, precision).unwrap();
            let rows = m as u32 + more.0;
            let max = MatmulLimits { rows, k: (k + more.1) * 32, n: (n + more.2) * tile };
            let driver = drivers::DRIVERS[usize::from(first)];
            Case { m, layout, max, domain, cores, driver, seed, in_place }
        },
    )
}

fn noise(seed: u64, len: usize, low: i8) -> Vec<i8> {
    let mut state = seed | 1;
    let span = -2 * i64::from(low);
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        ((state >> 40) as i64 % span + i64::from(low)) as i8
    };
    (0..len).map(|_| next()).collect()
}

/// Multiplies both ways; `store` turns inputs into what is stored.
fn both_ways<E: Element>(
    make: impl Fn(&Domain, &Cores, MatmulLimits) -> rknpu::Result<Matmul<E>>,
    case: &Case,
    inputs: &[E::Input],
    store: impl Fn(&[E::Input]) -> Vec<E::Stored>,
) where
    E::Output: PartialEq + Debug,
{
    let machine = strict(case.driver);
    {
        let device = Device::simulated_on(&machine).unwrap();
        let domain = device.domain(case.domain).unwrap();
        let buffer = weight(&domain, case.layout, case.seed);
        let weight = WeightRef::new(&buffer, 0, case.layout).unwrap();
        let cores = (0..case.cores).map(|core| device.core(core).unwrap()).collect();
        let mut matmul = make(&domain, &Cores::new(cores).unwrap(), case.max).unwrap();
        let (k, n) = (case.layout.k() as usize, case.layout.n() as usize);
        let mut want = vec![E::Output::default(); case.m * n];
        matmul.run(&weight, inputs, &mut want).unwrap();

        let block = matmul.activations().rows(case.layout.k());
        let blocks = inputs.chunks(block * k).zip(want.chunks(block * n));
        for (inputs, want) in blocks {
            let m = inputs.len() / k;
            let mut rows = matmul.activations().lease(m, case.layout.k()).unwrap();
            for (row, inputs) in inputs.chunks(k).enumerate() {
                if !case.in_place && row % 2 == 0 {
                    rows.write_row(row, inputs).unwrap();
                    continue;
                }
                let mut next = 0;
                for (range, run) in rows.row_mut(row).unwrap() {
                    assert_eq!(range.start, next);
                    next = range.end;
                    let stored = store(&inputs[range.start as usize..range.end as usize]);
                    run.copy_from_slice(&stored);
                }
                assert_eq!(next as usize, k);
            }
            let rows = rows.to_device().unwrap();
            // The second time from the same rows, which nobody has written again.
            for _ in 0..2 {
                let mut copied = vec![E::Output::default(); m * n];
                let mut product = matmul.multiply(&weight, &rows).unwrap();
                let (mut column, mut summed) = (0, 0);
                while let Some(outputs) = product.next_columns().unwrap() {
                    assert_eq!((outputs.rows(), outputs.columns().start), (m, column));
                    column = outputs.columns().end;
                    outputs.copy_to(&mut copied).unwrap();
                    assert!(outputs.row(m).next().is_none());
                    for (row, want) in want.chunks(n).enumerate() {
                        let mut at = outputs.columns().start;
                        for segment in outputs.row(row) {
                            assert_eq!(segment.columns().start, at);
                            at = segment.columns().end;
                            let range = segment.columns().start as usize..at as usize;
                            assert!(segment.iter().eq(want[range].iter().copied()));
                            segment.sums(|columns, sums| {
                                let range = columns.start as usize..columns.end as usize;
                                assert_eq!(sums, &want[range]);
                                summed += sums.len();
                            });
                            assert_eq!(segment.partials(0).len(), segment.iter().len());
                            assert!(segment.partials(segment.slices()).is_empty());
                        }
                        assert_eq!(at, column);
                    }
                }
                assert_eq!((column as usize, summed), (n, m * n));
                assert_eq!(copied, want);
            }
        }
        assert!(device.health().is_good());
    }
    let report = machine.report();
    assert!(report.hazards.is_empty() && report.findings.is_empty(), "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn int8_is_the_same_without_copies(case in case(Precision::Int8, 2200)) {
        let inputs = noise(case.seed, case.m * case.layout.k() as usize, -128);
        both_ways::<Int8>(Matmul::int8, &case, &inputs, <[i8]>::to_vec);
    }

    #[test]
    fn fp16_is_the_same_without_copies(case in case(Precision::Fp16, 4200)) {
        let inputs = noise(case.seed, case.m * case.layout.k() as usize, -128);
        let inputs: Vec<f16> = inputs.iter().map(|v| f16::from_f32(f32::from(*v) / 7.0)).collect();
        both_ways::<Fp16>(Matmul::fp16, &case, &inputs, <[f16]>::to_vec);
    }

    #[test]
    fn int4_is_the_same_without_copies(case in case(Precision::Int4, 2200)) {
        let inputs = noise(case.seed, case.m * case.layout.k() as usize, -8);
        both_ways::<Int4>(Matmul::int4, &case, &inputs, |inputs| {
            inputs.chunks(2).map(|pair| pair[0] as u8 & 15 | (pair[1] as u8) << 4).collect()
        });
    }
}

fn results_larger_than_their_memory_come_in_several_groups_of_columns(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let domain = device.domain(0).unwrap();
    let layout = Layout::new(32, 8192 + 64, Precision::Int8).unwrap();
    let buffer = weight(&domain, layout, 3);
    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
    let cores = Cores::new(vec![device.core(0).unwrap()]).unwrap();
    let limits = MatmulLimits { rows: 512, k: 32, n: layout.n() };
    let mut matmul = Matmul::int8(&domain, &cores, limits).unwrap();
    let mut rows = matmul.activations().lease(512, 32).unwrap();
    for row in 0..512 {
        rows.write_row(row, &[row as i8; 32]).unwrap();
    }
    let rows = rows.to_device().unwrap();
    let mut product = matmul.multiply(&weight, &rows).unwrap();
    let mut widths = Vec::new();
    while let Some(outputs) = product.next_columns().unwrap() {
        widths.push(outputs.columns().len());
    }
    // 8 MiB of results for a core: half of an N slice each; the second slice is one of its own.
    assert_eq!(widths, [4096, 4096, 64]);
    assert!(product.next_columns().unwrap().is_none());
    assert_eq!(product.stats().submits, 4, "the first submit into fresh memory is made twice");
}

fn rows_keep_their_values_when_taken_back_and_belong_to_one_matmul(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let mut matmul = int8_with(&device, 0, 4);
    let layout = Layout::new(64, 64, Precision::Int8).unwrap();
    let buffer = weight(&matmul.domains()[0], layout, 5);
    let weight_ref = WeightRef::new(&buffer, 0, layout).unwrap();
    let mut want = [0; 2 * 64];
    let inputs: Vec<i8> = [[1i8; 64], [9; 64]].concat();
    matmul.run(&weight_ref, &inputs, &mut want).unwrap();

    let mut rows = matmul.activations().lease(2, 64).unwrap();
    rows.write_row(0, &[1; 64]).unwrap();
    rows.write_row(1, &[2; 64]).unwrap();
    let mut rows = rows.to_device().unwrap().reclaim().unwrap();
    rows.write_row(1, &[9; 64]).unwrap();
    let rows = rows.to_device().unwrap();
    let mut out = [0; 2 * 64];
    let mut product = matmul.multiply(&weight_ref, &rows).unwrap();
    while let Some(outputs) = product.next_columns().unwrap() {
        outputs.copy_to(&mut out).unwrap();
        assert!(matches!(outputs.copy_to(&mut [0; 64]), Err(Error::Length { what: "out", .. })));
    }
    assert_eq!(out, want);

    // Copies need the same memory.
    let error = matmul.run(&weight_ref, &inputs, &mut out).unwrap_err();
    assert!(matches!(error, Error::ActivationsLeased), "{error}");
    // Rows of another matmul, in another domain or on another device, are refused.
    let elsewhere = Device::simulated(drivers::with(driver)).unwrap();
    for mut other in [int8_with(&device, 1, 4), int8_with(&elsewhere, 0, 4)] {
        let buffer = weight(&other.domains()[0], layout, 5);
        let there = WeightRef::new(&buffer, 0, layout).unwrap();
        let error = other.multiply(&there, &rows).unwrap_err();
        assert!(matches!(error, Error::ForeignActivations), "{error}");
        let error = other.multiply(&weight_ref, &rows).unwrap_err();
        assert!(matches!(error, Error::ForeignDomain { .. }), "{error}");
    }
    // Another K than the weight's.
    drop(rows);
    let rows = matmul.activations().lease(2, 32).unwrap().to_device().unwrap();
    let error = matmul.multiply(&weight_ref, &rows).unwrap_err();
    assert!(matches!(error, Error::Length { got: 32, want: 64, .. }), "{error}");
}

fn what_cannot_be_leased_or_written_is_refused_with_its_limit(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let matmul = int8_with(&device, 0, 4);
    let activations = matmul.activations();
    let limit = activations.rows(64);
    assert!(limit >= 4);
    for (m, k) in [(0, 64), (limit + 1, 64), (usize::MAX, 32)] {
        let error = activations.lease(m, k).unwrap_err();
        assert!(matches!(error, Error::Shape { what: "M", .. }), "{m} {k}: {error}");
    }
    assert!(matches!(activations.lease(1, 1 << 20), Err(Error::Shape { what: "K", .. })));
    for k in [0, 33] {
        assert!(matches!(activations.lease(1, k), Err(Error::Layout(_))));
    }
    let mut rows = activations.lease(limit, 64).unwrap();
    let error = rows.write_row(limit, &[0; 64]).unwrap_err();
    assert!(matches!(error, Error::Shape { what: "row", .. }), "{error}");
    assert!(rows.row_mut(usize::MAX).is_err());
    assert!(matches!(rows.write_row(0, &[0; 63]), Err(Error::Length { got: 63, want: 64, .. })));

    let domain = device.domain(1).unwrap();
    let limits = MatmulLimits { rows: 4, k: 64, n: 64 };
    let int4 = Matmul::int4(&domain, &device.cores().unwrap(), limits).unwrap();
    let mut rows = int4.activations().lease(4, 64).unwrap();
    let mut inputs = [7; 64];
    inputs[5] = 8;
    let error = rows.write_row(3, &inputs).unwrap_err();
    assert!(matches!(error, Error::Int4Range { value: 8, row: 3, column: 5 }), "{error}");
}

/// Whatever goes first, the memory is freed with the last that needs it, and not before.
fn handles_go_in_any_order(driver: Driver) {
    enum Part {
        Device(#[expect(dead_code, reason = "dropped")] Device),
        Matmul(#[expect(dead_code, reason = "dropped")] Box<Matmul>),
        Activations(#[expect(dead_code, reason = "dropped")] Activations<Int8>),
        Rows(#[expect(dead_code, reason = "dropped")] Rows<Int8, OnDevice>),
    }
    let orders = (0..256).map(|i| [i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6]);
    let orders: Vec<[usize; 4]> =
        orders.filter(|order| (0..4).all(|part| order.contains(&part))).collect();
    assert_eq!(orders.len(), 24);
    for order in orders {
        let machine = strict(driver);
        let device = Device::simulated_on(&machine).unwrap();
        let matmul = int8_with(&device, 6, 2);
        let activations = matmul.activations().clone();
        let rows = activations.lease(2, 64).unwrap().to_device().unwrap();
        let parts = [
            Part::Device(device),
            Part::Matmul(Box::new(matmul)),
            Part::Activations(activations),
            Part::Rows(rows),
        ];
        let mut parts = parts.map(Some);
        for part in order {
            assert!(machine.report().handles > 0 || matches!(parts[part], Some(Part::Device(_))));
            parts[part] = None;
        }
        let report = machine.report();
        assert_eq!(report.leaks(), Leaks::default(), "{order:?}");
        assert_eq!(report.files, 0, "{order:?}");
        assert!(report.hazards.is_empty(), "{order:?}: {:?}", report.hazards);
    }
}

/// Rows that are forgotten are lost, and everything else goes on.
fn forgotten_rows_stay_leased(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let mut matmul = int8_with(&device, 0, 2);
    let layout = Layout::new(64, 64, Precision::Int8).unwrap();
    let buffer = weight(&matmul.domains()[0], layout, 1);
    std::mem::forget(matmul.activations().lease(1, 64).unwrap().to_device().unwrap());
    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
    let error = matmul.run(&weight, &[1; 64], &mut [0; 64]).unwrap_err();
    assert!(matches!(error, Error::ActivationsLeased));
    let domain = matmul.domains()[0].clone();
    let before = domain.stats().used;
    drop(matmul);
    assert!(domain.stats().used < before, "only the forgotten memory stays");
    assert!(device.health().is_good());
}

/// A product that is given up halfway leaves its matmul as it was.
fn a_product_may_be_dropped_at_any_time(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let mut matmul = int8_with(&device, 0, 2);
    let layout = Layout::new(64, 64, Precision::Int8).unwrap();
    let buffer = weight(&matmul.domains()[0], layout, 1);
    let weight = WeightRef::new(&buffer, 0, layout).unwrap();
    let mut rows = matmul.activations().lease(1, 64).unwrap();
    rows.write_row(0, &[3; 64]).unwrap();
    let rows = rows.to_device().unwrap();
    drop(matmul.multiply(&weight, &rows).unwrap());
    let mut product = matmul.multiply(&weight, &rows).unwrap();
    let first: Vec<i32> =
        product.next_columns().unwrap().unwrap().row(0).flat_map(|s| s.iter()).collect();
    drop(product);
    drop(rows);
    let mut out = [0; 64];
    matmul.run(&weight, &[3; 64], &mut out).unwrap();
    assert_eq!(first, out);
}

/// While results are read, neither domain nor cores are kept.
fn others_work_while_results_are_read(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let layout = Layout::new(64, 64, Precision::Int8).unwrap();
    let (mut a, mut b) = (int8_with(&device, 0, 2), int8_with(&device, 1, 2));
    let (in_a, in_b) = (weight(&a.domains()[0], layout, 1), weight(&b.domains()[0], layout, 2));
    let weight_a = WeightRef::new(&in_a, 0, layout).unwrap();
    let rows = a.activations().lease(1, 64).unwrap().to_device().unwrap();
    let mut product = a.multiply(&weight_a, &rows).unwrap();
    let outputs = product.next_columns().unwrap().unwrap();
    let weight_b = WeightRef::new(&in_b, 0, layout).unwrap();
    b.run(&weight_b, &[1; 64], &mut [0; 64]).unwrap();
    assert_eq!(outputs.row(0).count(), 1);
}

drivers::on_both_drivers!(
    results_larger_than_their_memory_come_in_several_groups_of_columns,
    rows_keep_their_values_when_taken_back_and_belong_to_one_matmul,
    what_cannot_be_leased_or_written_is_refused_with_its_limit,
    handles_go_in_any_order,
    forgotten_rows_stay_leased,
    a_product_may_be_dropped_at_any_time,
    others_work_while_results_are_read,
);
