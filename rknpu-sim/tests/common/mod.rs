//! Calls and small machines for the tests of the driver model.
#![allow(dead_code, unreachable_pub)] // Each test takes what it needs.

use rknpu_sim::config::Mode;
use rknpu_sim::engine::{Bus, Engine, Outcome, Run, Start, Unit};
use rknpu_sim::{Config, File, Machine, Mapping};
use rknpu_sys::ioctl::Request;
use rknpu_sys::uapi::{MemCreate, MemMap, MemSync, SubcoreTask, Submit, Task};
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Issues a call whose struct belongs to its word.
pub fn call<T: Request + FromBytes + IntoBytes>(file: &File, args: &mut T) -> Result<(), Errno> {
    file.call(args)
}

pub fn create(file: &File, flags: u32, size: u64, domain: i32) -> Result<MemCreate, Errno> {
    let mut args = MemCreate { flags, size, iommu_domain_id: domain, ..MemCreate::default() };
    call(file, &mut args).map(|()| args)
}

/// Adds one to the u32 at `dma_base`, after `regcmd_addr` microseconds or 100; hangs when it is not
/// mapped.
#[derive(Debug)]
pub struct Increment;

impl Engine for Increment {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let at = u64::from(start.dma_base);
        let value = bus.read(Unit::CnaFeature, at, 4).ok().and_then(|bytes| bytes.try_into().ok());
        let outcome = match value.map(u32::from_le_bytes) {
            Some(value) if bus.write(Unit::DpuWrite, at, &(value + 1).to_le_bytes()).is_ok() => {
                let us = if start.regcmd_addr == 0 { 100 } else { u64::from(start.regcmd_addr) };
                Outcome::Done { int_status: 0x300, tasks_done: 1, busy_ns: us * 1000 }
            }
            _ => Outcome::Hang { task_counter: 0 },
        };
        Run { outcome, findings: Vec::new() }
    }
}

pub fn machine(mode: Mode) -> Machine {
    Machine::new(Config { mode, engine: Arc::new(Increment), ..Config::default() })
}

pub fn map(file: &File, buffer: &MemCreate) -> Mapping {
    let mut args = MemMap { handle: buffer.handle, ..MemMap::default() };
    call(file, &mut args).unwrap();
    file.mmap(args.offset, buffer.size as usize).unwrap()
}

pub fn sync(file: &File, buffer: &MemCreate, flags: u32) -> Result<(), Errno> {
    let mut args =
        MemSync { flags, obj_addr: buffer.obj_addr, size: buffer.size, ..MemSync::default() };
    call(file, &mut args)
}

pub fn put(map: &Mapping, at: usize, value: u32) {
    assert!(at + 4 <= map.len());
    map.write(at, &value.to_le_bytes());
}

pub fn get(map: &Mapping, at: usize) -> u32 {
    let mut bytes = [0; 4];
    assert!(at + 4 <= map.len());
    map.read(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// A task buffer with one task.
pub fn tasks(file: &File) -> (MemCreate, Mapping) {
    let buffer = create(file, 0xb, 4096, 0).unwrap();
    let mapping = map(file, &buffer);
    put(&mapping, std::mem::offset_of!(Task, int_mask), 0x300);
    put(&mapping, std::mem::offset_of!(Task, regcfg_amount), 100);
    (buffer, mapping)
}

pub fn job(tasks: &MemCreate, data: &MemCreate) -> Submit {
    Submit {
        flags: 0x5,
        timeout: 100,
        task_number: 1,
        task_obj_addr: tasks.obj_addr,
        task_base_addr: data.dma_addr,
        core_mask: 1,
        fence_fd: -1,
        subcore_task: [SubcoreTask { task_start: 0, task_number: 1 }; 5],
        ..Submit::default()
    }
}
