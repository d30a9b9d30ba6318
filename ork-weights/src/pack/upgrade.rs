//! Any pack into the form this library writes, without the model.

use std::path::Path;

use super::entry::Entry;
use super::error::Result;
use super::identity::Identity;
use super::reader::Pack;
use super::source::{Source, fetch};
use super::verify;
use super::writer::{PackWriter, Summary, WeightHeader, WriterOptions};

/// Writes `pack` again at `target`: codes, scales, errors, identity, recipe, tier signature and the
/// embedded GGUF are kept. Stamps are left out, as are second copies over the full K, which loaders rebuild, and
/// calibrations, which hold for one board only.
///
/// Version and replacing are as `options` says; the rest comes from the pack. `progress` is
/// called with each weight after it was written.
///
/// ```
/// use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions, upgrade};
///
/// let folder = tempfile::tempdir()?;
/// let [old, new] = ["old.orkpack", "new.orkpack"].map(|name| folder.path().join(name));
/// let version_5 = WriterOptions { version: 5, ..WriterOptions::default() };
/// let mut writer = PackWriter::create(&old, None, version_5)?;
/// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// writer.finish()?;
///
/// let old = Pack::open(&old)?;
/// upgrade(&old, &new, WriterOptions::default(), |_| {})?;
/// let new = Pack::open(&new)?;
/// assert_eq!((old.version(), new.version()), (5, 3));
/// assert_eq!(old.codes(&old.entries()[0])?, new.codes(&new.entries()[0])?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What reading and [`PackWriter`] refuse. A pack that is upgraded onto itself needs
/// [`WriterOptions::replace`].
pub fn upgrade<S: Source>(
    pack: &Pack<S>,
    target: impl AsRef<Path>,
    options: WriterOptions,
    progress: impl FnMut(&Entry),
) -> Result<Summary> {
    upgrade_of(pack, None, target, options, progress)
}

/// [`upgrade`], naming the model that the pack was made from, which the caller knows and nothing
/// in a pack of another program proves.
///
/// ```
/// use ork_weights::pack::{Dtype, Identity, Pack, PackWriter, WriterOptions, upgrade_of};
///
/// let folder = tempfile::tempdir()?;
/// let [old, new] = ["old.orkpack", "new.orkpack"].map(|name| folder.path().join(name));
/// let mut writer = PackWriter::create(&old, None, WriterOptions::default())?;
/// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// writer.finish()?;
///
/// let model = Identity { size: 1 << 20, modified_ns: 0, sample_hash: 1, full_hash: None };
/// let options = WriterOptions::default();
/// upgrade_of(&Pack::open(&old)?, Some(&model), &new, options, |_| {})?;
/// assert_eq!(Pack::open(&new)?.identity(), Some(&model));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`upgrade`]; [`PackError::OtherModel`](super::PackError::OtherModel) when the pack names another
/// model.
pub fn upgrade_of<S: Source>(
    pack: &Pack<S>,
    model: Option<&Identity>,
    target: impl AsRef<Path>,
    options: WriterOptions,
    mut progress: impl FnMut(&Entry),
) -> Result<Summary> {
    if let (Some(named), Some(model)) = (pack.identity(), model) {
        named.check(model)?;
    }
    let options = WriterOptions {
        recipe: pack.recipe().unwrap_or(0),
        signature: pack.signature(),
        expected: Some(pack.entries().len() as u32),
        left_out: pack.left_out().clone(),
        ..options
    };
    let mut writer = PackWriter::create(target, pack.identity().or(model), options)?;
    let mut buffer = vec![0; verify::CHUNK];
    for entry in pack.entries() {
        if !writer.contains(&entry.name) {
            // Fresh checksums must not bless bytes that went bad.
            verify::checksums(pack.source(), entry, &mut buffer, &|_| {})?;
            pack.check_stamp(entry)?;
            let scales = pack.scales(entry)?;
            let beside = if entry.scales_range().is_empty() { &[][..] } else { &scales };
            let blob = fetch(pack.source(), entry.blob_range())?;
            let Entry { name, k, n, dtype, .. } = entry;
            let header = WeightHeader { name, k: *k, n: *n, dtype: *dtype };
            let mut weight = writer.begin(header)?;
            weight.write_at(0, &blob)?;
            weight.finish(beside, entry.error())?;
        }
        progress(entry);
    }
    if let Some(range) = pack.metadata_range() {
        pack.metadata()?;
        writer.embed_metadata(pack.source(), range)?;
    }
    writer.finish()
}
