//! Cores: who has them, and what runs on their threads.

mod support;

use std::thread;

use rknpu::{Device, Error, Layout, Matmul, MatmulLimits, OpenOptions, Precision, WeightRef};

fn matmul(device: &Device) -> Matmul {
    let limits = MatmulLimits { rows: 32, k: 1024, n: 4096 };
    let domain = device.new_domain().unwrap();
    Matmul::int8(&domain, &device.cores().unwrap(), limits).unwrap()
}

/// Multiplies on as many cores as are free.
fn multiply(matmul: &mut Matmul) -> rknpu::Result<rknpu::matmul::JobStats> {
    let layout = Layout::new(1024, 4096, Precision::Int8).unwrap();
    let weight = matmul.domain().alloc(layout.bytes() as usize)?.to_device()?;
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
