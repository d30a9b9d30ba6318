//! Vector forms of the int8 dot products, chosen at run time.
//!
//! Each reads blocks of 32 bytes: a row's 32 codes against the 32 codes of one channel, whose lanes
//! are summed across once, at the end.

use super::{BLOCK, Blocks};

/// The 32 bytes at `at`, or a block of zeros where the caller's lengths do not match.
#[inline(always)]
fn block(bytes: &[u8], at: usize) -> &[u8; BLOCK] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; BLOCK])
}

/// Runs `work`, compiled for the widest vectors that this machine has.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn widest(work: impl FnOnce()) {
    work();
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::*;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK, Blocks, block};
    use std::arch::x86_64::*;

    pub(in super::super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
    }

    /// # Panics
    /// Where the machine has no AVX2.
    pub(in super::super) fn avx2(rows: &[u8], tile: Blocks, sums: &mut [i32]) {
        assert!(has_avx2());
        // SAFETY: the machine has AVX2, as just checked; the function has no other precondition.
        unsafe { avx2_rows(rows, tile, sums) }
    }

    /// Runs `work`, compiled for the widest vectors that this machine has. `work` must be inlined
    /// into it to profit.
    #[inline]
    pub(in super::super) fn widest(work: impl FnOnce()) {
        #[target_feature(enable = "avx2")]
        fn with_avx2(work: impl FnOnce()) {
            work();
        }
        if has_avx2() {
            // SAFETY: the machine has AVX2, as just checked; `work` is safe anywhere.
            unsafe { with_avx2(work) }
        } else {
            work();
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn load(bytes: &[u8; BLOCK]) -> __m256i {
        // SAFETY: the array is 32 bytes long and an unaligned load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    /// Sums the lanes of each of eight vectors, in order.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn sums_of_8(v: [__m256i; 8]) -> [i32; 8] {
        let pairs = |i: usize| _mm256_hadd_epi32(v[i], v[i + 1]);
        let low = _mm256_hadd_epi32(pairs(0), pairs(2));
        let high = _mm256_hadd_epi32(pairs(4), pairs(6));
        let sum = _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(low, high),
            _mm256_permute2x128_si256::<0x31>(low, high),
        );
        let mut out = [0; 8];
        // SAFETY: the array is 32 bytes long and an unaligned store needs no alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sum) };
        out
    }

    /// The 32 codes of a block as two vectors of 16-bit numbers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn widen(bytes: &[u8; BLOCK]) -> [__m256i; 2] {
        let v = load(bytes);
        [
            _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v)),
            _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(v)),
        ]
    }

    /// Two rows by four channels at a time; an odd last row is computed twice.
    #[target_feature(enable = "avx2")]
    fn avx2_rows(rows: &[u8], tile: Blocks, sums: &mut [i32]) {
        let (k, channels) = (tile.count * BLOCK, tile.channels());
        for (pair, sums) in sums.chunks_mut(2 * channels).enumerate() {
            let first = 2 * pair * k;
            let second = if sums.len() > channels { first + k } else { first };
            for c in (0..channels).step_by(4) {
                let mut acc = [_mm256_setzero_si256(); 8];
                for b in 0..tile.count {
                    let a0 = widen(block(rows, first + b * BLOCK));
                    let a1 = widen(block(rows, second + b * BLOCK));
                    for i in 0..4 {
                        let w = widen(block(tile.bytes, b * tile.step + (c + i) * BLOCK));
                        let dot = |a: [__m256i; 2]| {
                            _mm256_add_epi32(
                                _mm256_madd_epi16(a[0], w[0]),
                                _mm256_madd_epi16(a[1], w[1]),
                            )
                        };
                        acc[i] = _mm256_add_epi32(acc[i], dot(a0));
                        acc[4 + i] = _mm256_add_epi32(acc[4 + i], dot(a1));
                    }
                }
                let out = sums_of_8(acc);
                for (row, sums) in sums.chunks_exact_mut(channels).enumerate() {
                    sums[c..c + 4].copy_from_slice(&out[4 * row..4 * row + 4]);
                }
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", avx512_intrinsics))]
pub(super) use vnni::*;

#[cfg(all(target_arch = "x86_64", avx512_intrinsics))]
#[allow(clippy::incompatible_msrv, reason = "compiled only where the compiler has them")]
mod vnni {
    use super::x86::{has_avx2, load, sums_of_8};
    use super::{BLOCK, Blocks, block};
    use std::arch::x86_64::*;

    pub(in super::super) fn has_avx512_vnni() -> bool {
        has_avx2() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
    }

    /// # Panics
    /// Where the machine has no AVX-512 VNNI.
    pub(in super::super) fn avx512_vnni(rows: &[u8], tile: Blocks, sums: &mut [i32]) {
        assert!(has_avx512_vnni());
        // SAFETY: the machine has AVX-512 F, VNNI and AVX2, as just checked; the function has no
        // other precondition.
        unsafe { vnni_rows(rows, tile, sums) }
    }

    /// Rows at a time.
    const ROWS: usize = 3;

    /// A row of zeros once the sign is moved (see [`vnni_rows`]).
    const ZEROS: [u8; BLOCK] = [0; BLOCK];

    /// The instruction multiplies unsigned by signed, so rows go in with 128 added and
    /// 128 × Σ weights is taken off again. That sum is the result of a row of zeros.
    #[target_feature(enable = "avx2,avx512f,avx512vnni")]
    fn vnni_rows(rows: &[u8], tile: Blocks, sums: &mut [i32]) {
        let (k, channels) = (tile.count * BLOCK, tile.channels());
        let count = sums.len() / channels;
        for c in (0..channels).step_by(16) {
            let mut offset = [0; 16];
            for first in (0..count + 1).step_by(ROWS) {
                // Row 0 is the row of zeros, row i the caller's i - 1; past the end, its last again.
                let row = |i: usize| match (first + i).min(count) {
                    0 => (&ZEROS[..], 0, 0),
                    i => (rows, (i - 1) * k, BLOCK),
                };
                let out = vnni_16([row(0), row(1), row(2)], tile, c);
                if first == 0 {
                    offset = out[0];
                }
                for (i, out) in (first..count + 1).zip(out).filter(|(i, _)| *i > 0) {
                    let sums = &mut sums[(i - 1) * channels + c..][..16];
                    for ((sum, out), offset) in sums.iter_mut().zip(out).zip(offset) {
                        *sum = out - offset;
                    }
                }
            }
        }
    }

    /// Three rows (bytes, first byte, bytes from block to block) by channels `c..c + 16`.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512vnni")]
    fn vnni_16(rows: [(&[u8], usize, usize); ROWS], tile: Blocks, c: usize) -> [[i32; 16]; ROWS] {
        let sign = _mm256_set1_epi8(i8::MIN);
        let mut acc = [[_mm512_setzero_si512(); 8]; ROWS];
        for b in 0..tile.count {
            let a = rows.map(|(bytes, first, step)| {
                _mm512_broadcast_i64x4(_mm256_xor_si256(load(block(bytes, first + b * step)), sign))
            });
            let at = b * tile.step + c * BLOCK;
            let pairs = tile.bytes.get(at..at + 16 * BLOCK).unwrap_or(&[]).as_chunks().0;
            for (p, pair) in pairs.iter().enumerate().take(8) {
                let pair: &[u8; 2 * BLOCK] = pair;
                // SAFETY: the array is 64 bytes long and an unaligned load needs no alignment.
                let w = unsafe { _mm512_loadu_si512(pair.as_ptr().cast()) };
                for (acc, a) in acc.iter_mut().zip(a) {
                    acc[p] = _mm512_dpbusd_epi32(acc[p], a, w);
                }
            }
        }
        acc.map(|acc| {
            let half = |i: usize| {
                if i.is_multiple_of(2) {
                    _mm512_castsi512_si256(acc[i / 2])
                } else {
                    _mm512_extracti64x4_epi64::<1>(acc[i / 2])
                }
            };
            let low = sums_of_8(std::array::from_fn(half));
            let high = sums_of_8(std::array::from_fn(|i| half(8 + i)));
            std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] })
        })
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::neon;

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{BLOCK, Blocks, block};
    use std::arch::aarch64::*;

    #[inline]
    fn load(bytes: &[u8; BLOCK]) -> [int8x16_t; 2] {
        // SAFETY: the array is 32 bytes long, byte loads need no alignment, and every aarch64 has
        // NEON.
        unsafe { [vld1q_s8(bytes.as_ptr().cast()), vld1q_s8(bytes.as_ptr().add(16).cast())] }
    }

    #[inline]
    fn dot(sum: int32x4_t, a: [int8x16_t; 2], w: [int8x16_t; 2]) -> int32x4_t {
        // SAFETY: every aarch64 has NEON.
        unsafe {
            let sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(a[0]), vget_low_s8(w[0])));
            let sum = vpadalq_s16(sum, vmull_high_s8(a[0], w[0]));
            let sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(a[1]), vget_low_s8(w[1])));
            vpadalq_s16(sum, vmull_high_s8(a[1], w[1]))
        }
    }

    /// Two rows by four channels at a time; an odd last row is computed twice.
    pub(in super::super) fn neon(rows: &[u8], tile: Blocks, sums: &mut [i32]) {
        let (k, channels) = (tile.count * BLOCK, tile.channels());
        for (pair, sums) in sums.chunks_mut(2 * channels).enumerate() {
            let first = 2 * pair * k;
            let second = if sums.len() > channels { first + k } else { first };
            for c in (0..channels).step_by(4) {
                // SAFETY: every aarch64 has NEON.
                let mut acc = unsafe { [vdupq_n_s32(0); 8] };
                for b in 0..tile.count {
                    let a0 = load(block(rows, first + b * BLOCK));
                    let a1 = load(block(rows, second + b * BLOCK));
                    for i in 0..4 {
                        let w = load(block(tile.bytes, b * tile.step + (c + i) * BLOCK));
                        acc[i] = dot(acc[i], a0, w);
                        acc[4 + i] = dot(acc[4 + i], a1, w);
                    }
                }
                // SAFETY: every aarch64 has NEON.
                let out = acc.map(|lanes| unsafe { vaddvq_s32(lanes) });
                for (row, sums) in sums.chunks_exact_mut(channels).enumerate() {
                    sums[c..c + 4].copy_from_slice(&out[4 * row..4 * row + 4]);
                }
            }
        }
    }
}
