//! Reading a header front to back, never past its end.

use super::GgufError;

/// A position in the bytes a file begins with.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Length of the whole file.
    file: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], file: u64) -> Cursor<'a> {
        Cursor { bytes, at: 0, file }
    }

    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }

    /// The bytes that were read from `start` on.
    pub(super) fn since(&self, start: u64) -> &'a [u8] {
        self.bytes.get(start as usize..self.at).unwrap_or_default()
    }

    fn left(&self) -> u64 {
        self.file.saturating_sub(self.position())
    }

    /// An empty list with room for `count` things, but no more than the bytes at hand can hold: a
    /// count is only believed as far as it is read.
    pub(super) fn list<T>(&self, count: usize, least: u64) -> Vec<T> {
        Vec::with_capacity(count.min((self.bytes.len() - self.at) / least.max(1) as usize))
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, what: &'static str, count: u64) -> Result<&'a [u8], GgufError> {
        let short = GgufError::Truncated { what, at: self.position(), bytes: count };
        let Ok(count) = usize::try_from(count) else { return Err(short) };
        let Some(taken) = self.bytes[self.at..].get(..count) else { return Err(short) };
        self.at += count;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(what, N as u64)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A length and so many bytes, which need not be UTF-8: vocabularies hold pieces of characters.
    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let length = self.u64(what)?;
        self.take(what, length)
    }

    /// A length and so many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let at = self.position();
        let bytes = self.text(what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 { what, at })
    }

    /// Refuses a count of things, `least` bytes each, that the rest of the file cannot hold.
    pub(super) fn count(
        &self,
        what: &'static str,
        count: u64,
        least: u64,
    ) -> Result<usize, GgufError> {
        let room = self.left() / least;
        match usize::try_from(count) {
            Ok(fits) if count <= room => Ok(fits),
            _ => Err(GgufError::Count { what, count, room }),
        }
    }
}
