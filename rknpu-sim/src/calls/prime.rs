//! PRIME: dma-bufs out and in.
//!
//! A dma-buf here is a descriptor of the buffer's memory file, known again by its inode.

use crate::calls::create::{add_handle, empty};
use crate::iova::PAGE;
use crate::kernel::{Call, Kernel, cpu};
use crate::memory::{Backing, Pinning};
use crate::object::{Object, Path};
use rknpu_sys::drm::{DMA_BUF_SYNC_END, DMA_BUF_SYNC_READ, DMA_BUF_SYNC_WRITE, PrimeHandle};
use rknpu_sys::flags::MemFlags;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Whether flags may be given to PRIME_HANDLE_TO_FD.
fn is_prime_flag(flags: u32) -> bool {
    flags & !(OFlags::CLOEXEC | OFlags::RDWR).bits() == 0
}

/// A dma-buf.
#[derive(Debug)]
struct DmaBuf {
    backing: Arc<Backing>,
    /// The object that it exports, which it holds; `None` for another driver's.
    object: Option<u64>,
    descriptors: Vec<RawFd>,
    /// Its first export asked for writing: later ones are descriptors of the same file.
    writable: bool,
}

/// All dma-bufs, by inode.
#[derive(Debug, Default)]
pub(crate) struct DmaBufs {
    bufs: HashMap<u64, DmaBuf>,
}

impl DmaBufs {
    /// Makes another driver's dma-buf known, and opens it.
    pub(crate) fn add_foreign(&mut self, backing: Arc<Backing>) -> Result<OwnedFd, Errno> {
        let fd = rustix::io::fcntl_dupfd_cloexec(backing.file(), 0)?;
        let inode = backing.inode();
        self.bufs.insert(
            inode,
            DmaBuf { backing, object: None, descriptors: Vec::new(), writable: true },
        );
        Ok(fd)
    }

    /// The dma-buf behind a descriptor: its object, unless it is another driver's, and its memory.
    pub(crate) fn of(&self, fd: RawFd) -> Result<(Option<u64>, Arc<Backing>), Errno> {
        let buf = self.bufs.get(&inode_of(fd)?).ok_or(Errno::BADF)?;
        Ok((buf.object, buf.backing.clone()))
    }

    /// Whether a dma-buf was first exported for writing.
    pub(crate) fn writable(&self, fd: RawFd) -> bool {
        let buf = inode_of(fd).ok().and_then(|inode| self.bufs.get(&inode));
        buf.is_some_and(|buf| buf.writable)
    }

    /// Forgets a descriptor: whether it was one, and the object that went with the last one.
    pub(crate) fn closed(&mut self, fd: RawFd) -> (bool, Option<u64>) {
        let found = self.bufs.iter_mut().find(|(_, buf)| buf.descriptors.contains(&fd));
        let Some((&inode, buf)) = found else { return (false, None) };
        buf.descriptors.retain(|&known| known != fd);
        let object = buf.object.filter(|_| buf.descriptors.is_empty());
        if object.is_some() {
            self.bufs.remove(&inode);
        }
        (true, object)
    }

    /// Notes a duplicate of a descriptor.
    pub(crate) fn duplicated(&mut self, from: RawFd, to: RawFd) {
        if let Some(buf) = self.bufs.values_mut().find(|buf| buf.descriptors.contains(&from)) {
            buf.descriptors.push(to);
        }
    }
}

/// PRIME_HANDLE_TO_FD.
pub(crate) fn export(call: &mut Call<'_>, file: u32, args: &mut PrimeHandle) -> Result<(), Errno> {
    if !is_prime_flag(args.flags) {
        return Err(Errno::INVAL);
    }
    let open = call.files.get(file).ok_or(Errno::BADF)?;
    let address = open.handles.get(args.handle).ok_or(Errno::NOENT)?;
    let object = call.objects.get(address).ok_or(Errno::NOENT)?;
    let backing = match &object.backing {
        Some(backing) => backing.clone(),
        // A buffer of no bytes is exported as well; whoever maps it finds nothing.
        None => Arc::new(Backing::new(PAGE as usize, false, false, Pinning::Allowed)?),
    };
    let imported = matches!(object.path, Path::Imported { .. });
    let fd = descriptor(&backing, args.flags)?;
    let inode = backing.inode();
    if let Some(buf) = call.dma_bufs.bufs.get_mut(&inode) {
        buf.descriptors.push(fd);
    } else if !imported {
        let writable = args.flags & OFlags::RDWR.bits() != 0;
        let buf = DmaBuf { backing, object: Some(address), descriptors: vec![fd], writable };
        call.dma_bufs.bufs.insert(inode, buf);
        if let Some(object) = call.objects.get_mut(address) {
            object.refs += 1;
        }
    }
    if let Some(open) = call.files.get_mut(file) {
        open.primes.insert(inode, args.handle);
    }
    args.fd = fd;
    Ok(())
}

/// A new descriptor of a buffer's file, which the program will close.
fn descriptor(backing: &Backing, flags: u32) -> Result<RawFd, Errno> {
    let flags = OFlags::from_bits_retain(flags);
    let access = if flags.contains(OFlags::RDWR) { OFlags::RDWR } else { OFlags::RDONLY };
    let path = format!("/proc/self/fd/{}", backing.file().as_raw_fd());
    let fd = match open(path, access | (flags & OFlags::CLOEXEC), Mode::empty()) {
        // Secret memory has no path: what is given out then can be mapped for writing, whatever was asked for.
        Err(Errno::NXIO) if flags.contains(OFlags::CLOEXEC) => {
            rustix::io::fcntl_dupfd_cloexec(backing.file(), 0)
        }
        Err(Errno::NXIO) => rustix::io::dup(backing.file()),
        opened => opened,
    }?;
    let raw = fd.as_raw_fd();
    std::mem::forget(fd);
    Ok(raw)
}

/// PRIME_FD_TO_HANDLE.
pub(crate) fn import(call: &mut Call<'_>, file: u32, args: &mut PrimeHandle) -> Result<(), Errno> {
    let inode = inode_of(args.fd)?;
    let open = call.files.get(file).ok_or(Errno::BADF)?;
    if let Some(&handle) = open.primes.get(&inode) {
        args.handle = handle;
        return Ok(());
    }
    let buf = call.dma_bufs.bufs.get(&inode).ok_or(Errno::INVAL)?;
    let address = match buf.object {
        Some(address) => {
            let object = call.objects.get_mut(address).ok_or(Errno::INVAL)?;
            object.refs += 1;
            address
        }
        // It maps nobody else's memory.
        None if crate::rocket::is(call.config()) => return Err(Errno::INVAL),
        None => {
            let backing = buf.backing.clone();
            // Whoever maps it for a device cleans it.
            backing.sync(0, backing.len(), true, false);
            let object = attach(call, backing)?;
            call.objects.add(object)
        }
    };
    args.handle = add_handle(call, file, address)?;
    if let Some(open) = call.files.get_mut(file) {
        open.primes.insert(inode, args.handle);
    }
    Ok(())
}

/// DMA_BUF_IOCTL_SYNC of another driver's buffer. What it does to memory it does for those who have it
/// imported, as a dma-heap does; that the end of a read leaves dirty lines alone is how kernels before 5.19
/// are, later ones write them back.
pub(crate) fn sync(call: &mut Call<'_>, fd: RawFd, flags: u64) -> Result<(), Errno> {
    let (reads, writes) = (flags & DMA_BUF_SYNC_READ != 0, flags & DMA_BUF_SYNC_WRITE != 0);
    if flags & !(DMA_BUF_SYNC_READ | DMA_BUF_SYNC_WRITE | DMA_BUF_SYNC_END) != 0
        || !(reads || writes)
    {
        return Err(Errno::INVAL);
    }
    let (object, backing) = call.dma_bufs.of(fd)?;
    let attached = call.objects.iter().any(|(_, object)| {
        object.backing.as_ref().is_some_and(|mapped| Arc::ptr_eq(mapped, &backing))
    });
    if object.is_some() || !attached {
        return Ok(());
    }
    let ends = flags & DMA_BUF_SYNC_END != 0;
    let synced = backing.sync(0, backing.len(), ends && writes, !ends && reads);
    call.report.discarded += synced.discarded;
    Ok(())
}

/// Who made another driver's dma-bufs, by inode.
static MAKERS: Mutex<BTreeMap<u64, Weak<Kernel>>> = Mutex::new(BTreeMap::new());

/// Notes that a dma-buf is a machine's.
pub(crate) fn remember(inode: u64, kernel: &Arc<Kernel>) {
    let mut makers = MAKERS.lock().unwrap_or_else(PoisonError::into_inner);
    makers.retain(|_, kernel| kernel.strong_count() > 0);
    makers.insert(inode, Arc::downgrade(kernel));
}

/// Whose a dma-buf is.
pub(crate) fn maker(fd: RawFd) -> Option<Arc<Kernel>> {
    let inode = inode_of(fd).ok()?;
    let makers = MAKERS.lock().unwrap_or_else(PoisonError::into_inner);
    makers.get(&inode)?.upgrade()
}

/// The inode of a descriptor that the program gave.
pub(crate) fn inode_of(fd: RawFd) -> Result<u64, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // A path goes through the kernel's checks, where a borrowed descriptor would have to be open.
    let path = format!("/proc/self/fd/{fd}");
    let stat = rustix::fs::stat(path).map_err(|_| Errno::BADF)?;
    Ok(stat.st_ino)
}

/// Maps another driver's buffer into whatever domain is live; it will record domain 0.
fn attach(call: &mut Call<'_>, backing: Arc<Backing>) -> Result<Object, Errno> {
    let size = (backing.len() as u64).next_multiple_of(PAGE);
    let config = call.config();
    let mapped_in = if crate::domain::real(config) { call.domains.current } else { 0 };
    let iova = if config.iommu {
        let domain = call.domains.of(mapped_in).ok_or(Errno::INVAL)?;
        let iova = domain.space.alloc_aligned(size, cpu()).ok_or(Errno::NOMEM)?;
        domain.map.map(iova, &backing);
        iova
    } else {
        let at = call.physical.foreign(size).ok_or(Errno::NOMEM)?;
        if let Some(domain) = call.domains.of(0) {
            domain.map.map(at, &backing);
        }
        at
    };
    call.memory += size;
    let path = Path::Imported { mapped_in };
    let flags = MemFlags::NON_CONTIGUOUS.bits();
    Ok(Object { size, iova, path, backing: Some(backing), ..empty(flags, 0) })
}
