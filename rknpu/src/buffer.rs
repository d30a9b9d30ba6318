//! Buffers that CPU and NPU hand to each other.
//!
//! The state is a type parameter: [`Host`], [`OnDevice`], [`ReadOnly`] or [`Imported`]. Functions that only need
//! to know where a buffer is take any [`NpuReadable`] one.
//!
//! ```
//! use rknpu::buffer::{Buffer, NpuReadable};
//!
//! fn end(buffer: &Buffer<impl NpuReadable>) -> u64 {
//!     buffer.iova() + buffer.len() as u64
//! }
//!
//! let device = rknpu::Device::simulated(Default::default())?;
//! let buffer = device.domain(0)?.alloc(4096)?.to_device()?;
//! assert_eq!(end(&buffer), 0xffff_f000 + 4096);
//! # Ok::<(), rknpu::Error>(())
//! ```

mod read_only;

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use rknpu_sys::flags::SyncFlags;

use crate::arena::Backing;
use crate::device::Entered;
use crate::domain::{Domain, PAGE, Request};
use crate::driver::{Mapping, Object};
use crate::error::{Call, Error, Result};
use crate::mapping::MappedRange;

pub use read_only::ReadOnly;

/// State of a buffer that the CPU may touch.
///
/// ```
/// use rknpu::{Buffer, Host};
///
/// /// Only the CPU's buffers can be written.
/// fn clear(buffer: &mut Buffer<Host>) {
///     buffer.as_mut_slice().fill(0);
/// }
/// # let device = rknpu::Device::simulated(Default::default())?;
/// # clear(&mut device.domain(0)?.alloc(4096)?);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Host {}

/// State of a buffer that the NPU may touch.
///
/// ```
/// use rknpu::{Buffer, OnDevice};
///
/// /// Weights that stay where the NPU reads them.
/// struct NpuReadable {
///     weights: Vec<Buffer<OnDevice>>,
/// }
/// # let device = rknpu::Device::simulated(Default::default())?;
/// let resident = NpuReadable { weights: vec![device.domain(0)?.alloc(4096)?.to_device()?] };
/// assert_eq!(resident.weights[0].len(), 4096);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum OnDevice {}

/// State of memory that another driver made and the NPU may touch; see
/// [`Domain::import`](crate::Domain::import).
#[derive(Clone, Copy, Debug)]
pub enum Imported {}

/// The states of a [`Buffer`].
pub trait State: sealed::Sealed {}
impl State for Host {}
impl State for OnDevice {}
impl State for Imported {}

/// The states in which the NPU may touch a buffer.
///
/// ```
/// use rknpu::buffer::{Buffer, NpuReadable};
/// use rknpu::{Layout, WeightRef};
///
/// /// Device memory or imported memory: a weight may lie in either.
/// fn first<S: NpuReadable>(buffer: &Buffer<S>, layout: Layout) -> rknpu::Result<WeightRef<'_>> {
///     WeightRef::new(buffer, 0, layout)
/// }
/// # let device = rknpu::Device::simulated(Default::default())?;
/// # let layout = Layout::new(32, 32, rknpu::Precision::Int8)?;
/// # let buffer = device.domain(0)?.alloc(4096)?.to_device()?;
/// # assert_eq!(first(&buffer, layout)?.iova(), buffer.iova());
/// # Ok::<(), rknpu::Error>(())
/// ```
pub trait NpuReadable: State {}
impl NpuReadable for OnDevice {}
impl NpuReadable for Imported {}

mod sealed {
    pub trait Sealed {
        const NAME: &'static str;
    }

    impl Sealed for super::Host {
        const NAME: &'static str = "Host";
    }

    impl Sealed for super::OnDevice {
        const NAME: &'static str = "OnDevice";
    }

    impl Sealed for super::Imported {
        const NAME: &'static str = "Imported";
    }
}

/// Device memory in one of two states: the CPU's ([`Host`]) or the NPU's ([`OnDevice`]).
///
/// A change of state consumes the buffer and does the cache maintenance, so neither can be
/// forgotten. A buffer keeps its domain leased and its device open; dropping it frees memory and
/// addresses, at once or as soon as no job of another domain runs.
///
/// ```
/// let device = rknpu::Device::simulated(Default::default())?;
/// let mut buffer = device.domain(0)?.alloc(4096)?;
/// buffer.as_mut_slice().fill(7);
/// let buffer = buffer.to_device()?; // cleaned: the NPU sees the sevens
/// assert_ne!(buffer.iova(), 0);
/// let buffer = buffer.to_host()?; // invalidated: the CPU sees what the NPU wrote
/// assert_eq!(buffer.as_slice()[0], 7);
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// The CPU cannot look into a buffer that the NPU may write:
///
/// ```compile_fail,E0599
/// let device = rknpu::Device::simulated(Default::default())?;
/// let buffer = device.domain(0)?.alloc(4096)?.to_device()?;
/// buffer.as_slice(); // there are no slices of a `Buffer<OnDevice>`
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// nor use it after handing it over:
///
/// ```compile_fail,E0382
/// let device = rknpu::Device::simulated(Default::default())?;
/// let buffer = device.domain(0)?.alloc(4096)?;
/// let on_device = buffer.to_device()?;
/// buffer.as_slice(); // moved
/// # Ok::<(), rknpu::Error>(())
/// ```
///
/// and the NPU gets no address of a buffer that the CPU may write:
///
/// ```compile_fail,E0599
/// let device = rknpu::Device::simulated(Default::default())?;
/// device.domain(0)?.alloc(4096)?.iova();
/// # Ok::<(), rknpu::Error>(())
/// ```
#[must_use = "dropping a buffer frees it"]
pub struct Buffer<S: State> {
    backing: Backing,
    len: usize,
    state: PhantomData<fn() -> S>,
}

/// A change of state that failed: the buffer as it was, and why.
///
/// ```
/// use rknpu::{Device, Error};
///
/// let device = Device::simulated(Default::default())?;
/// let (a, b) = (device.domain(0)?, device.domain(1)?);
/// let buffer = a.alloc(4096)?;
/// let active = b.enter()?;
/// let unchanged = buffer.to_device().unwrap_err();
/// assert!(matches!(unchanged.error, Error::DomainBusy { .. }));
/// drop(active);
/// let buffer = unchanged.buffer.to_device()?; // nothing was lost
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unchanged<S: State> {
    /// The buffer, in its old state.
    pub buffer: Buffer<S>,
    /// Why.
    #[source]
    pub error: Error,
}

impl<S: State> From<Unchanged<S>> for Error {
    /// Drops the buffer.
    fn from(unchanged: Unchanged<S>) -> Error {
        unchanged.error
    }
}

impl<S: State> Buffer<S> {
    pub(crate) fn whole(memory: Memory, len: usize) -> Buffer<S> {
        Buffer::from_backing(Backing::Own(memory), len)
    }

    pub(crate) fn from_backing(backing: Backing, len: usize) -> Buffer<S> {
        Buffer { backing, len, state: PhantomData }
    }

    fn into_state<T: State>(self) -> Buffer<T> {
        Buffer { backing: self.backing, len: self.len, state: PhantomData }
    }

    /// Bytes, as asked for.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let buffer = device.domain(0)?.alloc(5000)?;
    /// assert_eq!(buffer.len(), 5000); // the domain maps two pages
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none; a buffer from [`Domain::alloc`] always has some.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The domain it is in.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let buffer = device.domain(2)?.alloc(4096)?;
    /// assert_eq!(buffer.domain().index(), 2);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn domain(&self) -> &Domain {
        self.backing.memory().domain()
    }
}

impl Buffer<Host> {
    /// The contents.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let buffer = device.domain(0)?.alloc(4096)?;
    /// assert_eq!(buffer.as_slice(), [0; 4096]);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn as_slice(&self) -> &[u8] {
        self.backing.bytes().get(..self.len).unwrap_or_default()
    }

    /// The contents, to write.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let mut buffer = device.domain(0)?.alloc(4096)?;
    /// buffer.as_mut_slice()[..4].copy_from_slice(&[1, 2, 3, 4]);
    /// assert_eq!(buffer.as_slice()[..5], [1, 2, 3, 4, 0]);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len;
        self.backing.bytes_mut().get_mut(..len).unwrap_or_default()
    }

    /// Hands it to the NPU: cleans the CPU's caches over all of it.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let mut buffer = device.domain(0)?.alloc(4096)?;
    /// buffer.as_mut_slice().fill(1);
    /// let buffer = buffer.to_device()?;
    /// assert_eq!(buffer.iova() % 4096, 0);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffer back and the reason: [`Error::Driver`], or [`Error::DomainBusy`] when this thread
    /// keeps another domain active.
    pub fn to_device(self) -> Result<Buffer<OnDevice>, Unchanged<Host>> {
        let len = self.len as u64;
        self.to_device_up_to(len)
    }

    /// Hands it to the NPU, of which only the first `len` bytes have been written since it was last
    /// there: cleans only those.
    ///
    /// ```
    /// use rknpu::sim::{Machine, Config};
    ///
    /// let machine = Machine::new(Config::default());
    /// let device = rknpu::Device::simulated_on(&machine)?;
    /// let slot = device.domain(0)?.alloc(1 << 20)?.to_device()?;
    ///
    /// let before = machine.report().to_device;
    /// let mut slot = slot.reclaim();
    /// slot.as_mut_slice()[..4096].fill(1); // a small weight in a large slot
    /// let slot = slot.to_device_up_to(4096)?;
    /// assert_eq!(machine.report().to_device - before, 4096);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Buffer::to_device`]; [`Error::Range`] when it is shorter.
    pub fn to_device_up_to(mut self, len: u64) -> Result<Buffer<OnDevice>, Unchanged<Host>> {
        match self.backing.clean(0..len) {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Unchanged { buffer: self, error }),
        }
    }
}

impl<S: NpuReadable> Buffer<S> {
    /// First address at which the NPU sees it, in its domain; a multiple of 4096.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// let (a, b) = (domain.alloc(4096)?.to_device()?, domain.alloc(4096)?.to_device()?);
    /// assert_eq!(a.iova() - b.iova(), 4096); // from the top downwards
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn iova(&self) -> u64 {
        self.backing.memory().iova() + self.backing.offset()
    }
}

impl Buffer<OnDevice> {
    /// Takes it back from the NPU to read it: invalidates the CPU's caches over all of it.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let buffer = device.domain(0)?.alloc(4096)?.to_device()?;
    /// // ... a job writes to it ...
    /// let results = buffer.to_host()?;
    /// assert_eq!(results.as_slice().len(), 4096);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Buffer::to_device`].
    pub fn to_host(self) -> Result<Buffer<Host>, Unchanged<OnDevice>> {
        let offset = self.backing.offset();
        let range = offset..offset + self.len as u64;
        match self.backing.memory().sync(SyncFlags::FROM_DEVICE, range) {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Unchanged { buffer: self, error }),
        }
    }

    /// Takes it back to overwrite it: no call to the driver. What it contains then is unspecified until
    /// it is written; only what is written may be read.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let slot = device.domain(0)?.alloc(4096)?.to_device()?;
    /// let mut slot = slot.reclaim();
    /// slot.as_mut_slice().fill(1);
    /// let slot = slot.to_device()?;
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn reclaim(self) -> Buffer<Host> {
        self.into_state()
    }
}

impl<S: State> fmt::Debug for Buffer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, len, domain) = (S::NAME, self.len, self.domain().index());
        write!(f, "Buffer<{name}>({len} bytes in domain {domain})")
    }
}

/// An object, its mapping and its place in a domain's books, without a state.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Absent only while it is dropped.
    parts: Option<Parts>,
    domain: Domain,
    /// The NPU has never been given it: the first clean must be preceded by another.
    fresh: bool,
}

#[derive(Debug)]
struct Parts {
    /// Shared with a job while it runs.
    object: Arc<Object>,
    /// Absent for memory that the CPU never sees, and when an arena has taken it.
    span: Option<MappedRange>,
}

impl Memory {
    pub(crate) fn create(domain: &Domain, request: &Request) -> Result<Memory> {
        let device = domain.device();
        device.check()?;
        let size = domain.size(request)?;
        let _entered = device.enter_for_memory(domain.index())?;
        domain.admit(size, request)?;
        let driver = device.driver();
        let create = domain.create_args(size, request);
        let object = driver.create(&create).map_err(|errno| domain.create_error(size, errno))?;
        let mut memory = Memory::adopt(domain, object);
        if request.map {
            memory.map()?;
        }
        Ok(memory)
    }

    /// Takes an object over that is in this domain.
    pub(crate) fn adopt(domain: &Domain, object: Object) -> Memory {
        let object = Arc::new(object);
        domain.mapped(&object);
        let parts = Parts { object, span: None };
        Memory { parts: Some(parts), domain: domain.clone(), fresh: true }
    }

    fn map(&mut self) -> Result<()> {
        let domain = self.domain.index();
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let bytes = parts.object.size();
        let mapping = self
            .domain
            .device()
            .driver()
            .map(&parts.object)
            .map_err(|errno| Error::Driver { call: Call::Map, domain, bytes, errno })?;
        parts.span = Some(MappedRange::whole(mapping));
        Ok(())
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
        self.parts.as_mut().and_then(|parts| parts.span.take())
    }

    pub(crate) fn give_range(&mut self, span: MappedRange) {
        if let Some(parts) = &mut self.parts {
            parts.span = Some(span);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.parts.as_ref().and_then(|parts| parts.span.as_ref()).map_or(&[], MappedRange::bytes)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self.parts.as_mut().and_then(|parts| parts.span.as_mut()) {
            Some(span) => span.bytes_mut(),
            None => &mut [],
        }
    }

    /// Cleans a range for the NPU. The first time, all of it and twice: what a fresh buffer's pages left
    /// in the caches would otherwise overwrite the NPU's results later, and a single clean has been seen
    /// to wedge the next submit.
    pub(crate) fn clean(&mut self, range: Range<u64>) -> Result<()> {
        if self.fresh {
            let all = 0..self.size();
            self.sync(SyncFlags::TO_DEVICE | SyncFlags::FROM_DEVICE, all.clone())?;
            self.sync(SyncFlags::TO_DEVICE, all)?;
            self.fresh = false;
            return Ok(());
        }
        self.sync(SyncFlags::TO_DEVICE, range)
    }

    /// Cache maintenance over a range.
    pub(crate) fn sync(&self, flags: SyncFlags, range: Range<u64>) -> Result<()> {
        let device = self.domain.device();
        device.check()?;
        let entered = device.enter_for_memory(self.domain.index())?;
        self.sync_inside(flags, range, &entered)
    }

    /// Cache maintenance over a range, in a domain that has been entered already.
    pub(crate) fn sync_inside(
        &self,
        flags: SyncFlags,
        range: Range<u64>,
        _: &Entered,
    ) -> Result<()> {
        let Some(parts) = &self.parts else { return Ok(()) };
        let (offset, size) = (range.start, parts.object.size());
        let len = range.end.saturating_sub(offset);
        if range.end > size || offset > range.end {
            return Err(Error::Range { offset, len, size });
        }
        if len == 0 {
            return Ok(());
        }
        let domain = self.domain.index();
        let driver = self.domain.device().driver();
        driver.sync(&parts.object, flags, offset, len).map_err(|errno| Error::Driver {
            call: Call::Sync,
            domain,
            bytes: len,
            errno,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(Parts { object, span }) = self.parts.take() else { return };
        let to_free = ToFree { object, span, domain: self.domain.clone() };
        self.domain.device().free(to_free);
    }
}

/// Memory on its way back to the driver.
#[derive(Debug)]
pub(crate) struct ToFree {
    object: Arc<Object>,
    span: Option<MappedRange>,
    domain: Domain,
}

impl ToFree {
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Unmaps and destroys. The domain has been entered, or nobody works in another.
    pub(crate) fn free(self) {
        let ToFree { object, span, domain } = self;
        let (device, index) = (domain.device(), domain.index());
        let bytes = object.size();
        let record = device.record();
        let Some(object) = Arc::into_inner(object) else {
            // A job still runs on it, whose handle was forgotten: never freed under the NPU.
            std::mem::forget(span);
            return record.leaked(bytes);
        };
        // The mapping first: while it lives, the addresses stay taken.
        let mapping = match span.map(MappedRange::into_mapping) {
            // Somebody still has a claim on a part of it.
            Some(None) => return record.leaked(bytes),
            Some(mapping) => mapping,
            None => None,
        };
        let iova = object.iova();
        let unmapped = mapping.map_or(Ok(()), Mapping::release);
        if let Err(errno) = unmapped {
            record.incident(Call::Unmap, index, bytes, errno);
            record.leaked(bytes);
        }
        match device.driver().destroy(object) {
            Ok(()) if unmapped.is_ok() => domain.unmapped(iova),
            // While it is mapped, the driver keeps its memory and addresses.
            Ok(()) => {}
            Err((_, errno)) => {
                record.incident(Call::Destroy, index, bytes, errno);
                record.leaked(bytes);
            }
        }
    }

    /// Keeps it until the process ends: the NPU may still write to it.
    pub(crate) fn leak(self) {
        self.domain.device().record().leaked(self.object.size());
        std::mem::forget(self);
    }
}

/// Rounds up to whole pages.
pub(crate) fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}
