//! Attention: each token's queries look back to the keys of the tokens before it.

use super::{Pass, RmsNorm, Scratch};
use crate::error::Result;
use crate::load::Linear;
use crate::math::{add_scaled, dot, exp};
use rayon::prelude::*;

/// Products of fewer values than this are not given to other threads.
const WORTH_A_THREAD: usize = 64 << 10;

/// Grouped attention of one layer.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    /// Norms of each head's queries and keys.
    pub(crate) norms: Option<(RmsNorm, RmsNorm)>,
    /// Which of the model's ropes turns queries and keys.
    pub(crate) rope: usize,
    pub(crate) head: usize,
    /// What products of queries and keys are multiplied by.
    pub(crate) scale: f32,
    /// Bound of those products.
    pub(crate) soft_cap: Option<f32>,
    /// Tokens it looks back to, itself among them.
    pub(crate) window: Option<usize>,
}

impl Attention {
    /// Replaces `scratch.part`, the normed rows, by what attention adds to them.
    pub(crate) fn forward(
        &self,
        layer: usize,
        pass: &mut Pass<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Scratch { part, query, key, value, angles, .. } = scratch;
        pass.multiply(part, [&self.query, &self.key, &self.value], [query, key, value])?;
        if let Some((of_query, of_key)) = &self.norms {
            of_query.apply_in_place(query);
            of_key.apply_in_place(key);
        }
        let (width, kv_width) = (self.query.weight.n as usize, self.key.weight.n as usize);
        let (rope, angles) = (&pass.ropes[self.rope], &angles[self.rope]);
        rope.turn(query, width, self.head, angles);
        rope.turn(key, kv_width, self.head, angles);

        let first = pass.cache.len();
        let (keys, values) = pass.cache.extend(layer, key, value);
        // Each head's result takes the place of its query.
        let look = |(index, query): (usize, &mut [f32])| {
            let heads = width / self.head;
            let position = first + index / heads;
            let kv = index % heads * kv_width / width * self.head;
            self.look_back(query, position, keys, values, kv_width, kv);
        };
        if pass.rows * width * (first + pass.rows) < WORTH_A_THREAD {
            query.chunks_exact_mut(self.head).enumerate().for_each(look);
        } else {
            query.par_chunks_exact_mut(self.head).enumerate().for_each(look);
        }
        pass.multiply(query, [&self.output], [part])
    }

    /// Replaces a query by the mean of the values it sees, weighted by the exponentials of its
    /// products with their keys. One walk in the order of positions: when a product exceeds all
    /// before it, what there is so far is scaled down.
    fn look_back(
        &self,
        query: &mut [f32],
        position: usize,
        keys: &[f32],
        values: &[f32],
        stride: usize,
        at: usize,
    ) {
        const WIDEST: usize = 512;
        let mut local = [0f32; WIDEST];
        let mut large = Vec::new();
        let mean = match local.get_mut(..self.head) {
            Some(mean) => mean,
            None => {
                large.resize(self.head, 0.0);
                &mut large[..]
            }
        };
        let start = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let (mut most, mut sum) = (f32::NEG_INFINITY, 0f32);
        let row = |of: &[f32], token: usize| token * stride + at..token * stride + at + of.len();
        for token in start..=position {
            let mut product = dot(query, &keys[row(query, token)]) * self.scale;
            if let Some(limit) = self.soft_cap {
                product = limit * libm::tanhf(product / limit);
            }
            if product > most {
                let shrink = exp(most - product);
                mean.iter_mut().for_each(|value| *value *= shrink);
                sum *= shrink;
                most = product;
            }
            let share = exp(product - most);
            sum += share;
            add_scaled(mean, &values[row(query, token)], share);
        }
        for (out, value) in query.iter_mut().zip(mean) {
            *out = *value / sum;
        }
    }
}
