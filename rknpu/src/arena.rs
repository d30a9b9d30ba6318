//! Large buffers that many small ones share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::allocation::{Allocation, Request, pages};
use crate::buffer::{Buffer, Host};
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::import::DmaBuf;
use crate::mapping::MappedRange;

/// One large device buffer from which smaller ones are cut, so that a weight is not a kernel object
/// each.
///
/// The parts are ordinary [`Buffer`]s with a state of their own; they start on whole pages, and a dropped
/// part's bytes can be cut again. The arena's memory lives as long as the arena or any part.
///
/// ```
/// use rknpu::Arena;
///
/// let device = rknpu::Device::simulated(Default::default())?;
/// let arena = Arena::new(&device.domain(0)?, 1 << 20)?;
/// let a = arena.alloc(5000)?;
/// let b = arena.alloc(4096)?.to_device()?;
/// assert_eq!(arena.free_bytes(), (1 << 20) - 3 * 4096);
/// drop(a);
/// assert_eq!(arena.free_bytes(), (1 << 20) - 4096);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    memory: Allocation,
    /// Free runs by offset, no two touching.
    free: Mutex<Vec<MappedRange>>,
}

impl Arena {
    /// Allocates `len` bytes, in whole pages.
    ///
    /// ```
    /// use rknpu::{Arena, Device};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let arena = Arena::new(&device.domain(0)?, 100_000)?;
    /// assert_eq!(arena.capacity(), 25 * 4096);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Domain::alloc`]; [`Error::Driver`] when the first sync fails.
    pub fn new(domain: &Domain, len: usize) -> Result<Arena> {
        let mut memory = Allocation::create(domain, &Request::new(len as u64))?;
        let size = memory.size();
        memory.sync_for_device(0..size)?;
        let free = Mutex::new(memory.take_range().into_iter().collect());
        Ok(Arena(Arc::new(Inner { memory, free })))
    }

    /// Cuts a buffer of `len` bytes from the first free run that is long enough. It contains what was
    /// last written there.
    ///
    /// ```
    /// use rknpu::{Arena, Device, Error};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let arena = Arena::new(&device.domain(0)?, 1 << 20)?;
    /// let most = arena.alloc(1 << 19)?;
    /// let error = arena.alloc((1 << 19) + 1).unwrap_err();
    /// assert!(matches!(error, Error::ArenaFull { largest: 0x8_0000, .. }));
    /// # drop(most);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Size`] for 0 bytes; [`Error::ArenaFull`]; [`Error::Wedged`]: what is free here the NPU may still
    /// write to.
    pub fn alloc(&self, len: usize) -> Result<Buffer<Host>> {
        let capacity = self.capacity();
        if len == 0 || len as u64 > capacity {
            return Err(Error::Size { requested: len as u64, limit: capacity });
        }
        self.domain().device().check()?;
        let size = pages(len as u64) as usize;
        let mut free = self.0.free();
        let Some(at) = free.iter().position(|span| span.len() >= size) else {
            let lens = || free.iter().map(|span| span.len() as u64);
            return Err(Error::ArenaFull {
                requested: size as u64,
                free: lens().sum(),
                capacity,
                largest: lens().max().unwrap_or(0),
            });
        };
        let (span, rest) = free.remove(at).split(size);
        if !rest.is_empty() {
            free.insert(at, rest);
        }
        drop(free);
        let part = Part { arena: Arc::clone(&self.0), span: Some(span) };
        Ok(Buffer::from_backing(Backing::Part(part), len))
    }

    /// Bytes in all.
    ///
    /// ```
    /// use rknpu::{Arena, Device};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let arena = Arena::new(&device.domain(0)?, 8192)?;
    /// assert_eq!(arena.capacity(), 8192);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn capacity(&self) -> u64 {
        self.0.memory.size()
    }

    /// Bytes in no part.
    ///
    /// ```
    /// use rknpu::{Arena, Device};
    ///
    /// let device = Device::simulated(Default::default())?;
    /// let arena = Arena::new(&device.domain(0)?, 8192)?;
    /// let part = arena.alloc(1)?; // a page
    /// assert_eq!(arena.free_bytes(), 4096);
    /// # drop(part);
    /// # Ok::<(), rknpu::Error>(())
    /// ```
    pub fn free_bytes(&self) -> u64 {
        self.0.free().iter().map(|span| span.len() as u64).sum()
    }

    /// The domain it is in.
    pub(crate) fn domain(&self) -> &Domain {
        self.0.memory.domain()
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} of {} bytes free)", self.free_bytes(), self.capacity())
    }
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, Vec<MappedRange>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part's bytes back and joins them with their neighbours.
    fn take_back(&self, span: MappedRange) {
        let mut free = self.free();
        let at = free.partition_point(|other| other.offset() < span.offset());
        free.insert(at, span);
        for first in [at, at.saturating_sub(1)] {
            if first + 1 >= free.len() {
                continue;
            }
            let (a, b) = (free.remove(first), free.remove(first));
            match a.join(b) {
                Ok(joined) => free.insert(first, joined),
                Err((a, b)) => {
                    free.insert(first, b);
                    free.insert(first, a);
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        // No part lives any more, so the runs have all been joined into one.
        if let Some(span) = free.pop() {
            self.memory.give_range(span);
        }
    }
}

/// Where a buffer's memory is.
#[derive(Debug)]
pub(crate) enum Backing {
    /// An object of its own.
    Own(Allocation),
    /// A part of an arena.
    Part(Part),
    /// Memory of another driver, mapped for the NPU.
    Imported(Allocation, Box<DmaBuf>),
}

/// A part of an arena.
pub(crate) struct Part {
    arena: Arc<Inner>,
    /// Absent only while it is dropped.
    span: Option<MappedRange>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?})", self.span)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.arena.take_back(span);
        }
    }
}

impl Backing {
    pub(crate) fn memory(&self) -> &Allocation {
        match self {
            Backing::Own(memory) | Backing::Imported(memory, _) => memory,
            Backing::Part(part) => &part.arena.memory,
        }
    }

    /// Gives it back now.
    pub(crate) fn free(self) -> Result<(), (Backing, Error)> {
        match self {
            Backing::Own(memory) => {
                memory.free().map_err(|(memory, error)| (Backing::Own(memory), error))
            }
            Backing::Imported(memory, dma_buf) => {
                memory.free().map_err(|(memory, error)| (Backing::Imported(memory, dma_buf), error))
            }
            // The arena has it back.
            Backing::Part(_) => Ok(()),
        }
    }

    /// First byte in the object.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Backing::Own(_) | Backing::Imported(..) => 0,
            Backing::Part(part) => part.span.as_ref().map_or(0, |span| span.offset() as u64),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Backing::Own(memory) => memory.bytes(),
            Backing::Imported(..) => &[],
            Backing::Part(part) => part.span.as_ref().map_or(&[], MappedRange::bytes),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Backing::Own(memory) => memory.bytes_mut(),
            Backing::Imported(..) => &mut [],
            Backing::Part(part) => match &mut part.span {
                Some(span) => span.bytes_mut(),
                None => &mut [],
            },
        }
    }
}
