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
use std::sync::Arc;

use crate::allocation::Allocation;
use crate::arena::Backing;
use crate::domain::Domain;
use crate::driver::Object;
use crate::error::{Error, Result};

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
/// # assert_eq!(first(&buffer, layout)?.layout(), layout);
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
/// let buffer = buffer.to_device()?; // synced: the NPU sees the sevens
/// assert_ne!(buffer.iova(), 0);
/// let buffer = buffer.to_host()?; // synced: the CPU sees what the NPU wrote
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
    pub(crate) fn whole(memory: Allocation, len: usize) -> Buffer<S> {
        Buffer::from_backing(Backing::Own(memory), len)
    }

    pub(crate) fn from_backing(backing: Backing, len: usize) -> Buffer<S> {
        Buffer { backing, len, state: PhantomData }
    }

    pub(crate) fn into_backing(self) -> (Backing, usize) {
        (self.backing, self.len)
    }

    /// The CPU's again, unless a job has not been proven ended.
    fn into_host(self) -> Result<Buffer<Host>, Unchanged<S>> {
        match self.domain().device().check() {
            Ok(()) => Ok(self.into_state()),
            Err(error) => Err(Unchanged { buffer: self, error }),
        }
    }

    fn into_state<T: State>(self) -> Buffer<T> {
        Buffer { backing: self.backing, len: self.len, state: PhantomData }
    }

    /// Where the first `len` bytes lie in the object.
    fn part(&self, len: u64) -> Result<std::ops::Range<u64>> {
        let (offset, size) = (self.backing.offset(), self.len as u64);
        if len > size {
            return Err(Error::Range { offset: 0, len, size });
        }
        Ok(offset..offset + len)
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

    /// Frees it now, and says whether that worked; dropping does the same silently, and later where another
    /// domain is active.
    ///
    /// ```
    /// let device = rknpu::Device::simulated(Default::default())?;
    /// let domain = device.domain(0)?;
    /// domain.alloc(4096)?.free()?;
    /// assert_eq!(domain.stats().used, 0);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffer back and the reason: [`Error::DomainBusy`]; [`Error::Wedged`]; [`Error::Driver`] when the
    /// driver refuses. Dropped then, it is tried once more.
    pub fn free(self) -> Result<(), Unchanged<S>> {
        let len = self.len;
        let unchanged = |(backing, error)| {
            let buffer = Buffer { backing, len, state: PhantomData };
            Unchanged { buffer, error }
        };
        self.backing.free().map_err(unchanged)
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

    /// Hands it to the NPU: syncs all of it for the device.
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
    /// there: syncs only those.
    ///
    /// ```
    /// use rknpu::sim::{Machine, Config};
    ///
    /// let machine = Machine::new(Config::default());
    /// let device = rknpu::Device::simulated_on(&machine)?;
    /// let slot = device.domain(0)?.alloc(1 << 20)?.to_device()?;
    ///
    /// let before = machine.report().to_device;
    /// let mut slot = slot.reclaim()?;
    /// slot.as_mut_slice()[..4096].fill(1); // a small weight in a large slot
    /// let slot = slot.to_device_up_to(4096)?;
    /// assert_eq!(machine.report().to_device - before, 4096);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Buffer::to_device`]; [`Error::Range`] when it is shorter.
    pub fn to_device_up_to(self, len: u64) -> Result<Buffer<OnDevice>, Unchanged<Host>> {
        match self.part(len).and_then(|range| self.backing.memory().sync_for_device(range)) {
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

    /// The object that it lies in, for a job.
    pub(crate) fn object(&self) -> Option<&Arc<Object>> {
        self.backing.memory().object()
    }
}

impl Buffer<OnDevice> {
    /// Takes it back from the NPU to read it: syncs all of it for the CPU.
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
        let range = self.part(self.len as u64);
        match range.and_then(|range| self.backing.memory().sync_for_cpu(range)) {
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
    /// let mut slot = slot.reclaim()?;
    /// slot.as_mut_slice().fill(1);
    /// let slot = slot.to_device()?;
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// The buffer back and [`Error::Wedged`]: the NPU may still write to it.
    pub fn reclaim(self) -> Result<Buffer<Host>, Unchanged<OnDevice>> {
        self.into_host()
    }
}

impl<S: State> fmt::Debug for Buffer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, len, domain) = (S::NAME, self.len, self.domain().index());
        write!(f, "Buffer<{name}>({len} bytes in domain {domain})")
    }
}
