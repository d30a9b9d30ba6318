//! A use of a weight that is there, pinned and let go, against the least that it could be: a lock and a share
//! taken, a lock and the share given back.

use std::hint::black_box;
use std::sync::{Arc, Mutex};

use ork_cache::{Setup, Store};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use ratio::Bench;
use rknpu::Device;

const WEIGHTS: u32 = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bench = Bench::from_args();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
    for weight in 0..WEIGHTS {
        writer.add(&format!("{weight}"), 32, 32, Dtype::Int8, &[1; 4096], &[0.01; 32])?;
    }
    writer.finish()?;
    let store = Arc::new(Store::from_pack(Pack::open(&path)?));
    let device = Device::simulated(Default::default())?;
    let setup = Setup { rows: 1, ..Setup::new(64 << 20) };
    let opened = ork_cache::open(&device, &[store], &setup)?;
    let weights: Vec<_> = opened.models[0].parts.iter().map(|part| part.weight).collect();
    let acquire = || {
        for &weight in &weights {
            drop(black_box(opened.cache.acquire(weight).expect("it is there")));
        }
    };
    acquire();
    let least = Mutex::new(weights.iter().map(|_| Arc::new(())).collect::<Vec<_>>());
    let locks = || {
        for weight in 0..weights.len() {
            let share = least.lock().expect("nobody panics")[weight].clone();
            let back = least.lock().expect("nobody panics");
            drop((black_box(share), back));
        }
    };
    let repeat = if bench.measures() { 500 } else { 1 };
    let bytes = u64::from(WEIGHTS) * repeat;
    let many = |one: &dyn Fn()| (0..repeat).for_each(|_| one());
    bench.compare("acquire/two locks", 0.3, bytes, || many(&acquire), || many(&locks));
    Ok(())
}
