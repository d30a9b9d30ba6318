//! Norm by the root of the mean of squares.

use crate::math::squares;

/// Divides vectors by the root of the mean of their squares and multiplies by a weight.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    weight: Vec<f32>,
    epsilon: f32,
}

impl RmsNorm {
    pub(crate) fn new(weight: Vec<f32>, epsilon: f32) -> RmsNorm {
        RmsNorm { weight, epsilon }
    }

    fn factor(&self, row: &[f32]) -> f32 {
        1.0 / (squares(row) / self.weight.len() as f32 + self.epsilon).sqrt()
    }

    /// The norm of each vector of `input`.
    pub(crate) fn apply(&self, input: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        for (input, out) in input.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let factor = self.factor(input);
            for ((out, x), weight) in out.iter_mut().zip(input).zip(&self.weight) {
                *out = x * factor * weight;
            }
        }
    }

    /// [`apply`](RmsNorm::apply) where the vectors are.
    pub(crate) fn apply_in_place(&self, rows: &mut [f32]) {
        for row in rows.chunks_exact_mut(self.weight.len()) {
            let factor = self.factor(row);
            for (x, weight) in row.iter_mut().zip(&self.weight) {
                *x = *x * factor * weight;
            }
        }
    }
}
