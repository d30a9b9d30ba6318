//! Leases on IOMMU domains.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::allocation::{Allocation, Request};
use crate::buffer::{Buffer, Host};
use crate::device::{Device, Entered};
use crate::driver::{Object, Refused};
use crate::error::{Call, Error, Result, no_memory};
use crate::limits;

/// Bytes of a page, the granule of every size here.
pub(crate) const PAGE: u64 = rknpu_sys::layout::PAGE;

/// A lease on one of the device's IOMMU domains: an address space of 4 GiB − 4 KiB for the NPU.
///
/// Clones are the same lease; when the last goes, with the last buffer in it, the index can be leased
/// again. Every buffer of a job must be in one domain, and the device works in one domain at a time.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let domain = device.domain(3)?;
/// let buffer = domain.alloc(1 << 20)?;
/// let stats = domain.stats();
/// assert_eq!((stats.used, stats.buffers, stats.capacity), (1 << 20, 1, (1 << 32) - 4096));
/// drop(buffer);
/// assert_eq!((domain.stats().used, domain.stats().peak), (0, 1 << 20));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone)]
pub struct Domain(Arc<Lease>);

struct Lease {
    device: Device,
    index: u32,
    books: Mutex<Books>,
}

/// What this process has mapped in a domain.
#[derive(Debug, Default)]
struct Books {
    /// Size of every mapped buffer, by its first address.
    mapped: BTreeMap<u64, u64>,
    used: u64,
    peak: u64,
}

/// A domain's account.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let domain = device.domain(0)?;
/// let _weights = domain.alloc(1 << 30)?;
/// let stats = domain.stats();
/// assert_eq!(stats.largest_free, stats.capacity - (1 << 30));
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DomainStats {
    /// Bytes mapped now, in whole pages.
    pub used: u64,
    /// Most bytes mapped at once.
    pub peak: u64,
    /// Buffers mapped now.
    pub buffers: usize,
    /// Bytes that can be mapped.
    pub capacity: u64,
    /// Longest run of free addresses.
    pub largest_free: u64,
}

impl Domain {
    pub(crate) fn lease(device: Device, index: u32) -> Domain {
        Domain(Arc::new(Lease { device, index, books: Mutex::default() }))
    }

    /// Index, from 0.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert_eq!(device.domain(9)?.index(), 9);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn index(&self) -> u32 {
        self.0.index
    }

    /// The device that it belongs to.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// assert!(device.domain(0)?.device().health().is_good());
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether both are the same lease.
    pub(crate) fn is(&self, other: &Domain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Allocates a buffer of `len` bytes, zeroed, for the CPU to write.
    ///
    /// The memory is cached for the CPU; a change of state ([`Buffer::to_device`]) does what coherence
    /// needs.
    ///
    /// ```
    /// use rknpu::{Device, Error};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// assert_eq!(domain.alloc(100)?.as_slice(), [0; 100]);
    /// assert!(matches!(domain.alloc(0), Err(Error::Size { requested: 0, .. })));
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Size`] for 0 or more than a domain maps; [`Error::IovaExhausted`] when no run of addresses
    /// is that long, told from this process's books before the driver is asked: a failing driver
    /// would first allocate and zero every page. [`Error::DomainBusy`] when this thread keeps another
    /// domain active.
    pub fn alloc(&self, len: usize) -> Result<Buffer<Host>> {
        Allocation::create(self, &Request::new(len as u64)).map(|memory| Buffer::whole(memory, len))
    }

    /// Keeps this domain active until the guard goes: work in other domains waits, so that a batch of
    /// jobs costs one switch.
    ///
    /// # Errors
    /// [`Error::DomainBusy`] when this thread keeps another domain active; [`Error::Wedged`].
    ///
    /// ```
    /// use rknpu::Error;
    ///
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let (a, b) = (device.domain(0)?, device.domain(1)?);
    /// let active = a.enter()?;
    /// assert!(matches!(b.alloc(4096), Err(Error::DomainBusy { active: 0, wanted: 1 })));
    /// drop(active);
    /// assert!(b.alloc(4096).is_ok());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn enter(&self) -> Result<Active> {
        let entered = self.0.device.hold(self.0.index)?;
        Ok(Active { _entered: entered, domain: self.clone(), thread: PhantomData })
    }

    /// What is mapped.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let _buffer = domain.alloc(5000)?;
    /// assert_eq!(domain.stats().used, 8192); // whole pages
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn stats(&self) -> DomainStats {
        let books = self.books();
        DomainStats {
            used: books.used,
            peak: books.peak,
            buffers: books.mapped.len(),
            capacity: limits::DOMAIN,
            largest_free: books.largest_free(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size in whole pages, if any buffer can have it.
    pub(crate) fn size(&self, request: &Request) -> Result<u64> {
        let requested = request.size;
        let limit = self.0.device.capabilities().spaces.largest;
        if requested == 0 || requested > limit {
            return Err(Error::Size { requested, limit });
        }
        Ok(requested.next_multiple_of(PAGE))
    }

    /// Refuses what the books say cannot fit. The domain has been entered, so that what was to be freed
    /// in it has been.
    pub(crate) fn admit(&self, size: u64, request: &Request) -> Result<()> {
        if request.books && size > self.books().largest_free() {
            return Err(self.exhausted(size, None));
        }
        Ok(())
    }

    /// The error that a refused allocation means.
    pub(crate) fn refused(&self, size: u64, refused: Refused) -> Error {
        let Refused { call, errno } = refused;
        match errno {
            Errno::FAULT => self.exhausted(size, Some(errno)),
            Errno::INVAL if call == Call::Create && !self.0.device.capabilities().iommu => {
                Error::NoContiguousMemory { requested: size, errno }
            }
            _ => no_memory(call, self.0.index, size, errno),
        }
    }

    fn exhausted(&self, requested: u64, errno: Option<Errno>) -> Error {
        let stats = self.stats();
        Error::IovaExhausted {
            domain: self.0.index,
            requested,
            used: stats.used,
            capacity: stats.capacity,
            largest_free: stats.largest_free,
            aligned: !self.0.device.capabilities().unaligned_iova,
            errno,
        }
    }

    pub(crate) fn mapped(&self, object: &Object) {
        let mut books = self.books();
        books.mapped.insert(object.iova(), object.size());
        books.used += object.size();
        books.peak = books.peak.max(books.used);
    }

    pub(crate) fn unmapped(&self, iova: u64) {
        let mut books = self.books();
        if let Some(size) = books.mapped.remove(&iova) {
            books.used -= size;
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("index", &self.0.index)
            .field("stats", &self.stats())
            .finish()
    }
}

impl Books {
    /// Longest run of addresses between mapped buffers, from the second page up to 4 GiB.
    fn largest_free(&self) -> u64 {
        let (mut at, mut largest) = (PAGE, 0);
        for (&iova, size) in &self.mapped {
            largest = largest.max(iova.saturating_sub(at));
            at = at.max(iova.saturating_add(*size));
        }
        largest.max((1u64 << 32).saturating_sub(at))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.device.return_domain(self.index);
    }
}

/// Keeps a domain active; see [`Domain::enter`]. Bound to its thread.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let domain = device.domain(1)?;
/// let active = domain.enter()?;
/// let switches = device.stats().domain_switches;
/// for _ in 0..10 {
///     let _buffer = domain.alloc(4096)?;
/// }
/// assert_eq!(device.stats().domain_switches, switches); // none in between
/// drop(active);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[must_use = "the domain is active only as long as the guard lives"]
pub struct Active {
    _entered: Entered,
    domain: Domain,
    thread: PhantomData<*const ()>,
}

impl Active {
    /// The domain.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let active = device.domain(1)?.enter()?;
    /// assert_eq!(active.domain().index(), 1);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

impl fmt::Debug for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Active({})", self.domain.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_gap_is_between_buffers_or_below_them() {
        let mut books = Books::default();
        assert_eq!(books.largest_free(), limits::DOMAIN);
        books.mapped.insert(0xffff_f000, 0x1000);
        assert_eq!(books.largest_free(), limits::DOMAIN - 0x1000);
        books.mapped.insert(0x1000, 0x1000);
        books.mapped.insert(0x8000_0000, 0x4000_0000);
        assert_eq!(books.largest_free(), 0x8000_0000 - 0x2000);
        books.mapped.insert(0x2000, 0x7fff_e000);
        assert_eq!(books.largest_free(), 0x3fff_f000);
    }
}
