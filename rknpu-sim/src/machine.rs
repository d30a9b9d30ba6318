//! A machine with an NPU, and the files that programs open on it.

use crate::calls::{self, Mapped, backing_of};
use crate::config::Config;
use crate::fault::Fault;
use crate::fence::FenceInfo;
use crate::files::Node;
use crate::kernel::{Actor, Call, Channel, Event, Kernel, MS};
use crate::memory::{Backing, UserMap};
use crate::report::Report;
use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

/// A machine: one NPU, one driver. Clones are the same machine.
///
/// ```
/// use rknpu_sim::{Config, Machine};
/// use rknpu_sys::{ioctl, uapi};
///
/// let machine = Machine::new(Config::default());
/// let file = machine.open();
/// let mut action = uapi::Action { flags: rknpu_sys::action::GET_DRV_VERSION, value: 0 };
/// // SAFETY: the word and the struct belong together.
/// unsafe { file.ioctl(ioctl::ACTION, (&raw mut action).cast()) }.unwrap();
/// assert_eq!(action.value, 908);
/// ```
#[derive(Clone, Debug)]
pub struct Machine(Arc<Owned>);

/// The handle whose end ends the workers.
#[derive(Debug)]
struct Owned(Arc<Kernel>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Machine {
    /// A freshly booted machine.
    pub fn new(config: Config) -> Machine {
        Machine(Arc::new(Owned(Kernel::new(config))))
    }

    pub(crate) fn kernel(&self) -> &Arc<Kernel> {
        &self.0.0
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.kernel().config
    }

    /// Opens the render node.
    pub fn open(&self) -> File {
        self.open_node(Node::Render)
    }

    /// Opens a node.
    pub fn open_node(&self, node: Node) -> File {
        let id = self.kernel().enter().files.open(node);
        File { machine: self.clone(), id }
    }

    /// What happened so far, and what is held.
    pub fn report(&self) -> Report {
        Report::of(&self.kernel().enter())
    }

    /// Lets the NPU model work off, in this thread, what NONBLOCK jobs have to compute, so that it is
    /// known what they touch. They are not complete before their time has passed on the machine's
    /// clock.
    pub fn settle(&self) {
        self.kernel().settle();
    }

    /// Arms a fault.
    pub fn inject(&self, fault: Fault) {
        let mut call = self.kernel().enter();
        match fault {
            Fault::BusyDomain { domain, for_ms } => {
                if let Some(Ok(())) = call.try_domain(self.config(), domain) {
                    let until = call.time.now() + u64::from(for_ms) * MS;
                    call.time.at(until, Event::LetGo);
                }
            }
            _ => call.faults.arm(fault),
        }
    }

    /// Disarms all faults.
    pub fn clear_faults(&self) {
        self.kernel().enter().faults.clear();
    }

    /// Another driver's dma-buf of `len` bytes, as a dma-heap would make it.
    ///
    /// # Errors
    /// EINVAL for no bytes, else what the host says.
    pub fn foreign_buffer(&self, len: usize) -> Result<OwnedFd, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let len = len.checked_next_multiple_of(4096).ok_or(Errno::NOMEM)?;
        let backing = Arc::new(Backing::new(len, false, false)?);
        self.kernel().enter().dma_bufs.add_foreign(backing)
    }

    /// Makes a memory file known as another driver's dma-buf of `len` bytes.
    ///
    /// # Errors
    /// EINVAL when the file is shorter, else what the host says.
    pub fn adopt_buffer(&self, file: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
        let backing = Arc::new(backing_of(file, len)?);
        self.kernel().enter().dma_bufs.add_foreign(backing).map(drop)
    }

    /// Maps a dma-buf that [`File::ioctl`] exported. The driver always maps from its first page,
    /// whatever `offset` says.
    ///
    /// # Errors
    /// EBADF when the descriptor is none of this machine's dma-bufs, EINVAL for a range past its end.
    pub fn mmap_dma_buf(&self, fd: RawFd, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let mut call = self.kernel().enter();
        let mapped = Mapped::of_dma_buf(&mut call, fd, offset, len)?;
        drop(call);
        let reservation = Reservation { machine: self.clone(), mapped };
        let len = len.next_multiple_of(4096);
        let map = UserMap::new(&reservation.mapped.backing, len)?;
        Ok(Mapping { map, len, _reservation: reservation })
    }

    /// Tells the machine that the program has closed a descriptor that came from PRIME or FENCE_OUT,
    /// which the machine cannot see. Returns whether it was one.
    pub fn descriptor_closed(&self, fd: RawFd) -> bool {
        let mut call = self.kernel().enter();
        if call.fences.closed(fd) {
            return true;
        }
        let (known, object) = call.dma_bufs.closed(fd);
        if let Some(object) = object {
            call.put_object(object);
        }
        known
    }

    /// Tells the machine of a duplicate of such a descriptor.
    pub fn descriptor_duplicated(&self, from: RawFd, to: RawFd) {
        let mut call = self.kernel().enter();
        call.dma_bufs.duplicated(from, to);
        call.fences.duplicated(from, to);
    }

    /// What a fence's descriptor shows, when it is one.
    pub fn fence(&self, fd: RawFd) -> Option<FenceInfo> {
        let call = self.kernel().enter();
        call.fences.info(call.fences.of(fd)?)
    }

    /// Whether a fence's descriptor closes on exec; none where it is not one.
    pub(crate) fn closes_on_exec(&self, fd: RawFd) -> Option<bool> {
        self.kernel().enter().fences.closes_on_exec(fd)
    }

    /// Whether two descriptors are of one dma-buf.
    pub(crate) fn same_dma_buf(&self, one: RawFd, other: RawFd) -> bool {
        let call = self.kernel().enter();
        match (call.dma_bufs.of(one), call.dma_bufs.of(other)) {
            (Ok((_, one)), Ok((_, other))) => Arc::ptr_eq(&one, &other),
            _ => false,
        }
    }

    /// Another driver's fence, not signalled: a descriptor that FENCE_IN takes and waits for.
    ///
    /// # Errors
    /// What the host says when no descriptor can be had.
    pub fn foreign_fence(&self) -> Result<RawFd, Errno> {
        let mut call = self.kernel().enter();
        let fence = call.fences.add_foreign();
        call.fences.open(fence)
    }

    /// Signals a fence; whether the descriptor is one.
    pub fn signal_fence(&self, fd: RawFd) -> bool {
        let mut call = self.kernel().enter();
        let fence = call.fences.of(fd);
        if let Some(fence) = fence {
            call.signal(fence);
        }
        fence.is_some()
    }

    /// Waits on the machine's clock until a fence is signalled, or `timeout` has passed; whether it
    /// was. A descriptor that is no fence is never signalled.
    pub fn wait_fence(&self, fd: RawFd, timeout: Duration) -> bool {
        let mut call = self.kernel().enter();
        let deadline = call.time.now().saturating_add(nanos(timeout));
        loop {
            let info = call.fences.of(fd).and_then(|fence| call.fences.info(fence));
            if info.is_some_and(|info| info.signalled) {
                return true;
            }
            if call.time.now() >= deadline {
                return false;
            }
            call.wait(Channel::Fence, Some(deadline));
        }
    }

    /// The text of one of the driver's files under debugfs and procfs: `version`, `load`, `power`,
    /// `freq`, `volt`, `delayms`, `reset`, and `mm` where there is SRAM.
    pub fn knob(&self, name: &str) -> Option<String> {
        self.kernel().enter().knob(self.config(), name)
    }

    /// Lets time pass on the machine's clock.
    pub fn sleep(&self, time: Duration) {
        self.kernel().enter().sleep(nanos(time));
    }

    /// Time since the machine was made, on its own clock.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.kernel().enter().time.now())
    }

    /// Makes the calling thread one for which the virtual clock waits even between its calls, until
    /// the value is dropped (by the same thread).
    pub fn actor(&self) -> Acting {
        Acting { _actor: self.kernel().act() }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// See [`Machine::actor`].
#[derive(Debug)]
pub struct Acting {
    _actor: Actor,
}

/// An open file on a machine's node. Dropping it closes it: its handles go when its last mapping
/// has gone.
#[derive(Debug)]
pub struct File {
    machine: Machine,
    id: u32,
}

impl File {
    /// The machine.
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
    /// # Errors
    /// As `mmap(2)` on the driver's node: EINVAL for an offset or length that is no buffer's, EACCES
    /// without a handle in this file, ENXIO for a buffer that fell back from contiguous memory.
    pub fn reserve(&self, offset: u64, len: usize) -> Result<Reservation, Errno> {
        let mut call = self.machine.kernel().enter();
        let mapped = Mapped::new(&mut call, self.id, offset, len)?;
        Ok(Reservation { machine: self.machine.clone(), mapped })
    }

    /// `mmap(2)`: maps a buffer, shared, readable and writable.
    ///
    /// # Errors
    /// As [`File::reserve`]; ENOMEM when the host has no address space.
    pub fn mmap(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let reservation = self.reserve(offset, len)?;
        let len = len.next_multiple_of(4096);
        let map = UserMap::new(&reservation.mapped.backing, len)?;
        Ok(Mapping { map, len, _reservation: reservation })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        calls::close(&mut self.machine.kernel().enter(), self.id);
    }
}

/// A mapping as far as the driver is concerned: it holds the buffer and the file until dropped.
#[derive(Debug)]
pub struct Reservation {
    machine: Machine,
    mapped: Mapped,
}

impl Reservation {
    /// The buffer's memory file; the mapping begins at its first byte.
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
#[derive(Debug)]
pub struct Mapping {
    // Unmapped before the driver is told.
    map: UserMap,
    len: usize,
    _reservation: Reservation,
}

impl Mapping {
    /// First byte. Reads and writes through it are the CPU's: volatile, as the NPU and other
    /// mappings share the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.base()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reads from `at` on; what lies outside the mapping is left alone.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        self.map.read(at, out);
    }

    /// Writes from `at` on; what lies outside the mapping is left alone.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.map.write(at, bytes);
    }

    /// Whether another mapping is of the same buffer.
    pub(crate) fn same_buffer(&self, other: &Mapping) -> bool {
        let backing = |mapping: &Mapping| Arc::as_ptr(&mapping._reservation.mapped.backing);
        backing(self) == backing(other)
    }

    /// Whether nothing is mapped; never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Sets the CPU that this thread's calls count as coming from. The kernel keeps freed addresses per
/// CPU; without this every thread counts as CPU 0.
pub fn set_cpu(cpu: usize) {
    crate::kernel::set_cpu(cpu);
}
