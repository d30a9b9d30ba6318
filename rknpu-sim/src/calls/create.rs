//! MEM_CREATE.

use crate::calls::with;
use crate::config::{Config, Mode};
use crate::hazard::Hazard;
use crate::iova::PAGE;
use crate::kernel::{Call, cpu};
use crate::memory::{Backing, Pinning};
use crate::object::{Object, Path};
use rknpu_sys::flags::MemFlags;
use rknpu_sys::uapi::MemCreate;
use rustix::io::Errno;
use std::sync::Arc;

/// What a freed slab object reads as under slab debugging.
const POISON: u64 = 0x6b6b_6b6b_6b6b_6b6b;

/// Makes a buffer, or describes the one that `handle` names.
pub(crate) fn create(
    call: &mut Call<'_>,
    file: u32,
    bytes: &mut [u8],
    gives: bool,
) -> Result<(), Errno> {
    with::<MemCreate>(bytes, |args| {
        let config = call.config();
        let handles = &call.files.get(file).ok_or(Errno::BADF)?.handles;
        if let Some(object) = handles.get(args.handle).and_then(|at| call.objects.get(at)) {
            let address = handles.get(args.handle).unwrap_or(0);
            describe(config, args, address, object);
            return Ok(());
        }
        let known = call.config().version.has_domains();
        let domain = if known { args.iommu_domain_id } else { 0 };
        let object = new_object(call, args.size, args.flags, args.sram_size, domain)?;
        let address = call.objects.add(object);
        args.handle = add_handle(call, file, address)?;
        if let Some(object) = call.objects.get(address) {
            describe(config, args, address, object);
        }
        if !gives {
            let handle = args.handle;
            call.hazard(config, Hazard::HandleLost { handle });
        }
        Ok(())
    })
}

/// Notes that the handle in `bytes`, which a create has filled, never reaches the caller.
pub(crate) fn lost(call: &mut Call<'_>, bytes: &[u8]) {
    if let Some(Ok(handle)) = bytes.get(..4).map(TryInto::try_into) {
        let (config, handle) = (call.config(), u32::from_le_bytes(handle));
        call.hazard(config, Hazard::HandleLost { handle });
    }
}

/// Gives a file a handle to an object that already counts it as a reference.
pub(crate) fn add_handle(call: &mut Call<'_>, file: u32, address: u64) -> Result<u32, Errno> {
    let file = call.files.get_mut(file).ok_or(Errno::BADF)?;
    let handle = file.handles.add(address);
    if let Some(object) = call.objects.get_mut(address) {
        object.handles += 1;
    }
    Ok(handle)
}

fn describe(config: &Config, args: &mut MemCreate, address: u64, object: &Object) {
    args.obj_addr = address;
    if object.dangling && config.slab_poison {
        (args.size, args.sram_size, args.dma_addr) = (POISON, POISON, POISON);
    } else {
        (args.size, args.sram_size, args.dma_addr) = (object.size, object.sram_size, object.iova);
    }
}

/// Memory and addresses for a new object, in its domain.
pub(crate) fn new_object(
    call: &mut Call<'_>,
    size: u64,
    flags: u32,
    sram: u64,
    domain: i32,
) -> Result<Object, Errno> {
    if size == 0 {
        return Err(Errno::INVAL);
    }
    // The driver rounds in 64 bits and does not notice when that wraps.
    let rounded = size.wrapping_add(PAGE - 1) & !(PAGE - 1);
    // Whatever went wrong, the caller sees EINVAL.
    call.get_domain(domain).map_err(|_| Errno::INVAL)?;
    let config = call.config();
    let made = if rounded == 0 {
        call.hazard(config, Hazard::SizeWrapped { size });
        Ok(empty(flags, domain))
    } else if rounded > i64::MAX as u64 {
        Err(Errno::INVAL)
    } else {
        Placing { call: &mut *call, size: rounded, flags, domain }.place(sram)
    };
    call.put_domain(config);
    let object = made?;
    call.memory += object.size;
    call.report.created += object.size;
    call.report.peak = call.report.peak.max(call.memory);
    Ok(object)
}

/// An object of no bytes, once referenced.
pub(crate) fn empty(flags: u32, domain: i32) -> Object {
    Object {
        flags,
        size: 0,
        sram_size: 0,
        domain,
        iova: 0,
        path: Path::Empty,
        backing: None,
        kernel_map: false,
        refs: 1,
        handles: 0,
        mappings: 0,
        offset: None,
        dangling: false,
    }
}

struct Placing<'a, 'k> {
    call: &'a mut Call<'k>,
    size: u64,
    flags: u32,
    domain: i32,
}

impl Placing<'_, '_> {
    fn has(&self, flag: MemFlags) -> bool {
        MemFlags::from_bits_retain(self.flags).contains(flag)
    }

    fn place(mut self, sram: u64) -> Result<Object, Errno> {
        let config = self.call.config();
        if config.memory.is_some_and(|all| self.size > all.saturating_sub(self.call.memory)) {
            return Err(Errno::NOMEM);
        }
        let unaligned = self.has(MemFlags::IOMMU_LIMIT_IOVA_ALIGNMENT)
            && config.version.has_unaligned()
            && !config.mainline_port;
        let (path, sram_size, iova) = if !config.iommu {
            let (at, cma) = self.call.physical.take(self.size).ok_or(Errno::INVAL)?;
            (Path::Contiguous { at, cma }, 0, at)
        } else if let Some((chunk, bytes)) = self.take_sram(sram) {
            match self.addresses(self.size + bytes, unaligned) {
                Some(iova) => (Path::Sram { chunk, unaligned }, bytes, iova),
                None => {
                    self.call.sram.give_back(chunk, bytes);
                    return Err(Errno::NOMEM);
                }
            }
        } else if self.has(MemFlags::NON_CONTIGUOUS) {
            let iova = self.addresses(self.size, unaligned).ok_or(Errno::FAULT)?;
            (if unaligned { Path::Unaligned } else { Path::Pages }, 0, iova)
        } else {
            let iova = self.addresses(self.size, false).ok_or(Errno::INVAL)?;
            match self.call.physical.take(self.size) {
                Some((at, cma)) => (Path::Contiguous { at, cma }, 0, iova),
                None => (Path::Fallback, 0, iova),
            }
        };
        let object = Object {
            size: self.size,
            sram_size,
            iova,
            path,
            kernel_map: self.has(MemFlags::KERNEL_MAPPING) && !matches!(path, Path::Sram { .. }),
            ..empty(self.flags, self.domain)
        };
        match self.back(&object, unaligned) {
            Ok(backing) => {
                if let Some(domain) = self.call.domains.of(self.domain) {
                    domain.map.map(iova, &backing);
                }
                Ok(Object { backing: Some(backing), ..object })
            }
            Err(errno) => {
                self.call.release_place(&object);
                Err(errno)
            }
        }
    }

    /// Memory for an object; made without the lock.
    fn back(&mut self, object: &Object, unaligned: bool) -> Result<Arc<Backing>, Errno> {
        let len = usize::try_from(object.span()).map_err(|_| Errno::NOMEM)?;
        let split = self.call.config().mode == Mode::Strict && object.cacheable();
        let poisoned = unaligned && matches!(object.path, Path::Unaligned | Path::Sram { .. });
        // One block of frames is mapped as such; single pages are mapped as pages.
        let frames = matches!(object.path, Path::Contiguous { .. });
        let refused = frames || self.call.faults.unpinned();
        let pinning = if refused { Pinning::Refused } else { Pinning::Allowed };
        let left = self.left(object);
        let made = self.call.unlocked(|| {
            let backing = Backing::new(len, split, poisoned, pinning)?;
            if let Some(left) = left {
                backing.inherit(&left);
            }
            Ok::<_, Errno>(Arc::new(backing))
        });
        made.map_err(|_| Errno::NOMEM)
    }

    /// What a block was left with: without an IOMMU the driver zeroes only what it maps for itself,
    /// whatever ZEROING says.
    fn left(&mut self, object: &Object) -> Option<Arc<Backing>> {
        let Path::Contiguous { at, .. } = object.path else { return None };
        let left = self.call.physical.left(at, object.size);
        left.filter(|_| !self.call.config().iommu && !object.kernel_map)
    }

    fn addresses(&mut self, bytes: u64, unaligned: bool) -> Option<u64> {
        let space = &mut self.call.domains.of(self.domain)?.space;
        if unaligned { space.alloc_unaligned(bytes) } else { space.alloc_aligned(bytes, cpu()) }
    }

    /// SRAM for the head of the object: as much as asked for, as it needs and as is free, in one
    /// piece or not at all.
    fn take_sram(&mut self, wanted: u64) -> Option<(usize, u64)> {
        if !self.has(MemFlags::TRY_ALLOC_SRAM) || self.call.sram.total() == 0 {
            return None;
        }
        let wanted = if wanted == 0 { self.size } else { wanted.checked_next_multiple_of(PAGE)? };
        let bytes = wanted.min(self.size).min(self.call.sram.free());
        self.call.sram.take(bytes).map(|chunk| (chunk, bytes))
    }
}
