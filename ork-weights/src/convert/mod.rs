//! A whole model into a pack, without a device.
//!
//! Each weight is read, quantised, tiled, written and forgotten once, in the order of use. All
//! threads of the current rayon pool work on the same weight; one more writes the one before it.
//! Large weights go through in pieces, so that memory does not grow with them.
//! The bytes of a pack depend on the model, its time of change included, and the options, not on the
//! machine or the number of threads.
//!
//! ```
//! use ork_weights::convert::{Options, convert};
//! use ork_weights::model::{Model, OpenOptions, synth::Shape};
//! use ork_weights::pack::Pack;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("model.gguf");
//! Shape::tiny().write(std::fs::File::create(&path)?)?;
//! let model = Model::open(&path, &OpenOptions::default())?;
//!
//! let target = folder.path().join("model.orkpack");
//! let report = convert(&model, &target, &Options::default(), |_| {})?;
//! let pack = Pack::open(&target)?;
//! assert_eq!(pack.entries().len(), report.weights.len());
//! pack.identity().ok_or("no identity")?.check(&model.identity(false)?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod choice;
mod imatrix;
mod report;
mod stage;

pub use choice::{RuleError, TierChoice};
pub use imatrix::Imatrix;
pub use report::{Report, WeightReport};

use crate::model::{Model, ModelError, Weight};
use crate::pack::{LeftOut, PackError, PackWriter, Places, WriterOptions};
use crate::quantise::{Tier, blob_bytes, blob_scales};
use stage::{Stage, Work};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How to convert.
///
/// ```
/// use ork_weights::convert::{Options, TierChoice};
/// use ork_weights::pack::WriterOptions;
/// use ork_weights::quantise::Tier;
///
/// let options = Options {
///     tiers: TierChoice::fixed(Tier::Nf4),
///     writer: WriterOptions { replace: true, ..Default::default() },
///     measure: true,
///     ..Default::default()
/// };
/// assert!(!options.full_hash);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Tiers of the weights.
    pub tiers: TierChoice,
    /// Importance of inputs, for the compact int4 tiers. One that no weight would use is an error.
    pub imatrix: Option<&'a Imatrix>,
    /// Form of the pack and what may be overwritten. `recipe`, `expected` and `places` are set by the
    /// conversion.
    pub writer: WriterOptions,
    /// Identify the model by a hash of all its bytes instead of a sample.
    pub full_hash: bool,
    /// Drop the pages of each weight of the model once it is done.
    pub evict_source: bool,
    /// Measure the error of each weight.
    pub measure: bool,
}

/// How far a conversion is.
///
/// ```
/// use ork_weights::convert::{Options, Progress, convert};
///
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let folder = tempfile::tempdir()?;
/// let mut share = 0.0;
/// convert(&model, folder.path().join("m.orkpack"), &Options::default(), |done: Progress<'_>| {
///     share = done.bytes as f64 / done.of_bytes as f64;
/// })?;
/// assert_eq!(share, 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// The weight that is done.
    pub name: &'a str,
    /// Weights done, this one included.
    pub weights: usize,
    /// Weights there are.
    pub of_weights: usize,
    /// Bytes of the model done.
    pub bytes: u64,
    /// Bytes of all weights in the model.
    pub of_bytes: u64,
}

/// Why a conversion stopped. The target is as it was; the partial file stays for the next try.
///
/// ```
/// use ork_weights::convert::{ConvertError, Options, TierChoice, convert};
/// use ork_weights::quantise::Tier;
///
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// // Nothing is written: groups of 96 do not divide 256 inputs.
/// let tiers = TierChoice::fixed(Tier::Int4 { group: Some(96) });
/// let options = Options { tiers, ..Default::default() };
/// let folder = tempfile::tempdir()?;
/// let error = convert(&model, folder.path().join("m.orkpack"), &options, |_| {}).unwrap_err();
/// assert!(matches!(error, ConvertError::Model(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The model could not be read or a weight not quantised.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The pack could not be written.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// An imatrix file that cannot be read or does not fit the model.
    #[error("imatrix {}: {reason}", path.display())]
    Imatrix {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Converts `model` to a pack at `target`, calling `progress` after each weight.
///
/// An interrupted conversion of the same model with the same options goes on where it stopped.
///
/// ```
/// use ork_weights::convert::{Options, convert};
/// use ork_weights::pack::Pack;
///
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let folder = tempfile::tempdir()?;
/// let target = folder.path().join("model.orkpack");
/// let report = convert(&model, &target, &Options::default(), |_| {})?;
/// assert_eq!(report.weights.len(), model.weights().len());
/// assert_eq!(report.bytes, Pack::open(&target)?.size());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ConvertError`]; the target is then as it was.
pub fn convert(
    model: &Model,
    target: impl AsRef<Path>,
    options: &Options<'_>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, ConvertError> {
    let start = Instant::now();
    let plan = plan(model, options)?;
    if let Some(imatrix) = options.imatrix {
        let using = plan.iter().filter(|work| work.tier.codebook().is_some());
        imatrix.check(using.map(|work| work.weight))?;
    }
    let identity = model.identity(options.full_hash)?;
    let writer = PackWriter::create(
        target,
        &identity,
        WriterOptions {
            recipe: recipe_hash(options),
            expected: u32::try_from(plan.len()).ok(),
            left_out: left_out(model),
            places: None,
            ..options.writer.clone()
        },
    )?;
    let of_bytes = plan.iter().map(|work| work.weight.bytes).sum();
    let (mut weights, mut bytes) = (Vec::with_capacity(plan.len()), 0);
    let stage = Stage { model, options };
    let writer = stage.run(writer, &plan, |report: WeightReport| {
        bytes += report.source_bytes;
        progress(Progress {
            name: &report.name,
            weights: weights.len() + 1,
            of_weights: plan.len(),
            bytes,
            of_bytes,
        });
        weights.push(report);
    })?;
    // Weights of a file that became another one on the way are of neither.
    if let Err(changed) = model.check() {
        writer.abandon()?;
        return Err(changed.into());
    }
    let summary = writer.finish()?;
    Ok(Report {
        path: summary.path,
        bytes: summary.bytes,
        weights,
        skipped: model.skipped().to_vec(),
        time: start.elapsed(),
    })
}

/// Tier and sizes of every weight; what cannot be is found before anything is written.
fn plan<'a>(model: &'a Model, options: &Options<'_>) -> Result<Vec<Work<'a>>, ModelError> {
    let work = |weight: &'a Weight| {
        let tier = options.tiers.of(model, weight);
        let sized = || {
            let layout = tier.layout(weight.k, weight.n)?;
            let groups = tier.groups(layout.k())? as usize;
            let blob = blob_bytes(tier, weight.k, weight.n)?;
            let scales = blob_scales(tier, weight.k, weight.n);
            Ok(Work { weight, tier, layout, groups, blob, scales })
        };
        sized().map_err(ModelError::quantise(&weight.name))
    };
    model.weights().iter().map(work).collect()
}

/// How a pack of all weights of a model in one tier is written while something else decides which comes
/// first: byte for byte what [`convert`] makes of that tier.
///
/// ```
/// use ork_weights::convert::{Options, convert, writer_options};
/// use ork_weights::pack::PackWriter;
/// use ork_weights::quantise::Tier;
///
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let folder = tempfile::tempdir()?;
/// let (one, two) = (folder.path().join("1.orkpack"), folder.path().join("2.orkpack"));
/// convert(&model, &one, &Options::default(), |_| {})?;
///
/// let tier = Tier::default();
/// let options = writer_options(&model, tier)?;
/// let mut writer = PackWriter::create(&two, &model.identity(false)?, options)?;
/// for weight in model.weights().iter().rev() {
///     let mut blob = vec![0; tier.layout(weight.k, weight.n)?.bytes() as usize];
///     let mut scales = vec![0.0; tier.scales(weight.k, weight.n)];
///     model.quantise(weight, &tier, &mut blob, &mut scales)?;
///     writer.add(&weight.name, weight.k, weight.n, tier.dtype(), &blob, &scales)?;
/// }
/// writer.finish()?;
/// assert!(std::fs::read(one)? == std::fs::read(two)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ConvertError::Model`] for a weight that does not suit the tier.
pub fn writer_options(model: &Model, tier: Tier) -> Result<WriterOptions, ConvertError> {
    let options = Options { tiers: TierChoice::fixed(tier), ..Options::default() };
    let plan = plan(model, &options)?;
    let places = Places::new(plan.iter().map(|work| (work.header(), work.scales)))?;
    let (recipe, places) = (recipe_hash(&options), Some(places));
    Ok(WriterOptions { recipe, places, left_out: left_out(model), ..WriterOptions::default() })
}

fn left_out(model: &Model) -> LeftOut {
    LeftOut::new(model.skipped().iter().map(|tensor| (&*tensor.name, tensor.role)))
}

/// A hash of what decides the codes, so that packs of other settings are not mixed; 0 for plain
/// int8, which needs no settings.
fn recipe_hash(options: &Options<'_>) -> u64 {
    if options.tiers.only() == Some(Tier::Int8) {
        return 0;
    }
    let text = format!("{:?} {:?}", options.tiers, options.imatrix.map(Imatrix::hash));
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}
