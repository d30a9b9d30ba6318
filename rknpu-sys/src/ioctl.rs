//! Request words, and the raw calls.
//!
//! The DRM core dispatches on the number alone and copies the caller's size in and out, so an
//! older, shorter struct works on a newer driver with the rest read as zero.
//!
//! ```
//! use rknpu_sys::ioctl;
//!
//! // The direction, the struct's size, the type and the number, packed into 32 bits.
//! let word = ioctl::MEM_CREATE;
//! assert_eq!(word >> 30, 3); // read and write
//! assert_eq!(word >> 16 & 0x3fff, 48); // bytes
//! assert_eq!((word >> 8) as u8, ioctl::DRM_TYPE);
//! assert_eq!(word as u8, ioctl::DRM_COMMAND_BASE + 2);
//! ```

use crate::{drm, uapi};
use core::ffi::c_void;
use rustix::fd::AsFd;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// ioctl type of DRM.
pub const DRM_TYPE: u8 = b'd';
/// First driver-specific DRM number.
pub const DRM_COMMAND_BASE: u8 = 0x40;
/// Number of calls that the driver has; later ones answer EINVAL.
pub const COMMANDS: u8 = 6;

/// rustix types a request word by its back end (u32, or u64 over the C library); it has 32 bits in both.
#[allow(clippy::unnecessary_cast)]
pub(crate) const fn word(opcode: Opcode) -> u32 {
    opcode as u32
}

const fn command<T>(nr: u8) -> u32 {
    word(opcode::read_write::<T>(DRM_TYPE, DRM_COMMAND_BASE + nr))
}

/// [`uapi::Action`].
pub const ACTION: u32 = command::<uapi::Action>(0);
/// [`uapi::Submit`].
pub const SUBMIT: u32 = command::<uapi::Submit>(1);
/// [`uapi::MemCreate`].
pub const MEM_CREATE: u32 = command::<uapi::MemCreate>(2);
/// [`uapi::MemCreateV40`].
pub const MEM_CREATE_V40: u32 = command::<uapi::MemCreateV40>(2);
/// [`uapi::MemMap`].
pub const MEM_MAP: u32 = command::<uapi::MemMap>(3);
/// [`uapi::MemDestroy`].
pub const MEM_DESTROY: u32 = command::<uapi::MemDestroy>(4);
/// [`uapi::MemSync`].
pub const MEM_SYNC: u32 = command::<uapi::MemSync>(5);
/// [`drm::Version`].
pub const DRM_VERSION: u32 = word(opcode::read_write::<drm::Version>(DRM_TYPE, 0x00));
/// [`drm::GemClose`].
pub const GEM_CLOSE: u32 = word(opcode::write::<drm::GemClose>(DRM_TYPE, 0x09));
/// [`drm::PrimeHandle`].
pub const PRIME_HANDLE_TO_FD: u32 = word(opcode::read_write::<drm::PrimeHandle>(DRM_TYPE, 0x2d));
/// [`drm::PrimeHandle`].
pub const PRIME_FD_TO_HANDLE: u32 = word(opcode::read_write::<drm::PrimeHandle>(DRM_TYPE, 0x2e));
/// [`drm::DmaHeapAllocation`].
pub const DMA_HEAP_ALLOC: u32 = word(opcode::read_write::<drm::DmaHeapAllocation>(b'H', 0));
/// [`drm::DmaBufSync`].
pub const DMA_BUF_SYNC: u32 = word(opcode::write::<drm::DmaBufSync>(b'b', 0));

const _: () = {
    assert!(ACTION == 0xC008_6440);
    assert!(SUBMIT == 0xC068_6441);
    assert!(MEM_CREATE == 0xC030_6442);
    assert!(MEM_CREATE_V40 == 0xC028_6442);
    assert!(MEM_MAP == 0xC010_6443);
    assert!(MEM_DESTROY == 0xC010_6444);
    assert!(MEM_SYNC == 0xC020_6445);
    assert!(DRM_VERSION == 0xC040_6400);
    assert!(GEM_CLOSE == 0x4008_6409);
    assert!(PRIME_HANDLE_TO_FD == 0xC00C_642D);
    assert!(PRIME_FD_TO_HANDLE == 0xC00C_642E);
};

/// A struct that one request word takes.
///
/// ```
/// use rknpu_sys::{ioctl::Request, uapi};
///
/// fn message<T: Request>(errno: &str) -> String {
///     format!("{} ({:#x}): {errno}", T::NAME, T::REQUEST)
/// }
/// assert_eq!(message::<uapi::MemSync>("EINVAL"), "MEM_SYNC (0xc0206445): EINVAL");
/// ```
///
/// # Safety
/// `REQUEST`'s encoded size is `size_of::<Self>()`, so that the kernel reads and writes inside it.
pub unsafe trait Request: Sized {
    /// The request word.
    const REQUEST: u32;
    /// The call's name, for messages.
    const NAME: &'static str;
}

macro_rules! request {
    ($($ty:ty => $word:ident,)*) => { $(
        // SAFETY: the assertion below compares the word's size field with the struct's size.
        unsafe impl Request for $ty {
            const REQUEST: u32 = $word;
            const NAME: &'static str = stringify!($word);
        }
        const _: () = assert!(($word >> 16) as usize & 0x3fff == size_of::<$ty>());
    )* };
}

pub(crate) use request;

request! {
    uapi::Action => ACTION,
    uapi::Submit => SUBMIT,
    uapi::MemCreate => MEM_CREATE,
    uapi::MemCreateV40 => MEM_CREATE_V40,
    uapi::MemMap => MEM_MAP,
    uapi::MemDestroy => MEM_DESTROY,
    uapi::MemSync => MEM_SYNC,
    drm::Version => DRM_VERSION,
    drm::GemClose => GEM_CLOSE,
    drm::DmaHeapAllocation => DMA_HEAP_ALLOC,
    drm::DmaBufSync => DMA_BUF_SYNC,
}

struct Call {
    request: u32,
    arg: *mut c_void,
}

// SAFETY: `arg` points to the struct that `request` encodes the size of: `call` takes both from
// `Request`, whose contract that is, and `prime` pairs its two words with their struct. The struct
// is borrowed mutably by the caller for as long as the call lasts.
unsafe impl Ioctl for Call {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.request as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.arg
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Issues one of the driver's calls. The struct is written back also when the call fails.
///
/// Any [`AsFd`] will do; std's files are such when rustix has its feature `std`, as in most programs.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use rknpu_sys::{action, ioctl, uapi::Action};
///
/// let node = std::fs::File::open("/dev/null")?; // on a board, a node under /dev/dri
/// let mut version = Action { flags: action::GET_DRV_VERSION, value: 0 };
/// // SAFETY: an action carries no addresses.
/// let answer = unsafe { ioctl::call(&node, &mut version) };
/// // `/dev/null` has no ioctls; the rknpu driver gives Ok and 908 in `version.value`.
/// assert_eq!(answer, Err(rustix::io::Errno::NOTTY));
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// The struct's contents must be such that the kernel touches nothing it must not: an `obj_addr`
/// comes from a live buffer of this device, a task range lies inside its buffer, user addresses in
/// [`drm::Version`] point to buffers of their lengths. The driver checks none of this.
///
/// # Errors
/// The kernel's errno.
pub unsafe fn call<T: Request>(fd: impl AsFd, arg: &mut T) -> rustix::io::Result<()> {
    // SAFETY: word and struct belong together by `Request`; the contents are the caller's promise.
    unsafe {
        rustix::ioctl::ioctl(fd, Call { request: T::REQUEST, arg: core::ptr::from_mut(arg).cast() })
    }
}

/// Which way a [`drm::PrimeHandle`] goes.
///
/// ```
/// use rknpu_sys::ioctl::{PRIME_FD_TO_HANDLE, PRIME_HANDLE_TO_FD, Prime};
///
/// let word = |direction| match direction {
///     Prime::Export => PRIME_HANDLE_TO_FD,
///     Prime::Import => PRIME_FD_TO_HANDLE,
/// };
/// assert_eq!(word(Prime::Import), word(Prime::Export) + 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prime {
    /// `PRIME_HANDLE_TO_FD`.
    Export,
    /// `PRIME_FD_TO_HANDLE`.
    Import,
}

/// Issues one of the two PRIME calls.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use rknpu_sys::{drm::PrimeHandle, ioctl::{self, Prime}};
///
/// let node = std::fs::File::open("/dev/null")?; // on a board, a node under /dev/dri
/// let mut handle = PrimeHandle { handle: 1, flags: 0o2000002, fd: -1 };
/// // SAFETY: an export changes no mapping.
/// let answer = unsafe { ioctl::prime(&node, Prime::Export, &mut handle) };
/// assert_eq!(answer, Err(rustix::io::Errno::NOTTY));
/// # Ok(())
/// # }
/// ```
///
/// # Safety
/// An imported handle's mapping goes into whatever domain is live, and is taken from domain 0 when
/// freed: the caller holds domain 0 live and idle until then.
///
/// # Errors
/// The kernel's errno.
pub unsafe fn prime(
    fd: impl AsFd,
    direction: Prime,
    arg: &mut drm::PrimeHandle,
) -> rustix::io::Result<()> {
    let request = match direction {
        Prime::Export => PRIME_HANDLE_TO_FD,
        Prime::Import => PRIME_FD_TO_HANDLE,
    };
    // SAFETY: both words take a `PrimeHandle`; the rest is the caller's promise.
    unsafe { rustix::ioctl::ioctl(fd, Call { request, arg: core::ptr::from_mut(arg).cast() }) }
}
