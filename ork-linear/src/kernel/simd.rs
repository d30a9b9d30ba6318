//! The instructions of processors. All `unsafe` code of the crate is here.
//!
//! Two proofs recur. A value of an instruction set's type is made only where the processor was asked
//! and has it, so its methods may use it. Loads and stores take arrays of their own size by reference
//! and wish for no alignment.
//!
//! Dot products of bytes are written as assembly: their intrinsics are younger than the compilers that
//! this crate supports.
#![allow(unsafe_code)]

#[cfg(any(test, not(target_arch = "aarch64")))]
use super::plain::Plain;
use super::{Isa, RUN, SUMS, Work};

/// Runs `work` with the best instructions that this processor has.
#[inline]
pub(crate) fn dispatch<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(isa) = x86::Vnni::<true>::detect() {
            return isa.run(work);
        }
        if let Some(isa) = x86::Vnni::<false>::detect() {
            return isa.run(work);
        }
        match x86::Avx2::detect() {
            Some(isa) => isa.run(work),
            None => work.run(Plain),
        }
    }
    #[cfg(target_arch = "aarch64")]
    match arm::DotProduct::detect() {
        Some(isa) => isa.run(work),
        None => work.run(arm::Neon),
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    work.run(Plain)
}

/// Runs the same work with everything that this processor has, and without.
#[cfg(test)]
pub(crate) fn each<W: Work>(work: impl Fn() -> W) -> Vec<(&'static str, W::Output)> {
    let mut all = vec![("plain", work().run(Plain))];
    #[cfg(target_arch = "x86_64")]
    {
        all.extend(x86::Avx2::detect().map(|isa| ("AVX2", isa.run(work()))));
        all.extend(x86::Vnni::<true>::detect().map(|isa| ("AVX512-VNNI", isa.run(work()))));
        all.extend(x86::Vnni::<false>::detect().map(|isa| ("AVX-VNNI", isa.run(work()))));
    }
    #[cfg(target_arch = "aarch64")]
    {
        all.push(("NEON", work().run(arm::Neon)));
        all.extend(arm::DotProduct::detect().map(|isa| ("dotprod", isa.run(work()))));
    }
    all
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Isa, RUN, SUMS, Work};
    use std::arch::{asm, is_x86_feature_detected, x86_64::*};
    use std::sync::LazyLock;

    /// A processor with AVX2.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    /// A processor with AVX2 and dot products of bytes in 256 bits: those of AVX-512, or those of
    /// AVX-VNNI, which are encoded otherwise.
    #[derive(Clone, Copy)]
    pub(super) struct Vnni<const AVX512: bool>(Avx2);

    impl Avx2 {
        #[inline]
        pub(super) fn detect() -> Option<Avx2> {
            is_x86_feature_detected!("avx2").then_some(Avx2(()))
        }

        #[inline]
        pub(super) fn run<W: Work>(self, work: W) -> W::Output {
            // SAFETY: the processor has AVX2, or there were no `self`.
            unsafe { instance(work, self) }
        }
    }

    impl Vnni<true> {
        #[inline]
        pub(super) fn detect() -> Option<Self> {
            let both =
                is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl");
            Avx2::detect().filter(|_| both).map(Vnni)
        }
    }

    impl Vnni<false> {
        #[inline]
        pub(super) fn detect() -> Option<Self> {
            // Detection of this one is younger than the compilers that this crate supports, and calls
            // of CPUID have become safe since.
            #[allow(unused_unsafe)]
            // SAFETY: every x86-64 has CPUID.
            static HAS: LazyLock<bool> = LazyLock::new(|| unsafe {
                __cpuid(0).eax >= 7 && __cpuid_count(7, 1).eax & 1 << 4 != 0
            });
            Avx2::detect().filter(|_| *HAS).map(Vnni)
        }
    }

    impl<const AVX512: bool> Vnni<AVX512> {
        #[inline]
        pub(super) fn run<W: Work>(self, work: W) -> W::Output {
            // SAFETY: a processor with these dot products has AVX2.
            unsafe { instance(work, self) }
        }
    }

    #[target_feature(enable = "avx2")]
    fn instance<W: Work>(work: W, isa: impl Isa) -> W::Output {
        work.run(isa)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load<T>(codes: &[T; RUN]) -> __m256i {
        const { assert!(size_of::<T>() == 1) };
        // SAFETY: it reads the 32 bytes of the array, without a wish for alignment.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
    }

    /// As numbers of 16 bits: the lower half and the upper one.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn widen(codes: __m256i) -> [__m256i; 2] {
        [
            _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes)),
            _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(codes)),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(sum: __m256i, weights: [__m256i; 2], inputs: [__m256i; 2]) -> __m256i {
        let pairs = _mm256_madd_epi16(weights[0], inputs[0]);
        let others = _mm256_madd_epi16(weights[1], inputs[1]);
        _mm256_add_epi32(sum, _mm256_add_epi32(pairs, others))
    }

    /// The eight numbers of each sum added up.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn totals(s: [__m256i; SUMS]) -> [i32; SUMS] {
        let four = |a, b, c, d| _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        let (low, high) = (four(s[0], s[1], s[2], s[3]), four(s[4], s[5], s[6], s[7]));
        let all = _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(low, high),
            _mm256_permute2x128_si256::<0x31>(low, high),
        );
        let mut out = [0; SUMS];
        // SAFETY: it writes the 32 bytes of the array, without a wish for alignment.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), all) };
        out
    }

    impl Isa for Avx2 {
        type Weights = [__m256i; 2];
        type Inputs = [__m256i; 2];
        type Sum = __m256i;
        const BIAS: i32 = 0;

        #[inline(always)]
        fn weights(self, codes: &[u8; RUN]) -> [__m256i; 2] {
            // SAFETY: the processor has AVX2, or there were no `self`.
            unsafe { widen(load(codes)) }
        }

        #[inline(always)]
        fn inputs(self, codes: &[i8; RUN]) -> [__m256i; 2] {
            // SAFETY: as above.
            unsafe { widen(load(codes)) }
        }

        #[inline(always)]
        fn zero(self) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        fn add(self, sum: __m256i, weights: [__m256i; 2], inputs: [__m256i; 2]) -> __m256i {
            // SAFETY: as above.
            unsafe { add(sum, weights, inputs) }
        }

        #[inline(always)]
        fn totals(self, sums: [__m256i; SUMS]) -> [i32; SUMS] {
            // SAFETY: as above.
            unsafe { totals(sums) }
        }
    }

    /// `sum` and the products of unsigned and signed bytes, four to a number, modulo 2³².
    #[inline]
    #[target_feature(enable = "avx2")]
    fn dot<const AVX512: bool>(
        isa: Vnni<AVX512>,
        mut sum: __m256i,
        unsigned: __m256i,
        signed: __m256i,
    ) -> __m256i {
        let Vnni(_) = isa;
        if AVX512 {
            // SAFETY: registers in, a register out; the processor has the instruction in this
            // encoding (`isa`).
            unsafe {
                asm!("{{evex}} vpdpbusd {0}, {1}, {2}", inout(ymm_reg) sum, in(ymm_reg) unsigned,
                    in(ymm_reg) signed, options(pure, nomem, nostack, preserves_flags));
            }
        } else {
            // SAFETY: as above.
            unsafe {
                asm!("{{vex}} vpdpbusd {0}, {1}, {2}", inout(ymm_reg) sum, in(ymm_reg) unsigned,
                    in(ymm_reg) signed, options(pure, nomem, nostack, preserves_flags));
            }
        }
        sum
    }

    impl<const AVX512: bool> Isa for Vnni<AVX512> {
        type Weights = __m256i;
        type Inputs = __m256i;
        type Sum = __m256i;
        /// Of the factors one is unsigned: 128 more make the weights so.
        const BIAS: i32 = 128;

        #[inline(always)]
        fn weights(self, codes: &[u8; RUN]) -> __m256i {
            // SAFETY: the processor has AVX2, or there were no `self`.
            unsafe { _mm256_xor_si256(load(codes), _mm256_set1_epi8(i8::MIN)) }
        }

        #[inline(always)]
        fn inputs(self, codes: &[i8; RUN]) -> __m256i {
            // SAFETY: as above.
            unsafe { load(codes) }
        }

        #[inline(always)]
        fn zero(self) -> __m256i {
            self.0.zero()
        }

        #[inline(always)]
        fn add(self, sum: __m256i, weights: __m256i, inputs: __m256i) -> __m256i {
            // SAFETY: as above.
            unsafe { dot(self, sum, weights, inputs) }
        }

        #[inline(always)]
        fn totals(self, sums: [__m256i; SUMS]) -> [i32; SUMS] {
            self.0.totals(sums)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Isa, RUN, SUMS, Work};
    use std::arch::{aarch64::*, asm, is_aarch64_feature_detected};

    /// What every such processor has.
    #[derive(Clone, Copy)]
    pub(super) struct Neon;

    /// A processor with dot products of bytes.
    #[derive(Clone, Copy)]
    pub(super) struct DotProduct(());

    impl DotProduct {
        #[inline]
        pub(super) fn detect() -> Option<DotProduct> {
            is_aarch64_feature_detected!("dotprod").then_some(DotProduct(()))
        }

        #[inline]
        pub(super) fn run<W: Work>(self, work: W) -> W::Output {
            // SAFETY: the processor has dot products, or there were no `self`.
            unsafe { instance(work, self) }
        }
    }

    #[target_feature(enable = "neon,dotprod")]
    fn instance<W: Work>(work: W, isa: DotProduct) -> W::Output {
        work.run(isa)
    }

    #[inline(always)]
    fn load<T>(codes: &[T; RUN]) -> [int8x16_t; 2] {
        const { assert!(size_of::<T>() == 1) };
        let start = codes.as_ptr().cast::<i8>();
        // SAFETY: they read the 32 bytes of the array, half and half; NEON belongs to the target.
        unsafe { [vld1q_s8(start), vld1q_s8(start.add(RUN / 2))] }
    }

    impl Isa for Neon {
        type Weights = [int8x16_t; 2];
        type Inputs = [int8x16_t; 2];
        type Sum = int32x4_t;
        const BIAS: i32 = 0;

        #[inline(always)]
        fn weights(self, codes: &[u8; RUN]) -> [int8x16_t; 2] {
            load(codes)
        }

        #[inline(always)]
        fn inputs(self, codes: &[i8; RUN]) -> [int8x16_t; 2] {
            load(codes)
        }

        #[inline(always)]
        fn zero(self) -> int32x4_t {
            // SAFETY: NEON belongs to the target.
            unsafe { vdupq_n_s32(0) }
        }

        /// A product fits 16 bits, two do not: each goes to the sums on its own.
        #[inline(always)]
        fn add(
            self,
            mut sum: int32x4_t,
            weights: [int8x16_t; 2],
            inputs: [int8x16_t; 2],
        ) -> int32x4_t {
            for (w, x) in weights.into_iter().zip(inputs) {
                // SAFETY: NEON belongs to the target.
                unsafe {
                    sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
                    sum = vpadalq_s16(sum, vmull_high_s8(w, x));
                }
            }
            sum
        }

        #[inline(always)]
        fn totals(self, s: [int32x4_t; SUMS]) -> [i32; SUMS] {
            let mut out = [0; SUMS];
            for (out, s) in out.as_chunks_mut::<4>().0.iter_mut().zip(s.as_chunks::<4>().0) {
                // SAFETY: the store fills the 16 bytes of the array; NEON belongs to the target.
                unsafe {
                    let pairs = [vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])];
                    vst1q_s32(out.as_mut_ptr(), vpaddq_s32(pairs[0], pairs[1]));
                }
            }
            out
        }
    }

    /// `sum` and the products of signed bytes, four to a number, modulo 2³².
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn dot(mut sum: int32x4_t, weights: [int8x16_t; 2], inputs: [int8x16_t; 2]) -> int32x4_t {
        for (w, x) in weights.into_iter().zip(inputs) {
            // SAFETY: registers in, a register out; the processor has the instruction.
            unsafe {
                asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) w,
                    in(vreg) x, options(pure, nomem, nostack, preserves_flags));
            }
        }
        sum
    }

    impl Isa for DotProduct {
        type Weights = [int8x16_t; 2];
        type Inputs = [int8x16_t; 2];
        type Sum = int32x4_t;
        const BIAS: i32 = 0;

        #[inline(always)]
        fn weights(self, codes: &[u8; RUN]) -> [int8x16_t; 2] {
            load(codes)
        }

        #[inline(always)]
        fn inputs(self, codes: &[i8; RUN]) -> [int8x16_t; 2] {
            load(codes)
        }

        #[inline(always)]
        fn zero(self) -> int32x4_t {
            Neon.zero()
        }

        #[inline(always)]
        fn add(self, sum: int32x4_t, weights: [int8x16_t; 2], inputs: [int8x16_t; 2]) -> int32x4_t {
            // SAFETY: the processor has dot products, or there were no `self`.
            unsafe { dot(sum, weights, inputs) }
        }

        #[inline(always)]
        fn totals(self, sums: [int32x4_t; SUMS]) -> [i32; SUMS] {
            Neon.totals(sums)
        }
    }
}
