//! Buffers that begin where a page does.

use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

/// Bytes from the start of a page on, as device memory and mapped files lie; a `Vec` lies anywhere,
/// and what it costs to write cache lines that are not whole is then measured too.
///
/// ```
/// let buffer = ratio::Pages::new(100);
/// assert!(buffer.len() == 100 && buffer.as_ptr().addr() % 4096 == 0);
/// ```
#[derive(Debug)]
pub struct Pages {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Pages {
    /// `len` bytes of 0.
    pub fn new(len: usize) -> Pages {
        let bytes = vec![0; len + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Pages { bytes, start, len }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
