//! Sixteen levels at the quantiles of a normal distribution.

use super::clip::{self, RATIOS};
use super::{LEAST_ABSMAX, Quantiser, Step, absmax};
use crate::pack::Codebook;
use crate::simd::Machine;

/// NF4 levels as bitsandbytes publishes them; code 7 is zero.
const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Where one level becomes nearer than the one below it.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        midpoints[i] = ((LEVELS[i] as f64 + LEVELS[i + 1] as f64) / 2.0) as f32;
        i += 1;
    }
    midpoints
};

/// What the NPU multiplies: the levels as int8, round(127 × level).
const INT8: [i8; 16] = Codebook::Nf4.levels();

/// Codes into the codebook; the scale is that of the int8 levels, absmax / 127.
pub(super) struct Nf4<'a> {
    pub(super) importance: Option<&'a [f32]>,
}

/// Number of the nearest level; the upper one at a midpoint.
#[inline(always)]
fn nearest(value: f32, scale: f32) -> i8 {
    let value = value / (scale * 127.0);
    MIDPOINTS.iter().map(|&midpoint| i8::from(value >= midpoint)).sum()
}

impl Quantiser for Nf4<'_> {
    #[inline(always)]
    fn scale(&self, values: &[f32]) -> Option<f32> {
        let of = |most: f32| most.max(LEAST_ABSMAX) / 127.0;
        let most = absmax(values)?;
        let Some(importance) = self.importance else { return Some(of(most)) };
        let candidates = RATIOS.map(|ratio| of(most * ratio));
        Some(clip::least_error(candidates, values, importance, |value, scale| {
            f32::from(self.level(nearest(value, scale))) * scale
        }))
    }

    #[inline(always)]
    fn codes(&self, _: impl Machine, values: &[f32; 32], step: Step) -> [i8; 32] {
        values.map(|value| nearest(value, step.scale))
    }

    #[inline(always)]
    fn level(&self, code: i8) -> i8 {
        INT8[code as usize & 15]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Plain;
    use proptest::prelude::*;

    #[test]
    fn int8_levels_are_the_rounded_levels() {
        let rounded = LEVELS.map(|level| (level * 127.0).round() as i8);
        assert_eq!(rounded, INT8);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn codes_are_the_nearest_level(values in prop::array::uniform32(-2f32..2.0)) {
            let quantiser = Nf4 { importance: None };
            let scale = quantiser.scale(&values).unwrap();
            let codes = quantiser.codes(Plain, &values, Step::new(scale));
            let most = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            prop_assert_eq!(scale, most / 127.0);
            for (value, code) in values.iter().zip(codes) {
                let distance = |level: f32| (f64::from(value / most) - f64::from(level)).abs();
                let least = LEVELS.iter().map(|&l| distance(l)).fold(f64::MAX, f64::min);
                prop_assert!(distance(LEVELS[code as usize]) <= least + 1e-6);
            }
        }
    }

    #[test]
    fn levels_map_to_themselves_and_beyond_to_the_ends() {
        for (code, level) in LEVELS.iter().enumerate() {
            assert_eq!(nearest(*level, 1.0 / 127.0), code as i8);
        }
        assert_eq!((nearest(-9.0, 1.0 / 127.0), nearest(9.0, 1.0 / 127.0)), (0, 15));
    }
}
