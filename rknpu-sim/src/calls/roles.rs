//! Who may do what on the card node, and names of objects: calls of the DRM core, as on Linux 6.1.
//!
//! Whoever opens the card first is its master; the master, and root, are authenticated.

use crate::calls::create::add_handle;
use crate::files::{Node, OpenFile};
use crate::kernel::Call;
use crate::user::put_text;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const GET_UNIQUE: u32 = 0xC010_6401;
pub(crate) const GET_MAGIC: u32 = 0x8004_6402;
pub(crate) const GET_CLIENT: u32 = 0xC028_6405;
pub(crate) const SET_VERSION: u32 = 0xC010_6407;
pub(crate) const GEM_FLINK: u32 = 0xC008_640A;
pub(crate) const GEM_OPEN: u32 = 0xC010_640B;
pub(crate) const SET_CLIENT_CAP: u32 = 0x4010_640D;
pub(crate) const AUTH_MAGIC: u32 = 0x4004_6411;
pub(crate) const SET_MASTER: u32 = 0x0000_641E;
pub(crate) const DROP_MASTER: u32 = 0x0000_641F;

/// The bus id, once SET_VERSION has asked for one.
const UNIQUE: &str = "fdab0000.npu";
/// The DRM core's interface version.
const INTERFACE: (i32, i32) = (1, 4);

/// GET_UNIQUE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Unique {
    len: u64,
    text: u64,
}

/// GET_CLIENT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Client {
    index: i32,
    authenticated: i32,
    pid: u64,
    uid: u64,
    magic: u64,
    calls: u64,
}

/// SET_VERSION: the interface's and the driver's major and minor numbers; -1 asks for none.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Versions {
    interface: [i32; 2],
    driver: [i32; 2],
}

/// GEM_FLINK.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Flink {
    handle: u32,
    name: u32,
}

/// GEM_OPEN.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Open {
    name: u32,
    handle: u32,
    size: u64,
}

/// GET_MAGIC and AUTH_MAGIC.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Magic {
    magic: u32,
}

/// SET_CLIENT_CAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ClientCap {
    capability: u64,
    value: u64,
}

/// A call without a struct.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Nothing;

/// What a call asks of who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// The card node.
    Card,
    /// An authenticated file of the card node.
    Authenticated,
    /// The card's master.
    Master,
}

/// Whether a file may make a call.
pub(super) fn permitted(call: &Call<'_>, file: u32, needs: Needs) -> Result<(), Errno> {
    let open = call.files.get(file).ok_or(Errno::BADF)?;
    let may = open.node != Node::Render
        && match needs {
            Needs::Card => true,
            Needs::Authenticated => open.authenticated,
            Needs::Master => call.files.master == Some(file),
        };
    if may { Ok(()) } else { Err(Errno::ACCESS) }
}

fn of<'c>(call: &'c mut Call<'_>, file: u32) -> Result<&'c mut OpenFile, Errno> {
    call.files.get_mut(file).ok_or(Errno::BADF)
}

pub(super) fn get_unique(call: &mut Call<'_>, _: u32, args: &mut Unique) -> Result<(), Errno> {
    let text = if call.files.unique { UNIQUE } else { "" };
    // What has no room is not copied at all.
    let room = if args.len >= text.len() as u64 { args.len } else { 0 };
    args.len = put_text(args.text, room, text)?;
    Ok(())
}

pub(super) fn get_client(call: &mut Call<'_>, file: u32, args: &mut Client) -> Result<(), Errno> {
    if args.index != 0 {
        return Err(Errno::INVAL);
    }
    let authenticated = of(call, file)?.authenticated;
    *args = Client {
        index: 0,
        authenticated: authenticated.into(),
        pid: std::process::id().into(),
        uid: rustix::process::getuid().as_raw().into(),
        magic: 0,
        calls: 0,
    };
    Ok(())
}

pub(super) fn set_version(call: &mut Call<'_>, _: u32, args: &mut Versions) -> Result<(), Errno> {
    let (major, minor, _) = call.config().version.parts();
    let driver = (major.cast_signed(), minor.cast_signed());
    let fits = |asked: [i32; 2], have: (i32, i32)| {
        asked[0] == -1 || asked[0] == have.0 && (0..=have.1).contains(&asked[1])
    };
    let good = fits(args.interface, INTERFACE) && fits(args.driver, driver);
    if fits(args.interface, INTERFACE) && args.interface[0] != -1 && args.interface[1] >= 1 {
        call.files.unique = true;
    }
    *args = Versions { interface: INTERFACE.into(), driver: driver.into() };
    if good { Ok(()) } else { Err(Errno::INVAL) }
}

/// No driver without mode setting takes any.
pub(super) fn set_client_cap(_: &mut Call<'_>, _: u32, _: &mut ClientCap) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

/// A number by which the master can authenticate this file: its own here.
pub(super) fn get_magic(call: &mut Call<'_>, file: u32, args: &mut Magic) -> Result<(), Errno> {
    of(call, file)?.magic = true;
    args.magic = file;
    Ok(())
}

pub(super) fn auth_magic(call: &mut Call<'_>, _: u32, args: &mut Magic) -> Result<(), Errno> {
    let open = call.files.get_mut(args.magic).filter(|open| open.magic).ok_or(Errno::INVAL)?;
    (open.authenticated, open.magic) = (true, false);
    Ok(())
}

/// Whether a file may become or cease to be the master: root's, and one that was it before.
fn may_switch(call: &mut Call<'_>, file: u32) -> Result<(), Errno> {
    let open = of(call, file)?;
    if open.privileged || open.was_master { Ok(()) } else { Err(Errno::ACCESS) }
}

pub(super) fn set_master(call: &mut Call<'_>, file: u32, _: &mut Nothing) -> Result<(), Errno> {
    may_switch(call, file)?;
    match call.files.master {
        Some(master) if master == file => Ok(()),
        Some(_) => Err(Errno::BUSY),
        None => {
            call.files.make_master(file);
            Ok(())
        }
    }
}

pub(super) fn drop_master(call: &mut Call<'_>, file: u32, _: &mut Nothing) -> Result<(), Errno> {
    may_switch(call, file)?;
    if call.files.master != Some(file) {
        return Err(Errno::INVAL);
    }
    call.files.master = None;
    Ok(())
}

/// A name for an object, the same one as long as it has handles.
pub(super) fn flink(call: &mut Call<'_>, file: u32, args: &mut Flink) -> Result<(), Errno> {
    let address = of(call, file)?.handles.get(args.handle).ok_or(Errno::NOENT)?;
    args.name = call.objects.name(address);
    Ok(())
}

/// A handle to the object of a name: a new one each time.
pub(super) fn open(call: &mut Call<'_>, file: u32, args: &mut Open) -> Result<(), Errno> {
    let address = call.objects.named(args.name).ok_or(Errno::NOENT)?;
    let object = call.objects.get_mut(address).ok_or(Errno::NOENT)?;
    object.refs += 1;
    args.size = object.size;
    args.handle = add_handle(call, file, address)?;
    Ok(())
}
