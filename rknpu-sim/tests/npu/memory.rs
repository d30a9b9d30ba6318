//! Memory for a job: buffers at fixed addresses, and a record of what was read and written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use rknpu_sim::engine::{Bus, BusFault, Unit};

#[derive(Default)]
pub(crate) struct Memory {
    buffers: Vec<(u64, Vec<u8>)>,
    written: Mutex<Vec<(u64, Vec<u8>)>>,
    touched: Mutex<BTreeMap<Unit, BTreeSet<u64>>>,
}

impl Memory {
    /// Maps `bytes` at `iova`.
    pub(crate) fn map(&mut self, iova: u32, bytes: Vec<u8>) -> &mut Memory {
        self.buffers.push((u64::from(iova), bytes));
        self
    }

    /// The buffer mapped at `iova`, with all writes done to it.
    pub(crate) fn after(&self, iova: u32) -> Vec<u8> {
        let (base, mut bytes) =
            self.buffers.iter().find(|(base, _)| *base == u64::from(iova)).cloned().unwrap();
        for (at, data) in self.written.lock().unwrap().iter() {
            let offset = at.wrapping_sub(base) as usize;
            if let Some(to) = bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..data.len())) {
                to.copy_from_slice(data);
            }
        }
        bytes
    }

    pub(crate) fn was_written(&self) -> bool {
        !self.written.lock().unwrap().is_empty()
    }

    /// Whether all writes lie in `range`.
    #[allow(dead_code, reason = "not for benches")]
    pub(crate) fn writes_lie_in(&self, range: std::ops::Range<u64>) -> bool {
        let written = self.written.lock().unwrap();
        written.iter().all(|(at, data)| range.start <= *at && at + data.len() as u64 <= range.end)
    }

    /// 16-byte atoms that a unit has read or written, each counted once.
    #[allow(dead_code, reason = "not for benches")]
    pub(crate) fn atoms(&self, unit: Unit) -> usize {
        self.touched.lock().unwrap().get(&unit).map_or(0, BTreeSet::len)
    }

    #[allow(dead_code, reason = "not for benches")]
    fn touch(&self, unit: Unit, iova: u64, len: u64) {
        let atoms = iova / 16..(iova + len).div_ceil(16);
        self.touched.lock().unwrap().entry(unit).or_default().extend(atoms);
    }

    /// Drops the record of writes.
    #[allow(dead_code, reason = "for benches, which write without end")]
    pub(crate) fn forget(&self) {
        self.written.lock().unwrap().clear();
    }

    fn find(&self, iova: u64, len: u64, write: bool) -> Result<&[u8], BusFault> {
        let mut mapped = 0;
        for (base, bytes) in &self.buffers {
            if let Some(rest) = iova.checked_sub(*base).and_then(|o| bytes.get(o as usize..)) {
                if let Some(range) = rest.get(..len as usize) {
                    return Ok(range);
                }
                mapped = rest.len() as u64;
            }
        }
        Err(BusFault { iova, len, write, mapped })
    }
}

impl Bus for &Memory {
    fn read(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let bytes = self.find(iova, len, false)?;
        if cfg!(test) {
            self.touch(unit, iova, len);
        }
        Ok(bytes)
    }

    fn kept(&self, _: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        self.find(iova, len, false)
    }

    fn write(&mut self, unit: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
        self.writable(iova, bytes.len() as u64)?;
        if cfg!(test) {
            self.touch(unit, iova, bytes.len() as u64);
        }
        self.written.lock().unwrap().push((iova, bytes.to_vec()));
        Ok(())
    }

    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
        self.find(iova, len, true).map(drop)
    }
}
