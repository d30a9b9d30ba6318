//! CREATE_BO, PREP_BO, FINI_BO and the calls of the DRM core that answer otherwise here.

use super::space::NoPlace;
use super::submit;
use crate::calls::create::{add_handle, empty};
use crate::calls::{Handler, drm_core, handlers, roles, with};
use crate::config::{Config, Driver, Form, Mode};
use crate::hazard::Hazard;
use crate::iova::PAGE;
use crate::kernel::{Call, Channel};
use crate::memory::{Backing, Pinning};
use crate::object::{Object, Path};
use crate::report::CallKind;
use rknpu_sys::flags::MemFlags;
use rknpu_sys::rocket::{self, CreateBo, FiniBo, LARGEST_OBJECT, PrepBo};
use rknpu_sys::{drm, ioctl as words};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const GET_STATS: u32 = 0x80F8_6406;

/// The driver's own calls, and those of the DRM core.
pub(crate) fn handler(nr: u8) -> Result<Handler, Errno> {
    Ok(match nr {
        0x40 => {
            let (kind, word, room) = (CallKind::CreateBo, rocket::CREATE_BO, size_of::<CreateBo>());
            Handler { kind, word, room, run: create }
        }
        0x41 => handlers!(Submit, rocket::SUBMIT, rocket::Submit, submit::submit),
        0x42 => handlers!(PrepBo, rocket::PREP_BO, PrepBo, prep),
        0x43 => handlers!(FiniBo, rocket::FINI_BO, FiniBo, fini),
        0x00 => handlers!(Version, words::DRM_VERSION, drm::Version, drm_core::version),
        0x01 => handlers!(Other, roles::GET_UNIQUE, roles::Unique, get_unique),
        0x02 => handlers!(Other, roles::GET_MAGIC, roles::Magic, get_magic),
        0x06 => handlers!(Other, GET_STATS, roles::Nothing, get_stats),
        0x1e => handlers!(Other, roles::SET_MASTER, roles::Nothing, set_master),
        0x1f => handlers!(Other, roles::DROP_MASTER, roles::Nothing, set_master),
        // Mode setting is another kind of driver's.
        0xa0..=0xb1 | 0xb5..=0xce => return Err(Errno::OPNOTSUPP),
        0xb2..=0xb4 => return Err(Errno::NOSYS),
        _ => return drm_core::common(nr),
    })
}

fn form(config: &Config) -> Form {
    match config.driver {
        Driver::Rocket(form) => form,
        Driver::Rknpu => Form::default(),
    }
}

/// The kernel follows a pointer that nobody set: the caller dies.
pub(super) fn oops(call: &mut Call<'_>, hazard: Hazard) -> Errno {
    let config = call.config();
    call.hazard(config, hazard);
    Errno::FAULT
}

pub(super) fn is_first_form(call: &Call<'_>) -> bool {
    form(call.config()) == Form::FirstMerged
}

fn get_unique(call: &mut Call<'_>, _: u32, _: &mut roles::Unique) -> Result<(), Errno> {
    Err(oops(call, Hazard::NoMaster { call: "GET_UNIQUE" }))
}

fn get_magic(call: &mut Call<'_>, _: u32, _: &mut roles::Magic) -> Result<(), Errno> {
    Err(oops(call, Hazard::NoMaster { call: "GET_MAGIC" }))
}

fn get_stats(_: &mut Call<'_>, _: u32, _: &mut roles::Nothing) -> Result<(), Errno> {
    Ok(())
}

/// There is no master to become.
fn set_master(call: &mut Call<'_>, file: u32, _: &mut roles::Nothing) -> Result<(), Errno> {
    let privileged = call.files.get(file).ok_or(Errno::BADF)?.privileged;
    Err(if privileged { Errno::INVAL } else { Errno::ACCESS })
}

fn create(call: &mut Call<'_>, file: u32, bytes: &mut [u8], gives: bool) -> Result<(), Errno> {
    with::<CreateBo>(bytes, |args| {
        let object = new_object(call, file, args.size)?;
        let (size, iova) = (object.size, object.iova);
        let address = call.objects.add(object);
        let page = call.offsets.add(size / PAGE, address).ok_or(Errno::NOSPC)?;
        if let Some(object) = call.objects.get_mut(address) {
            object.offset = Some(page);
        }
        args.handle = add_handle(call, file, address)?;
        (args.dma_address, args.offset) = (iova, page * PAGE);
        if !gives {
            let (config, handle) = (call.config(), args.handle);
            call.hazard(config, Hazard::HandleLost { handle });
        }
        Ok(())
    })
}

fn new_object(call: &mut Call<'_>, file: u32, wanted: u32) -> Result<Object, Errno> {
    if wanted == 0 {
        return Err(Errno::NOSPC);
    }
    let config = call.config();
    let size = u64::from(wanted).next_multiple_of(PAGE);
    if config.memory.is_some_and(|all| size > all.saturating_sub(call.memory)) {
        return Err(Errno::NOMEM);
    }
    let first = is_first_form(call);
    let space = call.rocket.spaces.get_mut(&file).ok_or(Errno::BADF)?;
    let iova = match space.take(size) {
        Ok(iova) => iova,
        // The place is not looked at there: the node that was never inserted is removed.
        Err(NoPlace::Full) if first => return Err(oops(call, Hazard::NodeNeverInserted { size })),
        Err(NoPlace::Full) => {
            space.leaked = true;
            call.hazard(config, Hazard::DomainLeaked { file });
            return Err(Errno::NOSPC);
        }
        Err(NoPlace::Mapped) => return Err(Errno::NOMEM),
    };
    let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
    let split = config.mode == Mode::Strict;
    // Mapped by frame: nothing pins these.
    let made = call.unlocked(|| Backing::new(len, split, false, Pinning::Refused));
    let space = call.rocket.spaces.get_mut(&file).ok_or(Errno::BADF)?;
    let Ok(backing) = made.map(Arc::new) else {
        space.give_back(iova, size);
        return Err(Errno::NOMEM);
    };
    if size > u64::from(LARGEST_OBJECT) {
        // The length is taken for a negative number, which is an error: after all was mapped.
        space.leave(iova, &backing);
        space.leaked = true;
        call.hazard(config, Hazard::PagesLeft { iova, size });
        return Err(Errno::NOMEM);
    }
    space.map.map(iova, &backing);
    call.memory += size;
    call.report.created += size;
    call.report.peak = call.report.peak.max(call.memory);
    let path = Path::Shmem { owner: file };
    let flags = MemFlags::CACHEABLE.bits();
    Ok(Object { size, iova, path, backing: Some(backing), ..empty(flags, 0) })
}

/// The object of a handle.
fn object(call: &Call<'_>, file: u32, handle: u32) -> Result<u64, Errno> {
    call.files.get(file).ok_or(Errno::BADF)?.handles.get(handle).ok_or(Errno::NOENT)
}

/// Waits for what writes an object, until a time of `CLOCK_MONOTONIC`, then makes it the CPU's: also when
/// the time is over.
fn prep(call: &mut Call<'_>, file: u32, args: &mut PrepBo) -> Result<(), Errno> {
    if args.reserved != 0 {
        return Err(Errno::INVAL);
    }
    let address = object(call, file, args.handle)?;
    let left = args.timeout_ns.saturating_sub(monotonic_ns());
    let deadline = call.time.now().saturating_add(u64::try_from(left).unwrap_or(0));
    let mut waited = false;
    // The call holds the object, whatever becomes of its handle meanwhile.
    if let Some(object) = call.objects.get_mut(address) {
        object.refs += 1;
    }
    let result = loop {
        if !call.rocket.jobs.writes(address) {
            break Ok(());
        }
        if left <= 0 {
            break Err(Errno::BUSY);
        }
        if waited && call.time.now() >= deadline {
            break Err(Errno::TIMEDOUT);
        }
        waited = true;
        call.wait(Channel::Written, Some(deadline));
    };
    sync(call, address, false, true);
    call.put_object(address);
    result
}

fn fini(call: &mut Call<'_>, file: u32, args: &mut FiniBo) -> Result<(), Errno> {
    if args.reserved != 0 {
        return Err(Errno::INVAL);
    }
    let address = object(call, file, args.handle)?;
    sync(call, address, true, false);
    Ok(())
}

/// Cache maintenance of a whole object.
fn sync(call: &mut Call<'_>, address: u64, clean: bool, invalidate: bool) {
    let Some(backing) = call.objects.get(address).and_then(|object| object.backing.clone()) else {
        return;
    };
    let len = backing.len();
    let synced = call.unlocked(|| backing.sync(0, len, clean, invalidate));
    let books = &mut call.report;
    books.discarded += synced.discarded;
    books.to_device += if clean { len as u64 } else { 0 };
    books.from_device += if invalidate { len as u64 } else { 0 };
}

fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}
