//! MEM_MAP, and mapping at the offset that it gives.

use crate::calls::handles::put_file;
use crate::hazard::Hazard;
use crate::iova::PAGE;
use crate::kernel::Call;
use crate::memory::Backing;
use crate::object::Path;
use crate::report::CallKind;
use rknpu_sys::uapi::MemMap;
use rustix::fd::RawFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::sync::Arc;

/// MEM_MAP: the object's offset, the same one as long as it lives.
pub(crate) fn map_offset(call: &mut Call<'_>, file: u32, args: &mut MemMap) -> Result<(), Errno> {
    let handles = &call.files.get(file).ok_or(Errno::BADF)?.handles;
    let address = handles.get(args.handle).ok_or(Errno::NOENT)?;
    let object = call.objects.get(address).ok_or(Errno::NOENT)?;
    if matches!(object.path, Path::Imported { .. }) {
        return Err(Errno::INVAL);
    }
    let page = match object.offset {
        Some(page) => page,
        None => {
            let pages = object.size / PAGE;
            let page = call.offsets.add(pages, address).ok_or(Errno::NOSPC)?;
            if let Some(object) = call.objects.get_mut(address) {
                object.offset = Some(page);
            }
            page
        }
    };
    args.offset = page * PAGE;
    Ok(())
}

/// A mapping's part in the driver: it holds the object and the file.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// A mapping of a dma-buf holds no file of the driver's.
    file: Option<u32>,
    /// Another driver's buffer is no object.
    object: Option<u64>,
    pub(crate) backing: Arc<Backing>,
}

impl Mapped {
    /// Checks a mapping as the kernel does, and books it.
    pub(crate) fn new(
        call: &mut Call<'_>,
        file: u32,
        offset: u64,
        len: usize,
    ) -> Result<Mapped, Errno> {
        let result = Mapped::check(call, file, offset, len);
        call.report.called(CallKind::Mmap, result.is_ok());
        result
    }

    fn check(call: &mut Call<'_>, file: u32, offset: u64, len: usize) -> Result<Mapped, Errno> {
        if let Some(errno) = call.faults.call(CallKind::Mmap) {
            return Err(errno);
        }
        let pages = (len as u64).div_ceil(PAGE);
        if pages == 0 || !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let (address, room) = call.offsets.at(offset / PAGE).ok_or(Errno::INVAL)?;
        if pages > room {
            return Err(Errno::INVAL);
        }
        let open = call.files.get(file).ok_or(Errno::BADF)?;
        if !open.handles.holds(address) {
            return Err(Errno::ACCESS);
        }
        let config = call.config();
        let object = call.objects.get_mut(address).ok_or(Errno::INVAL)?;
        if object.path == Path::Fallback {
            // One reference is taken and two are dropped: with the handle's it is the last.
            object.dangling = object.refs == 1;
            call.hazard(config, Hazard::FallbackMapped { address });
            return Err(Errno::NXIO);
        }
        let backing = object.map().ok_or(Errno::INVAL)?;
        if let Some(open) = call.files.get_mut(file) {
            open.refs += 1;
        }
        Ok(Mapped { file: Some(file), object: Some(address), backing })
    }

    /// A mapping of a dma-buf; `offset` is only checked.
    pub(crate) fn of_dma_buf(
        call: &mut Call<'_>,
        fd: RawFd,
        offset: u64,
        len: usize,
    ) -> Result<Mapped, Errno> {
        let (object, backing) = call.dma_bufs.of(fd)?;
        let rocket = crate::rocket::is(call.config());
        if !(if rocket { call.dma_bufs.writable(fd) } else { writable(fd)? }) {
            return Err(Errno::ACCESS);
        }
        let pages = (len as u64).div_ceil(PAGE);
        let room = (backing.len() as u64).div_ceil(PAGE);
        let end = (offset / PAGE).checked_add(pages);
        if pages == 0 || !offset.is_multiple_of(PAGE) || end.is_none_or(|end| end > room) {
            return Err(Errno::INVAL);
        }
        let backing = match object.and_then(|object| call.objects.get_mut(object)) {
            Some(object) => object.map().ok_or(Errno::INVAL)?,
            None => backing,
        };
        Ok(Mapped { file: None, object, backing })
    }

    /// Books the end of a mapping.
    pub(crate) fn unmap(&self, call: &mut Call<'_>) {
        call.report.called(CallKind::Munmap, true);
        if let Some(address) = self.object {
            if let Some(object) = call.objects.get_mut(address) {
                object.mappings = object.mappings.saturating_sub(1);
            }
            call.put_object(address);
        }
        if let Some(file) = self.file {
            put_file(call, file);
        }
    }
}

/// Whether a descriptor was opened for writing.
fn writable(fd: RawFd) -> Result<bool, Errno> {
    // By its text, where a borrowed descriptor would have to be known to be open.
    let text =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).map_err(|_| Errno::BADF)?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    Ok(flags.is_none_or(|flags| flags & OFlags::RWMODE.bits() != OFlags::RDONLY.bits()))
}
