//! Sums in one order, and functions that give the same bits on every machine: the system's `exp` and
//! `tanh` differ between versions of its library, `libm`'s do not.

use rayon::prelude::*;

/// Partial sums of a dot product; a row's sum has one order, whatever stands beside it.
const LANES: usize = 16;

/// Values that one thread takes at a time; less work than this is not given to others.
const CHUNK: usize = 8 << 10;

/// The dot product of two vectors of one length.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let [sum] = dots([a], b);
    sum
}

/// The dot products of several vectors with `b`; each has the bits that it has alone.
#[inline(always)]
pub(crate) fn dots<const R: usize>(a: [&[f32]; R], b: &[f32]) -> [f32; R] {
    let mut sums = [[0f32; LANES]; R];
    let (blocks, tail) = b.as_chunks::<LANES>();
    let rows = a.map(|row| row.as_chunks::<LANES>());
    for (index, b) in blocks.iter().enumerate() {
        for (sums, (row, _)) in sums.iter_mut().zip(&rows) {
            let Some(a) = row.get(index) else { continue };
            for lane in 0..LANES {
                sums[lane] += a[lane] * b[lane];
            }
        }
    }
    let mut out = [0.0; R];
    for ((out, sums), (_, rest)) in out.iter_mut().zip(&mut sums).zip(&rows) {
        for (sum, (a, b)) in sums.iter_mut().zip(rest.iter().zip(tail)) {
            *sum += a * b;
        }
        *out = halve(*sums);
    }
    out
}

/// The sum of all lanes, in pairs.
fn halve(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum of squares.
pub(crate) fn squares(values: &[f32]) -> f32 {
    dot(values, values)
}

/// `x · scale` added to `out`.
pub(crate) fn add_scaled(out: &mut [f32], x: &[f32], scale: f32) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += x * scale;
    }
}

/// `x` added to `out`.
pub(crate) fn add(out: &mut [f32], x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += x;
    }
}

/// e to the power of x.
pub(crate) fn exp(x: f32) -> f32 {
    libm::expf(x)
}

/// Replaces `values` by their shares of the sum of their exponentials.
pub(crate) fn softmax(values: &mut [f32]) {
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0f64;
    for value in values.iter_mut() {
        *value = exp(*value - most);
        sum += f64::from(*value);
    }
    let share = 1.0 / sum as f32;
    values.iter_mut().for_each(|value| *value *= share);
}

/// `limit · tanh(x / limit)` for each value: what keeps logits within ±`limit`.
pub(crate) fn soft_cap(values: &mut [f32], limit: f32) {
    let cap = |chunk: &mut [f32]| {
        for value in chunk {
            *value = limit * libm::tanhf(*value / limit);
        }
    };
    match values.len() {
        // Another thread would only be waited for.
        ..=CHUNK => cap(values),
        _ => values.par_chunks_mut(CHUNK).for_each(cap),
    }
}

/// What stands between the two matrices of a feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// GELU by its approximation with tanh.
    Gelu,
}

impl Activation {
    fn of(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + exp(-x)),
            Activation::Gelu => {
                const ROOT_2_OVER_PI: f32 = 0.797_884_6;
                0.5 * x * (1.0 + libm::tanhf(ROOT_2_OVER_PI * x * (1.0 + 0.044_715 * x * x)))
            }
        }
    }

    /// `gate` becomes activation(gate) · up.
    pub(crate) fn gate(self, gate: &mut [f32], up: &[f32]) {
        let multiply = |(gate, up): (&mut [f32], &[f32])| {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = self.of(*gate) * up;
            }
        };
        match gate.len() {
            ..=CHUNK => multiply((gate, up)),
            _ => gate.par_chunks_mut(CHUNK).zip(up.par_chunks(CHUNK)).for_each(multiply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_do_not_depend_on_what_stands_beside(
            len in 0usize..200,
            seed in any::<u32>(),
        ) {
            let value = |i: usize, j: u32| {
                let bits = (i as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add(seed ^ (j * 97));
                (bits.wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let row = |j| (0..len).map(|i| value(i, j)).collect::<Vec<f32>>();
            let (a, b, c, w) = (row(0), row(1), row(2), row(3));
            let together = dots([&a, &b, &c], &w);
            prop_assert_eq!(together, [dot(&a, &w), dot(&b, &w), dot(&c, &w)]);
            let exact: f64 = a.iter().zip(&w).map(|(a, w)| f64::from(*a) * f64::from(*w)).sum();
            prop_assert!((f64::from(together[0]) - exact).abs() <= 1e-6 * (1.0 + len as f64));
        }
    }

    #[test]
    fn activations_at_known_points() {
        // From the definitions, in double precision.
        for (x, silu, gelu) in [(1.0, 0.731_058_6, 0.841_192), (-2.0, -0.238_405_84, -0.045_402_3)]
        {
            assert!((Activation::Silu.of(x) - silu).abs() < 1e-6);
            assert!((Activation::Gelu.of(x) - gelu).abs() < 1e-6);
        }
        assert_eq!(Activation::Silu.of(-1e4), 0.0);
        let mut capped = [1e9, 0.0, -1e9];
        soft_cap(&mut capped, 30.0);
        assert_eq!(capped, [30.0, 0.0, -30.0]);
        let mut shares = [1000.0, 1000.0];
        softmax(&mut shares);
        assert_eq!(shares, [0.5, 0.5]);
    }
}
