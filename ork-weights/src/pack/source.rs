//! Where the bytes of a pack come from: memory, a mapping, or a file that is read.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::error::{PackError, Result};

/// Random access to the bytes of a pack.
///
/// Everything that is `AsRef<[u8]>` is a source, so a pack can be read from a `Vec<u8>`, a slice or a
/// [`Mapping`](crate::Mapping).
///
/// ```
/// use ork_weights::pack::{Pack, Result, Source};
/// use std::cell::Cell;
/// use std::ops::Range;
///
/// /// Bytes that count how often they are asked for.
/// struct Counted(Vec<u8>, Cell<usize>);
///
/// impl Source for Counted {
///     fn size(&self) -> u64 {
///         Source::size(&self.0)
///     }
///
///     fn bytes(&self, _: Range<u64>) -> Option<&[u8]> {
///         None // so that all goes through `read_at`
///     }
///
///     fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
///         self.1.set(self.1.get() + 1);
///         Source::read_at(&self.0, offset, out)
///     }
/// }
///
/// # let file = ork_weights::doc::pack()?;
/// # let path = file.path();
/// let pack = Pack::parse(Counted(std::fs::read(&path)?, Cell::new(0)))?;
/// assert!(pack.source().1.get() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Source {
    /// Length in bytes.
    fn size(&self) -> u64;

    /// The bytes themselves, if they lie in memory and inside; `None` sends the reader to
    /// [`Source::read_at`].
    fn bytes(&self, range: Range<u64>) -> Option<&[u8]>;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// [`PackError::Io`] when the range is not there or cannot be read.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// As [`Source::read_at`], for a source that reads many bytes past the system's cache and several
    /// pieces of them at once; `None` for one that does not.
    fn read_past_cache(&self, offset: u64, out: &mut [u8]) -> Option<Result<()>> {
        let _ = (offset, out);
        None
    }

    /// Whether this is still what was opened.
    ///
    /// # Errors
    /// [`PackError::Changed`] when size or modification time of the file differ.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<B: AsRef<[u8]>> Source for B {
    fn size(&self) -> u64 {
        self.as_ref().len() as u64
    }

    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        slice(self.as_ref(), range)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        copy(self.as_ref(), offset, out, Path::new("pack in memory"))
    }
}

/// The part of `bytes` that `range` names, if it is inside.
pub(crate) fn slice(bytes: &[u8], range: Range<u64>) -> Option<&[u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// [`Source::read_at`] of bytes in memory.
pub(crate) fn copy(bytes: &[u8], offset: u64, out: &mut [u8], path: &Path) -> Result<()> {
    let end = offset.saturating_add(out.len() as u64);
    let from = slice(bytes, offset..end)
        .ok_or_else(|| PackError::io("read", path)(io::ErrorKind::UnexpectedEof.into()))?;
    out.copy_from_slice(from);
    Ok(())
}

/// `range` of a source, borrowed where possible.
pub(crate) fn fetch<S: Source>(source: &S, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
    if let Some(bytes) = source.bytes(range.clone()) {
        return Ok(Cow::Borrowed(bytes));
    }
    let len = usize::try_from(range.end.saturating_sub(range.start)).ok();
    // Never more than the source has, whoever asks.
    let len = len.filter(|_| range.end <= source.size()).ok_or_else(|| {
        PackError::io("read", Path::new("pack"))(io::ErrorKind::UnexpectedEof.into())
    })?;
    let mut bytes = vec![0; len];
    source.read_at(range.start, &mut bytes)?;
    Ok(Cow::Owned(bytes))
}
