//! Structs whose contents a kernel may trust, on their way to it.

use rknpu_sys::ioctl::Request;

/// A struct of a request, every field of which its driver may trust. Each driver has one type that
/// implements this, made by the driver's own file alone, which fills addresses and ranges from objects that it
/// borrows; nothing else may.
pub(crate) trait Carried {
    /// What the driver reads and writes back.
    type Request: Request;

    /// The struct, for the call.
    fn request(&mut self) -> &mut Self::Request;
}
