//! Tensors that are floats already.

use super::Block;

/// IEEE half to single, exact, without branches so that loops over it become vector code.
#[inline(always)]
pub(crate) fn half_to_f32(half: u16) -> f32 {
    const EXPONENT_STEP: u32 = (127 - 15) << 23;
    const TWO_POW_MINUS_14: f32 = f32::from_bits((127 - 14) << 23);
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let exponent = half & 0x7c00;
    let normal = magnitude + EXPONENT_STEP;
    // A subnormal is m × 2⁻²⁴ = (1 + m / 1024) × 2⁻¹⁴ − 2⁻¹⁴.
    let subnormal = (f32::from_bits(normal + (1 << 23)) - TWO_POW_MINUS_14).to_bits();
    let infinite = normal + EXPONENT_STEP;
    let bits = if exponent == 0 { subnormal } else { normal };
    let bits = if exponent == 0x7c00 { infinite } else { bits };
    f32::from_bits(bits | sign)
}

pub(super) struct F32;

impl Block<4, 1> for F32 {
    #[inline(always)]
    fn decode(raw: &[u8; 4], out: &mut [f32; 1]) {
        out[0] = f32::from_le_bytes(*raw);
    }
}

pub(super) struct F16;

impl Block<2, 1> for F16 {
    #[inline(always)]
    fn decode(raw: &[u8; 2], out: &mut [f32; 1]) {
        out[0] = half_to_f32(u16::from_le_bytes(*raw));
    }
}

pub(super) struct Bf16;

impl Block<2, 1> for Bf16 {
    #[inline(always)]
    fn decode(raw: &[u8; 2], out: &mut [f32; 1]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*raw)) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_exact() {
        for bits in 0..=u16::MAX {
            let (ours, reference) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            if reference.is_nan() {
                assert!(ours.is_nan(), "{bits:#06x}");
            } else {
                assert_eq!(ours.to_bits(), reference.to_bits(), "{bits:#06x}");
            }
        }
    }
}
