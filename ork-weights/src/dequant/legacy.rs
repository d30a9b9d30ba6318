//! Blocks of 32 with one scale, and one minimum in the `_1` types.
//!
//! 4-bit codes: byte j holds value j low and value j + 16 high. The fifth bit of value j is bit j
//! of a 32-bit word.

// The names are the types' own.
#![allow(non_camel_case_types)]

use super::{Block, half_at, part};

/// Code of value `j` of 32, without a fifth bit.
#[inline(always)]
fn nibbles(codes: &[u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    for j in 0..16 {
        out[j] = codes[j] & 15;
        out[j + 16] = codes[j] >> 4;
    }
    out
}

/// Codes of 32 values with their fifth bits.
#[inline(always)]
fn five_bits(codes: &[u8; 16], high: &[u8; 4]) -> [u8; 32] {
    let (low, high) = (nibbles(codes), u32::from_le_bytes(*high));
    std::array::from_fn(|j| low[j] | ((high >> j & 1) << 4) as u8)
}

pub(super) struct Q4_0;

impl Block<18, 32> for Q4_0 {
    #[inline(always)]
    fn decode(raw: &[u8; 18], out: &mut [f32; 32]) {
        let d = half_at(raw, 0);
        *out = nibbles(part(raw, 2)).map(|code| d * (i32::from(code) - 8) as f32);
    }
}

pub(super) struct Q4_1;

impl Block<20, 32> for Q4_1 {
    #[inline(always)]
    fn decode(raw: &[u8; 20], out: &mut [f32; 32]) {
        let (d, m) = (half_at(raw, 0), half_at(raw, 2));
        *out = nibbles(part(raw, 4)).map(|code| d * f32::from(code) + m);
    }
}

pub(super) struct Q5_0;

impl Block<22, 32> for Q5_0 {
    #[inline(always)]
    fn decode(raw: &[u8; 22], out: &mut [f32; 32]) {
        let d = half_at(raw, 0);
        let codes = five_bits(part(raw, 6), part(raw, 2));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = d * (i32::from(code) - 16) as f32;
        }
    }
}

pub(super) struct Q5_1;

impl Block<24, 32> for Q5_1 {
    #[inline(always)]
    fn decode(raw: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m) = (half_at(raw, 0), half_at(raw, 2));
        let codes = five_bits(part(raw, 8), part(raw, 4));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = d * f32::from(code) + m;
        }
    }
}

pub(super) struct Q8_0;

impl Block<34, 32> for Q8_0 {
    #[inline(always)]
    fn decode(raw: &[u8; 34], out: &mut [f32; 32]) {
        let d = half_at(raw, 0);
        *out = part::<32>(raw, 2).map(|code| d * f32::from(code as i8));
    }
}
