//! One pass of some tokens through a model: what the blocks share.

use super::Rope;
use super::experts::Routed;
use crate::error::{Error, Result};
use crate::kv::KvCache;
use crate::linear::{Linears, Product};
use crate::load::Linear;
use crate::math::add;

/// Memory that passes use again.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Rows between layers.
    pub(crate) hidden: Vec<f32>,
    /// What a part of a layer reads, and then what it gives.
    pub(crate) part: Vec<f32>,
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    /// Cosines and sines of the rows' positions, for each rope.
    pub(crate) angles: Vec<Vec<(f32, f32)>>,
    pub(crate) experts: Routed,
}

/// A pass under way.
pub(crate) struct Pass<'a> {
    pub(crate) linears: &'a mut dyn Linears,
    pub(crate) cache: &'a mut KvCache,
    pub(crate) ropes: &'a [Rope],
    /// Tokens of this pass; they follow those in the cache.
    pub(crate) rows: usize,
}

impl Pass<'_> {
    /// Multiplies `input` by layers that share it; each output gets the length it needs.
    pub(crate) fn multiply<const N: usize>(
        &mut self,
        input: &[f32],
        layers: [&Linear; N],
        outs: [&mut Vec<f32>; N],
    ) -> Result<()> {
        multiply(self.linears, self.rows, input, layers, outs)
    }
}

/// Multiplies `rows` rows of `input` by layers that share it, and adds their biases.
pub(crate) fn multiply<const N: usize>(
    linears: &mut dyn Linears,
    rows: usize,
    input: &[f32],
    layers: [&Linear; N],
    outs: [&mut Vec<f32>; N],
) -> Result<()> {
    let mut index = 0;
    let mut products = outs.map(|out| {
        let weight = layers[index].weight;
        index += 1;
        out.resize(rows * weight.n as usize, 0.0);
        Product { weight, out }
    });
    let name = layers.first().map_or("", |layer| &layer.name);
    linears.multiply(rows, input, &mut products).map_err(Error::linear(name))?;
    for (layer, product) in layers.into_iter().zip(products) {
        if let Some(bias) = &layer.bias {
            product.out.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
    }
    Ok(())
}
