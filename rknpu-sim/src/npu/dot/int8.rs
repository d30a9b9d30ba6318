//! int8 × int8 → int32.

use super::simd;
use super::{BLOCK, Blocks};

/// How a machine multiplies. All compute the same sums, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Path {
    /// Plain loops.
    Portable,
    /// 256-bit multiply-add of 16-bit pairs.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit dot products of bytes.
    #[cfg(all(target_arch = "x86_64", avx512_intrinsics))]
    Avx512Vnni,
    /// 128-bit widening multiplies.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Path {
    /// All paths that this machine can run, fastest first.
    pub(in super::super) fn available() -> impl Iterator<Item = Path> {
        let paths = [
            #[cfg(all(target_arch = "x86_64", avx512_intrinsics))]
            (Path::Avx512Vnni, simd::has_avx512_vnni()),
            #[cfg(target_arch = "x86_64")]
            (Path::Avx2, simd::has_avx2()),
            #[cfg(target_arch = "aarch64")]
            (Path::Neon, true),
            (Path::Portable, true),
        ];
        paths.into_iter().filter_map(|(path, here)| here.then_some(path))
    }

    /// The fastest of them.
    pub(in super::super) fn best() -> Path {
        Path::available().next().unwrap_or(Path::Portable)
    }

    /// Sums of every row with every channel of a tile: `sums[row][channel]`.
    ///
    /// `rows` are gapless rows of `32 × blocks` codes. Channels come in multiples of 16.
    pub(in super::super) fn tile(self, rows: &[u8], tile: Blocks, sums: &mut [i32]) {
        debug_assert_eq!(
            rows.len() / (BLOCK * tile.count.max(1)),
            sums.len() / tile.channels().max(1)
        );
        match self {
            Path::Portable => portable(rows, tile, sums),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => simd::avx2(rows, tile, sums),
            #[cfg(all(target_arch = "x86_64", avx512_intrinsics))]
            Path::Avx512Vnni => simd::avx512_vnni(rows, tile, sums),
            #[cfg(target_arch = "aarch64")]
            Path::Neon => simd::neon(rows, tile, sums),
        }
    }
}

fn portable(rows: &[u8], tile: Blocks, sums: &mut [i32]) {
    let (k, channels) = (tile.count * BLOCK, tile.channels());
    for (row, sums) in rows.chunks_exact(k).zip(sums.chunks_exact_mut(channels)) {
        sums.fill(0);
        for (a, block) in row.chunks_exact(BLOCK).zip(tile.bytes.chunks_exact(tile.step)) {
            for (sum, w) in sums.iter_mut().zip(block.chunks_exact(BLOCK)) {
                // Two products fit into 16 bits each, their sum does not.
                let dot = a.iter().zip(w).map(|(a, w)| i32::from(*a as i8) * i32::from(*w as i8));
                *sum += dot.sum::<i32>();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn every_path_equals_a_plain_loop(
            rows in 1usize..9, blocks in 1usize..12, wide: bool, seed: u64,
        ) {
            let channels = if wide { 64 } else { 32 };
            let mut state = seed | 1;
            // Extremes are over-represented: they are where saturating arithmetic would differ.
            let mut code = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                match state >> 61 { 0 => 0x80, 1 => 0x7f, _ => (state >> 40) as u8 }
            };
            let k = blocks * BLOCK;
            let a: Vec<u8> = (0..rows * k).map(|_| code()).collect();
            let w: Vec<u8> = (0..channels * k).map(|_| code()).collect();
            let mut expected = vec![0; rows * channels];
            for r in 0..rows {
                for c in 0..channels {
                    for i in 0..k {
                        let at = (i / BLOCK * channels + c) * BLOCK + i % BLOCK;
                        expected[r * channels + c] +=
                            i32::from(a[r * k + i] as i8) * i32::from(w[at] as i8);
                    }
                }
            }
            for path in Path::available() {
                let mut sums = vec![-1; rows * channels];
                path.tile(&a, Blocks::new(&w, channels * BLOCK, blocks), &mut sums);
                prop_assert_eq!(&sums, &expected, "{:?}", path);
            }
        }
    }

    #[test]
    fn the_largest_sum_is_exact() {
        let blocks = 352; // K = 11264, the most that CBUF admits
        let a = vec![0x80u8; blocks * BLOCK];
        let w = vec![0x80u8; 32 * blocks * BLOCK];
        for path in Path::available() {
            let mut sums = vec![0; 32];
            path.tile(&a, Blocks::new(&w, 32 * BLOCK, blocks), &mut sums);
            assert!(sums.iter().all(|s| *s == 16384 * 11264), "{path:?}");
        }
    }
}
