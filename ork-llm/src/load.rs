//! Takes the parts of a model out of its file: what multiplies from [`Linears`], the rest as f32.

use crate::block::RmsNorm;
use crate::config::{Config, Metadata};
use crate::error::{Error, Result};
use crate::linear::{Linears, Weight};
use ork_weights::model::gguf::Tensors;

/// A linear layer: its weight, its bias, its name for messages.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) name: Box<str>,
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Vec<f32>>,
}

/// An open model that is being loaded.
pub(crate) struct Loader<'a> {
    pub(crate) tensors: &'a Tensors,
    pub(crate) linears: &'a dyn Linears,
    pub(crate) metadata: Metadata<'a>,
    pub(crate) config: Config,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        tensors: &'a Tensors,
        linears: &'a dyn Linears,
        architecture: &'a str,
    ) -> Result<Loader<'a>> {
        let metadata = Metadata { header: tensors.header(), architecture };
        let mut config = Config::read(metadata)?;
        let table = tensors.get(EMBEDDINGS).map(|tensor| &*tensor.dimensions);
        config.vocabulary = match table {
            Some(&[width, rows]) if width == config.embedding as u64 && rows <= MOST_TOKENS => {
                rows as usize
            }
            Some(other) => {
                let reason = format!("is {other:?}, not [{}, tokens]", config.embedding);
                return Err(Error::tensor(EMBEDDINGS, reason));
            }
            None => return Err(Error::tensor(EMBEDDINGS, "is missing")),
        };
        Ok(Loader { tensors, linears, metadata, config })
    }

    /// A vector of `len` values that must be there.
    pub(crate) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.optional(name, len)?.ok_or_else(|| Error::tensor(name, "is missing"))
    }

    /// A vector of `len` values, where it is there.
    pub(crate) fn optional(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        self.matrix(name, len, 1)
    }

    /// A small matrix of `rows` rows that is multiplied here, where it is there.
    pub(crate) fn matrix(&self, name: &str, len: usize, rows: usize) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let values: u64 = tensor.dimensions.iter().skip(1).product();
        if (tensor.dimensions.first(), values) != (Some(&(len as u64)), rows as u64) {
            let reason = format!("is {:?}, not [{len}, {rows}]", tensor.dimensions);
            return Err(Error::tensor(name, reason));
        }
        let mut out = vec![0.0; len * rows];
        self.tensors.read(name, 0..values, &mut out)?;
        Ok(Some(out))
    }

    /// The norm `name`, of vectors of `len` values.
    pub(crate) fn norm(&self, name: &str, len: usize) -> Result<RmsNorm> {
        Ok(RmsNorm::new(self.vector(name, len)?, self.config.epsilon))
    }

    /// The linear layer `name` of `k` inputs and `n` outputs, with its bias where it has one.
    pub(crate) fn linear(&self, name: &str, k: usize, n: usize) -> Result<Linear> {
        let full = format!("{name}.weight");
        let weight = self.weight(&full, k, n)?;
        let bias = self.optional(&format!("{name}.bias"), n)?;
        Ok(Linear { name: full.into(), weight, bias })
    }

    /// The weight `name` of `k` inputs and `n` outputs.
    pub(crate) fn weight(&self, name: &str, k: usize, n: usize) -> Result<Weight> {
        let weight = self
            .linears
            .weight(name)
            .ok_or_else(|| Error::tensor(name, "is missing among the linear layers"))?;
        if (weight.k as usize, weight.n as usize) != (k, n) {
            let reason = format!("is {} × {}, not {k} × {n}", weight.k, weight.n);
            return Err(Error::tensor(name, reason));
        }
        Ok(weight)
    }

    /// The output head, or the table it is tied to.
    pub(crate) fn head(&self) -> Result<Linear> {
        let (k, n) = (self.config.embedding, self.config.vocabulary);
        let own = self.linears.weight(HEAD).is_some();
        let name = if own { HEAD } else { EMBEDDINGS };
        Ok(Linear { name: name.into(), weight: self.weight(name, k, n)?, bias: None })
    }
}

/// The table of embeddings.
pub(crate) const EMBEDDINGS: &str = "token_embd.weight";
/// The output head, where it is not the table.
const HEAD: &str = "output.weight";
/// Tokens at most: they are numbered in 32 bits.
const MOST_TOKENS: u64 = 1 << 24;
