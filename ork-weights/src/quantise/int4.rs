//! Even four-bit levels.

use super::clip::{self, RATIOS};
use super::int8::ROUNDER;
use super::{LEAST_ABSMAX, Quantiser, Step, absmax};
use crate::simd::Machine;

/// Nearest whole number to value / scale, ties to even, clamped.
#[inline(always)]
fn nearest(value: f32, scale: f32, least: f32) -> i8 {
    ((value / scale).clamp(least, 7.0) + ROUNDER).to_bits() as i8
}

/// Codes −7 to 7, stored compactly and computed as int8.
pub(super) struct Uniform<'a> {
    pub(super) importance: Option<&'a [f32]>,
}

impl Uniform<'_> {
    /// The scale of one candidate absmax.
    #[inline(always)]
    fn of(absmax: f32) -> f32 {
        absmax.max(LEAST_ABSMAX) / 7.0
    }
}

impl Quantiser for Uniform<'_> {
    #[inline(always)]
    fn scale(&self, values: &[f32]) -> Option<f32> {
        let most = absmax(values)?;
        let Some(importance) = self.importance else { return Some(Self::of(most)) };
        Some(clip::least_error(
            RATIOS.map(|ratio| Self::of(most * ratio)),
            values,
            importance,
            |value, scale| f32::from(nearest(value, scale, -7.0)) * scale,
        ))
    }

    #[inline(always)]
    fn codes(&self, _: impl Machine, values: &[f32; 32], step: Step) -> [i8; 32] {
        values.map(|value| nearest(value, step.scale, -7.0))
    }
}

/// Codes −8 to 7 for int4 × int4.
pub(super) struct Native;

impl Quantiser for Native {
    #[inline(always)]
    fn scale(&self, values: &[f32]) -> Option<f32> {
        Some(absmax(values)?.max(LEAST_ABSMAX) / 7.0)
    }

    #[inline(always)]
    fn codes(&self, _: impl Machine, values: &[f32; 32], step: Step) -> [i8; 32] {
        values.map(|value| nearest(value, step.scale, -8.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Plain;
    use proptest::prelude::*;

    const PLAIN: Uniform<'static> = Uniform { importance: None };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn codes_are_rounded_quotients(values in prop::array::uniform32(-3f32..3.0)) {
            let scale = PLAIN.scale(&values).unwrap();
            let most = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            prop_assert_eq!(scale, most / 7.0);
            let expected = values.map(|v| (v / scale).round_ties_even() as i8);
            let step = Step::new(scale);
            prop_assert_eq!(PLAIN.codes(Plain, &values, step), expected);
            prop_assert_eq!(Native.codes(Plain, &values, step), expected);
        }
    }

    #[test]
    fn native_uses_the_lowest_code_and_stored_does_not() {
        let mut values = [0f32; 32];
        values[0] = -9.0;
        let step = Step::new(1.0);
        assert_eq!(Native.codes(Plain, &values, step)[0], -8);
        assert_eq!(PLAIN.codes(Plain, &values, step)[0], -7);
    }
}
