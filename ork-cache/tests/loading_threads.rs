//! Who loads with which threads. The pool of this process is one thread, which the test holds up.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use ork_cache::{Opened, Prefetcher, Setup, Store};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use rknpu::Device;

/// Read in several pieces, or there would be nothing to share.
const K: u32 = 1024;
const N: u32 = 1024;
const BYTES: usize = (K * N) as usize;
/// Enough for any machine; nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Somebody waits for a load on demand while the cores stand idle, so all threads of the pool read. A load
/// ahead has the time of a product, and the pool's threads are computing beside it: it takes none of them.
#[test]
fn loads_on_demand_take_the_pool_and_loads_ahead_take_nobodys_thread() {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default()).unwrap();
    for name in ["ahead", "demand"] {
        writer.add(name, K, N, Dtype::Int8, &[1; BYTES], &[0.5; N as usize]).unwrap();
    }
    writer.finish().unwrap();
    let device = Device::simulated(Default::default()).unwrap();
    let store = Arc::new(Store::from_pack(Pack::open(&path).unwrap()));
    let Opened { cache, models, .. } =
        ork_cache::open(&device, &[store], &Setup::new(64 << 20)).unwrap();
    let [ahead, demand] = [0, 1].map(|part| models[0].parts[part].weight);

    let (go_on, held) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    rayon::spawn(move || {
        begun.send(()).unwrap();
        // Until the sender goes.
        let _ = held.recv();
    });
    begins.recv().unwrap();

    let prefetcher = Prefetcher::new(&cache).unwrap();
    prefetcher.queue(&[ahead]);
    let waits = std::time::Instant::now();
    while cache.stats().bytes_loaded < BYTES as u64 {
        assert!(waits.elapsed() < PATIENCE, "the load ahead waits for the pool");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::scope(|scope| {
        let (done, ends) = mpsc::channel();
        let cache = &cache;
        scope.spawn(move || {
            drop(cache.acquire(demand).unwrap());
            done.send(()).unwrap();
        });
        // It ends when the pool is free and not before.
        assert!(ends.recv_timeout(Duration::from_millis(300)).is_err(), "the pool was not asked");
        drop(go_on);
        ends.recv_timeout(PATIENCE).unwrap();
    });
    drop(prefetcher);
}
