//! Values −1, 0 and 1 with one scale for 256.

// The names are the types' own.
#![allow(non_camel_case_types)]

use super::{Block, half_at, part};

pub(super) struct Tq1_0;

/// Digit `power` of a byte that holds five base-3 digits as a fraction of 256: multiplying by 3ⁿ
/// modulo 256 brings the digit to the top, ×3 >> 8 reads it.
#[inline(always)]
fn digit(byte: u8, power: usize) -> i32 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let shifted = byte.wrapping_mul(POWERS[power]);
    ((i32::from(shifted) * 3) >> 8) - 1
}

impl Block<54, 256> for Tq1_0 {
    /// 32 bytes for 160 values, 16 for 80, 4 for 16 (four digits each), the scale.
    #[inline(always)]
    fn decode(raw: &[u8; 54], out: &mut [f32; 256]) {
        let d = half_at(raw, 52);
        let mut run = |to: usize, bytes: &[u8], digits: usize| {
            for power in 0..digits {
                let out = &mut out[to + power * bytes.len()..][..bytes.len()];
                for (out, &byte) in out.iter_mut().zip(bytes) {
                    *out = d * digit(byte, power) as f32;
                }
            }
        };
        run(0, part::<32>(raw, 0), 5);
        run(160, part::<16>(raw, 32), 5);
        run(240, part::<4>(raw, 48), 4);
    }
}

pub(super) struct Tq2_0;

impl Block<66, 256> for Tq2_0 {
    /// 64 bytes of codes, the scale; 128 values share 32 bytes.
    #[inline(always)]
    fn decode(raw: &[u8; 66], out: &mut [f32; 256]) {
        let d = half_at(raw, 64);
        for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = part::<32>(raw, run / 4 * 32);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = d * (i32::from(code >> (run % 4 * 2) & 3) - 1) as f32;
            }
        }
    }
}
