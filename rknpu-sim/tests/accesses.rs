//! What cores read and write through the IOMMU is written down, and stands still meanwhile.

mod common;

use common::{call, create, job, machine, map, put, tasks};
use rknpu_sim::access::BusAccess;
use rknpu_sim::config::Mode;
use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start, Unit};
use rknpu_sim::{Config, Machine};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn accesses_are_recorded_with_core_domain_and_unit() {
    let machine = machine(Mode::Strict);
    let file = machine.open();
    let (task_buffer, _tasks) = tasks(&file);
    let data = create(&file, 0x401, 4096, 3).unwrap();
    let mut args = job(&task_buffer, &data);
    args.iommu_domain_id = 3;
    args.core_mask = 2;
    call(&file, &mut args).unwrap(); // not asked for
    machine.record_accesses(10);
    call(&file, &mut args).unwrap();
    let access =
        |unit, write| BusAccess { core: 1, domain: 3, unit, write, iova: data.dma_addr, len: 4 };
    let accesses = machine.take_accesses();
    assert_eq!(accesses.list, [access(Unit::CnaFeature, false), access(Unit::DpuWrite, true)]);
    machine.record_accesses(1);
    call(&file, &mut args).unwrap();
    let accesses = machine.take_accesses();
    assert_eq!((accesses.list.len(), accesses.left_out), (1, 1));
    machine.record_accesses(0);
    call(&file, &mut args).unwrap();
    assert!(machine.take_accesses().list.is_empty());
}

/// Reads a page slowly, and says whether it stood still.
#[derive(Debug)]
struct Slow {
    begun: mpsc::SyncSender<()>,
    still: Arc<AtomicBool>,
}

impl Engine for Slow {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let bytes = bus.read(Unit::CnaFeature, start.dma_base.into(), 4096).unwrap();
        let before = bytes.to_vec();
        self.begun.send(()).unwrap();
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            if bytes != before {
                self.still.store(false, Ordering::SeqCst);
            }
        }
        let outcome = Outcome::Done { int_status: 0x300, tasks_done: 1, busy_ns: 1000 };
        Run { outcome, findings: Vec::new() }
    }
}

#[test]
fn a_cpu_that_writes_what_a_core_reads_waits() {
    let (begun, begins) = mpsc::sync_channel(1);
    let still = Arc::new(AtomicBool::new(true));
    let engine = Arc::new(Slow { begun, still: still.clone() });
    let machine = Machine::new(Config { engine, ..Config::default() });
    let file = machine.open();
    let (task_buffer, _tasks) = tasks(&file);
    let data = create(&file, 0x401, 4096, 0).unwrap();
    // Two mappings: it is the memory that stands still, not the mapping.
    let (view, partial) = (map(&file, &data), map(&file, &data));
    std::thread::scope(|scope| {
        scope.spawn(|| call(&file, &mut job(&task_buffer, &data)).unwrap());
        begins.recv().unwrap();
        scope.spawn(|| put(&partial, 0, 7));
        put(&view, 2048, 7);
    });
    assert!(still.load(Ordering::SeqCst));
    assert_eq!((common::get(&view, 0), common::get(&view, 2048)), (7, 7));
}

#[test]
fn buffers_cannot_be_cut() {
    let machine = machine(Mode::Fast);
    let file = machine.open();
    let data = create(&file, 0x403, 8192, 0).unwrap();
    let mut args =
        rknpu_sys::uapi::MemMap { handle: data.handle, ..rknpu_sys::uapi::MemMap::default() };
    call(&file, &mut args).unwrap();
    let reservation = file.reserve(args.offset, 8192).unwrap();
    let of_buffer = reservation.file().try_clone_to_owned().unwrap();
    for memory in [of_buffer, machine.foreign_buffer(8192).unwrap()] {
        let memory = std::fs::File::from(memory);
        assert!(memory.set_len(0).is_err() && memory.set_len(1 << 20).is_err());
        assert_eq!(memory.metadata().unwrap().len(), 8192);
    }
}
