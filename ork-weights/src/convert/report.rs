//! What a conversion did.

use crate::model::{Role, Skipped, Weight};
use crate::quantise::{Quality, Tier};
use std::time::Duration;

/// One weight of a conversion.
///
/// ```
/// use ork_weights::convert::{Options, convert};
///
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let folder = tempfile::tempdir()?;
/// let options = Options { measure: true, ..Default::default() };
/// let report = convert(&model, folder.path().join("m.orkpack"), &options, |_| {})?;
/// let first = &report.weights[0];
/// assert_eq!((&*first.name, first.tier.as_str()), ("blk.0.attn_q.weight", "rotated-int8"));
/// assert!(first.error.is_some_and(|error| error < 0.05)); // of the values' size
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct WeightReport {
    /// Its name.
    pub name: Box<str>,
    /// What it is for.
    #[serde(serialize_with = "role")]
    pub role: Role,
    /// Inputs.
    pub k: u32,
    /// Channels.
    pub n: u32,
    /// Type in the model.
    pub source: &'static str,
    /// Bytes in the model.
    pub source_bytes: u64,
    /// Tier in the pack.
    pub tier: String,
    /// Bytes in the pack, scales included.
    pub bytes: u64,
    /// Bits a value takes in the pack, scales included.
    pub bits: f64,
    /// Relative RMS error, if it was measured.
    pub error: Option<f64>,
    /// Whether an interrupted conversion had left it.
    pub resumed: bool,
}

impl WeightReport {
    pub(super) fn new(weight: &Weight, tier: Tier, bytes: u64) -> WeightReport {
        let values = f64::from(weight.k) * f64::from(weight.n);
        WeightReport {
            name: weight.name.clone(),
            role: weight.role,
            k: weight.k,
            n: weight.n,
            source: weight.kind.name(),
            source_bytes: weight.bytes,
            tier: tier.to_string(),
            bytes,
            bits: 8.0 * bytes as f64 / values,
            error: None,
            resumed: false,
        }
    }

    pub(super) fn measured(self, quality: Option<Quality>) -> WeightReport {
        WeightReport { error: quality.map(|quality| quality.relative_rms()), ..self }
    }
}

/// A finished conversion.
///
/// ```
/// use ork_weights::convert::{Options, convert};
///
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let folder = tempfile::tempdir()?;
/// let report = convert(&model, folder.path().join("m.orkpack"), &Options::default(), |_| {})?;
/// // Norms are not multiplied by; each that is left out says why.
/// let norm = report.skipped.iter().find(|tensor| &*tensor.name == "output_norm.weight");
/// assert!(norm.is_some_and(|tensor| !tensor.reason.is_empty()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The pack; as JSON, with replacement characters for what is not Unicode.
    #[serde(serialize_with = "lossy")]
    pub path: std::path::PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Weights in the order of the pack.
    pub weights: Vec<WeightReport>,
    /// Tensors that are not in the pack; as JSON, an object of names, each with role and reason.
    #[serde(serialize_with = "skipped")]
    pub skipped: Vec<Skipped>,
    /// Time from the first weight to the renamed file; as JSON, in seconds.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
}

impl Report {
    /// Weights that an interrupted conversion had left.
    ///
    /// ```
    /// use ork_weights::convert::{Options, convert};
    ///
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// let folder = tempfile::tempdir()?;
    /// let report = convert(&model, folder.path().join("m.orkpack"), &Options::default(), |_| {})?;
    /// assert_eq!(report.resumed(), 0); // nothing had interrupted it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resumed(&self) -> usize {
        self.weights.iter().filter(|weight| weight.resumed).count()
    }

    /// Bytes of the weights in the model.
    ///
    /// ```
    /// use ork_weights::convert::{Options, convert};
    ///
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// let folder = tempfile::tempdir()?;
    /// let report = convert(&model, folder.path().join("m.orkpack"), &Options::default(), |_| {})?;
    /// assert!(report.source_bytes() < model.bytes()); // without the header and what was skipped
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn source_bytes(&self) -> u64 {
        self.weights.iter().map(|weight| weight.source_bytes).sum()
    }
}

/// A tensor that is not in the pack, for scripts.
#[derive(serde::Serialize)]
struct LeftOut {
    role: &'static str,
    reason: String,
}

fn role<S: serde::Serializer>(role: &Role, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(role.name())
}

fn skipped<S: serde::Serializer>(skipped: &[Skipped], out: S) -> Result<S::Ok, S::Error> {
    let tensor = |tensor: &Skipped| {
        (tensor.name.clone(), LeftOut { role: tensor.role.name(), reason: tensor.reason.clone() })
    };
    out.collect_map(skipped.iter().map(tensor))
}

fn lossy<S: serde::Serializer>(path: &std::path::Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

fn seconds<S: serde::Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_f64(time.as_secs_f64())
}
