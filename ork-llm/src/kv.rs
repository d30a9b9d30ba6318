//! Keys and values of the tokens so far.

use crate::error::{Error, Result};

/// The keys and values that attention looks back to. It grows with the text, up to its context.
///
/// ```
/// # use ork_llm::{Decoder, Reference};
/// # use ork_weights::model::gguf::Tensors;
/// # use ork_weights::model::synth::Shape;
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
/// # let tensors = Tensors::open(file.path())?;
/// # let linears = Reference::f32(&tensors)?;
/// let mut decoder = Decoder::new(tensors, Box::new(linears))?; // a small llama
/// let mut cache = decoder.cache(16);
/// decoder.forward(&mut cache, &[5, 6, 7], 0)?;
/// assert_eq!(cache.len(), 3);
/// cache.truncate(1); // as if only the first token had been there
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Vec<Layer>,
    /// Values of a token's keys in a layer.
    width: usize,
    len: usize,
    context: usize,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KvCache {
    pub(crate) fn new(layers: usize, width: usize, context: usize) -> KvCache {
        KvCache { layers: vec![Layer::default(); layers], width, len: 0, context }
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens it takes.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes that its tokens take.
    pub fn bytes(&self) -> usize {
        2 * self.layers.len() * self.len * self.width * size_of::<f32>()
    }

    /// Forgets all tokens but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            layer.keys.truncate(self.len * self.width);
            layer.values.truncate(self.len * self.width);
        }
    }

    /// Whether the shape is that of a model of `layers` layers and keys of `width` values.
    pub(crate) fn fits(&self, layers: usize, width: usize) -> bool {
        (self.layers.len(), self.width) == (layers, width)
    }

    /// Refuses tokens that would not fit.
    pub(crate) fn room(&self, more: usize) -> Result<()> {
        match self.len.checked_add(more) {
            Some(all) if all <= self.context => Ok(()),
            _ => Err(Error::ContextFull { used: self.len, more, context: self.context }),
        }
    }

    /// Adds the keys and values of the tokens after [`len`](KvCache::len) to a layer, and gives all
    /// of the layer's.
    pub(crate) fn extend(
        &mut self,
        layer: usize,
        keys: &[f32],
        values: &[f32],
    ) -> (&[f32], &[f32]) {
        let kept = self.len * self.width;
        let Layer { keys: all_keys, values: all_values } = &mut self.layers[layer];
        // A pass that failed may have left some behind.
        all_keys.truncate(kept);
        all_values.truncate(kept);
        all_keys.extend_from_slice(keys);
        all_values.extend_from_slice(values);
        (all_keys, all_values)
    }

    /// Counts tokens that every layer has now.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
