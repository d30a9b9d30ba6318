//! Model files: which weights they hold and how to get at them.
//!
//! | source | form |
//! |---|---|
//! | GGUF 2 and 3 | a file, or any one of a split model's `-00001-of-0000N.gguf` |
//! | safetensors | a file, the `.json` index of several, or the hub's folder with them |
//!
//! Weights of the hub's files may be codes with their scales in a second tensor: FP8, int8, NVFP4 and
//! MXFP4 are read, and methods that are not (GPTQ, AWQ, …) are named.
//!
//! [`Model::weights`] are the matrices of a model's multiplications, in the order in which a pass
//! uses them. The [`Role`] decides, which name and architecture tell; a name that is not known is decided
//! by its shape. Stacks of experts come apart as `name#index`. What is not among them is in
//! [`Model::skipped`], each with its reason: norms and biases, tables that are looked up, routers.
//!
//! ```
//! use ork_weights::model::{Model, OpenOptions, synth::Shape};
//! use ork_weights::quantise::Tier;
//!
//! let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
//! Shape::tiny().write(file.as_file())?;
//!
//! let model = Model::open(file.path(), &OpenOptions::default())?;
//! let weight = &model.weights()[0];
//! assert_eq!((&*weight.name, weight.layer), ("blk.0.attn_q.weight", Some(0)));
//!
//! let layout = Tier::Int8.layout(weight.k, weight.n)?;
//! let mut tiled = vec![0; layout.bytes() as usize];
//! let mut scales = vec![0.0; Tier::Int8.scales(weight.k, weight.n)];
//! model.quantise(weight, &Tier::Int8, &mut tiled, &mut scales)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod error;
mod file;
pub mod gguf;
mod header;
mod identity;
mod names;
mod order;
mod quantise;
mod recognise;
mod roles;
mod safetensors;
mod scaled;
mod select;
mod shards;
pub mod synth;
mod transposed;

pub use error::ModelError;
pub use file::{ParseReadError, Read};
pub use roles::{Input, Role};

use crate::dequant::TensorType;
use crate::pack::Identity;
use crate::pattern::nearest;
use crate::quantise::{Quality, Recipe, RowScales, Rows, Tier};
pub(crate) use file::ModelFile;
pub(crate) use identity::hash;

use crate::direct::DirectReads;
use config::Config;
use gguf::Gguf;
use identity::Samples;
use recognise::Kind;
use scaled::Scaling;
use select::Candidate;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Bytes that tell what a file is.
const START: usize = 4096;

/// How to open a model.
///
/// ```
/// use ork_weights::model::{Model, OpenOptions, Read, synth::Shape};
///
/// # let file = ork_weights::doc::model()?;
/// let options = OpenOptions { read: Read::Direct, ..Default::default() };
/// let model = Model::open(file.path(), &options)?;
/// assert!(!model.weights().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// How the bytes of weights are read.
    pub read: Read,
    /// Where a model has no output head of its own, take the embedding table as one, as engines do.
    pub tied_head: bool,
    /// Tensors that are weights whatever their names say: patterns, where `*` stands for any characters.
    pub include: Vec<String>,
    /// Tensors that are left out whatever their names say.
    pub exclude: Vec<String>,
    /// Open it to be listed: what cannot be read is among the skipped, and there may be no weight.
    pub list: bool,
}

impl Default for OpenOptions {
    /// Every weight that an engine multiplies by, a tied head among them.
    fn default() -> OpenOptions {
        let (include, exclude) = (Vec::new(), Vec::new());
        OpenOptions { read: Read::default(), tied_head: true, include, exclude, list: false }
    }
}

/// A matrix of K inputs and N output channels, row-major in its file: a row per channel.
///
/// ```
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let weight = &model.weights()[0];
/// assert_eq!((weight.k, weight.n), (256, 256));
/// assert_eq!((weight.layer, weight.expert), (Some(0), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weight {
    /// The tensor's name; `name#index` for an expert.
    pub name: Box<str>,
    /// Inputs.
    pub k: u32,
    /// Output channels.
    pub n: u32,
    /// Type of its blocks.
    pub kind: TensorType,
    /// Bytes in the file.
    pub bytes: u64,
    /// What it is for; [`Role::Unknown`] when its name does not tell, and it is taken for its shape.
    pub role: Role,
    /// The block of its tower, when the name tells.
    pub layer: Option<u32>,
    /// Which rows it multiplies, where other weights of its block multiply the same.
    pub input: Option<Input>,
    /// Which expert of its block.
    pub expert: Option<u32>,
    /// Whether it is the embedding table, taken as the output head that is tied to it.
    pub tied: bool,
    /// Whether the file has a row for each input: then a channel is a column.
    by_input: bool,
    /// Where the scales of its values are, if they are another tensor's.
    scaling: Option<Scaling>,
    shard: usize,
    offset: u64,
}

impl Weight {
    /// Number of its file among [`Model::paths`].
    pub fn file(&self) -> usize {
        self.shard
    }

    /// Its bytes in its file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }

    /// Bytes of a channel.
    fn channel_bytes(&self) -> u64 {
        self.kind.row_bytes(self.k.into()).unwrap_or(0)
    }
}

/// A tensor that is not among the weights.
///
/// ```
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// let table = model.skipped().iter().find(|tensor| &*tensor.name == "token_embd.weight");
/// assert!(table.is_some_and(|tensor| !tensor.reason.is_empty()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub name: Box<str>,
    /// What it is for, by its name.
    pub role: Role,
    /// Why, in words for people.
    pub reason: String,
}

/// An open model.
///
/// ```
/// # use ork_weights::model::{Model, OpenOptions};
/// # let file = ork_weights::doc::model()?;
/// let model = Model::open(file.path(), &OpenOptions::default())?;
/// for weight in model.weights() {
///     assert_eq!(model.weight(&weight.name), Some(weight));
/// }
/// // As a pass uses them, the head last; a norm is a vector, and skipped.
/// assert_eq!(&*model.weights()[1].name, "blk.0.attn_k.weight");
/// assert_eq!(model.weights().last().map(|weight| &*weight.name), Some("output.weight"));
/// assert!(model.skipped().iter().any(|tensor| &*tensor.name == "output_norm.weight"));
/// assert_eq!(model.gguf().and_then(|header| header.number("llama.block_count")), Some(2));
/// assert!(!model.has_experts());
///
/// use ork_weights::quantise::{Recipe, Tier};
///
/// let (weight, tier) = (&model.weights()[0], Tier::Int8);
/// let mut tiled = vec![0; tier.layout(weight.k, weight.n)?.bytes() as usize];
/// let mut scales = vec![0.0; tier.scales(weight.k, weight.n)];
/// let recipe = Recipe { measure: true, ..Recipe::new(tier) };
/// let quality = model.quantise_with(weight, &recipe, &mut tiled, &mut scales)?;
/// assert!(quality.relative_rms() < 0.01); // int8 of a model of four and a half bits
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Model {
    files: Vec<ModelFile>,
    weights: Vec<Weight>,
    skipped: Vec<Skipped>,
    samples: Samples,
    header: Option<Gguf>,
    architecture: Option<Box<str>>,
}

impl Model {
    /// Opens the model at `path`: GGUF, safetensors, an index of safetensors shards, or the folder that
    /// holds them; of a split GGUF any one file.
    ///
    /// ```
    /// use ork_weights::model::{Model, ModelError, OpenOptions};
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// std::fs::write(file.path(), b"a shopping list")?;
    /// let error = Model::open(file.path(), &OpenOptions::default()).unwrap_err();
    /// assert!(matches!(error, ModelError::UnknownFormat { .. }));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ModelError`]: the file or one it belongs with cannot be opened, is malformed or cut short,
    /// holds a weight of a type that cannot be read, or no weight at all.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model, ModelError> {
        let path = &*recognise::first_file(path.as_ref())?;
        let first = ModelFile::open(path, options.read)?;
        let mut start = [0; START];
        let start = &mut start[..START.min(first.len() as usize)];
        first.read_at(0, start).map_err(ModelError::io("read", path))?;
        let (mut files, mut tensors, headers, header) =
            match recognise::kind(path, start, first.len())? {
                Kind::Gguf => open_gguf(first, options.read)?,
                Kind::Safetensors => {
                    shards::alone(path)?;
                    let (header, tensors) = safetensors::tensors(&first, 0)?;
                    (vec![first], tensors, vec![header], None)
                }
                Kind::Index => open_index(path, options.read)?,
            };
        ModelFile::share_buffers(&mut files);
        names(&files, &tensors)?;
        unique(&files, &tensors)?;
        let samples = Samples::of(headers, &tensors);
        let config = match &header {
            Some(_) => Config::default(),
            None => Config::beside(path),
        };
        if header.is_none() {
            scaled::pair(path, &mut tensors, &files, config.block())?;
        }
        let (architecture, known) = config::architecture(header.as_ref(), &config);
        let count = tensors.len();
        let (weights, skipped) = select::select(tensors, known, options)?;
        if weights.is_empty() && !options.list {
            let example = match skipped.first() {
                Some(first) => format!("{:?}: {}", first.name, first.reason),
                None => "there is none".into(),
            };
            return Err(ModelError::NoWeights { path: path.to_owned(), tensors: count, example });
        }
        Ok(Model { files, weights, skipped, samples, header, architecture })
    }

    /// Matrices the NPU multiplies by, in order of use.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// The weight of this name.
    pub fn weight(&self, name: &str) -> Option<&Weight> {
        self.weights.iter().find(|weight| &*weight.name == name)
    }

    /// Names of tensors that are most like `pattern`, for one that fits none.
    ///
    /// ```
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// assert_eq!(model.nearest("*fnn_down*")[0], "blk.0.ffn_down.weight");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nearest(&self, pattern: &str) -> Vec<&str> {
        let skipped = self.skipped.iter().map(|tensor| &*tensor.name);
        nearest(pattern, self.weights.iter().map(|weight| &*weight.name).chain(skipped))
    }

    /// Tensors that were not taken.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// What the model calls its architecture: `general.architecture` of a GGUF, `model_type` of the
    /// config.json beside other files.
    ///
    /// ```
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// assert_eq!(model.architecture(), Some("llama"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn architecture(&self) -> Option<&str> {
        self.architecture.as_deref()
    }

    /// The header of a GGUF model; of a split one, that of its first file.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.header.as_ref()
    }

    /// Files the model is made of.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| &*file.path)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(ModelFile::len).sum()
    }

    /// Whether any weight is an expert of a stack.
    pub fn has_experts(&self) -> bool {
        self.weights.iter().any(|weight| weight.expert.is_some())
    }

    /// Which model this is: size, time, a hash of headers and of samples of every tensor, and with
    /// `full_hash` one of every byte.
    ///
    /// ```
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// let quick = model.identity(false)?;
    /// let whole = model.identity(true)?;
    /// assert_eq!(quick.sample_hash, whole.sample_hash);
    /// assert!(quick.full_hash.is_none() && whole.full_hash.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ModelError::Shortened`] or [`ModelError::Io`] when a file cannot be read any more.
    pub fn identity(&self, full_hash: bool) -> Result<Identity, ModelError> {
        identity::identity(&self.files, &self.samples, full_hash)
    }

    /// Whether length and time of every file are those of the opening.
    ///
    /// # Errors
    /// [`ModelError::Changed`] names the first file that is another; [`ModelError::Io`].
    pub fn check(&self) -> Result<(), ModelError> {
        self.files.iter().try_for_each(ModelFile::check)
    }

    /// Quantises a weight to what the NPU reads: `out` in [`Tier::layout`], `scales` per channel or
    /// `[group][channel]`. Runs on the threads of the current rayon pool.
    ///
    /// # Errors
    /// [`ModelError::Quantise`] when a buffer has the wrong length, the shape does not suit the tier
    /// or a value is not finite; [`ModelError::Shortened`] or [`ModelError::Io`] when the file
    /// cannot be read any more.
    pub fn quantise(
        &self,
        weight: &Weight,
        tier: &Tier,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, ModelError> {
        self.quantise_with(weight, &Recipe::new(*tier), out, scales)
    }

    /// [`Model::quantise`] with importance or measuring.
    ///
    /// # Errors
    /// As there.
    pub fn quantise_with(
        &self,
        weight: &Weight,
        recipe: &Recipe<'_>,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, ModelError> {
        self.quantise_channels(weight, 0..weight.n, recipe, out, scales)
    }

    /// Tells the system that a weight will be read soon. A hint; costs nothing when it is ignored.
    pub(crate) fn will_read(&self, weight: &Weight) {
        if let Some(file) = self.files.get(weight.shard) {
            file.will_read(weight.range());
        }
    }

    /// From now on weights are read past the page cache (O_DIRECT): in large pieces, several under way, by the
    /// thread that asks for them. For a model that does not fit into memory beside what is made of it.
    ///
    /// ```
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// if let Err(error) = model.read_directly() {
    ///     println!("not on this file system: {error}"); // weights are read through the cache
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A file system has no direct reads, or a file can't be opened again.
    pub fn read_directly(&self) -> io::Result<()> {
        self.files.iter().try_for_each(ModelFile::read_directly)
    }

    /// What was read past the page cache; `None` where nothing is to be.
    pub fn direct_reads(&self) -> Option<DirectReads> {
        self.files.iter().filter_map(ModelFile::direct_reads).reduce(DirectReads::and)
    }

    /// Drops the pages of a weight from the page cache. Reading it again brings them back.
    pub fn evict(&self, weight: &Weight) {
        if let Some(file) = self.files.get(weight.shard) {
            file.evict(weight.range());
        }
    }

    /// Reads some channels of a weight and hands them to `work`.
    pub(crate) fn with_rows<T>(
        &self,
        weight: &Weight,
        channels: Range<u32>,
        work: impl FnOnce(&Rows<'_>) -> Result<T, crate::quantise::QuantiseError>,
    ) -> Result<T, ModelError> {
        let Some(file) = self.files.get(weight.shard) else {
            let error = io::Error::other("the weight is of another model");
            return Err(ModelError::io("read", Path::new(&*weight.name))(error));
        };
        let count = channels.end - channels.start;
        let start = weight.offset + weight.channel_bytes() * u64::from(channels.start);
        let read = |scaling: Scaling| {
            let read = scaling.read(&self.files, &channels);
            read.map_err(|error| file.failed(format!("scales of {:?}", weight.name), start, error))
        };
        let values = weight.scaling.map(read).transpose()?;
        let scales = weight.scaling.zip(values.as_deref()).map(|(scaling, values)| RowScales {
            values,
            columns: scaling.columns as usize,
            outputs: scaling.outputs as usize,
            inputs: scaling.inputs as usize,
        });
        let work = |bytes: &[u8]| {
            let rows = Rows::new(weight.kind, weight.k, count, bytes)?;
            work(&rows.starting_at(channels.start as usize).scaled(scales))
        };
        let done = match weight.by_input {
            false => file.with(start..start + weight.channel_bytes() * u64::from(count), work),
            true => transposed::read(file, weight, &channels).map(|rows| work(&rows)),
        };
        done.map_err(|error| file.failed(format!("weight {:?}", weight.name), start, error))?
            .map_err(ModelError::quantise(&weight.name))
    }
}

/// Files, tensors, header lengths, the first GGUF header.
type Opened = (Vec<ModelFile>, Vec<Candidate>, Vec<u64>, Option<Gguf>);

fn open_gguf(first: ModelFile, read: Read) -> Result<Opened, ModelError> {
    let (mut files, mut tensors, mut headers) = (Vec::new(), Vec::new(), Vec::new());
    let mut first_header = None;
    for (shard, (file, gguf)) in gguf::files(first, read)?.into_iter().enumerate() {
        recognise::is_model(&file.path, &gguf)?;
        headers.push(gguf.data_start().min(file.len()));
        tensors.extend(gguf.tensors().iter().map(|tensor| Candidate {
            name: tensor.name.clone(),
            dimensions: tensor.dimensions.clone(),
            kind: tensor.kind().ok_or_else(|| TensorType::describe(tensor.ggml_type)),
            shard,
            offset: tensor.offset,
            bytes: tensor.bytes,
            scaling: None,
            side: None,
        }));
        files.push(file);
        first_header.get_or_insert(gguf);
    }
    Ok((files, tensors, headers, first_header))
}

fn open_index(path: &Path, read: Read) -> Result<Opened, ModelError> {
    let (mut files, mut tensors, mut headers) = (Vec::new(), Vec::new(), Vec::new());
    let index = safetensors::shards(path)?;
    shards::present(path, &index.files)?;
    for (shard, path) in index.files.iter().enumerate() {
        let file = ModelFile::open(path, read)?;
        let (header, found) = safetensors::tensors(&file, shard)?;
        headers.push(header);
        tensors.extend(found);
        files.push(file);
    }
    index.check(path, &tensors)?;
    Ok((files, tensors, headers, None))
}

/// Refuses names that would be others for readers in C, which end at a NUL, or drive a terminal.
fn names(files: &[ModelFile], tensors: &[Candidate]) -> Result<(), ModelError> {
    let bad = |(_, tensor): &(usize, &Candidate)| tensor.name.chars().any(char::is_control);
    match tensors.iter().enumerate().find(bad) {
        None => Ok(()),
        Some((number, tensor)) => {
            let path = files.get(tensor.shard).map(|file| file.path.clone()).unwrap_or_default();
            Err(ModelError::ControlCharacter { path, number, name: tensor.name.clone() })
        }
    }
}

/// Refuses a name that two files have; within a file the parsers do.
fn unique(files: &[ModelFile], tensors: &[Candidate]) -> Result<(), ModelError> {
    if files.len() < 2 {
        return Ok(());
    }
    let mut seen = std::collections::HashSet::with_capacity(tensors.len());
    for tensor in tensors {
        if !seen.insert(&*tensor.name) {
            let path = files.get(tensor.shard).map(|file| file.path.clone()).unwrap_or_default();
            return Err(ModelError::DuplicateTensor { path, name: tensor.name.clone() });
        }
    }
    Ok(())
}
