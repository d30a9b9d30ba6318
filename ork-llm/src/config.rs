//! What a model's header says of its shape.

use crate::error::{Error, Result};
use ork_weights::model::gguf::Gguf;

/// Largest width, count or position that is believed; those of real models are far below.
const MOST: u64 = 1 << 24;

/// The metadata of one family: keys without the prefix of its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metadata<'a> {
    pub(crate) header: &'a Gguf,
    pub(crate) architecture: &'a str,
}

impl Metadata<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// A count of at least 1 that must be there.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        self.count_or(key, None)
    }

    /// A count of at least 1, or `otherwise` where the key is not there.
    pub(crate) fn count_or(&self, key: &str, otherwise: Option<usize>) -> Result<usize> {
        let key = self.key(key);
        match (self.header.get(&key), self.header.number(&key), otherwise) {
            (_, Some(number @ 1..=MOST), _) => Ok(number as usize),
            (Some(value), ..) => {
                let reason = format!("is {value}, not a number from 1 to {MOST}");
                Err(Error::key(key, reason))
            }
            (None, _, Some(otherwise)) => Ok(otherwise),
            (None, _, None) => Err(Error::key(key, "is missing")),
        }
    }

    /// A positive number, or `otherwise` where the key is not there.
    pub(crate) fn positive_or(&self, key: &str, otherwise: f64) -> Result<f32> {
        let key = self.key(key);
        match (self.header.get(&key), self.header.float(&key)) {
            (None, _) => Ok(otherwise as f32),
            (_, Some(value)) if value > 0.0 && value.is_finite() => Ok(value as f32),
            (Some(value), _) => Err(Error::key(key, format!("is {value}, not a positive number"))),
        }
    }

    /// A text, where the key is there.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.header.text(&self.key(key))
    }
}

/// The shape of a model.
///
/// ```
/// # use ork_llm::{Decoder, Reference};
/// # use ork_weights::model::gguf::Tensors;
/// # use ork_weights::model::synth::Shape;
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
/// let tensors = Tensors::open(file.path())?; // of a small llama
/// let linears = Reference::f32(&tensors)?;
/// let decoder = Decoder::new(tensors, Box::new(linears))?;
/// let config = decoder.config();
/// assert_eq!((config.layers, config.embedding, config.heads), (2, 256, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The family: `llama`, `gemma3`, …
    pub architecture: Box<str>,
    /// Layers.
    pub layers: usize,
    /// Width of the rows between layers.
    pub embedding: usize,
    /// Width inside the feed-forward part; of an expert's in a mixture.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Tokens the model was made for.
    pub context: usize,
    /// What is added to the mean of squares in norms.
    pub epsilon: f32,
}

impl Config {
    pub(crate) fn read(metadata: Metadata<'_>) -> Result<Config> {
        let heads = metadata.count("attention.head_count")?;
        let kv_heads = metadata.count_or("attention.head_count_kv", Some(heads))?;
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("is {kv_heads}, no divisor of the {heads} heads");
            return Err(Error::key(metadata.key("attention.head_count_kv"), reason));
        }
        let embedding = metadata.count("embedding_length")?;
        let head = metadata.count_or("attention.key_length", Some(embedding / heads))?;
        let value = metadata.count_or("attention.value_length", Some(head))?;
        if head != value || head == 0 || !head.is_multiple_of(2) {
            let reason = format!("is {head}, with values of {value}; one even width is possible");
            return Err(Error::key(metadata.key("attention.key_length"), reason));
        }
        Ok(Config {
            architecture: metadata.architecture.into(),
            layers: metadata.count("block_count")?,
            embedding,
            feed_forward: metadata.count("feed_forward_length")?,
            heads,
            kv_heads,
            head,
            vocabulary: 0, // the embedding table's rows, which the loader sees
            context: metadata.count("context_length")?,
            epsilon: metadata.positive_or("attention.layer_norm_rms_epsilon", 1e-5)?,
        })
    }
}
