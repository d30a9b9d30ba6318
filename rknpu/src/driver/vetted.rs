//! Structs whose contents a kernel may trust, on their way to it.

use rknpu_sys::ioctl::Request;
use rustix::io::Errno;

/// A request whose every field its driver may trust. Only [`call`] makes one, and only the drivers' own files
/// call that, which fill addresses and ranges from objects that they borrow.
pub(crate) struct Vetted<T>(T);

impl<T> Vetted<T> {
    /// The struct, for the call.
    pub(super) fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Interrupted calls are made again, but not for ever.
const INTERRUPTIONS: u32 = 100;

/// Has a request carried to its driver, again while a signal interrupts it: what came back.
pub(super) fn call<T: Request + Copy>(
    request: T,
    carry: impl Fn(&mut Vetted<T>) -> Result<(), Errno>,
) -> (T, Result<(), Errno>) {
    let mut left = INTERRUPTIONS;
    loop {
        let mut vetted = Vetted(request);
        let result = carry(&mut vetted);
        if result == Err(Errno::INTR) && left > 0 {
            left -= 1;
            continue;
        }
        return (vetted.0, result);
    }
}
