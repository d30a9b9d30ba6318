//! Cores: who has them, and what runs on their threads.

mod support;

use std::thread;

use rknpu::sim::config::Config;
use rknpu::sim::{Fault, Machine};
use rknpu::{Device, Error, Layout, Matmul, MatmulLimits, OpenOptions, Precision, WeightRef};

fn matmul(device: &Device) -> Matmul {
    let limits = MatmulLimits { rows: 32, k: 1024, n: 4096 };
    let domain = device.new_domain().unwrap();
    Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap()
}

/// Multiplies on as many cores as are free.
fn multiply(matmul: &mut Matmul) -> rknpu::Result<rknpu::matmul::JobStats> {
    let layout = Layout::new(1024, 4096, Precision::Int8).unwrap();
    let weight = matmul.domains()[0].alloc(layout.bytes() as usize)?.to_device()?;
    let weight = WeightRef::new(&weight, 0, layout)?;
    matmul.run(&weight, &[1; 32 * 1024], &mut vec![0; 32 * 4096])
}

/// Whoever lets the pool go and whoever makes the next one need not know of each other.
#[test]
fn a_pool_that_is_being_let_go_is_waited_for() {
    let device = Device::with_driver(support::NoOp::driver(), &OpenOptions::new()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    assert_eq!(device.cores().unwrap().count(), 3);
                }
            });
        }
        // Some of the pools have threads to end.
        scope.spawn(|| {
            for _ in 0..100 {
                multiply(&mut matmul(&device)).unwrap();
            }
        });
    });
    assert_eq!(device.stats().cores, 0);
    // A core on its own is still nobody else's.
    let core = device.core(1).unwrap();
    assert!(matches!(device.cores(), Err(Error::CoreLeased { core: 1 })));
    assert_eq!(device.stats().cores, 1);
    drop(core);
    assert!(device.cores().is_ok());
}

/// A panic on a core's thread is a job that did not run: it is run again, and no result is made up.
#[test]
fn a_thread_that_ends_is_a_failed_job() {
    let device = Device::with_driver(
        support::NoOp::failing(1, 1, support::Wrong::Panics),
        &OpenOptions::new(),
    )
    .unwrap();
    let mut one = matmul(&device);
    let stats = multiply(&mut one).unwrap();
    assert_eq!((stats.cores, stats.retries), (3, 1));
    let health = device.health();
    let failure = health.last_failure.unwrap();
    assert_eq!((failure.core, failure.programs_done, health.recovered), (1, 0, 1));
    assert!(health.wedged.is_none());

    // Twice is one time too many.
    let device = Device::with_driver(
        support::NoOp::failing(2, 2, support::Wrong::Panics),
        &OpenOptions::new(),
    )
    .unwrap();
    let error = multiply(&mut matmul(&device)).unwrap_err();
    assert!(matches!(error, Error::JobFailed(_)), "{error}");
}

/// The driver's record of a core names a job that is gone after an interrupt that was not the job's. No
/// reset clears it, and the next job there would be freed under the driver: the core stays out of use, the
/// others go on.
#[test]
fn a_core_with_a_foreign_interrupt_stays_out_of_use_and_the_others_go_on() {
    let foreign = |core| Fault::ForeignInterrupt { core, status: 0xc00, after: 0, times: 1 };
    for lost in 0..3 {
        let machine = Machine::new(Config::default());
        let device = Device::simulated_on(&machine).unwrap();
        let mut one = matmul(&device);
        let before = multiply(&mut one).unwrap();
        assert_eq!((before.cores, before.retries), (3, 0));
        machine.inject(foreign(Some(lost)));
        let stats = multiply(&mut one).unwrap();
        assert_eq!((stats.cores, stats.retries), (2, 1), "core {lost}");
        let starts = || machine.report().cores[lost].starts;
        let (then, hazards) = (starts(), machine.report().hazards);
        // What the kernel did with that one job is done; nothing more happens.
        device.reset().unwrap();
        for _ in 0..3 {
            let stats = multiply(&mut one).unwrap();
            assert_eq!((stats.cores, stats.retries), (2, 0), "core {lost}");
        }
        assert_eq!((starts(), machine.report().hazards), (then, hazards), "core {lost}");
        drop(one);
        let lost = lost as u32;
        assert!(matches!(device.core(lost), Err(Error::CoreLost { core }) if core == lost));
        assert_eq!(device.cores().unwrap().count(), 2);
    }
    // All of them, one after the other.
    let machine = Machine::new(Config::default());
    let device = Device::simulated_on(&machine).unwrap();
    let mut one = matmul(&device);
    for core in 0..2 {
        machine.inject(foreign(Some(core)));
        assert_eq!(multiply(&mut one).unwrap().retries, 1);
    }
    machine.inject(foreign(Some(2)));
    let error = multiply(&mut one).unwrap_err();
    assert!(matches!(error, Error::CoreLost { .. }), "{error}");
}
