//! The section between index and footer that only this library writes: whose weights these are, how
//! they are laid out, and checksums. Other readers walk the index by its count and never see it.

use rknpu_sys::layout::{K_BLOCK, LOW_NIBBLE_FIRST, N_SLICE, PAGE, Precision};
use xxhash_rust::xxh3::xxh3_64;

use super::bytes::Cursor;
use super::index::metadata_span;
use crate::pack::Identity;
use crate::pack::entry::{Checksums, Entry, Span};
use crate::pack::error::{PackError, Result};
use crate::pack::left_out::LeftOut;

const MAGIC: [u8; 8] = *b"ORKEXT01";
/// Without and with a list of what was left out of the pack.
const PLAIN: u32 = 1;
const LISTING: u32 = 2;
const HEADER: usize = 128;
const ROW: usize = 24;
const TRAILER: usize = 8;

const HAS_IDENTITY: u32 = 1;
const HAS_FULL_HASH: u32 = 2;

/// What this library writes into the packer field.
pub(crate) const PACKER: &str = concat!("ork ", env!("CARGO_PKG_VERSION"));

/// The parts of the section that describe the whole pack.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Extension {
    pub(crate) packer: String,
    pub(crate) recipe: u64,
    pub(crate) identity: Option<Identity>,
    /// Place of a metadata section in versions whose index has no prefix for it.
    pub(crate) metadata: Option<Span>,
    pub(crate) left_out: LeftOut,
}

/// FNV-1a over every figure the tile layout depends on; changes whenever old tiles would be misread.
pub(crate) const fn layout_id() -> u32 {
    let fields = [
        PAGE as u32,
        N_SLICE,
        K_BLOCK,
        Precision::Int8.k_slice(),
        Precision::Int8.tile_width(),
        Precision::Int4.k_slice(),
        Precision::Int4.tile_width(),
        LOW_NIBBLE_FIRST as u32,
    ];
    let mut hash: u32 = 2_166_136_261;
    let mut i = 0;
    while i < fields.len() {
        let bytes = fields[i].to_le_bytes();
        let mut b = 0;
        while b < 4 {
            hash = (hash ^ bytes[b] as u32).wrapping_mul(16_777_619);
            b += 1;
        }
        i += 1;
    }
    hash
}

/// The section for `entries` (in the order of the file) behind an index of these bytes.
pub(crate) fn encode(extension: &Extension, entries: &[Entry], index: &[u8]) -> Vec<u8> {
    let mut list = Vec::new();
    let version = if extension.left_out.is_empty() { PLAIN } else { LISTING };
    if version == LISTING {
        extension.left_out.encode(&mut list);
    }
    let bytes = HEADER + ROW * entries.len() + list.len() + TRAILER;
    let mut out = Vec::with_capacity(bytes);
    let flags = match extension.identity {
        None => 0,
        Some(Identity { full_hash: None, .. }) => HAS_IDENTITY,
        Some(_) => HAS_IDENTITY | HAS_FULL_HASH,
    };
    out.extend(MAGIC);
    out.extend((bytes as u64).to_le_bytes());
    out.extend(version.to_le_bytes());
    out.extend(flags.to_le_bytes());
    let mut packer = [0; 16];
    for (to, from) in packer.iter_mut().zip(extension.packer.bytes()) {
        *to = from;
    }
    out.extend(packer);
    out.extend(layout_id().to_le_bytes());
    out.extend((entries.len() as u32).to_le_bytes());
    out.extend(extension.recipe.to_le_bytes());
    out.extend(xxh3_64(index).to_le_bytes());
    let metadata = extension.metadata.unwrap_or(Span { offset: 0, bytes: 0 });
    out.extend(metadata.offset.to_le_bytes());
    out.extend(metadata.bytes.to_le_bytes());
    let id = extension.identity.unwrap_or(Identity {
        size: 0,
        modified_ns: 0,
        sample_hash: 0,
        full_hash: None,
    });
    out.extend(id.size.to_le_bytes());
    out.extend(id.modified_ns.to_le_bytes());
    out.extend(id.sample_hash.to_le_bytes());
    out.extend(id.full_hash.unwrap_or(0).to_le_bytes());
    for entry in entries {
        let sums = entry.checksums.unwrap_or_default();
        out.extend(sums.blob.to_le_bytes());
        out.extend(sums.scales.to_le_bytes());
        out.extend(entry.error.unwrap_or(0.0).to_le_bytes());
        out.extend(entry.rotation().unwrap_or(0).to_le_bytes());
    }
    out.extend(list);
    let sum = xxh3_64(&out);
    out.extend(sum.to_le_bytes());
    out
}

/// Whether the bytes behind an index are such a section.
pub(crate) fn begins(region: &[u8]) -> bool {
    region.starts_with(&MAGIC)
}

/// Reads the section that begins where the index ends, if one does, and gives the entries (in the
/// order of the file) their checksums and errors.
///
/// `exact` says that the section must fill `region`.
pub(crate) fn parse(
    region: &[u8],
    exact: bool,
    index: &[u8],
    index_at: u64,
    entries: &mut [Entry],
) -> Result<Option<Extension>> {
    let damaged = |reason: String| PackError::Extension { reason };
    if !begins(region) {
        // Only in version 7 do other bytes come so far, and no calibration has these.
        let bytes = (HEADER + ROW * entries.len() + TRAILER) as u64;
        let mut at = Cursor::new(region.get(MAGIC.len()..).unwrap_or_default());
        let no_magic = || damaged("it does not begin with its magic".into());
        return match (at.u64(), at.u32()) {
            (Some(found), Some(PLAIN)) if found == bytes => Err(no_magic()),
            (Some(found), Some(LISTING)) if (bytes..=region.len() as u64).contains(&found) => {
                Err(no_magic())
            }
            _ => Ok(None),
        };
    }
    let short = || damaged(format!("{} bytes cannot hold it", region.len()));
    let mut at = Cursor::new(region);
    at.take(MAGIC.len());
    let bytes = at.u64().ok_or_else(short)?;
    let version = at.u32().ok_or_else(short)?;
    if !matches!(version, PLAIN | LISTING) {
        return Err(PackError::ExtensionVersion { version });
    }
    let section =
        usize::try_from(bytes).ok().and_then(|len| region.get(..len)).ok_or_else(short)?;
    if exact && section.len() != region.len() {
        return Err(PackError::StrayBytes { bytes: (region.len() - section.len()) as u64 });
    }
    let (body, sum) = section.split_last_chunk::<TRAILER>().ok_or_else(short)?;
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return Err(damaged("its checksum does not fit its bytes".into()));
    }
    let mut at = Cursor::new(body.get(20..).ok_or_else(short)?);
    let header = read_header(&mut at).ok_or_else(short)?;
    if header.layout != layout_id() {
        return Err(PackError::LayoutId { found: header.layout, expected: layout_id() });
    }
    if header.entries as usize != entries.len() {
        let present = entries.len() as u32;
        return Err(PackError::Incomplete { present, expected: header.entries });
    }
    let list = body.get(HEADER + ROW * entries.len()..);
    let left_out = match (list, version) {
        (Some([]), PLAIN) => Some(LeftOut::default()),
        (Some(list), LISTING) => LeftOut::parse(list),
        _ => None,
    };
    let Some(left_out) = left_out else {
        return Err(damaged(format!("{bytes} bytes are not what {} entries take", entries.len())));
    };
    if xxh3_64(index) != header.index {
        return Err(damaged("the checksum of the index does not fit it".into()));
    }
    for entry in entries.iter_mut() {
        let row = (|| Some((at.u64()?, at.u64()?, at.f32()?, at.u32()?)))();
        let (blob, scales, error, rotation) = row.ok_or_else(short)?;
        // Rows of earlier packers leave the block to the rule. Another one would be misread.
        let known = entry.rotation();
        if rotation != 0 && Some(rotation) != known {
            return Err(PackError::Rotation { name: entry.name.clone(), rotation, known });
        }
        entry.checksums = Some(Checksums { blob, scales });
        if error.is_finite() && error > 0.0 {
            entry.error = Some(error);
        }
    }
    let metadata = metadata_span(header.metadata.0, header.metadata.1, index_at)?;
    Ok(Some(Extension {
        packer: header.packer,
        recipe: header.recipe,
        identity: header.identity,
        metadata,
        left_out,
    }))
}

struct Header {
    packer: String,
    layout: u32,
    entries: u32,
    recipe: u64,
    index: u64,
    metadata: (u64, u64),
    identity: Option<Identity>,
}

fn read_header(at: &mut Cursor<'_>) -> Option<Header> {
    let flags = at.u32()?;
    let packer = String::from_utf8_lossy(at.take(16)?).trim_end_matches('\0').to_owned();
    let (layout, entries, recipe, index) = (at.u32()?, at.u32()?, at.u64()?, at.u64()?);
    let metadata = (at.u64()?, at.u64()?);
    let (size, modified_ns, sample_hash, full) = (at.u64()?, at.u64()?, at.u128()?, at.u128()?);
    let full_hash = (flags & HAS_FULL_HASH != 0).then_some(full);
    let identity = Identity { size, modified_ns, sample_hash, full_hash };
    let identity = (flags & HAS_IDENTITY != 0).then_some(identity);
    Some(Header { packer, layout, entries, recipe, index, metadata, identity })
}
