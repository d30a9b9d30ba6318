//! Products by several weights that share their input: one submit on each core where chains allow it, and
//! the bits of one by one.

use std::fmt::Debug;

use half::f16;
use proptest::prelude::*;
use rknpu::chains::Chains;
use rknpu::driver;
use rknpu::matmul::{Element, Fp16, Int4, Int8, JobStats};
use rknpu::sim::config::{Clock, Config, Mode};
use rknpu::sim::{Fault, Machine};
use rknpu::{
    Buffer, Cores, Device, Domain, Error, Layout, Matmul, MatmulLimits, OnDevice, OpenOptions,
    Precision, WeightRef, reference,
};

/// A list of products, and how it is made.
#[derive(Clone, Debug)]
struct Case {
    m: usize,
    layouts: Vec<Layout>,
    rows: u32,
    chains: Chains,
    cores: u32,
    /// Whether all weights are in one buffer.
    together: bool,
    seed: u64,
}

fn case(precision: Precision) -> impl Strategy<Value = Case> {
    let tile = precision.tile_width();
    let n = prop_oneof![8 => 1..12u32, 1 => 8192 / tile..8192 / tile + 3];
    let chains = (1..5u32, any::<(bool, bool)>())
        .prop_map(|(weights, (buffers, n_slices))| Chains { weights, buffers, n_slices });
    let m = prop_oneof![4 => 1..9usize, 1 => 100..300usize];
    (m, 1..80u32, prop::collection::vec(n, 1..6), chains, 1..4u32, any::<(bool, u64)>()).prop_map(
        move |(m, k, ns, chains, cores, (together, seed))| {
            // Small enough for the simulator: wide, or many rows, or many inputs.
            let wide = ns.iter().any(|n| *n > 12);
            let (m, k) = if wide { (m % 5 + 1, k % 3 + 1) } else { (m, k) };
            let k = if m > 9 { k % 3 + 1 } else { k };
            let layout = |n: &u32| Layout::new(k * 32, n * tile, precision).unwrap();
            let layouts = ns.iter().map(layout).collect();
            Case { m, layouts, rows: m as u32, chains, cores, together, seed }
        },
    )
}

/// The weights, each in a buffer of its own or all in one.
fn weights(domain: &Domain, case: &Case) -> Vec<Buffer<OnDevice>> {
    let bytes = |layout: &Layout| layout.bytes() as usize;
    let fill = |layout: &Layout, i: usize, to: &mut [u8]| {
        reference::fill(*layout, case.seed ^ i as u64, to);
    };
    if case.together {
        let mut buffer = domain.alloc(case.layouts.iter().map(bytes).sum()).unwrap();
        let mut rest = buffer.as_mut_slice();
        for (i, layout) in case.layouts.iter().enumerate() {
            let (to, behind) = rest.split_at_mut(bytes(layout));
            fill(layout, i, to);
            rest = behind;
        }
        return vec![buffer.to_device().unwrap()];
    }
    let layouts = case.layouts.iter().enumerate();
    let buffers = layouts.map(|(i, layout)| {
        let mut buffer = domain.alloc(bytes(layout)).unwrap();
        fill(layout, i, buffer.as_mut_slice());
        buffer.to_device().unwrap()
    });
    buffers.collect()
}

fn refs<'a>(buffers: &'a [Buffer<OnDevice>], case: &Case) -> Vec<WeightRef<'a>> {
    let mut at = 0;
    let layouts = case.layouts.iter().enumerate();
    let refs = layouts.map(|(i, layout)| {
        let (buffer, offset) = if case.together { (&buffers[0], at) } else { (&buffers[i], 0) };
        at += layout.bytes();
        WeightRef::new(buffer, offset, *layout).unwrap()
    });
    refs.collect()
}

fn open(machine: &Machine, precision: Precision, chains: Chains) -> Device {
    let options = OpenOptions::new().chains(precision, chains);
    Device::with_driver(driver::simulated(machine).unwrap(), &options).unwrap()
}

/// Multiplies a list, and the same one by one.
fn both<E: Element>(
    make: impl FnOnce(&Domain, &Cores, MatmulLimits) -> rknpu::Result<Matmul<E>>,
    case: &Case,
    inputs: &[E::Input],
) where
    E::Output: PartialEq + Debug,
{
    let machine = Machine::new(Config { mode: Mode::Strict, ..Config::default() });
    let precision = case.layouts[0].precision();
    let device = open(&machine, precision, case.chains);
    let domain = device.new_domain().unwrap();
    let buffers = weights(&domain, case);
    let weights = refs(&buffers, case);
    let cores = (0..case.cores).map(|core| device.core(core).unwrap()).collect();
    let (k, n) = (case.layouts[0].k(), case.layouts.iter().map(Layout::n).max().unwrap());
    let limits = MatmulLimits { rows: case.rows, k, n };
    let mut matmul = make(&domain, &Cores::new(cores).unwrap(), limits).unwrap();

    let m = case.m.min(matmul.activations().rows(k));
    let inputs = &inputs[..m * k as usize];
    let out = || case.layouts.iter().map(|l| vec![E::Output::default(); m * l.n() as usize]);
    let mut want: Vec<_> = out().collect();
    for (weight, want) in weights.iter().zip(&mut want) {
        matmul.run(weight, inputs, want).unwrap();
    }
    let mut rows = matmul.activations().lease(m, k).unwrap();
    for (row, inputs) in inputs.chunks(k as usize).enumerate() {
        rows.write_row(row, inputs).unwrap();
    }
    let rows = rows.to_device().unwrap();
    let mut got: Vec<_> = out().collect();
    let mut product = matmul.multiply_all(&weights, &rows).unwrap();
    let mut next = (0, 0);
    while let Some(outputs) = product.next_columns().unwrap() {
        let (weight, columns) = (outputs.weight(), outputs.columns());
        assert_eq!((weight, columns.start), next, "column after column, weight after weight");
        next = match columns.end == case.layouts[weight].n() {
            true => (weight + 1, 0),
            false => (weight, columns.end),
        };
        outputs.copy_to(&mut got[weight]).unwrap();
    }
    assert_eq!(next, (weights.len(), 0));
    assert_eq!(got, want);
    assert!(product.next_columns().unwrap().is_none());
    let report = machine.report();
    assert!(report.hazards.is_empty() && report.findings.is_empty(), "{report:?}");
}

fn noise(seed: u64, len: usize, low: i8) -> Vec<i8> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) as i8).rem_euclid(if low == -8 { 8 } else { 127 }) + low / 2
    };
    std::iter::repeat_with(next).take(len).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn int8_lists_give_what_one_by_one_gives(case in case(Precision::Int8)) {
        let inputs = noise(case.seed, case.m * case.layouts[0].k() as usize, -128);
        both::<Int8>(Matmul::int8, &case, &inputs);
    }

    #[test]
    fn fp16_lists_give_what_one_by_one_gives(case in case(Precision::Fp16)) {
        let inputs = noise(case.seed, case.m * case.layouts[0].k() as usize, -128);
        let inputs: Vec<f16> = inputs.iter().map(|v| f16::from_f32(f32::from(*v) / 7.0)).collect();
        both::<Fp16>(Matmul::fp16, &case, &inputs);
    }

    #[test]
    fn int4_lists_give_what_one_by_one_gives(case in case(Precision::Int4)) {
        let inputs = noise(case.seed, case.m * case.layouts[0].k() as usize, -8);
        both::<Int4>(Matmul::int4, &case, &inputs);
    }
}

/// q, k and v of 1,024 inputs, 33 rows: with some rules, the submits of a warm run and what it gives.
fn query_key_value(
    machine: &Machine,
    chains: Chains,
    spoil: impl FnOnce(),
) -> rknpu::Result<(JobStats, Vec<Vec<i32>>)> {
    let device = open(machine, Precision::Int8, chains);
    let layouts = [1024, 512, 512].map(|n| Layout::new(1024, n, Precision::Int8).unwrap());
    let (m, k) = (33, 1024);
    let case = Case {
        m,
        layouts: layouts.to_vec(),
        rows: m as u32,
        chains,
        cores: 3,
        together: false,
        seed: 9,
    };
    let domain = device.new_domain()?;
    let buffers = weights(&domain, &case);
    let weights = refs(&buffers, &case);
    let limits = MatmulLimits { rows: m as u32, k, n: 1024 };
    let mut matmul = Matmul::int8(&domain, &device.cores()?, limits)?;
    let mut rows = matmul.activations().lease(m, k)?;
    for row in 0..m {
        rows.write_row(row, &noise(row as u64, 1024, -128))?;
    }
    let rows = rows.to_device()?;
    // Twice: the first time memory is fresh.
    let mut product = matmul.multiply_all(&weights, &rows)?;
    while product.next_columns()?.is_some() {}
    spoil();
    let mut product = matmul.multiply_all(&weights, &rows)?;
    let mut out: Vec<_> = layouts.iter().map(|l| vec![0; m * l.n() as usize]).collect();
    while let Some(outputs) = product.next_columns()? {
        outputs.copy_to(&mut out[outputs.weight()])?;
    }
    Ok((product.stats(), out))
}

#[test]
fn a_chain_is_one_submit_and_the_rules_decide_how_long_it_is() {
    let run = |chains| query_key_value(&Machine::new(Config::default()), chains, || ()).unwrap();
    let seen = Chains::seen_on_boards(Precision::Int8);
    let (all, want) = run(seen);
    // Tiles are split over the cores without regard to weights: the second core's are of two.
    assert_eq!((all.cores, all.submits, all.programs), (3, 3, 5));
    for (chains, submits) in [
        (Chains { weights: 2, ..seen }, 2),
        (Chains { buffers: false, ..seen }, 3),
        (Chains::NONE, 3),
    ] {
        let (stats, out) = run(chains);
        assert_eq!(out, want, "{chains:?}");
        // As many cores as each is worth: small ones run on one.
        assert!(stats.submits >= submits && stats.submits <= submits * 3, "{chains:?} {stats:?}");
        assert_eq!(stats.retries, 0);
    }
}

#[test]
fn a_chain_that_fails_in_its_middle_is_run_again_whole() {
    let seen = Chains::seen_on_boards(Precision::Int8);
    let (_, want) = query_key_value(&Machine::new(Config::default()), seen, || ()).unwrap();
    for core in [None, Some(0), Some(1), Some(2)] {
        let machine = Machine::new(Config { clock: Clock::Virtual, ..Config::default() });
        let hang = Fault::Hang { core, after: 0, times: 1 };
        let (stats, out) = query_key_value(&machine, seen, || machine.inject(hang)).unwrap();
        assert_eq!((stats.retries, out == want), (1, true), "{core:?}");

        // Twice is once too often, and nothing is made up.
        let machine = Machine::new(Config { clock: Clock::Virtual, ..Config::default() });
        let hang = Fault::Hang { core, after: 0, times: 9 };
        let error = query_key_value(&machine, seen, || machine.inject(hang)).unwrap_err();
        let Error::JobFailed(report) = error else { panic!("{error}") };
        // All three weights are named by their columns.
        assert_eq!((report.attempts, report.m, report.n), (2, 33, 2048));
    }
}

#[test]
fn a_list_is_checked_whole_before_anything_runs() {
    let machine = Machine::new(Config::default());
    let device = Device::simulated_on(&machine).unwrap();
    let domain = device.domain(0).unwrap();
    let layout = |k, n, precision| Layout::new(k, n, precision).unwrap();
    let good = layout(64, 32, Precision::Int8);
    let buffer = domain.alloc(1 << 20).unwrap().to_device().unwrap();
    let elsewhere = device.domain(1).unwrap().alloc(1 << 20).unwrap().to_device().unwrap();
    let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    let mut matmul = Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap();
    let rows = matmul.activations().lease(1, 64).unwrap().to_device().unwrap();
    let at = |buffer, layout| WeightRef::new(buffer, 0, layout).unwrap();
    let first = at(&buffer, good);
    let jobs = machine.report().jobs;
    for (bad, says) in [
        (at(&buffer, layout(32, 32, Precision::Int8)), "activations"),
        (at(&buffer, layout(64, 64, Precision::Int8)), "N"),
        (at(&buffer, layout(64, 64, Precision::Int4)), "Int4"),
        (at(&elsewhere, good), "domain 1"),
    ] {
        let error = matmul.multiply_all(&[first, bad], &rows).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
    assert!(matmul.multiply_all(&[], &rows).unwrap().next_columns().unwrap().is_none());
    assert_eq!(machine.report().jobs, jobs);
}
