//! Tensors that are floats already.

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

/// Values of `N` bytes each, 32 at a time: in an array of its own a run becomes vector code.
#[inline(always)]
fn values<const N: usize>(raw: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let raw = raw.as_chunks::<N>().0;
    let (runs, rest) = raw.as_chunks::<32>();
    let (out_runs, out_rest) = out.as_chunks_mut::<32>();
    for (run, out) in runs.iter().zip(out_runs) {
        *out = run.map(&value);
    }
    for (raw, out) in rest.iter().zip(out_rest) {
        *out = value(*raw);
    }
}

#[inline(always)]
pub(super) fn f32s(raw: &[u8], out: &mut [f32]) {
    values(raw, out, f32::from_le_bytes);
}

#[inline(always)]
pub(super) fn f16s(raw: &[u8], out: &mut [f32]) {
    values(raw, out, |bytes| half_to_f32(u16::from_le_bytes(bytes)));
}

#[inline(always)]
pub(super) fn bf16s(raw: &[u8], out: &mut [f32]) {
    values(raw, out, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16));
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
