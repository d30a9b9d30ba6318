//! A domain's page table, and the bus through which an engine sees memory.

use crate::engine::{Bus, BusFault, Engine, Run, Start};
use crate::memory::{Backing, Pins};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

    /// Runs an engine on a core's work in this domain.
    pub(crate) fn run(&self, engine: &dyn Engine, start: &Start) -> Ran {
        let (findings, fault) = (Mutex::default(), Mutex::default());
        let bus = JobBus { map: self, pins: Pins::default(), findings, fault };
        let mut run = engine.run(start, &bus);
        run.findings.extend(bus.findings.into_inner().unwrap_or_else(PoisonError::into_inner));
        let fault = bus.fault.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ran { run, touched: bus.pins.into_buffers(), fault }
    }

    /// Whether a range lies in one buffer.
    pub(crate) fn holds(&self, iova: u64, len: u64) -> bool {
        self.find(iova, len).is_ok()
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

/// What came of an engine's run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) run: Run,
    /// Buffers that it touched.
    pub(crate) touched: Vec<Arc<Backing>>,
    /// The last access that met no mapping.
    pub(crate) fault: Option<BusFault>,
}

#[derive(Debug)]
struct JobBus<'m> {
    map: &'m SpaceMap,
    /// What the job has touched.
    pins: Pins,
    findings: Mutex<Vec<String>>,
    fault: Mutex<Option<BusFault>>,
}

impl JobBus<'_> {
    fn find(&self, iova: u64, len: u64, write: bool) -> Result<(Arc<Backing>, usize), BusFault> {
        self.map.find(iova, len).map_err(|mapped| {
            let fault = BusFault { iova, len, write, mapped };
            *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
            fault
        })
    }

    fn stale(&self, iova: u64, len: usize, line: u64) {
        let finding = format!(
            "missing sync: the device read {len} bytes at IOVA {iova:#x} while bytes written by the CPU \
             at {line:#x} were still in its cache; MEM_SYNC TO_DEVICE was forgotten"
        );
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
    }
}

impl Bus for JobBus<'_> {
    fn read(&self, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let (backing, at) = self.find(iova, len, false)?;
        // Fits usize: it lies in a buffer.
        let len = len as usize;
        if let Some(line) = backing.stale(at, len) {
            self.stale(iova, len, iova - at as u64 + line as u64);
        }
        Ok(self.pins.device(backing, at, len))
    }

    fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
        let (backing, at) = self.find(iova, bytes.len() as u64, true)?;
        backing.device_write(at, bytes);
        self.pins.pin(backing);
        Ok(())
    }

    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
        self.find(iova, len, true).map(drop)
    }
}
