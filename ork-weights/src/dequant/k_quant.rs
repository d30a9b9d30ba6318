//! Super-blocks of 256: small scales of runs of 16 or 32 values, and half floats that scale them.

use super::{Block, half_at, part};

/// One run: `out = scale × code − minimum`.
#[inline(always)]
fn affine<const N: usize>(out: &mut [f32], codes: &[u8; N], scale: f32, minimum: f32) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = scale * f32::from(code) - minimum;
    }
}

/// One run of codes that are meant minus `zero`: `out = scale × (code − zero)`.
#[inline(always)]
fn centred<const N: usize>(out: &mut [f32], codes: &[u8; N], zero: i32, scale: f32) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = scale * (i32::from(code) - zero) as f32;
    }
}

/// The eight 6-bit scales and eight minima that share 12 bytes: the low six bits of the first four
/// of each lie in bytes 0–3 and 4–7; the last four have their low nibbles in bytes 8–11 and their
/// upper two bits at the top of bytes 0–3 and 4–7.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        minima[i] = packed[i + 4] & 63;
        scales[i + 4] = packed[i + 8] & 15 | packed[i] >> 2 & 0x30;
        minima[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 2 & 0x30;
    }
    (scales, minima)
}

pub(super) struct Q2K;

impl Block<84, 256> for Q2K {
    /// 16 bytes of scale and minimum, 64 of codes, scale of scales, scale of minima.
    #[inline(always)]
    fn decode(raw: &[u8; 84], out: &mut [f32; 256]) {
        let (d, dmin) = (half_at(raw, 80), half_at(raw, 82));
        for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // 128 values share 32 bytes; their runs of 32 lie in successive pairs of bits.
            let codes = part::<16>(raw, 16 + run / 8 * 32 + run % 2 * 16);
            let scales = raw[run];
            let codes = codes.map(|c| c >> (run % 8 / 2 * 2) & 3);
            affine(out, &codes, d * f32::from(scales & 15), dmin * f32::from(scales >> 4));
        }
    }
}

pub(super) struct Q3K;

impl Block<110, 256> for Q3K {
    /// 32 bytes of third bits, 64 of codes, 12 of scales, scale of scales.
    #[inline(always)]
    fn decode(raw: &[u8; 110], out: &mut [f32; 256]) {
        let (packed, d) = (part::<12>(raw, 96), half_at(raw, 108));
        for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // Low nibbles of scales 0–7, 8–15 in the two nibbles of bytes 0–7; upper two bits of
            // scale i in bytes 8–11, bits 2·(i / 4).
            let low = packed[run % 8] >> (run / 8 * 4) & 15;
            let high = packed[8 + run % 4] >> (run / 4 * 2) & 3;
            let scale = d * (i32::from(low | high << 4) - 32) as f32;
            let low = part::<16>(raw, 32 + run / 8 * 32 + run % 2 * 16);
            let high = part::<16>(raw, run % 2 * 16);
            let (shift, bit) = (run % 8 / 2 * 2, run / 2);
            // A third bit that is set means no offset of −4.
            let mut codes = [0; 16];
            for i in 0..16 {
                codes[i] = (low[i] >> shift & 3) | (high[i] >> bit & 1) << 2;
            }
            centred(out, &codes, 4, scale);
        }
    }
}

pub(super) struct Q4K;

impl Block<144, 256> for Q4K {
    /// Scale of scales, scale of minima, 12 bytes of both, 128 of codes.
    #[inline(always)]
    fn decode(raw: &[u8; 144], out: &mut [f32; 256]) {
        let (d, dmin) = (half_at(raw, 0), half_at(raw, 2));
        let (scales, minima) = scales_and_minima(part(raw, 4));
        for (pair, out) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let codes = part::<32>(raw, 16 + pair * 32);
            let scale = |run: usize| (d * f32::from(scales[run]), dmin * f32::from(minima[run]));
            let ((d0, m0), (d1, m1)) = (scale(2 * pair), scale(2 * pair + 1));
            affine(&mut out[..32], &codes.map(|c| c & 15), d0, m0);
            affine(&mut out[32..], &codes.map(|c| c >> 4), d1, m1);
        }
    }
}

pub(super) struct Q5K;

impl Block<176, 256> for Q5K {
    /// As Q4_K, with 32 bytes of fifth bits before the codes: bit r belongs to run r.
    #[inline(always)]
    fn decode(raw: &[u8; 176], out: &mut [f32; 256]) {
        let (d, dmin) = (half_at(raw, 0), half_at(raw, 2));
        let (scales, minima) = scales_and_minima(part(raw, 4));
        let high = part::<32>(raw, 16);
        for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = part::<32>(raw, 48 + run / 2 * 32);
            let mut codes = [0; 32];
            for i in 0..32 {
                codes[i] = (low[i] >> (run % 2 * 4) & 15) | (high[i] >> run & 1) << 4;
            }
            affine(out, &codes, d * f32::from(scales[run]), dmin * f32::from(minima[run]));
        }
    }
}

pub(super) struct Q6K;

impl Block<210, 256> for Q6K {
    /// 128 bytes of low nibbles, 64 of upper pairs of bits, 16 signed scales, scale of scales.
    #[inline(always)]
    fn decode(raw: &[u8; 210], out: &mut [f32; 256]) {
        let (scales, d) = (part::<16>(raw, 192), half_at(raw, 208));
        for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            // 128 values share 64 bytes of nibbles: runs 0 and 1 low, 2 and 3 high.
            let (half, quarter) = (run / 4, run % 4);
            let low = part::<32>(raw, half * 64 + quarter % 2 * 32);
            let high = part::<32>(raw, 128 + half * 32);
            let mut codes = [0; 32];
            for i in 0..32 {
                codes[i] = (low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4;
            }
            for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = d * f32::from(scales[run * 2 + part] as i8);
                let codes = codes.as_chunks::<16>().0[part];
                centred(out, &codes, 32, scale);
            }
        }
    }
}
