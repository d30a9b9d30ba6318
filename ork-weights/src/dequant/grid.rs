//! Types that index a codebook of small vectors: IQ1, IQ2 and IQ3.

use super::codes;
use super::{Block, half_at, part};

/// A codebook spelled out: entry by entry its `W` values, each `map[code]`.
const fn expand<const N: usize, const W: usize, const LEVELS: usize>(
    codes: &[u16; N],
    map: &[i8; LEVELS],
) -> [[i8; W]; N] {
    let bits = LEVELS.next_power_of_two().ilog2();
    let mut grid = [[0; W]; N];
    let mut entry = 0;
    while entry < N {
        let mut i = 0;
        while i < W {
            grid[entry][i] = map[(codes[entry] >> (bits * i as u32)) as usize & ((1 << bits) - 1)];
            i += 1;
        }
        entry += 1;
    }
    grid
}

const IQ2_LEVELS: [i8; 3] = [8, 25, 43];

static IQ2_XXS: [[i8; 8]; 256] = expand(&codes::IQ2_XXS, &IQ2_LEVELS);
static IQ2_XS: [[i8; 8]; 512] = expand(&codes::IQ2_XS, &IQ2_LEVELS);
static IQ2_S: [[i8; 8]; 1024] = expand(&codes::IQ2_S, &IQ2_LEVELS);
static IQ3_XXS: [[i8; 4]; 256] = expand(&codes::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [[i8; 4]; 512] = expand(&codes::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
static IQ1: [[i8; 8]; 2048] = expand(&codes::IQ1_S, &[-1, 0, 1]);

/// Seven stored signs become eight: the number of minus signs is even.
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 0x7f) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// `W` values of a codebook entry; bit i of `signs` negates value i.
#[inline(always)]
fn signed<const W: usize>(out: &mut [f32], entry: &[i8; W], signs: u8, scale: f32) {
    let values: [f32; W] = std::array::from_fn(|i| {
        let sign = u32::from(signs >> i & 1) << 31;
        f32::from_bits((scale * f32::from(entry[i])).to_bits() ^ sign)
    });
    out.copy_from_slice(&values);
}

/// Scale of a run from a 4-bit scale: d × (½ + s) × step.
#[inline(always)]
fn run_scale(d: f32, scale: u32, step: f32) -> f32 {
    d * (0.5 + scale as f32) * step
}

pub(super) struct Iq2Xxs;

impl Block<66, 256> for Iq2Xxs {
    /// Scale, then for each run of 32: four entry numbers, and a word of four times seven signs
    /// and a 4-bit scale.
    #[inline(always)]
    fn decode(raw: &[u8; 66], out: &mut [f32; 256]) {
        let d = half_at(raw, 0);
        for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let entries = part::<4>(raw, 2 + run * 8);
            let word = u32::from_le_bytes(*part(raw, 6 + run * 8));
            let scale = run_scale(d, word >> 28, 0.25);
            for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let entry = &IQ2_XXS[usize::from(entries[i])];
                signed(out, entry, even_signs(word >> (7 * i)), scale);
            }
        }
    }
}

pub(super) struct Iq2Xs;

impl Block<74, 256> for Iq2Xs {
    /// Scale, 32 words of entry number (9 bits) and seven signs, 4-bit scales of runs of 16.
    #[inline(always)]
    fn decode(raw: &[u8; 74], out: &mut [f32; 256]) {
        let d = half_at(raw, 0);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u16::from_le_bytes(*part(raw, 2 + i * 2));
            let scale = raw[66 + i / 4] >> (i / 2 % 2 * 4) & 15;
            let scale = run_scale(d, scale.into(), 0.25);
            let entry = &IQ2_XS[usize::from(word & 511)];
            signed(out, entry, even_signs(u32::from(word >> 9)), scale);
        }
    }
}

pub(super) struct Iq2S;

impl Block<82, 256> for Iq2S {
    /// Scale, 32 low bytes of entry numbers, 32 bytes of signs, 8 bytes of upper pairs of bits,
    /// 4-bit scales of runs of 16.
    #[inline(always)]
    fn decode(raw: &[u8; 82], out: &mut [f32; 256]) {
        let d = half_at(raw, 0);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = usize::from(raw[66 + i / 4] >> (i % 4 * 2) & 3);
            let entry = &IQ2_S[usize::from(raw[2 + i]) | high << 8];
            let scale = raw[74 + i / 4] >> (i / 2 % 2 * 4) & 15;
            signed(out, entry, raw[34 + i], run_scale(d, scale.into(), 0.25));
        }
    }
}

pub(super) struct Iq3Xxs;

impl Block<98, 256> for Iq3Xxs {
    /// Scale, 64 entry numbers, then for each run of 32 a word of four times seven signs and a
    /// 4-bit scale.
    #[inline(always)]
    fn decode(raw: &[u8; 98], out: &mut [f32; 256]) {
        let d = half_at(raw, 0);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u32::from_le_bytes(*part(raw, 66 + i / 4 * 4));
            let scale = run_scale(d, word >> 28, 0.5);
            let signs = even_signs(word >> (7 * (i % 4)));
            let entry = |j: usize| &IQ3_XXS[usize::from(raw[2 + 2 * i + j])];
            signed(&mut out[..4], entry(0), signs, scale);
            signed(&mut out[4..], entry(1), signs >> 4, scale);
        }
    }
}

pub(super) struct Iq3S;

impl Block<110, 256> for Iq3S {
    /// Scale, 64 low bytes of entry numbers, 8 bytes of ninth bits, 32 bytes of signs, 4-bit scales
    /// of runs of 32, meaning 1 + 2s.
    #[inline(always)]
    fn decode(raw: &[u8; 110], out: &mut [f32; 256]) {
        let d = half_at(raw, 0);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let scale = raw[106 + i / 8] >> (i / 4 % 2 * 4) & 15;
            let scale = d * (1 + 2 * i32::from(scale)) as f32;
            let signs = raw[74 + i];
            let entry = |j: usize| {
                let high = usize::from(raw[66 + i / 4] >> (2 * (i % 4) + j) & 1);
                &IQ3_S[usize::from(raw[2 + 2 * i + j]) | high << 8]
            };
            signed(&mut out[..4], entry(0), signs, scale);
            signed(&mut out[4..], entry(1), signs >> 4, scale);
        }
    }
}

/// An IQ1 entry: `scale × (value ± ⅛)`.
#[inline(always)]
fn shifted(out: &mut [f32; 8], entry: usize, minus: bool, scale: f32) {
    let delta = if minus { -0.125 } else { 0.125 };
    for (out, &value) in out.iter_mut().zip(&IQ1[entry & 2047]) {
        *out = scale * (f32::from(value) + delta);
    }
}

pub(super) struct Iq1S;

impl Block<50, 256> for Iq1S {
    /// Scale, 32 low bytes of entry numbers, then for each run of 32 a word: four times three
    /// upper bits, a 3-bit scale meaning 1 + 2s, the sign of the shift.
    #[inline(always)]
    fn decode(raw: &[u8; 50], out: &mut [f32; 256]) {
        let d = half_at(raw, 0);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let word = u16::from_le_bytes(*part(raw, 34 + i / 4 * 2));
            let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
            let high = usize::from(word >> (3 * (i % 4)) & 7);
            shifted(out, usize::from(raw[2 + i]) | high << 8, word & 0x8000 != 0, scale);
        }
    }
}

pub(super) struct Iq1M;

impl Block<56, 256> for Iq1M {
    /// 32 low bytes of entry numbers, 16 bytes of nibbles (three upper bits and the sign of the
    /// shift), four words: 3-bit scales of runs of 16 and, in their top nibbles, the half float.
    #[inline(always)]
    fn decode(raw: &[u8; 56], out: &mut [f32; 256]) {
        let word = |i: usize| u16::from_le_bytes(*part(raw, 48 + 2 * i));
        let mut bits = 0;
        for i in 0..4 {
            bits |= word(i) >> 12 << (4 * i);
        }
        let d = super::half_to_f32(bits);
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let scale = word(i / 8) >> (3 * (i / 2 % 4)) & 7;
            let nibble = raw[32 + i / 2] >> (i % 2 * 4);
            let entry = usize::from(raw[i]) | usize::from(nibble & 7) << 8;
            shifted(out, entry, nibble & 8 != 0, d * f32::from(2 * scale + 1));
        }
    }
}
