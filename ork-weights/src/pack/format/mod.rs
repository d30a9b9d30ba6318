//! The bytes of the format, without any I/O: what `docs/orkpack.md` describes, read and written.

pub(crate) mod bytes;
pub(crate) mod calibration;
pub(crate) mod extension;
pub(crate) mod footer;
pub(crate) mod index;
pub(crate) mod metadata;
pub(crate) mod o4n1;
pub(crate) mod sizes;
pub(crate) mod stamp;
