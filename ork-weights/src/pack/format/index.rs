//! The index: names, shapes and places, checked one by one.

use rknpu_sys::layout::LayoutError;

use super::bytes::Cursor;
use super::footer::{Footer, Form};
use super::sizes;
use crate::pack::Dtype;
use crate::pack::dtype::PADDED;
use crate::pack::entry::{Entry, Span};
use crate::pack::error::{PackError, Part, Result};

/// Longest name that is read or written. GGUF allows 64 bytes and experts add a number.
pub(crate) const MAX_NAME: u32 = 4096;

/// What the index says, in the order of the file.
pub(crate) struct Index {
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Option<Span>,
    /// Bytes of prefix and entries.
    pub(crate) bytes: u64,
}

/// Reads `region`, the bytes from the index to the footer, as an index of this form.
pub(crate) fn parse(region: &[u8], footer: &Footer, form: Form) -> Result<Index> {
    let room = region.len() as u64;
    let prefix = if form.prefix { 16 } else { 0 };
    // The least an entry takes: a length, a name of one byte, the struct.
    let least = (4 + 1 + form.stride) as u64;
    if u64::from(footer.entries) > room.saturating_sub(prefix) / least {
        return Err(PackError::EntryCount { entries: footer.entries, room });
    }
    let mut at = Cursor::new(region);
    let metadata = if form.prefix { read_prefix(&mut at, footer)? } else { None };
    let mut entries = Vec::with_capacity(footer.entries as usize);
    for order in 0..footer.entries {
        entries.push(read_entry(&mut at, order, footer.index, form)?);
    }
    Ok(Index { entries, metadata, bytes: at.position() as u64 })
}

fn read_prefix(at: &mut Cursor<'_>, footer: &Footer) -> Result<Option<Span>> {
    let truncated = PackError::IndexTruncated { entry: 0 };
    let (Some(offset), Some(bytes)) = (at.u64(), at.u64()) else { return Err(truncated) };
    metadata_span(offset, bytes, footer.index)
}

/// Offset and size of a metadata section, 0 and 0 for none; it must lie before the index.
pub(crate) fn metadata_span(offset: u64, bytes: u64, limit: u64) -> Result<Option<Span>> {
    if (offset, bytes) == (0, 0) {
        return Ok(None);
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= limit => Ok(Some(Span { offset, bytes })),
        _ => Err(PackError::MetadataRange { offset, bytes, limit }),
    }
}

/// Reads entry number `order`, all of whose parts must lie before `limit`.
pub(crate) fn read_entry(at: &mut Cursor<'_>, order: u32, limit: u64, form: Form) -> Result<Entry> {
    let truncated = || PackError::IndexTruncated { entry: order };
    let bytes = at.u32().ok_or_else(truncated)?;
    if bytes == 0 {
        return Err(PackError::NameEmpty { entry: order });
    }
    if bytes > MAX_NAME {
        return Err(PackError::NameLength { entry: order, bytes, max: MAX_NAME });
    }
    let name = at.take(bytes as usize).ok_or_else(truncated)?;
    let name = std::str::from_utf8(name).map_err(|_| PackError::NameNotUtf8 { entry: order })?;
    if name.chars().any(char::is_control) {
        return Err(PackError::NameControl { entry: order, name: name.into() });
    }
    let raw = Cursor::new(at.take(form.stride).ok_or_else(truncated)?);
    let raw = RawEntry::read(raw, form).ok_or_else(truncated)?;
    raw.check(name, order, limit)
}

/// The struct behind a name.
pub(crate) struct RawEntry {
    pub(crate) k: u32,
    pub(crate) n: u32,
    pub(crate) dtype: u32,
    pub(crate) scales: u32,
    pub(crate) blob: Span,
    pub(crate) scales_at: u64,
    pub(crate) full_k: u64,
    pub(crate) error: f32,
}

impl RawEntry {
    fn read(mut at: Cursor<'_>, form: Form) -> Option<RawEntry> {
        Some(RawEntry {
            k: at.u32()?,
            n: at.u32()?,
            dtype: at.u32()?,
            scales: at.u32()?,
            blob: Span { offset: at.u64()?, bytes: at.u64()? },
            scales_at: at.u64()?,
            full_k: if form.stride >= 48 { at.u64()? } else { 0 },
            error: if form.stride >= 56 { at.f32()? } else { 0.0 },
        })
    }

    /// The entry, if everything in it agrees and lies before `limit`.
    pub(crate) fn check(self, name: &str, order: u32, limit: u64) -> Result<Entry> {
        let dtype = Dtype::from_code(self.dtype & !PADDED)
            .ok_or_else(|| PackError::DtypeUnknown { name: name.into(), dtype: self.dtype })?;
        let shape = |source| PackError::Shape { name: name.into(), source };
        let layout = dtype.layout(self.k, self.n).map_err(shape)?;
        let (k, n) = (layout.k(), layout.n());
        match (self.dtype & PADDED != 0, (k, n) == (self.k, self.n)) {
            (true, true) => {
                return Err(PackError::Padding { name: name.into(), k, n });
            }
            (false, false) => {
                let (k, n, precision) = (self.k, self.n, dtype.stored().unwrap_or(dtype.loaded()));
                return Err(shape(LayoutError { k, n, precision }));
            }
            _ => {}
        }
        let expected = sizes::bytes(k, n, dtype).map_err(shape)?;
        let stamped = sizes::stamped(self.blob.bytes, expected, dtype).ok_or_else(|| {
            let bytes = self.blob.bytes;
            PackError::Size { name: name.into(), part: Part::Blob, bytes, expected }
        })?;
        let expected = sizes::full_k_bytes(k, n);
        if self.full_k != 0
            && (dtype != Dtype::Int8 || sizes::stamped(self.full_k, expected, dtype).is_none())
        {
            let bytes = self.full_k;
            return Err(PackError::Size {
                name: name.into(),
                part: Part::FullK,
                bytes,
                expected: if dtype == Dtype::Int8 { expected } else { 0 },
            });
        }
        if !sizes::scale_count_fits(self.scales, k, n, dtype) {
            return Err(PackError::ScaleCount {
                name: name.into(),
                count: self.scales.into(),
                k,
                n,
                dtype,
            });
        }
        let scales = Span { offset: self.scales_at, bytes: u64::from(self.scales) * 4 };
        let full_k =
            Span { offset: self.blob.offset.wrapping_add(self.blob.bytes), bytes: self.full_k };
        for (part, span) in [(Part::Blob, self.blob), (Part::FullK, full_k), (Part::Scales, scales)]
        {
            if span.bytes != 0 && span.end().is_none_or(|end| end > limit) {
                return Err(PackError::Range {
                    name: name.into(),
                    part,
                    offset: span.offset,
                    bytes: span.bytes,
                    limit,
                });
            }
        }
        Ok(Entry {
            name: name.into(),
            k: self.k,
            n: self.n,
            dtype,
            layout,
            order,
            stamped,
            blob: self.blob,
            full_k,
            scales,
            error: (self.error.is_finite() && self.error > 0.0).then_some(self.error),
            checksums: None,
        })
    }
}

/// Appends an entry of this form.
pub(crate) fn encode(out: &mut Vec<u8>, entry: &Entry, form: Form) {
    out.extend((entry.name.len() as u32).to_le_bytes());
    out.extend(entry.name.as_bytes());
    for field in [entry.k, entry.n, entry.code(), (entry.scales.bytes / 4) as u32] {
        out.extend(field.to_le_bytes());
    }
    let scales_at = if entry.scales.bytes == 0 { 0 } else { entry.scales.offset };
    for field in [entry.blob.offset, entry.blob.bytes, scales_at] {
        out.extend(field.to_le_bytes());
    }
    if form.stride >= 48 {
        out.extend(entry.full_k.bytes.to_le_bytes());
    }
    if form.stride >= 56 {
        out.extend(entry.error.unwrap_or(0.0).to_le_bytes());
        out.extend([0; 4]);
    }
}
