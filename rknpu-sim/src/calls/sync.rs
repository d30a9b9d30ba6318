//! MEM_SYNC.

use crate::hazard::Hazard;
use crate::kernel::Call;
use crate::object::{Object, Path};
use crate::report::CallKind;
use rknpu_sys::flags::SyncFlags;
use rknpu_sys::uapi::MemSync;
use rustix::io::Errno;

/// Cache maintenance over a range of the object at an address that the driver does not check.
pub(crate) fn sync(call: &mut Call<'_>, _file: u32, args: &mut MemSync) -> Result<(), Errno> {
    let address = args.obj_addr;
    if address == 0 {
        return Err(Errno::INVAL);
    }
    let config = call.config();
    let Some(object) = call.objects.get(address) else {
        let was = call.objects.was(address);
        call.hazard(config, Hazard::StaleObject { call: CallKind::MemSync, address, was });
        return Err(Errno::FAULT);
    };
    if !object.cacheable() {
        return Err(Errno::INVAL);
    }
    let domain = object.domain;
    call.get_domain(domain).map_err(|_| Errno::INVAL)?;
    let flags = SyncFlags::from_bits_retain(args.flags);
    let clean = flags.contains(SyncFlags::TO_DEVICE);
    let invalidate = flags.contains(SyncFlags::FROM_DEVICE);
    let Some(object) = call.objects.get(address) else {
        call.put_domain(config);
        return Err(Errno::INVAL);
    };
    if object.path == Path::Empty {
        // The process dies inside the kernel: its reference to the domain is never given back.
        call.hazard(config, Hazard::EmptySynced { address });
        return Err(Errno::FAULT);
    }
    let Span { at, len, booked } = span(object, args.offset, args.size);
    let outside = matches!(object.path, Path::Contiguous { .. }) && booked != len as u64;
    let backing = object.backing.clone();
    let size = object.size;
    if outside {
        let (offset, wanted) = (args.offset, args.size);
        let hazard = Hazard::SyncOutside { address, offset, size: wanted, len: size };
        call.hazard(config, hazard);
    }
    if let Some(backing) = backing.filter(|_| len > 0) {
        let synced = call.unlocked(|| backing.sync(at, len, clean, invalidate));
        call.report.discarded += synced.discarded;
    }
    // A contiguous object's size is the caller's word: the sums wrap with it.
    let books = &mut call.report;
    books.to_device = books.to_device.wrapping_add(if clean { booked } else { 0 });
    books.from_device = books.from_device.wrapping_add(if invalidate { booked } else { 0 });
    call.put_domain(config);
    Ok(())
}

/// What a sync covers.
struct Span {
    /// In the buffer.
    at: usize,
    len: usize,
    /// Bytes that the cache is told of.
    booked: u64,
}

/// The part of a range that lies in the object's pages. SRAM comes first and is not cached; a
/// contiguous object's range is handed on as it is.
fn span(object: &Object, offset: u64, size: u64) -> Span {
    let (first, end) = (object.sram_size, object.span());
    let from = offset.max(first).min(end);
    let to = offset.saturating_add(size).clamp(from, end);
    // Both lie in the buffer, whose length fits usize.
    let (at, len) = (from as usize, (to - from) as usize);
    let unbounded = matches!(object.path, Path::Contiguous { .. });
    Span { at, len, booked: if unbounded { size } else { to - from } }
}
