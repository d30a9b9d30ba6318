//! The decoder: tokens in, logits out.

use crate::block::{Layer, Pass, RmsNorm, Rope, Scratch};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::family;
use crate::kv::KvCache;
use crate::linear::{Linears, Product};
use crate::load::{EMBEDDINGS, Linear, Loader};
use crate::math::soft_cap;
use ork_weights::model::gguf::Tensors;

/// A model that predicts tokens.
///
/// ```
/// use ork_llm::{Decoder, Reference};
/// use ork_weights::model::gguf::Tensors;
/// # use ork_weights::model::synth::Shape;
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
///
/// let tensors = Tensors::open(file.path())?;
/// let linears = Reference::f32(&tensors)?; // or what has them on the NPU
/// let mut decoder = Decoder::new(tensors, Box::new(linears))?;
///
/// let mut cache = decoder.cache(64);
/// let logits = decoder.forward(&mut cache, &[1, 2, 3], 1)?;
/// assert_eq!(logits.len(), 320); // a number for each token that may come next
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Decoder {
    config: Config,
    tensors: Tensors,
    linears: Box<dyn Linears>,
    layers: Vec<Layer>,
    ropes: Vec<Rope>,
    embedding_scale: f32,
    norm: RmsNorm,
    head: Linear,
    logit_cap: Option<f32>,
    scratch: Scratch,
    logits: Vec<f32>,
    passes: u64,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Decoder {
    /// Takes norms, biases and tables from `tensors`; `linears` multiplies.
    ///
    /// # Errors
    /// [`Error::Family`] when there is no decoder for the model; [`Error::Metadata`] and
    /// [`Error::Tensor`] name what is missing or does not fit.
    pub fn new(tensors: Tensors, linears: Box<dyn Linears>) -> Result<Decoder> {
        const ARCHITECTURE: &str = "general.architecture";
        let architecture = tensors.header().text(ARCHITECTURE);
        let architecture =
            architecture.ok_or_else(|| Error::key(ARCHITECTURE, "is missing"))?.to_owned();
        let load = family::named(&architecture)?;
        let from = Loader::new(&tensors, &*linears, &architecture)?;
        let family::Stack { layers, ropes, embedding_scale, logit_cap } = load(&from)?;
        let norm = from.norm("output_norm.weight", from.config.embedding)?;
        let (head, config) = (from.head()?, from.config);
        let scratch = Scratch::default();
        Ok(Decoder {
            config,
            tensors,
            linears,
            layers,
            ropes,
            embedding_scale,
            norm,
            head,
            logit_cap,
            scratch,
            logits: Vec::new(),
            passes: 0,
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The model's file.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Passes so far: each reads all weights once.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// An empty cache for this model that takes `context` tokens; memory is taken as they come.
    pub fn cache(&self, context: usize) -> KvCache {
        KvCache::new(self.layers.len(), self.config.kv_heads * self.config.head, context)
    }

    /// Adds `tokens` to the text in `cache`, and gives the logits of what may follow each of the last
    /// `wanted` of them: a row of [`Config::vocabulary`] values for each.
    ///
    /// The rows have the same bits whether tokens come at once or one by one.
    ///
    /// # Errors
    /// [`Error::ContextFull`], [`Error::Token`] for one outside the vocabulary, [`Error::EmptyPrompt`]
    /// for none at all, and [`Error::Linear`] or [`Error::Model`] when weights cannot be had. The cache
    /// is then as it was.
    ///
    /// # Panics
    /// Never; a cache of another model's shape is [`Error::Setting`].
    pub fn forward(
        &mut self,
        cache: &mut KvCache,
        tokens: &[u32],
        wanted: usize,
    ) -> Result<&[f32]> {
        let (rows, width) = (tokens.len(), self.config.embedding);
        if rows == 0 {
            return Err(Error::EmptyPrompt);
        }
        if !cache.fits(self.layers.len(), self.config.kv_heads * self.config.head) {
            return Err(Error::Setting {
                setting: "the cache's number of layers",
                value: self.layers.len() as f64,
                range: "a cache is used with the model that made it",
            });
        }
        cache.room(rows)?;
        self.embed(tokens)?;
        let Scratch { angles, .. } = &mut self.scratch;
        angles.resize(self.ropes.len(), Vec::new());
        for (rope, angles) in self.ropes.iter().zip(angles) {
            rope.tabulate(cache.len(), rows, angles);
        }
        let mut pass = Pass { linears: &mut *self.linears, cache, ropes: &self.ropes, rows };
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(index, &mut pass, &mut self.scratch)?;
        }

        let wanted = wanted.min(rows);
        let Scratch { hidden, part, .. } = &mut self.scratch;
        self.logits.resize(wanted * self.config.vocabulary, 0.0);
        if wanted > 0 {
            part.resize(wanted * width, 0.0);
            self.norm.apply(&hidden[(rows - wanted) * width..], part);
            let mut products = [Product { weight: self.head.weight, out: &mut self.logits }];
            self.linears
                .multiply(wanted, part, &mut products)
                .map_err(Error::linear(&self.head.name))?;
            if let Some(limit) = self.logit_cap {
                soft_cap(&mut self.logits, limit);
            }
        }
        cache.advance(tokens.len());
        self.passes += 1;
        Ok(&self.logits)
    }

    /// Looks up the rows of `tokens`.
    fn embed(&mut self, tokens: &[u32]) -> Result<()> {
        let (width, hidden) = (self.config.embedding, &mut self.scratch.hidden);
        hidden.resize(tokens.len() * width, 0.0);
        for (token, row) in tokens.iter().zip(hidden.chunks_exact_mut(width)) {
            let vocabulary = self.config.vocabulary;
            if *token as usize >= vocabulary {
                return Err(Error::Token { token: *token, vocabulary });
            }
            let place = u64::from(*token);
            self.tensors.read(EMBEDDINGS, place..place + 1, row)?;
            if self.embedding_scale != 1.0 {
                row.iter_mut().for_each(|value| *value *= self.embedding_scale);
            }
        }
        Ok(())
    }
}
