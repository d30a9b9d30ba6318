//! Open files.

use super::{Machine, Mapping, Reservation};
use crate::calls::{self, Mapped};
use crate::kernel::Call;
use rustix::io::Errno;

/// An open file on a machine's node. Dropping it closes it: its handles go when its last mapping
/// has gone.
///
/// ```
/// use rknpu_sim::{Config, Machine};
/// use rknpu_sys::uapi::MemCreate;
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// file.call(&mut MemCreate { flags: 0x403, size: 4096, ..Default::default() })?;
/// drop(file); // and its handles with it
/// assert_eq!(machine.report().objects, 0);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct File {
    machine: Machine,
    id: u32,
}

impl File {
    pub(super) fn new(machine: Machine, id: u32) -> File {
        File { machine, id }
    }

    /// The machine.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let file = Machine::new(Config::default()).open(); // the file keeps the machine
    /// assert_eq!(file.machine().report().files, 1);
    /// ```
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn enter(&self) -> Call<'_> {
        self.machine.kernel().enter()
    }

    /// Books a mapping of `len` bytes at an offset of MEM_MAP, without mapping anything: for those
    /// who map the buffer's file themselves.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// # let (buffer, offset) = rknpu_sim::doc::buffer(&file)?;
    /// let reservation = file.reserve(offset, 8192)?;
    /// assert_eq!(machine.report().mappings, 1);
    /// drop(reservation);
    /// assert_eq!(machine.report().mappings, 0);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// As `mmap(2)` on the driver's node: EINVAL for an offset or length that is no buffer's, EACCES
    /// without a handle in this file, ENXIO for a buffer that fell back from contiguous memory.
    pub fn reserve(&self, offset: u64, len: usize) -> Result<Reservation, Errno> {
        let mut call = self.machine.kernel().enter();
        let mapped = Mapped::new(&mut call, self.id, offset, len)?;
        Ok(Reservation::new(self.machine.clone(), mapped))
    }

    /// `mmap(2)`: maps a buffer, shared, readable and writable.
    ///
    /// ```
    /// use rknpu_sim::{Config, Machine};
    ///
    /// let machine = Machine::new(Config::default());
    /// let file = machine.open();
    /// # let (buffer, offset) = rknpu_sim::doc::buffer(&file)?;
    /// let mapping = file.mmap(offset, 8192)?;
    /// mapping.write(8190, &[1, 2]);
    /// assert!(file.mmap(offset + 1, 8192).is_err());
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// As [`File::reserve`]; ENOMEM when the host has no address space.
    pub fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let reservation = self.reserve(offset, len)?;
        let len = len.next_multiple_of(4096);
        Mapping::new(reservation, len)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        calls::close(&mut self.machine.kernel().enter(), self.id);
    }
}
