//! Matmuls of every precision, on the simulator, against the CPU.

#[path = "support/drivers.rs"]
mod drivers;

use half::f16;
use proptest::prelude::*;
use rknpu::sim::config::{Config, Driver, Mode};
use rknpu::sim::{Machine, Report};
use rknpu::{Device, Error, Layout, Matmul, MatmulLimits, Precision, WeightRef, reference};

type NpuBuffer = rknpu::Buffer<rknpu::OnDevice>;

fn strict(driver: Driver) -> Machine {
    Machine::new(Config { mode: Mode::Strict, ..drivers::with(driver) })
}

fn weight(device: &Device, domain: u32, layout: Layout, seed: u64) -> (NpuBuffer, Vec<u8>) {
    let domain = device.domain(domain).unwrap();
    let mut buffer = domain.alloc(layout.bytes() as usize).unwrap();
    reference::fill(layout, seed, buffer.as_mut_slice());
    let tiled = buffer.as_slice().to_vec();
    (buffer.to_device().unwrap(), tiled)
}

fn limits(layout: Layout, rows: usize) -> MatmulLimits {
    MatmulLimits { rows: rows.max(1) as u32, k: layout.k(), n: layout.n() }
}

/// Nothing that the driver or the NPU would have suffered from.
fn assert_sound(report: &Report) {
    assert!(report.hazards.is_empty(), "{:?}", report.hazards);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[derive(Clone, Debug)]
struct Case {
    m: usize,
    layout: Layout,
    domain: u32,
    cores: u32,
    driver: Driver,
    seed: u64,
}

fn case(precision: Precision, k_max: u32, n_max: u32) -> impl Strategy<Value = Case> {
    let tile = precision.tile_width();
    let m = prop_oneof![3 => Just(1usize), 6 => 1..40usize, 1 => 200..600usize];
    (m, 1..=k_max / 32, 1..=n_max / tile, 0..16u32, 1..4u32, any::<(u64, bool)>()).prop_map(
        move |(m, k, n, domain, cores, (seed, first))| {
            // Large in one dimension at a time: the reference is slow.
            let k = if m > 100 { k % 3 + 1 } else { k };
            let layout = Layout::new(k * 32, n * tile, precision).unwrap();
            let driver = drivers::DRIVERS[usize::from(first)];
            Case { m, layout, domain, cores, driver, seed }
        },
    )
}

fn pool(device: &Device, cores: u32) -> rknpu::Cores {
    let cores = (0..cores).map(|core| device.core(core).unwrap()).collect();
    rknpu::Cores::new(cores).unwrap()
}

fn codes(seed: u64, len: usize, low: i8) -> Vec<i8> {
    let mut state = seed | 1;
    let span = -2 * i64::from(low);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
            ((state >> 40) as i64 % span + i64::from(low)) as i8
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn int8_equals_the_cpu(case in case(Precision::Int8, 2200, 200)) {
        let machine = strict(case.driver);
        {
            let device = Device::simulated_on(&machine).unwrap();
            let (buffer, tiled) = weight(&device, case.domain, case.layout, case.seed);
            let activations = codes(case.seed, case.m * case.layout.k() as usize, -128);
            let mut out = vec![0; case.m * case.layout.n() as usize];
            let limits = limits(case.layout, case.m);
            let mut matmul =
                Matmul::int8(buffer.domain(), &pool(&device, case.cores), limits).unwrap();
            let weight = WeightRef::new(&buffer, 0, case.layout).unwrap();
            for _ in 0..2 {
                out.fill(-1);
                matmul.run(&weight, &activations, &mut out).unwrap();
                prop_assert_eq!(&out, &reference::matmul_i8(case.layout, &tiled, &activations));
            }
            prop_assert!(device.health().is_good());
        }
        assert_sound(&machine.report());
    }

    #[test]
    fn fp16_equals_the_cpu(case in case(Precision::Fp16, 2200, 100)) {
        let machine = strict(case.driver);
        {
            let device = Device::simulated_on(&machine).unwrap();
            let (buffer, tiled) = weight(&device, case.domain, case.layout, case.seed);
            // Whole numbers: every sum is exact, whatever its order.
            let activations: Vec<f16> = codes(case.seed, case.m * case.layout.k() as usize, -8)
                .into_iter()
                .map(|v| f16::from_f32(v.into()))
                .collect();
            let mut out = vec![f32::NAN; case.m * case.layout.n() as usize];
            let limits = limits(case.layout, case.m);
            let mut matmul =
                Matmul::fp16(buffer.domain(), &pool(&device, case.cores), limits).unwrap();
            let weight = WeightRef::new(&buffer, 0, case.layout).unwrap();
            matmul.run(&weight, &activations, &mut out).unwrap();
            prop_assert_eq!(out, reference::matmul_f16(case.layout, &tiled, &activations));
        }
        assert_sound(&machine.report());
    }

    #[test]
    fn int4_equals_the_cpu(case in case(Precision::Int4, 2200, 260)) {
        let machine = strict(case.driver);
        {
            let device = Device::simulated_on(&machine).unwrap();
            let (buffer, tiled) = weight(&device, case.domain, case.layout, case.seed);
            let activations = codes(case.seed, case.m * case.layout.k() as usize, -8);
            let mut out = vec![0; case.m * case.layout.n() as usize];
            let limits = limits(case.layout, case.m);
            let mut matmul =
                Matmul::int4(buffer.domain(), &pool(&device, case.cores), limits).unwrap();
            let weight = WeightRef::new(&buffer, 0, case.layout).unwrap();
            matmul.run(&weight, &activations, &mut out).unwrap();
            prop_assert_eq!(out, reference::matmul_i4(case.layout, &tiled, &activations));
        }
        assert_sound(&machine.report());
    }
}

fn a_wide_weight_is_cut_into_slices_of_8192_columns(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let layout = Layout::new(64, 8192 + 96, Precision::Int8).unwrap();
    let (buffer, tiled) = weight(&device, 0, layout, 3);
    let activations = codes(5, 2 * 64, -128);
    let mut out = vec![0; 2 * layout.n() as usize];
    let cores = device.cores().unwrap();
    let mut matmul = Matmul::int8(buffer.domain(), &cores, limits(layout, 2)).unwrap();
    matmul.run(&WeightRef::new(&buffer, 0, layout).unwrap(), &activations, &mut out).unwrap();
    assert_eq!(out, reference::matmul_i8(layout, &tiled, &activations));
}

/// The last N slice may have fewer tiles than the first has cores.
#[test]
fn a_last_slice_of_few_columns_is_multiplied_on_some_of_the_cores() {
    for more in [32, 64, 96] {
        let device = Device::simulated(Config { mode: Mode::Strict, ..Config::default() }).unwrap();
        let layout = Layout::new(1056, 8192 + more, Precision::Int8).unwrap();
        let (buffer, tiled) = weight(&device, 0, layout, 3);
        let cores = device.cores().unwrap();
        let mut matmul = Matmul::int8(buffer.domain(), &cores, limits(layout, 2)).unwrap();
        let weight = WeightRef::new(&buffer, 0, layout).unwrap();
        for seed in [5, 6] {
            let activations = codes(seed, 2 * 1056, -128);
            let mut out = vec![0; 2 * layout.n() as usize];
            let stats = matmul.run(&weight, &activations, &mut out).unwrap();
            assert_eq!(stats.cores, 3);
            assert_eq!(out, reference::matmul_i8(layout, &tiled, &activations), "{more} {seed}");
        }
    }
}

fn one_matmul_serves_every_shape_within_its_limits(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let cores = device.cores().unwrap();
    let domain = device.domain(0).unwrap();
    let limits = MatmulLimits { rows: 4, k: 2048, n: 512 };
    let mut matmul = Matmul::int8(&domain, &cores, limits).unwrap();
    for (m, k, n) in [(1, 32, 32), (900, 32, 64), (4, 2048, 512), (33, 1056, 96), (0, 64, 64)] {
        let layout = Layout::new(k, n, Precision::Int8).unwrap();
        let mut buffer = domain.alloc(layout.bytes() as usize).unwrap();
        reference::fill(layout, 9, buffer.as_mut_slice());
        let tiled = buffer.as_slice().to_vec();
        let buffer = buffer.to_device().unwrap();
        let activations = codes(7, m * k as usize, -128);
        let mut out = vec![0; m * n as usize];
        let weight = WeightRef::new(&buffer, 0, layout).unwrap();
        matmul.run(&weight, &activations, &mut out).unwrap();
        assert_eq!(out, reference::matmul_i8(layout, &tiled, &activations), "{m} {k} {n}");
    }
}

fn what_does_not_fit_is_refused_with_its_limit(driver: Driver) {
    let device = Device::simulated(drivers::with(driver)).unwrap();
    let cores = device.cores().unwrap();
    let layout = Layout::new(64, 64, Precision::Int8).unwrap();
    let (buffer, _) = weight(&device, 1, layout, 1);
    let limits = MatmulLimits { rows: 1, k: 64, n: 32 };
    let mut matmul = Matmul::int8(buffer.domain(), &cores, limits).unwrap();
    let weight_ref = WeightRef::new(&buffer, 0, layout).unwrap();
    let error = matmul.run(&weight_ref, &[0; 64], &mut [0; 64]).unwrap_err();
    assert!(matches!(error, Error::Shape { what: "N", value: 64, limit: 32 }));

    let limits = MatmulLimits { rows: 1, k: 64, n: 64 };
    let mut matmul = Matmul::int8(buffer.domain(), &cores, limits).unwrap();
    let error = matmul.run(&weight_ref, &[0; 65], &mut [0; 64]).unwrap_err();
    assert!(matches!(error, Error::Length { what: "activations", got: 65, want: 64, .. }));
    let error = matmul.run(&weight_ref, &[0; 64], &mut [0; 63]).unwrap_err();
    assert!(matches!(error, Error::Length { what: "out", got: 63, want: 64, .. }));

    let mut fp16 = Matmul::fp16(buffer.domain(), &cores, limits).unwrap();
    let error = fp16.run(&weight_ref, &[f16::ZERO; 64], &mut [0.0; 64]).unwrap_err();
    assert!(matches!(error, Error::Precision { .. }));

    let other = device.domain(2).unwrap();
    let mut matmul = Matmul::int8(&other, &cores, limits).unwrap();
    let error = matmul.run(&weight_ref, &[0; 64], &mut [0; 64]).unwrap_err();
    assert!(matches!(error, Error::ForeignDomain { got: 1, want: 2, .. }));

    assert!(matches!(WeightRef::new(&buffer, 1, layout), Err(Error::Range { .. })));
    assert!(matches!(WeightRef::new(&buffer, 16, layout), Err(Error::Range { .. })));
    assert!(matches!(WeightRef::new(&buffer, u64::MAX - 15, layout), Err(Error::Range { .. })));
}

drivers::on_both_drivers!(
    a_wide_weight_is_cut_into_slices_of_8192_columns,
    one_matmul_serves_every_shape_within_its_limits,
    what_does_not_fit_is_refused_with_its_limit,
);
