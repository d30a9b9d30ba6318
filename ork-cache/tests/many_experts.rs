//! A mixture with as many experts as Qwen3 30B A3B under a limit of 256 open files: weights and slots lie
//! in few large buffers. The limit is the process's, so this is a test of its own.

use std::sync::Arc;

use ork_cache::{Setup, Store};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use rknpu::Device;
use rknpu::sim::{CallKind, Machine};
use rustix::process::{Resource, getrlimit, setrlimit};

const LAYERS: u32 = 48;
const EXPERTS: u32 = 128;

#[test]
fn eighteen_thousand_experts_are_loaded_and_freed_with_256_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experts.orkpack");
    let mut writer = PackWriter::create(&path, None, WriterOptions::default()).unwrap();
    for layer in 0..LAYERS {
        let mut add = |name: String, byte: u32| {
            let codes = [byte as u8; 4096];
            writer.add(&name, 64, 64, Dtype::Int8, &codes, &[0.5; 64]).unwrap();
        };
        add(format!("blk.{layer}.attn_q.weight"), layer);
        for expert in 0..EXPERTS {
            for part in ["gate", "up", "down"] {
                let name = format!("blk.{layer}.ffn_{part}_exps.weight#{expert}");
                add(name, layer.wrapping_mul(EXPERTS) + expert);
            }
        }
    }
    writer.finish().unwrap();
    let store = Arc::new(Store::from_pack(Pack::open(&path).unwrap()));
    assert_eq!(store.items().len() as u32, LAYERS * (3 * EXPERTS + 1));

    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(256), ..limit }).unwrap();
    let machine = Machine::new(Default::default());
    // All of them resident, then through slots for a third of them.
    for (routed, budget) in [(false, store.bytes() + (8 << 20)), (true, store.bytes() / 3)] {
        let before = created(&machine);
        let device = Device::simulated_on(&machine).unwrap();
        let setup = Setup { rows: 1, routed, ..Setup::new(budget) };
        let opened = ork_cache::open(&device, std::slice::from_ref(&store), &setup).unwrap();
        let placed = &opened.models[0];
        assert_eq!(placed.streamed.is_empty(), !routed);
        for part in &placed.parts {
            let visit = opened.cache.enter(part.domain).unwrap();
            let pinned = visit.acquire(part.weight).unwrap();
            let mut want = [0; 4096];
            store.load(part.item, 0, &part.layout, &mut want).unwrap();
            assert!(pinned.tiles().unwrap() == want, "item {}", part.item);
        }
        let buffers = created(&machine) - before;
        assert!(buffers < 10, "{buffers} buffers");
        drop(opened);
        assert!(device.health().is_good(), "{}", device.health());
        drop(device);
        let report = machine.report();
        assert_eq!((report.handles, report.live, report.files), (0, 0, 0));
        assert!(report.domains.iter().all(|domain| domain.mapped == 0), "{:?}", report.domains);
    }
}

/// Buffers that the driver has made so far.
fn created(machine: &Machine) -> u64 {
    machine.report().calls.get(&CallKind::MemCreate).map_or(0, |calls| calls.ok)
}
