//! Four-bit codes that index sixteen uneven levels.

use super::{Block, half_at, part};

/// Levels of the IQ4 types.
const IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// E2M1 values, doubled so that they are whole.
const E2M1_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 values: byte j holds value j low and value j + 16 high.
#[inline(always)]
fn look_up(out: &mut [f32; 32], codes: &[u8; 16], levels: &[i8; 16], scale: f32) {
    let mut picked = [0; 32];
    for j in 0..16 {
        picked[j] = levels[usize::from(codes[j] & 15)];
        picked[j + 16] = levels[usize::from(codes[j] >> 4)];
    }
    *out = picked.map(|level| scale * f32::from(level));
}

pub(super) struct Iq4Nl;

impl Block<18, 32> for Iq4Nl {
    #[inline(always)]
    fn decode(raw: &[u8; 18], out: &mut [f32; 32]) {
        look_up(out, part(raw, 2), &IQ4_LEVELS, half_at(raw, 0));
    }
}

pub(super) struct Iq4Xs;

impl Block<136, 256> for Iq4Xs {
    /// Scale of scales, 16 bits with the upper pairs and 4 bytes with the low nibbles of eight
    /// 6-bit scales, 128 bytes of codes.
    #[inline(always)]
    fn decode(raw: &[u8; 136], out: &mut [f32; 256]) {
        let (d, high, low) =
            (half_at(raw, 0), u16::from_le_bytes(*part(raw, 2)), part::<4>(raw, 4));
        for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = i32::from(low[run / 2] >> (run % 2 * 4) & 15);
            let high = i32::from(high >> (2 * run) & 3);
            let scale = d * ((low | high << 4) - 32) as f32;
            look_up(out, part(raw, 8 + run * 16), &IQ4_LEVELS, scale);
        }
    }
}

/// Half of what an E4M3 byte without a sign stands for; half, because the levels are doubled. ggml
/// takes the one that would be no number for 0.
#[inline(always)]
fn half_e4m3(byte: u8) -> f32 {
    match byte {
        0x7f => 0.0,
        // With a sign, which is not looked at, it is one step more than the largest.
        0xff => 240.0,
        _ => super::bytes::e4m3(byte & 0x7f) * 0.5,
    }
}

pub(super) struct Nvfp4;

impl Block<36, 64> for Nvfp4 {
    /// Four scales, then 8 bytes for each 16 values: byte j holds value j low and value j + 8 high.
    #[inline(always)]
    fn decode(raw: &[u8; 36], out: &mut [f32; 64]) {
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (scale, codes) = (half_e4m3(raw[group]), part::<8>(raw, 4 + 8 * group));
            for (j, code) in codes.iter().enumerate() {
                out[j] = scale * f32::from(E2M1_LEVELS[usize::from(code & 15)]);
                out[j + 8] = scale * f32::from(E2M1_LEVELS[usize::from(code >> 4)]);
            }
        }
    }
}

/// E2M1 values as they are.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

pub(super) struct Pair;

impl Block<1, 2> for Pair {
    #[inline(always)]
    fn decode(raw: &[u8; 1], out: &mut [f32; 2]) {
        *out = [E2M1[usize::from(raw[0] & 15)], E2M1[usize::from(raw[0] >> 4)]];
    }
}

pub(super) struct Mxfp4;

/// Half of the power of two an E8M0 byte stands for; half, because the levels are doubled. The two
/// smallest are subnormal singles.
#[inline(always)]
fn half_e8m0(byte: u8) -> f32 {
    f32::from_bits(match byte {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => u32::from(byte - 1) << 23,
    })
}

impl Block<17, 32> for Mxfp4 {
    #[inline(always)]
    fn decode(raw: &[u8; 17], out: &mut [f32; 32]) {
        look_up(out, part(raw, 1), &E2M1_LEVELS, half_e8m0(raw[0]));
    }
}
