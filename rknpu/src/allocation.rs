//! One allocation in a domain: the object, its mapping, its place in the books, and its way back to the driver.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use crate::device::Entered;
use crate::domain::{Domain, PAGE};
use crate::driver::{
    Allocate, Caching, Driver, MappedRange, Object, PROGRAM_ENTRY, Part, Program, Purpose, Refused,
};
use crate::error::{Call, Error, Result};

/// What to allocate, and what checks come before the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) size: u64,
    pub(crate) purpose: Purpose,
    /// Maps it for the CPU.
    pub(crate) map: bool,
    /// Refuses by the books what cannot fit; only a probe of the driver's own answer goes without.
    pub(crate) books: bool,
    pub(crate) caching: Caching,
}

impl Request {
    pub(crate) fn new(size: u64) -> Request {
        let (purpose, caching) = (Purpose::Data, Caching::Cached);
        Request { size, purpose, map: true, books: true, caching }
    }

    /// For a list of so many programs.
    pub(crate) fn programs(count: usize) -> Request {
        Request { purpose: Purpose::Programs, ..Request::new((count * PROGRAM_ENTRY) as u64) }
    }
}

/// An object, its mapping and its place in a domain's books, without a state.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Absent only while it is dropped.
    parts: Option<Parts>,
    domain: Domain,
}

#[derive(Debug)]
struct Parts {
    /// Shared with a job while it runs.
    object: Arc<Object>,
    /// Absent for memory that the CPU never sees, and when an arena has taken it.
    range: Option<MappedRange>,
}

impl Allocation {
    pub(crate) fn create(domain: &Domain, request: &Request) -> Result<Allocation> {
        let device = domain.device();
        device.check()?;
        let size = domain.size(request)?;
        let _entered = device.enter_for_memory(domain.index())?;
        domain.admit(size, request)?;
        let driver = device.driver();
        let Request { purpose, caching, .. } = *request;
        let mut object = driver
            .allocate(&Allocate { space: domain.index(), size, purpose, caching })
            .map_err(|refused| domain.refused(size, refused))?;
        let range = if request.map { driver.map(&mut object).map(Some) } else { Ok(None) };
        let (range, failed) = match range {
            Ok(range) => (range, None),
            Err(refused) => (None, Some(refused.on(domain.index(), size))),
        };
        let memory = Allocation::adopt(domain, object, range);
        failed.map_or(Ok(memory), Err)
    }

    /// Takes an object over that is in this domain.
    pub(crate) fn adopt(domain: &Domain, object: Object, range: Option<MappedRange>) -> Allocation {
        domain.mapped(&object);
        let parts = Parts { object: Arc::new(object), range };
        Allocation { parts: Some(parts), domain: domain.clone() }
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn iova(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| parts.object.iova())
    }

    pub(crate) fn size(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| parts.object.size())
    }

    /// The object, for a job.
    pub(crate) fn object(&self) -> Option<&Arc<Object>> {
        self.parts.as_ref().map(|parts| &parts.object)
    }

    /// Takes the claim on the mapping; whoever takes it gives it back before the memory goes.
    pub(crate) fn take_range(&mut self) -> Option<MappedRange> {
        self.parts.as_mut().and_then(|parts| parts.range.take())
    }

    pub(crate) fn give_range(&mut self, range: MappedRange) {
        if let Some(parts) = &mut self.parts {
            parts.range = Some(range);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let range = self.parts.as_ref().and_then(|parts| parts.range.as_ref());
        range.map_or(&[], MappedRange::bytes)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.parts.as_mut().and_then(|parts| parts.range.as_mut()) {
            Some(range) => range.bytes_mut(),
            None => &mut [],
        }
    }

    /// Gives it back to the driver now.
    pub(crate) fn free(mut self) -> Result<(), (Allocation, Error)> {
        let device = self.domain.device().clone();
        let index = self.domain.index();
        let entered = match device.check().and_then(|()| device.enter_for_memory(index)) {
            Ok(entered) => entered,
            Err(error) => return Err((self, error)),
        };
        let Some(Parts { object, range }) = self.parts.take() else { return Ok(()) };
        let freed = ToFree { object, range, domain: self.domain.clone() }.free();
        drop(entered);
        freed.map_err(|(object, refused)| {
            let error = refused.on(index, object.size());
            self.parts = Some(Parts { object, range: None });
            (self, error)
        })
    }

    /// Writes an entry of a list of programs.
    pub(crate) fn write_program(&mut self, index: usize, program: &Program) {
        let Some(parts) = &mut self.parts else { return };
        let entries = parts.range.as_mut().map(MappedRange::bytes_mut).unwrap_or_default();
        if let Some(entry) = entries.chunks_exact_mut(PROGRAM_ENTRY).nth(index) {
            self.domain.device().driver().write_program(entry, program);
        }
    }

    /// Shows the NPU what the CPU wrote to a range.
    pub(crate) fn sync_for_device(&self, range: Range<u64>) -> Result<()> {
        let device = self.domain.device();
        device.check()?;
        let entered = device.enter_for_memory(self.domain.index())?;
        self.sync_for_device_inside(range, &entered)
    }

    /// Shows the CPU what the NPU wrote to a range.
    pub(crate) fn sync_for_cpu(&self, range: Range<u64>) -> Result<()> {
        let device = self.domain.device();
        device.check()?;
        let entered = device.enter_for_memory(self.domain.index())?;
        self.sync_for_cpu_inside(range, &entered)
    }

    /// As [`Allocation::sync_for_device`], in a domain that has been entered already.
    pub(crate) fn sync_for_device_inside(&self, range: Range<u64>, _: &Entered) -> Result<()> {
        self.sync(range, |driver, part| driver.sync_for_device(part))
    }

    /// As [`Allocation::sync_for_cpu`], in a domain that has been entered already.
    pub(crate) fn sync_for_cpu_inside(&self, range: Range<u64>, _: &Entered) -> Result<()> {
        self.sync(range, |driver, part| driver.sync_for_cpu(part))
    }

    fn sync(
        &self,
        range: Range<u64>,
        sync: impl FnOnce(&dyn Driver, &Part<'_>) -> Result<(), Refused>,
    ) -> Result<()> {
        let Some(Parts { object, .. }) = &self.parts else { return Ok(()) };
        let (offset, len) = (range.start, range.end.saturating_sub(range.start));
        let size = object.size();
        let part = object.part(range).ok_or(Error::Range { offset, len, size })?;
        sync(self.domain.device().driver(), &part)
            .map_err(|refused| refused.on(self.domain.index(), len))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(Parts { object, range }) = self.parts.take() else { return };
        let to_free = ToFree { object, range, domain: self.domain.clone() };
        self.domain.device().free(to_free);
    }
}

/// Memory on its way back to the driver.
#[derive(Debug)]
pub(crate) struct ToFree {
    object: Arc<Object>,
    range: Option<MappedRange>,
    domain: Domain,
}

impl ToFree {
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.object.size()
    }

    /// Unmaps and frees. The domain has been entered, or nobody works in another.
    fn free(self) -> Result<(), (Arc<Object>, Refused)> {
        let ToFree { object, range, domain } = self;
        let iova = object.iova();
        match Arc::try_unwrap(object) {
            Ok(object) => {
                drop(range);
                let freed = domain.device().driver().free(object);
                freed.map_err(|(object, refused)| (Arc::new(object), refused))?;
                domain.unmapped(iova);
                Ok(())
            }
            Err(object) => {
                // A job still runs on it, whose handle was forgotten: never freed under the NPU.
                std::mem::forget(range);
                Err((object, Refused { call: Call::Destroy, errno: Errno::BUSY }))
            }
        }
    }

    /// As [`ToFree::free`], where nobody is to be told.
    pub(crate) fn free_or_record(self) {
        let (domain, bytes) = (self.domain.clone(), self.bytes());
        if let Err((_, refused)) = self.free() {
            let record = domain.device().record();
            record.incident(refused.call, domain.index(), bytes, refused.errno);
            record.leaked(bytes);
        }
    }
}

/// Rounds up to whole pages.
pub(crate) fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}
