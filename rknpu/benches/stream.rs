//! Weights streamed through one window on the simulator, against copies of the same bytes.

use ratio::Bench;
use rknpu::{Device, probe};

fn main() {
    let bench = Bench::from_args();
    // 100 in all under `cargo bench`: as many as the rounds there, and a little more.
    let (weight, times) = if bench.measures() { (256usize << 20, 7) } else { (1 << 20, 2) };
    let name = format!("stream/memcpy ({times} x {} MiB)", weight >> 20);
    if !bench.wants(&name) {
        return;
    }
    let device = Device::simulated(Default::default()).unwrap();
    let domain = device.domain(0).unwrap();
    let (source, mut plain) = (vec![1u8; weight], vec![0u8; weight]);
    bench.compare(
        &name,
        0.3,
        weight as u64 * u64::from(times),
        || {
            let report =
                probe::stream(&domain, weight, times, |_, out| out.copy_from_slice(&source));
            let report = report.unwrap();
            assert!(report.is_clean(), "{report}");
        },
        || (0..times).for_each(|_| plain.copy_from_slice(&source)),
    );
}
