//! A domain's page table, and the bus through which an engine sees memory.

use crate::engine::{Bus, BusFault, Engine, Run, Start};
use crate::memory::Backing;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What is mapped at an address.
#[derive(Clone, Debug)]
struct Mapped {
    end: u64,
    /// Where the range begins in the buffer.
    offset: u64,
    backing: Arc<Backing>,
}

/// One domain's mappings, shared with the engines that run in it.
#[derive(Debug, Default)]
pub(crate) struct SpaceMap {
    ranges: RwLock<BTreeMap<u64, Mapped>>,
}

impl SpaceMap {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Mapped>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Mapped>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps a whole buffer, over whatever was there.
    pub(crate) fn map(&self, iova: u64, backing: &Arc<Backing>) {
        let end = iova + backing.len() as u64;
        self.unmap(iova, backing.len() as u64);
        self.write().insert(iova, Mapped { end, offset: 0, backing: backing.clone() });
    }

    /// Unmaps a range, whoever's it is.
    pub(crate) fn unmap(&self, iova: u64, len: u64) {
        let end = iova.saturating_add(len);
        let mut ranges = self.write();
        let first = ranges.range(..iova).next_back().map_or(iova, |(&start, _)| start);
        let hit: Vec<u64> = ranges
            .range(first..end)
            .filter(|(_, mapped)| mapped.end > iova)
            .map(|(&start, _)| start)
            .collect();
        for start in hit {
            let Some(mapped) = ranges.remove(&start) else { continue };
            if mapped.end > end {
                let rest = Mapped { offset: mapped.offset + (end - start), ..mapped.clone() };
                ranges.insert(end, rest);
            }
            if start < iova {
                ranges.insert(start, Mapped { end: iova, ..mapped });
            }
        }
    }

    /// Bytes mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.read().iter().map(|(start, mapped)| mapped.end - start).sum()
    }

    /// Runs an engine on a core's work in this domain, and says which buffers it touched.
    pub(crate) fn run(&self, engine: &dyn Engine, start: &Start) -> (Run, Vec<Arc<Backing>>) {
        let bus = JobBus { map: self, used: Mutex::default() };
        let mut run = engine.run(start, &bus);
        let used = bus.used.into_inner().unwrap_or_else(PoisonError::into_inner);
        run.findings.extend(used.findings);
        (run, used.pins)
    }

    /// The buffer that holds a range, and where; or how much of it is mapped.
    fn find(&self, iova: u64, len: u64) -> Result<(Arc<Backing>, usize), u64> {
        let ranges = self.read();
        let (&start, mapped) = ranges.range(..=iova).next_back().ok_or(0u64)?;
        let room = mapped.end.saturating_sub(iova);
        if room < len || room == 0 {
            return Err(room);
        }
        // A buffer's length fits usize, and the range lies in it.
        Ok((mapped.backing.clone(), (mapped.offset + (iova - start)) as usize))
    }
}

/// What a job has touched: kept alive until it ends, as far as its slices are concerned.
#[derive(Debug, Default)]
struct Used {
    pins: Vec<Arc<Backing>>,
    findings: Vec<String>,
}

impl Used {
    fn pin(&mut self, backing: Arc<Backing>) {
        if !self.pins.iter().any(|pin| Arc::ptr_eq(pin, &backing)) {
            self.pins.push(backing);
        }
    }
}

#[derive(Debug)]
struct JobBus<'m> {
    map: &'m SpaceMap,
    used: Mutex<Used>,
}

impl JobBus<'_> {
    fn find(&self, iova: u64, len: u64, write: bool) -> Result<(Arc<Backing>, usize), BusFault> {
        self.map.find(iova, len).map_err(|mapped| BusFault { iova, len, write, mapped })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bus for JobBus<'_> {
    fn read(&self, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let (backing, at) = self.find(iova, len, false)?;
        // Fits usize: it lies in a buffer.
        let len = len as usize;
        let stale = backing.stale(at, len);
        let mut used = self.used();
        if let Some(line) = stale {
            used.findings.push(format!(
                "missing sync: the device read {len} bytes at IOVA {iova:#x} while bytes written by \
                 the CPU at {:#x} were still in its cache; MEM_SYNC TO_DEVICE was forgotten",
                iova - at as u64 + line as u64
            ));
        }
        let bytes: *const [u8] = backing.device(at, len);
        used.pin(backing);
        // SAFETY: the slice lies in a mapping owned by `backing`, of which `used.pins` holds a
        // reference until the bus is dropped; pins are never removed before.
        Ok(unsafe { &*bytes })
    }

    fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
        let (backing, at) = self.find(iova, bytes.len() as u64, true)?;
        backing.device_write(at, bytes);
        self.used().pin(backing);
        Ok(())
    }
}
