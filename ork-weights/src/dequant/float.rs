//! Tensors that are floats already.

use crate::simd::Machine;

/// What turns the exponent of a half, moved to its place in a single, into that of the single.
const EXPONENT_STEP: u32 = (127 - 15) << 23;

/// IEEE half to single, exact, without branches so that loops over it become vector code.
#[inline(always)]
pub(crate) fn half_to_f32(half: u16) -> f32 {
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

/// A float of `N` bytes. A trait and no closures, because what is called through those may end up
/// outside the vector instantiation.
trait Float<const N: usize> {
    fn value(raw: [u8; N]) -> f32;

    /// In arrays of fixed size a run becomes vector code.
    #[inline(always)]
    fn run(_: impl Machine, raw: &[[u8; N]; 32], out: &mut [f32; 32]) {
        for (out, raw) in out.iter_mut().zip(raw) {
            *out = Self::value(*raw);
        }
    }
}

#[inline(always)]
fn values<F: Float<N>, const N: usize>(machine: impl Machine, raw: &[u8], out: &mut [f32]) {
    let raw = raw.as_chunks::<N>().0;
    let (runs, rest) = raw.as_chunks::<32>();
    let (out_runs, out_rest) = out.as_chunks_mut::<32>();
    for (raw, out) in runs.iter().zip(out_runs) {
        F::run(machine, raw, out);
    }
    for (raw, out) in rest.iter().zip(out_rest) {
        *out = F::value(*raw);
    }
}

/// A run of half floats. Most runs hold normal numbers only, for which a third of the work of
/// [`half_to_f32`] is enough: sign extension puts the sign into place along with the rest.
#[inline(always)]
pub(crate) fn halves_to_f32(halves: &[u16; 32], out: &mut [f32; 32]) {
    let mut unusual = 0;
    for half in halves {
        unusual |= u16::from((half & 0x7c00).wrapping_sub(0x0400) >= 0x7800);
    }
    if unusual != 0 {
        return any_halves(halves, out);
    }
    for (out, half) in out.iter_mut().zip(halves) {
        let moved = (i32::from(*half as i16) << 13) as u32 & 0x8fff_e000;
        *out = f32::from_bits(moved + EXPONENT_STEP);
    }
}

/// A run with zeros, subnormals, infinities or NaN.
#[inline(never)]
fn any_halves(halves: &[u16; 32], out: &mut [f32; 32]) {
    for (out, half) in out.iter_mut().zip(halves) {
        *out = half_to_f32(*half);
    }
}

struct F32;

impl Float<4> for F32 {
    #[inline(always)]
    fn value(raw: [u8; 4]) -> f32 {
        f32::from_le_bytes(raw)
    }
}

struct F16;

impl Float<2> for F16 {
    #[inline(always)]
    fn value(raw: [u8; 2]) -> f32 {
        half_to_f32(u16::from_le_bytes(raw))
    }

    /// NaN keeps its bits on every machine.
    #[inline(always)]
    fn run(machine: impl Machine, raw: &[[u8; 2]; 32], out: &mut [f32; 32]) {
        let mut halves = [0; 32];
        let mut most = 0;
        for (half, raw) in halves.iter_mut().zip(raw) {
            *half = u16::from_le_bytes(*raw);
            most = most.max(*half & 0x7fff);
        }
        if most > 0x7c00 { any_halves(&halves, out) } else { machine.halves(&halves, out) }
    }
}

struct Bf16;

impl Float<2> for Bf16 {
    #[inline(always)]
    fn value(raw: [u8; 2]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(raw)) << 16)
    }
}

#[inline(always)]
pub(super) fn f32s(machine: impl Machine, raw: &[u8], out: &mut [f32]) {
    values::<F32, 4>(machine, raw, out);
}

#[inline(always)]
pub(super) fn f16s(machine: impl Machine, raw: &[u8], out: &mut [f32]) {
    values::<F16, 2>(machine, raw, out);
}

#[inline(always)]
pub(super) fn bf16s(machine: impl Machine, raw: &[u8], out: &mut [f32]) {
    values::<Bf16, 2>(machine, raw, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequant::{TensorType, dequantise};
    use crate::simd::Plain;

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

    #[test]
    fn runs_are_their_values() {
        for start in 0..=u16::MAX - 31 {
            let run: [[u8; 2]; 32] = std::array::from_fn(|i| (start + i as u16).to_le_bytes());
            let (mut read, mut plain) = ([0.0; 32], [0.0; 32]);
            F16::run(Plain, &run, &mut plain);
            dequantise(TensorType::F16, run.as_flattened(), &mut read).unwrap();
            for (i, bytes) in run.iter().enumerate() {
                let alone = half_to_f32(u16::from_le_bytes(*bytes)).to_bits();
                assert_eq!(read[i].to_bits(), alone, "{start:#06x}");
                assert_eq!(plain[i].to_bits(), alone, "{start:#06x}");
            }
        }
    }
}
