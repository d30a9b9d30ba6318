//! int8 per channel.

use super::{LEAST_ABSMAX, Quantiser, Step, absmax};
use crate::simd::Machine;

pub(super) struct Int8;

/// 1.5 × 2²³: adding it leaves no fraction bits, so the addition rounds to nearest even and the
/// low byte of the sum's bits is the whole number in two's complement.
pub(super) const ROUNDER: f32 = 12_582_912.0;

impl Int8 {
    /// The scale of a row whose largest magnitude is `most`; `None` when that is not finite.
    #[inline(always)]
    pub(super) fn scale_of(most: f32) -> Option<f32> {
        most.is_finite().then(|| most.max(LEAST_ABSMAX) / 127.0)
    }
}

impl Quantiser for Int8 {
    #[inline(always)]
    fn scale(&self, values: &[f32]) -> Option<f32> {
        Int8::scale_of(absmax(values)?)
    }

    /// The nearest to value / scale. No clamp is needed: |value| is at most the absmax, so the
    /// quotient is at most 127 after rounding.
    ///
    /// A product with less than the reciprocal and one with more enclose the quotient, and rounding
    /// keeps the order: where both round to the same whole number, the quotient does. Products that
    /// are not rounded before they are added enclose it all the more.
    #[inline(always)]
    fn codes(&self, machine: impl Machine, values: &[f32; 32], step: Step) -> [i8; 32] {
        let mut rounded = [0; 32];
        let mut apart = [0; 32];
        for i in 0..32 {
            let one = machine.multiply_add(values[i], step.below, ROUNDER).to_bits();
            let other = machine.multiply_add(values[i], step.above, ROUNDER).to_bits();
            rounded[i] = one;
            apart[i] = one ^ other;
        }
        match apart.iter().fold(0, |any, one| any | one) {
            0 => rounded.map(|bits| bits as i8),
            _ => divided(values, step.scale),
        }
    }
}

/// Codes as a file has them.
pub(super) struct Taken;

impl Quantiser for Taken {
    #[inline(always)]
    fn scale(&self, _: &[f32]) -> Option<f32> {
        Some(1.0)
    }

    #[inline(always)]
    fn codes(&self, _: impl Machine, values: &[f32; 32], _: Step) -> [i8; 32] {
        values.map(|code| code as i8)
    }

    fn takes_codes(&self) -> bool {
        true
    }
}

/// The codes by division.
#[cold]
#[inline(never)]
fn divided(values: &[f32; 32], scale: f32) -> [i8; 32] {
    values.map(|value| (value / scale + ROUNDER).to_bits() as i8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Plain, dispatch};
    use proptest::prelude::*;

    /// The rule as written.
    fn naive(row: &[f32]) -> (f32, Vec<i8>) {
        let most = row.iter().fold(0f32, |most, w| most.max(w.abs()));
        let scale = most.max(1e-9) / 127.0;
        let code = |w: &f32| (w / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
        (scale, row.iter().map(code).collect())
    }

    struct Codes<'a>(&'a [f32; 32], Step);

    impl Kernel for Codes<'_> {
        type Output = [i8; 32];

        #[inline(always)]
        fn run(self, machine: impl Machine) -> [i8; 32] {
            Int8.codes(machine, self.0, self.1)
        }
    }

    fn agrees(row: &[f32; 32]) {
        let scale = Int8.scale(row).unwrap();
        let step = Step::new(scale);
        let expected = naive(row);
        assert_eq!((scale, dispatch(Codes(row, step)).to_vec()), expected, "{row:?}");
        assert_eq!(Codes(row, step).run(Plain).to_vec(), expected.1, "{row:?}");
    }

    fn magnitude() -> impl Strategy<Value = f32> {
        prop_oneof![Just(1e-38f32), Just(1e-9), Just(0.01), Just(1.0), Just(3e38)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2048))]
        #[test]
        fn the_fast_path_gives_the_quotients_code(
            values in prop::array::uniform32(-1f32..=1.0), by in magnitude(),
        ) {
            agrees(&values.map(|v| v * by));
        }

        #[test]
        fn ties_and_their_neighbours(
            halves in prop::array::uniform32(-254i32..=254), scale in 1e-6f32..1e6, ulps in -3i32..=3,
        ) {
            // Multiples of half a step, give or take a few last places, under an absmax of 127.
            let mut row = halves.map(|h| {
                let value = h as f32 * 0.5 * scale;
                f32::from_bits(value.to_bits().saturating_add_signed(ulps))
            });
            row[0] = 127.0 * scale;
            agrees(&row);
        }
    }

    #[test]
    fn zeros_and_extremes() {
        agrees(&[0.0; 32]);
        agrees(&[f32::MAX; 32]);
        agrees(&[f32::MIN_POSITIVE; 32]);
        agrees(&std::array::from_fn(|i| if i == 7 { -f32::MAX } else { 1.0 }));
    }

    #[test]
    fn what_is_not_finite_has_no_scale() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut row = [1f32; 33];
            row[32] = bad;
            assert_eq!(Int8.scale(&row), None);
        }
    }
}
