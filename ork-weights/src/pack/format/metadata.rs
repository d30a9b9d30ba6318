//! The part of the source GGUF that versions 6 and 7 embed: its header and every tensor left out of
//! the pack, enough to run a model from the pack and a stub.

use std::ops::Range;

use crate::pack::entry::Span;
use crate::pack::error::{PackError, Result};

/// Where the embedded parts of a GGUF lie.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metadata {
    /// Length of the source file.
    pub source_bytes: u64,
    /// The source's bytes from its start to its tensor data, as a range of the pack.
    pub header: Range<u64>,
    /// The tensors that are kept.
    pub kept: Vec<Kept>,
}

/// One range of the source file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// Where it begins in the source file.
    pub source_offset: u64,
    /// Its bytes, as a range of the pack.
    pub range: Range<u64>,
}

/// Reads the section at `span` with `read`, which fills a buffer from an offset of the file.
pub(crate) fn parse(
    span: Span,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Metadata> {
    let damaged = |reason: String| PackError::Metadata { reason };
    let end = span.range().end;
    let mut at = span.offset;
    let mut word = |at: &mut u64, bytes: usize, what: &str| {
        let next = at.checked_add(bytes as u64).filter(|next| *next <= end);
        let next = next.ok_or_else(|| damaged(format!("it ends before {what}")))?;
        let mut field = [0; 8];
        read(*at, &mut field[..bytes])?;
        *at = next;
        Ok(u64::from_le_bytes(field))
    };
    let source_bytes = word(&mut at, 8, "the size of the source")?;
    let header_bytes = word(&mut at, 8, "the size of the header")?;
    let header = part(&mut at, header_bytes, end)
        .filter(|_| header_bytes <= source_bytes)
        .ok_or_else(|| damaged(format!("a header of {header_bytes} bytes does not fit")))?;
    let count = word(&mut at, 4, "the number of tensors")?;
    if count > (end - at) / 16 {
        return Err(damaged(format!("{count} tensors do not fit {} bytes", end - at)));
    }
    let mut kept = Vec::with_capacity(count as usize);
    for tensor in 0..count {
        let source_offset = word(&mut at, 8, "the place of a tensor")?;
        let bytes = word(&mut at, 8, "the size of a tensor")?;
        let inside = source_offset.checked_add(bytes).is_some_and(|end| end <= source_bytes);
        let range = part(&mut at, bytes, end).filter(|_| inside).ok_or_else(|| {
            damaged(format!("tensor {tensor}, {bytes} bytes at {source_offset}, does not fit"))
        })?;
        kept.push(Kept { source_offset, range });
    }
    if at != end {
        return Err(damaged(format!("{} bytes follow the last tensor", end - at)));
    }
    Ok(Metadata { source_bytes, header, kept })
}

/// The next `bytes` bytes; `None` when they pass the end.
fn part(at: &mut u64, bytes: u64, end: u64) -> Option<Range<u64>> {
    let start = *at;
    *at = start.checked_add(bytes).filter(|next| *next <= end)?;
    Some(start..*at)
}
