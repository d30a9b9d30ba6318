//! Reading a whole pack: headers, scales and checksums of every weight.

use std::ops::Range;

use rayon::prelude::*;
use rknpu_sys::layout::PAGE;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::entry::{Entry, Span};
use super::error::{PackError, Part, Result};
use super::overlap;
use super::reader::Pack;
use super::source::Source;

/// Bytes read at once: small enough to stay in a core's cache between reading and hashing.
pub(super) const CHUNK: usize = 256 << 10;

/// What [`verify`] found.
///
/// ```
/// use ork_weights::pack::{Pack, PackError, verify};
///
/// # let file = ork_weights::doc::pack()?;
/// # let path = file.path();
/// let mut bytes = std::fs::read(&path)?;
/// bytes[100] ^= 1; // in the blob
/// let report = verify(&Pack::parse(bytes)?, &|_| {});
/// assert!(matches!(report.problems[0], PackError::Checksum { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Verified {
    /// Weights looked at.
    pub weights: usize,
    /// Those with checksums; packs of other programs have none.
    pub checksummed: usize,
    /// Bytes that were hashed.
    pub hashed: u64,
    /// Everything that is wrong, in the order of the file.
    pub problems: Vec<PackError>,
}

impl Verified {
    /// Whether nothing was wrong.
    ///
    /// ```
    /// use ork_weights::pack::{Pack, verify};
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// assert!(verify(&Pack::open(&path)?, &|_| {}).is_sound());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks every weight of a pack, in parallel: stamp and compact headers, scales, and checksums where
/// the pack has them, and in packs of this library that nothing but zeros is between the weights. What
/// [`Pack::parse`] checks holds already.
///
/// `progress` is called from many threads with the number of bytes hashed since its last call.
///
/// ```
/// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions, verify};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("small.orkpack");
/// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// writer.add("output.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// writer.finish()?;
///
/// let report = verify(&Pack::open(&path)?, &|_| {});
/// assert!(report.is_sound());
/// assert_eq!(report.hashed, 4096 + 4 * 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify<S: Source + Sync>(pack: &Pack<S>, progress: &(dyn Fn(u64) + Sync)) -> Verified {
    let entries = pack.entries();
    let mut problems: Vec<PackError> = entries
        .par_iter()
        .map_init(
            || vec![0; CHUNK],
            |buffer, entry| pack.check_entry(entry, buffer, progress).err(),
        )
        .flatten()
        .collect();
    problems.extend(pack.metadata().err());
    problems.extend(pack.check_gaps().err());
    let summed = || entries.iter().filter(|entry| entry.checksums.is_some());
    Verified {
        weights: entries.len(),
        checksummed: summed().count(),
        hashed: summed().map(|entry| entry.blob.bytes + entry.scales.bytes).sum(),
        problems,
    }
}

impl<S: Source> Pack<S> {
    /// Refuses bytes between the parts of a pack that are not zero. Packs of other programs do not
    /// promise that, so only those with our section are looked at.
    fn check_gaps(&self) -> Result<()> {
        if self.packer().is_none() {
            return Ok(());
        }
        let parts = self.entries().iter().flat_map(overlap::parts_of).map(Span::range);
        let index = self.footer.index;
        let mut parts: Vec<Range<u64>> =
            parts.chain(self.metadata_range()).chain(std::iter::once(index..index)).collect();
        parts.sort_unstable_by_key(|part| part.start);
        let (mut end, mut buffer) = (0, vec![0; PAGE as usize]);
        for part in parts {
            while end < part.start {
                let len = (part.start - end).min(PAGE) as usize;
                let gap = &mut buffer[..len];
                self.source.read_at(end, gap)?;
                if let Some(at) = gap.iter().position(|byte| *byte != 0) {
                    return Err(PackError::Gap { offset: end + at as u64 });
                }
                end += len as u64;
            }
            end = end.max(part.end);
        }
        Ok(())
    }

    /// Compares a weight's stored bytes with its checksums; those of a plain form can be the ones that
    /// [`Pack::load_into`] has just written. Of a weight without checksums nothing is read.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::open(&path)?;
    /// let entry = &pack.entries()[0];
    /// let mut tiles = vec![0; entry.layout().bytes() as usize];
    /// pack.load_into(entry, &mut tiles)?;
    /// pack.check(entry, Some(&tiles))?;
    /// tiles[5] ^= 1;
    /// assert!(pack.check(entry, Some(&tiles)).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Checksum`]; [`PackError::Io`].
    pub fn check(&self, entry: &Entry, loaded: Option<&[u8]>) -> Result<()> {
        let mut buffer = vec![0; CHUNK];
        let Some(tiles) = loaded.filter(|_| entry.dtype.is_plain()) else {
            return checksums(self.source(), entry, &mut buffer, &|_| {});
        };
        let Some(sums) = entry.checksums else { return Ok(()) };
        let blob = xxh3_64(tiles);
        let scales = hash(self.source(), entry.scales, &mut buffer, |_| ())?;
        compare(entry, Part::Blob, blob, sums.blob)?;
        compare(entry, Part::Scales, scales, sums.scales)
    }

    /// Checks one weight as [`verify`] does.
    fn check_entry(
        &self,
        entry: &Entry,
        buffer: &mut [u8],
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        checksums(self.source(), entry, buffer, progress)?;
        self.check_stamp(entry)?;
        self.scales(entry).map(|_| ())
    }
}

/// Compares the stored bytes of a weight with its checksums; without checksums nothing is read.
pub(super) fn checksums<S: Source>(
    source: &S,
    entry: &Entry,
    buffer: &mut [u8],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let Some(sums) = entry.checksums else { return Ok(()) };
    for (part, span, expected) in
        [(Part::Blob, entry.blob, sums.blob), (Part::Scales, entry.scales, sums.scales)]
    {
        let found = hash(source, span, buffer, |chunk| progress(chunk.len() as u64))?;
        compare(entry, part, found, expected)?;
    }
    Ok(())
}

fn compare(entry: &Entry, part: Part, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(PackError::Checksum { name: entry.name.clone(), part, found, expected })
}

/// XXH3-64 of a range, read chunk by chunk; `also` sees each.
pub(super) fn hash<S: Source>(
    source: &S,
    span: Span,
    buffer: &mut [u8],
    mut also: impl FnMut(&[u8]),
) -> Result<u64> {
    let mut hash = Xxh3Default::new();
    let mut range = span.range();
    while !range.is_empty() {
        let len = (range.end - range.start).min(buffer.len() as u64);
        let chunk = &mut buffer[..len as usize];
        source.read_at(range.start, chunk)?;
        hash.update(chunk);
        also(chunk);
        range.start += len;
    }
    Ok(hash.digest())
}

/// All of [`checksums`] at once, one result a weight.
pub(super) fn all_checksums<S: Source + Sync>(source: &S, entries: &[Entry]) -> Vec<Result<()>> {
    entries
        .par_iter()
        .map_init(|| vec![0; CHUNK], |buffer, entry| checksums(source, entry, buffer, &|_| {}))
        .collect()
}
