//! A feed-forward part of many experts, of which a router gives each token a few.

use super::pass::multiply;
use super::{Pass, Scratch};
use crate::error::Result;
use crate::linear::Weight;
use crate::load::Linear;
use crate::math::{Activation, add_scaled, dot, softmax};

/// The experts of a layer.
#[derive(Debug)]
pub(crate) struct Experts {
    /// A row for each expert: too small for the NPU, and decisive.
    router: Vec<f32>,
    /// The experts: gate, up and down.
    experts: Vec<[Linear; 3]>,
    /// Their weights.
    weights: Vec<[Weight; 3]>,
    /// Experts of each token.
    used: usize,
    activation: Activation,
}

/// Which rows go to which expert, and what comes back.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// Share of each expert, for one row.
    shares: Vec<f32>,
    order: Vec<u32>,
    /// Expert and share of each row's choices, the best first.
    chosen: Vec<(u32, f32)>,
    /// Input rows of one expert.
    input: Vec<f32>,
    output: Vec<f32>,
    /// What each choice gave.
    results: Vec<f32>,
}

impl Experts {
    /// `used` of `experts` for each row, by the products with the rows of `router`.
    pub(crate) fn new(
        router: Vec<f32>,
        experts: Vec<[Linear; 3]>,
        used: usize,
        activation: Activation,
    ) -> Experts {
        let weights = experts.iter().map(|expert| expert.each_ref().map(|part| part.weight));
        Experts { weights: weights.collect(), router, experts, used, activation }
    }

    /// Replaces `scratch.part` by the sum of what each row's experts give, weighted by their shares.
    /// Experts are computed in the order that suits whoever has their weights; the sum of a row has
    /// one order, that of its choices.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>, scratch: &mut Scratch) -> Result<()> {
        let Scratch { part, gate, up, experts: routed, .. } = scratch;
        let width = part.len() / pass.rows.max(1);
        self.route(part, width, routed);
        let mut waiting: Vec<u32> = routed.chosen.iter().map(|choice| choice.0).collect();
        waiting.sort_unstable();
        waiting.dedup();
        let mut groups: Vec<&[Weight]> =
            waiting.iter().map(|expert| &self.weights[*expert as usize][..]).collect();
        pass.linears.expect(pass.rows, &groups);
        routed.results.resize(routed.chosen.len() * width, 0.0);
        while !waiting.is_empty() {
            let next = pass.linears.next(&groups).min(waiting.len() - 1);
            groups.remove(next);
            let expert = waiting.remove(next);
            self.compute(expert, pass, part, width, [gate, up], routed)?;
        }
        part.fill(0.0);
        let choices = routed.chosen.iter().zip(routed.results.chunks_exact(width));
        for (index, ((_, share), result)) in choices.enumerate() {
            let row = index / self.used * width;
            add_scaled(&mut part[row..row + width], result, *share);
        }
        Ok(())
    }

    /// Chooses experts for every row.
    fn route(&self, rows: &[f32], width: usize, routed: &mut Routed) {
        let Routed { shares, order, chosen, .. } = routed;
        chosen.clear();
        for row in rows.chunks_exact(width) {
            shares.clear();
            shares.extend(self.router.chunks_exact(width).map(|expert| dot(row, expert)));
            softmax(shares);
            order.clear();
            order.extend(0..shares.len() as u32);
            let share = |expert: u32| shares[expert as usize];
            order.sort_by(|a, b| share(*b).total_cmp(&share(*a)));
            order.truncate(self.used);
            // The shares of those that are chosen add up to 1.
            let sum: f32 = order.iter().map(|expert| share(*expert)).sum();
            chosen.extend(order.iter().map(|expert| (*expert, share(*expert) / sum)));
        }
    }

    /// Computes the rows that chose `expert`.
    fn compute(
        &self,
        expert: u32,
        pass: &mut Pass<'_>,
        rows: &[f32],
        width: usize,
        [gate, up]: [&mut Vec<f32>; 2],
        routed: &mut Routed,
    ) -> Result<()> {
        let Routed { chosen, input, output, results, .. } = routed;
        let takers = || chosen.iter().enumerate().filter(|(_, choice)| choice.0 == expert);
        input.clear();
        for (index, _) in takers() {
            let row = index / self.used * width;
            input.extend_from_slice(&rows[row..row + width]);
        }
        let count = input.len() / width;
        let [gate_layer, up_layer, down_layer] = &self.experts[expert as usize];
        multiply(pass.linears, count, input, [gate_layer, up_layer], [gate, up])?;
        self.activation.gate(gate, up);
        multiply(pass.linears, count, gate, [down_layer], [output])?;
        for ((index, _), output) in takers().zip(output.chunks_exact(width)) {
            results[index * width..][..width].copy_from_slice(output);
        }
        Ok(())
    }
}
