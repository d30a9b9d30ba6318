//! Reading a whole pack and comparing it with its checksums.

use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3Default;

use super::entry::{Entry, Span};
use super::error::{PackError, Part, Result};
use super::reader::Pack;
use super::source::Source;

/// Bytes read at once: small enough to stay in a core's cache between reading and hashing.
const CHUNK: usize = 256 << 10;

/// Compares every blob and scale of the pack with its checksum, in parallel.
pub(super) fn checksums<S: Source + Sync>(
    pack: &Pack<S>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    pack.entries().par_iter().try_for_each_init(
        || vec![0; CHUNK],
        |buffer, entry| {
            for (part, span, expected) in parts(entry) {
                let found = hash(pack, span, buffer, progress)?;
                if found != expected {
                    return Err(PackError::Checksum {
                        name: entry.name.clone(),
                        part,
                        found,
                        expected,
                    });
                }
            }
            Ok(())
        },
    )
}

fn parts(entry: &Entry) -> impl Iterator<Item = (Part, Span, u64)> {
    entry.checksums.into_iter().flat_map(|sums| {
        [(Part::Blob, entry.blob, sums.blob), (Part::Scales, entry.scales, sums.scales)]
    })
}

fn hash<S: Source>(
    pack: &Pack<S>,
    span: Span,
    buffer: &mut [u8],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64> {
    let mut hash = Xxh3Default::new();
    let mut range = span.range();
    while !range.is_empty() {
        let len = (range.end - range.start).min(buffer.len() as u64);
        let chunk = &mut buffer[..len as usize];
        pack.source.read_at(range.start, chunk)?;
        hash.update(chunk);
        progress(len);
        range.start += len;
    }
    Ok(hash.digest())
}
