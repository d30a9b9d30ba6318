//! A domain's page table, and the bus through which an engine sees memory.

use crate::access::{BusAccess, Recorder};
use crate::engine::{Bus, BusFault, Engine, Finding, Outcome, Run, Start, Unit};
use crate::memory::{Backing, Reader};
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
#[derive(Debug)]
pub(crate) struct SpaceMap {
    domain: usize,
    ranges: RwLock<BTreeMap<u64, Mapped>>,
}

impl SpaceMap {
    /// A domain that maps nothing.
    pub(crate) fn new(domain: usize) -> SpaceMap {
        SpaceMap { domain, ranges: RwLock::default() }
    }

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
    pub(crate) fn run(&self, engine: &dyn Engine, start: &Start, recorder: &Recorder) -> Ran {
        let mut bus = JobBus {
            map: self,
            core: start.core,
            recorder,
            reader: Reader::new(),
            notes: Mutex::default(),
        };
        let mut run = engine.run(start, &mut bus);
        let notes = bus.notes.into_inner().unwrap_or_else(PoisonError::into_inner);
        run.findings.extend(notes.findings);
        Ran { run, touched: notes.touched, fault: notes.fault }
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

impl Ran {
    /// A run that hangs before it has touched anything.
    pub(crate) fn hung() -> Ran {
        let run = Run { outcome: Outcome::Hang { task_counter: 0 }, findings: Vec::new() };
        Ran { run, touched: Vec::new(), fault: None }
    }
}

#[derive(Debug)]
struct JobBus<'m> {
    map: &'m SpaceMap,
    core: usize,
    recorder: &'m Recorder,
    reader: Reader,
    notes: Mutex<Notes>,
}

/// What a run leaves behind.
#[derive(Debug, Default)]
struct Notes {
    touched: Vec<Arc<Backing>>,
    findings: Vec<Finding>,
    fault: Option<BusFault>,
}

impl Notes {
    fn touch(&mut self, backing: &Arc<Backing>) {
        if !self.touched.iter().any(|known| Arc::ptr_eq(known, backing)) {
            self.touched.push(Arc::clone(backing));
        }
    }

    fn stale(&mut self, iova: u64, len: usize, line: u64) {
        self.findings.push(Finding::wrong(format!(
            "missing sync: the device read {len} bytes at IOVA {iova:#x} while bytes written by the CPU \
             at {line:#x} were still in its cache; MEM_SYNC TO_DEVICE was forgotten \
             (DMA_BUF_SYNC_END with WRITE, if it is imported)"
        )));
    }
}

impl JobBus<'_> {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, iova: u64, len: u64, write: bool) -> Result<(Arc<Backing>, usize), BusFault> {
        self.map.find(iova, len).map_err(|mapped| {
            let fault = BusFault { iova, len, write, mapped };
            self.notes().fault = Some(fault);
            fault
        })
    }

    fn record(&self, unit: Unit, iova: u64, len: u64, write: bool) {
        let (core, domain) = (self.core, self.map.domain);
        self.recorder.note(BusAccess { core, domain, unit, write, iova, len });
    }
}

impl Bus for JobBus<'_> {
    fn read(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let (backing, at) = self.find(iova, len, false)?;
        self.record(unit, iova, len, false);
        // Fits usize: it lies in a buffer.
        let len = len as usize;
        let stale = backing.stale(at, len);
        let mut notes = self.notes();
        if let Some(line) = stale {
            notes.stale(iova, len, iova - at as u64 + line as u64);
        }
        notes.touch(&backing);
        drop(notes);
        Ok(self.reader.read(backing.device(at, len), at, len))
    }

    fn kept(&self, _: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let (backing, at) = self.find(iova, len, false)?;
        let len = len as usize;
        Ok(self.reader.read(backing.device(at, len), at, len))
    }

    fn write(&mut self, unit: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
        // A core that waits to write reads nothing, so that no two wait for each other.
        self.reader.release();
        let (backing, at) = self.find(iova, bytes.len() as u64, true)?;
        self.record(unit, iova, bytes.len() as u64, true);
        self.notes().touch(&backing);
        backing.device_write(at, bytes);
        Ok(())
    }

    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
        self.find(iova, len, true).map(drop)
    }
}
