//! Calls of the DRM core that programs use beside the driver's.

use crate::calls::create::{add_handle, new_object};
use crate::calls::handles::drop_handle;
use crate::calls::{Handler, handlers, handles, prime, roles};
use crate::files::Node;
use crate::kernel::Call;
use crate::user::put_text;
use rknpu_sys::drm;
use rknpu_sys::flags::MemFlags;
use rknpu_sys::ioctl as words;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(super) const GET_CAP: u32 = 0xC010_640C;
pub(super) const CREATE_DUMB: u32 = 0xC020_64B2;
pub(super) const MAP_DUMB: u32 = 0xC010_64B3;
pub(super) const DESTROY_DUMB: u32 = 0xC004_64B4;

/// GET_CAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Cap {
    capability: u64,
    value: u64,
}

/// CREATE_DUMB.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Dumb {
    height: u32,
    width: u32,
    bpp: u32,
    flags: u32,
    handle: u32,
    pitch: u32,
    size: u64,
}

/// DESTROY_DUMB, and whatever else is a single number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct DumbHandle {
    handle: u32,
}

/// VERSION: texts are cut to the caller's room and not terminated, lengths are the full ones.
pub(crate) fn version(
    call: &mut Call<'_>,
    _file: u32,
    args: &mut drm::Version,
) -> Result<(), Errno> {
    if crate::rocket::is(call.config()) {
        (args.version_major, args.version_minor, args.version_patchlevel) = (0, 0, 0);
        args.name_len = put_text(args.name, args.name_len, rknpu_sys::rocket::DRIVER_NAME)?;
        args.date_len = put_text(args.date, args.date_len, "0")?;
        args.desc_len = put_text(args.desc, args.desc_len, "rocket DRM")?;
        return Ok(());
    }
    let version = call.config().version;
    let (major, minor, patch) = version.parts();
    args.version_major = major.cast_signed();
    args.version_minor = minor.cast_signed();
    args.version_patchlevel = patch.cast_signed();
    args.name_len = put_text(args.name, args.name_len, drm::DRIVER_NAME)?;
    let date = if call.config().mainline_port { "" } else { version.date() };
    args.date_len = put_text(args.date, args.date_len, date)?;
    args.desc_len = put_text(args.desc, args.desc_len, "RKNPU driver")?;
    Ok(())
}

/// GET_CAP: what a driver without mode setting answers.
pub(crate) fn get_cap(_call: &mut Call<'_>, _file: u32, args: &mut Cap) -> Result<(), Errno> {
    args.value = match args.capability {
        // PRIME: import and export.
        0x5 => 3,
        // Monotonic timestamps.
        0x6 => 1,
        // Sync objects, with and without timeline.
        0x13 | 0x14 => 0,
        _ => return Err(Errno::OPNOTSUPP),
    };
    Ok(())
}

/// CREATE_DUMB: a write-combined buffer in domain 0.
pub(crate) fn create_dumb(call: &mut Call<'_>, file: u32, args: &mut Dumb) -> Result<(), Errno> {
    if args.width == 0 || args.height == 0 || args.bpp == 0 {
        return Err(Errno::INVAL);
    }
    let pitch = u64::from(args.width) * u64::from(args.bpp.div_ceil(8));
    args.pitch = u32::try_from(pitch).map_err(|_| Errno::INVAL)?;
    args.size = pitch * u64::from(args.height);
    let flags = MemFlags::WRITE_COMBINE.bits();
    let object = new_object(call, args.size, flags, 0, 0)?;
    let address = call.objects.add(object);
    args.handle = add_handle(call, file, address)?;
    Ok(())
}

/// DESTROY_DUMB.
pub(crate) fn destroy_dumb(
    call: &mut Call<'_>,
    file: u32,
    args: &mut DumbHandle,
) -> Result<(), Errno> {
    if drop_handle(call, file, args.handle) { Ok(()) } else { Err(Errno::INVAL) }
}

/// The calls that every DRM driver has.
pub(crate) fn common(nr: u8) -> Result<Handler, Errno> {
    Ok(match nr {
        0x00 => handlers!(Version, words::DRM_VERSION, drm::Version, version),
        0x09 => handlers!(GemClose, words::GEM_CLOSE, drm::GemClose, handles::gem_close),
        0x0c => handlers!(GetCap, GET_CAP, Cap, get_cap),
        0x01 => handlers!(Other, roles::GET_UNIQUE, roles::Unique, roles::get_unique),
        0x02 => handlers!(Other, roles::GET_MAGIC, roles::Magic, roles::get_magic),
        0x05 => handlers!(Other, roles::GET_CLIENT, roles::Client, roles::get_client),
        0x07 => handlers!(Other, roles::SET_VERSION, roles::Versions, roles::set_version),
        0x0a => handlers!(Other, roles::GEM_FLINK, roles::Flink, roles::flink),
        0x0b => handlers!(Other, roles::GEM_OPEN, roles::Open, roles::open),
        0x0d => handlers!(Other, roles::SET_CLIENT_CAP, roles::ClientCap, roles::set_client_cap),
        0x11 => handlers!(Other, roles::AUTH_MAGIC, roles::Magic, roles::auth_magic),
        0x1e => handlers!(Other, roles::SET_MASTER, roles::Nothing, roles::set_master),
        0x1f => handlers!(Other, roles::DROP_MASTER, roles::Nothing, roles::drop_master),
        0x2d => {
            handlers!(PrimeHandleToFd, words::PRIME_HANDLE_TO_FD, drm::PrimeHandle, prime::export)
        }
        0x2e => {
            handlers!(PrimeFdToHandle, words::PRIME_FD_TO_HANDLE, drm::PrimeHandle, prime::import)
        }
        _ => return Err(Errno::INVAL),
    })
}

/// Why mode setting is refused.
pub(super) fn refusal(node: Node) -> Errno {
    match node {
        Node::Render => Errno::ACCESS,
        Node::Card | Node::Accel => Errno::OPNOTSUPP,
    }
}
