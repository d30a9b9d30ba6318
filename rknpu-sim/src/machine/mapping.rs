//! Mappings of buffers.

use super::Machine;
use crate::calls::Mapped;
use crate::memory::UserMap;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::Arc;

/// A mapping as far as the driver is concerned: it holds the buffer and the file until dropped.
///
/// ```
/// use rknpu_sim::{Config, Machine};
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// # let (buffer, offset) = rknpu_sim::doc::buffer(&file)?;
/// // A mapping outlives its handle and its file.
/// let reservation = file.reserve(offset, 8192)?;
/// drop(file);
/// assert_eq!(machine.report().objects, 1);
/// drop(reservation);
/// assert_eq!(machine.report().objects, 0);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct Reservation {
    machine: Machine,
    mapped: Mapped,
}

impl Reservation {
    pub(super) fn new(machine: Machine, mapped: Mapped) -> Reservation {
        Reservation { machine, mapped }
    }

    /// The buffer's memory file; the mapping begins at its first byte.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// # let (buffer, offset) = rknpu_sim::doc::buffer(&file)?;
    /// let reservation = file.reserve(offset, 8192)?;
    /// assert!(rustix::fs::fstat(reservation.file())?.st_size >= 8192);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn file(&self) -> BorrowedFd<'_> {
        self.mapped.backing.file()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.mapped.unmap(&mut self.machine.kernel().enter());
    }
}

/// A mapped buffer. Dropping it unmaps it.
///
/// ```
/// use rknpu_sim::{Config, Machine};
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// # let (buffer, offset) = rknpu_sim::doc::buffer(&file)?;
/// let mapping = file.mmap(offset, 8192)?;
/// mapping.write(100, b"weights");
/// let mut read = [0; 7];
/// mapping.read(100, &mut read);
/// assert_eq!(&read, b"weights");
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct Mapping {
    // Unmapped before the driver is told.
    map: UserMap,
    len: usize,
    _reservation: Reservation,
}

impl Mapping {
    /// Maps the first `len` bytes.
    pub(super) fn new(reservation: Reservation, len: usize) -> Result<Mapping, Errno> {
        let map = UserMap::new(&reservation.mapped.backing, len)?;
        Ok(Mapping { map, len, _reservation: reservation })
    }

    /// First byte. Who reads or writes through it promises what the driver asks of a program: bytes
    /// that a job reads are not written, and bytes that it writes are left alone, until the job has
    /// ended; nor are bytes written that another mapping of the buffer reads at the same time.
    /// [`Mapping::read`] and [`Mapping::write`] see to it by themselves.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.base()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads from `at` on, and waits for writes under way there; what lies outside the mapping is left
    /// alone.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        self.map.read(at, out);
    }

    /// Writes from `at` on, and waits for a core that reads there meanwhile; what lies outside the
    /// mapping is left alone.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.map.write(at, bytes);
    }

    /// Whether another mapping is of the same buffer.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let file = Machine::new(Config::default()).open();
    /// # let (buffer, offset) = rknpu_sim::doc::buffer(&file)?;
    /// assert!(file.mmap(offset, 8192)?.same_buffer(&file.mmap(offset, 4096)?));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn same_buffer(&self, other: &Mapping) -> bool {
        let backing = |mapping: &Mapping| Arc::as_ptr(&mapping._reservation.mapped.backing);
        backing(self) == backing(other)
    }

    /// Whether nothing is mapped; never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
