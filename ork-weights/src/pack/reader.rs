//! Opening a pack: the footer is found, the index walked and everything it says checked.

use std::path::Path;

use super::entry::{Entry, Span};
use super::error::{PackError, Result};
use super::file::PackFile;
use super::format::calibration::{self, Calibration};
use super::format::extension::{self, Extension};
use super::format::footer::{self, Footer};
use super::format::index::{self, Index};
use super::format::metadata::{self, Metadata};
use super::identity::Identity;
use super::left_out::LeftOut;
use super::names::ByName;
use super::overlap;
use super::source::{Source, fetch};

/// Most bytes between the start of an index and its footer: a million weights take about 100 MB.
const MAX_REGION: u64 = 256 << 20;

/// An open pack: an owned, checked index over bytes that are read from a file or lie in memory.
///
/// ```
/// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("small.orkpack");
/// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// writer.add("blk.0.ffn_up.weight", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// writer.finish()?;
///
/// let pack = Pack::open(&path)?;
/// let entry = pack.get("blk.0.ffn_up.weight").expect("just written");
/// let mut tiles = vec![0; entry.layout().bytes() as usize];
/// pack.load_into(entry, &mut tiles)?;
/// assert_eq!(tiles, [1; 4096]);
/// assert_eq!(pack.scales(entry)?, [0.5; 64]);
///
/// assert_eq!((pack.version(), pack.signature()), (3, 0)); // what is written unless asked otherwise
/// assert!(pack.packer().is_some_and(|packer| packer.starts_with("ork")));
/// assert!(pack.identity().is_none()); // the writer was given none
/// assert_eq!((pack.path(), pack.size()), (&*path, std::fs::metadata(&path)?.len()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pack<S = PackFile> {
    pub(super) source: S,
    pub(super) footer: Footer,
    pub(super) entries: Vec<Entry>,
    by_name: ByName,
    extension: Option<Extension>,
    /// Of a pack that does not say.
    nothing_left_out: LeftOut,
    metadata: Option<Span>,
    calibration: Option<Calibration>,
}

impl Pack {
    /// Opens a pack file.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::open(&path)?; // of one int8 weight, 64 × 64
    /// assert_eq!(pack.entries().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PackError::Io`], and whatever [`Pack::parse`] refuses.
    pub fn open(path: impl AsRef<Path>) -> Result<Pack> {
        Pack::parse(PackFile::open(path.as_ref())?)
    }

    /// The open file, for reads of [`Entry::blob_range`] by other means, and for advice to the system.
    pub fn file(&self) -> &std::fs::File {
        self.source.file()
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        self.source.path()
    }
}

impl<S: Source> Pack<S> {
    /// Opens a pack of any version from 1 to 8.
    ///
    /// Memory grows with the index only. Blobs are not read here: their headers, scales and checksums
    /// are checked when they are loaded.
    ///
    /// ```
    /// use ork_weights::pack::Pack;
    ///
    /// # let file = ork_weights::doc::pack()?;
    /// # let path = file.path();
    /// let pack = Pack::parse(std::fs::read(&path)?)?; // from memory
    /// assert_eq!(pack.scales(&pack.entries()[0])?, [0.5; 64]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A variant of [`PackError`] for each thing that can be wrong with footer, index, metadata,
    /// calibration or extension.
    pub fn parse(source: S) -> Result<Pack<S>> {
        let size = source.size();
        let tail_at = size.saturating_sub(footer::MAX_FOOTER as u64);
        let tail = fetch(&source, tail_at..size)?.into_owned();
        let mut first_error = None;
        for footer in footer::candidates(&tail, size)? {
            match Parts::read(&source, &footer) {
                Ok(parts) => return Ok(parts.into_pack(source, footer)),
                Err(error) => first_error.get_or_insert(error),
            };
        }
        // There is at least one candidate, so an error was kept.
        Err(first_error.unwrap_or(PackError::NoMagic { bytes: size }))
    }

    /// Weights in the order of the file, which is that of first use when the pack was made.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The weight of this name, by a binary search over hashes.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.by_name.find(&self.entries, name)
    }

    /// Version in the footer, 1 to 8.
    pub fn version(&self) -> u32 {
        self.footer.version
    }

    /// Tier signature of version 5 and later: bits 0 to 7 the forced tier as ASCII ('4', '8' or 0),
    /// bit 8 a hybrid build, bit 9 Hadamard rotation. 0 for older versions.
    pub fn signature(&self) -> u32 {
        self.footer.signature
    }

    /// The model the pack was made from; `None` for packs that other programs wrote.
    pub fn identity(&self) -> Option<&Identity> {
        self.extension.as_ref()?.identity.as_ref()
    }

    /// Who wrote it, for packs of this library.
    pub fn packer(&self) -> Option<&str> {
        Some(&self.extension.as_ref()?.packer)
    }

    /// Hash of the settings it was made with, as given to the writer; `None` without an extension.
    pub fn recipe(&self) -> Option<u64> {
        Some(self.extension.as_ref()?.recipe)
    }

    /// Which tensors of its model are not in it, each with its role; empty where the packer did not say.
    pub fn left_out(&self) -> &LeftOut {
        self.extension.as_ref().map_or(&self.nothing_left_out, |extension| &extension.left_out)
    }

    /// Measurements that a tool of the C project appended.
    pub fn calibration(&self) -> Option<&Calibration> {
        self.calibration.as_ref()
    }

    /// Where the embedded parts of the source GGUF lie; `None` when there are none.
    ///
    /// # Errors
    /// [`PackError::Metadata`] when the section contradicts itself.
    pub fn metadata(&self) -> Result<Option<Metadata>> {
        let Some(span) = self.metadata else { return Ok(None) };
        metadata::parse(span, |offset, out| self.source.read_at(offset, out)).map(Some)
    }

    /// The whole metadata section, as a range of the file.
    pub fn metadata_range(&self) -> Option<std::ops::Range<u64>> {
        Some(self.metadata?.range())
    }

    /// Length of the file.
    pub fn size(&self) -> u64 {
        self.source.size()
    }

    /// Where the bytes come from.
    pub fn source(&self) -> &S {
        &self.source
    }
}

/// Everything a pack says about itself, for one reading of its footer.
struct Parts {
    entries: Vec<Entry>,
    by_name: ByName,
    extension: Option<Extension>,
    metadata: Option<Span>,
    calibration: Option<Calibration>,
}

impl Parts {
    fn read<S: Source>(source: &S, footer: &Footer) -> Result<Parts> {
        let footer_at = source.size().saturating_sub(footer.bytes);
        if footer.index >= footer_at {
            return Err(PackError::IndexRange { index: footer.index, footer: footer_at });
        }
        if footer.token != 0 {
            return Err(PackError::FormatToken { token: footer.token });
        }
        let bytes = footer_at - footer.index;
        if bytes > MAX_REGION {
            return Err(PackError::IndexTooLarge { bytes, max: MAX_REGION });
        }
        let region = fetch(source, footer.index..footer_at)?;
        let mut index = walk(&region, footer)?;
        // `index.bytes` is how far a cursor over `region` came.
        let (index_bytes, rest) = region.split_at(index.bytes as usize);
        let index_end = footer.index + index.bytes;
        let calibration = calibration::parse(&region, footer, index_end, footer_at)?;
        let exact = !footer.may_hold_calibrations();
        let extension =
            extension::parse(rest, exact, index_bytes, footer.index, &mut index.entries)?;
        let metadata = index.metadata.or(extension.as_ref().and_then(|e| e.metadata));
        overlap::refuse(&index.entries, metadata)?;
        let by_name = ByName::of(&index.entries)?;
        Ok(Parts { entries: index.entries, by_name, extension, metadata, calibration })
    }

    fn into_pack<S>(self, source: S, footer: Footer) -> Pack<S> {
        let Parts { entries, by_name, extension, metadata, calibration } = self;
        let nothing_left_out = LeftOut::default();
        Pack {
            source,
            footer,
            entries,
            by_name,
            extension,
            nothing_left_out,
            metadata,
            calibration,
        }
    }
}

/// Refuses an index with anything but our section behind it. Only in the last form of version 7, and
/// with a calibration, may there be more: it leaves older ones behind.
fn fills(index: Index, region: &[u8], footer: &Footer) -> Result<Index> {
    let rest = region.get(index.bytes as usize..).unwrap_or_default();
    let stray = !rest.is_empty() && !extension::begins(rest) && !footer.may_hold_calibrations();
    if stray { Err(PackError::StrayBytes { bytes: rest.len() as u64 }) } else { Ok(index) }
}

/// Reads the index in the first form that it has from end to end.
fn walk(region: &[u8], footer: &Footer) -> Result<Index> {
    let mut first_error = None;
    for form in footer.forms() {
        match index::parse(region, footer, *form).and_then(|index| fills(index, region, footer)) {
            Ok(index) => return Ok(index),
            Err(error) => first_error.get_or_insert(error),
        };
    }
    // Every version has a form, so an error was kept.
    Err(first_error.unwrap_or(PackError::Version { version: footer.version }))
}
