//! What a caller chooses, and what it gets back.

use std::path::PathBuf;

use super::Places;
use crate::pack::LeftOut;

/// How a pack is written.
///
/// ```
/// use ork_weights::pack::{PackError, PackWriter, WriterOptions};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("small.orkpack");
/// let newest = WriterOptions { version: 7, ..Default::default() };
/// assert!(PackWriter::create(&path, None, newest.clone()).is_ok());
/// let unknown = WriterOptions { version: 4, ..newest };
/// let refused = PackWriter::create(&path, None, unknown);
/// assert!(matches!(refused, Err(PackError::WriteVersion { version: 4 })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Container version: 2, 3, 5 or 7; readers of the C project accept exactly one each. 3 is what its
    /// public reader takes.
    pub version: u32,
    /// Overwrite whatever stands at the target, and start over instead of going on with an
    /// interrupted conversion of something else.
    pub replace: bool,
    /// Hash of the settings that decide what the codes are; packs of other settings are not mixed.
    pub recipe: u64,
    /// Tier signature for versions 5 and 7, see [`Pack::signature`](crate::pack::Pack::signature).
    pub signature: u32,
    /// Weights there will be, if known: finishing with fewer is an error.
    pub expected: Option<u32>,
    /// Where each weight goes; otherwise they stand in the order in which they come. One without a place
    /// goes behind all that are there.
    pub places: Option<Places>,
    /// Tensors of the model that are not to be in the pack, which keeps their names and roles.
    pub left_out: LeftOut,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            version: 3,
            replace: false,
            recipe: 0,
            signature: 0,
            expected: None,
            places: None,
            left_out: LeftOut::default(),
        }
    }
}

/// What was written.
///
/// ```
/// # use ork_weights::pack::{Dtype, PackWriter, WriterOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("small.orkpack");
/// let mut writer = PackWriter::create(&path, None, WriterOptions::default())?;
/// writer.add("w", 64, 64, Dtype::Int8, &[1; 4096], &[0.5; 64])?;
/// let summary = writer.finish()?;
/// assert_eq!((summary.path, summary.weights), (path, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The finished pack.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its weights.
    pub weights: u32,
    /// How many of them an interrupted run had left.
    pub resumed: u32,
}
