//! The calls of the driver and those of the DRM core that belong to them.

mod action;
pub(crate) mod create;
pub(crate) mod drm_core;
mod handles;
mod mmap;
pub(crate) mod prime;
pub(crate) mod roles;
mod submit;
mod sync;

pub(crate) use handles::put_file as close;
pub(crate) use mmap::Mapped;
pub(crate) use prime::DmaBufs;

use crate::calls::roles::Needs;
use crate::files::Node;
use crate::kernel::Call;
use crate::report::CallKind;
use crate::user::Arg;
use rknpu_sys::ioctl as words;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Fields of a request word.
#[derive(Clone, Copy, Debug)]
struct Word(u32);

impl Word {
    fn nr(self) -> u8 {
        self.0 as u8
    }

    fn kind(self) -> u8 {
        (self.0 >> 8) as u8
    }

    fn size(self) -> usize {
        (self.0 >> 16) as usize & 0x3fff
    }

    /// The caller hands bytes in.
    fn writes(self) -> bool {
        self.0 & 0x4000_0000 != 0
    }

    /// The caller wants bytes back.
    fn reads(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

/// Bytes that a struct takes on the stack; longer ones go to the heap.
const SHORT: usize = 128;

/// Bytes that a request word says its struct has.
pub(crate) fn size_of_word(request: u32) -> usize {
    Word(request).size()
}

/// Whether a call's struct holds addresses that it writes to.
pub(crate) fn holds_addresses(request: u32, bytes: &[u8]) -> bool {
    let word = Word(request);
    let held = |at: &usize| bytes.get(*at..at + 8).is_some_and(|field| field != [0; 8]);
    let addresses: &[usize] = match word.nr() {
        _ if word.kind() != words::DRM_TYPE => &[],
        nr if nr == Word(words::DRM_VERSION).nr() => &[24, 40, 56],
        nr if nr == Word(roles::GET_UNIQUE).nr() => &[8],
        _ => &[],
    };
    addresses.iter().any(held)
}

/// One call, as the DRM core makes it: the caller's size is copied in, the rest is zero; the
/// caller's size is copied out, also when the call failed.
pub(crate) fn ioctl(call: &mut Call<'_>, file: u32, arg: &Arg) -> Result<i32, Errno> {
    let word = Word(arg.request);
    if word.kind() != words::DRM_TYPE {
        return Err(Errno::NOTTY);
    }
    let node = call.files.get(file).map(|file| file.node).ok_or(Errno::BADF)?;
    if let Some(needs) = needs(word.nr()) {
        roles::permitted(call, file, needs)?;
    }
    let handler = handler(call, word.nr(), node)?;
    let known = Word(handler.word);
    let (takes, gives) = (word.writes() && known.writes(), word.reads() && known.reads());
    let size = word.size();
    let (size_in, size_out) = (if takes { size } else { 0 }, if gives { size } else { 0 });
    let needed = size_in.max(size_out).max(known.size()).max(handler.room);

    let mut short = [0u64; SHORT / 8];
    let mut long;
    let bytes = if needed <= SHORT {
        &mut short.as_mut_bytes()[..needed]
    } else {
        long = vec![0u64; needed.div_ceil(8)];
        &mut long.as_mut_bytes()[..needed]
    };
    if size_in > 0 && call.faults.copy_in() {
        return Err(Errno::FAULT);
    }
    arg.read(&mut bytes[..size_in])?;
    if let Some(errno) = call.faults.call(handler.kind) {
        call.report.called(handler.kind, false);
        return Err(errno);
    }
    let result = (handler.run)(call, file, bytes, gives);
    if matches!(word.nr(), 0x40..=0x45) {
        call.powered_ns = Some(call.time.now());
    }
    call.report.called(handler.kind, result.is_ok());
    let refused = size_out > 0 && call.faults.copy_out();
    let written = if refused { Err(Errno::FAULT) } else { arg.write(&bytes[..size_out]) };
    if let Err(errno) = written {
        if handler.kind == CallKind::MemCreate && result.is_ok() {
            create::lost(call, bytes);
        }
        return Err(errno);
    }
    result.map(|()| 0)
}

pub(crate) type Run = fn(&mut Call<'_>, u32, &mut [u8], bool) -> Result<(), Errno>;

pub(crate) struct Handler {
    pub(crate) kind: CallKind,
    /// The word that the kernel knows: its direction and size.
    pub(crate) word: u32,
    /// Bytes that the handler reads and writes.
    pub(crate) room: usize,
    pub(crate) run: Run,
}

/// Wraps a handler of a struct.
macro_rules! handlers {
    ($kind:ident, $word:expr, $ty:ty, $run:expr) => {
        $crate::calls::Handler {
            kind: $crate::report::CallKind::$kind,
            word: $word,
            room: size_of::<$ty>(),
            run: |call, file, bytes, gives| {
                let _ = gives;
                $crate::calls::with::<$ty>(bytes, |args| $run(call, file, args))
            },
        }
    };
}

pub(crate) use handlers;

/// Reads a struct from the head of `bytes`, runs `f` on it and writes it back.
pub(crate) fn with<T: FromBytes + IntoBytes + Immutable>(
    bytes: &mut [u8],
    f: impl FnOnce(&mut T) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut args, _) = T::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
    let result = f(&mut args);
    args.write_to_prefix(bytes).map_err(|_| Errno::INVAL)?;
    result
}

/// What a call of the DRM core asks of who makes it; the driver's own, and some, ask nothing.
fn needs(nr: u8) -> Option<Needs> {
    match nr {
        0x01 | 0x02 | 0x05 | 0x0d | 0x1e | 0x1f => Some(Needs::Card),
        0x0a | 0x0b => Some(Needs::Authenticated),
        0x07 | 0x11 => Some(Needs::Master),
        _ => None,
    }
}

fn handler(call: &Call<'_>, nr: u8, node: Node) -> Result<Handler, Errno> {
    use rknpu_sys::uapi;
    if crate::rocket::is(call.config()) {
        return crate::rocket::handler(nr);
    }
    let version = call.config().version;
    Ok(match nr {
        0x40 => handlers!(Action, words::ACTION, uapi::Action, action::action),
        0x41 => handlers!(Submit, words::SUBMIT, uapi::Submit, submit::submit),
        0x42 => {
            let long = version.has_domains();
            let word = if long { words::MEM_CREATE } else { words::MEM_CREATE_V40 };
            Handler {
                kind: CallKind::MemCreate,
                word,
                room: size_of::<uapi::MemCreate>(),
                run: create::create,
            }
        }
        0x43 => handlers!(MemMap, words::MEM_MAP, uapi::MemMap, mmap::map_offset),
        0x44 => handlers!(MemDestroy, words::MEM_DESTROY, uapi::MemDestroy, handles::destroy),
        0x45 => handlers!(MemSync, words::MEM_SYNC, uapi::MemSync, sync::sync),
        0xb2 if node == Node::Card => {
            handlers!(CreateDumb, drm_core::CREATE_DUMB, drm_core::Dumb, drm_core::create_dumb)
        }
        0xb3 if node == Node::Card => {
            handlers!(MemMap, drm_core::MAP_DUMB, uapi::MemMap, mmap::map_offset)
        }
        0xb4 if node == Node::Card => {
            handlers!(
                GemClose,
                drm_core::DESTROY_DUMB,
                drm_core::DumbHandle,
                drm_core::destroy_dumb
            )
        }
        0xa0..=0xce => return Err(drm_core::refusal(node)),
        _ => return drm_core::common(nr),
    })
}
