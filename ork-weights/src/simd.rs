//! One algorithm, compiled once per instruction set.
//!
//! Kernels are written once, as plain loops over fixed-size arrays that the compiler turns into
//! vector code; what differs between machines is only which instructions it may use. A kernel is
//! inlined into a function for each set, and [`dispatch`] picks the best one the machine has.
//!
//! * aarch64: NEON belongs to the target, so the one instantiation uses it.
//! * x86-64: AVX2, FMA and F16C when the processor has all three, else the SSE2 of the target.
//!
//! All give the same bits, which is what makes a conversion reproducible from one machine to the
//! next: none may reorder a sum, or fuse a multiplication with an addition where that shows. What a
//! machine has beyond the plain loops is a [`Machine`], for the places that prove it does not.

/// Work that is to be compiled for several instruction sets. `run` and all it calls in its inner
/// loops must be `#[inline(always)]`, or the vector code ends up outside the instantiation.
pub(crate) trait Kernel {
    /// What it answers.
    type Output;

    /// The algorithm.
    fn run(self, machine: impl Machine) -> Self::Output;
}

/// What instruction sets have in different forms. A value is the proof that the processor has it.
pub(crate) trait Machine: Copy {
    /// a × b + c, the product rounded or not: for results that do not depend on which.
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32;

    /// Half floats as singles. Exact, but NaN may come out as another NaN.
    fn halves(self, halves: &[u16; 32], out: &mut [f32; 32]);

    /// The entry of a table for each index; of these the lower four bits count.
    fn look_up(self, table: &[u8; 16], indices: &[u8; 32]) -> [u8; 32];
}

/// What every machine has.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Machine for Plain {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        #[cfg(target_arch = "aarch64")]
        return a.mul_add(b, c);
        #[cfg(not(target_arch = "aarch64"))]
        return a * b + c;
    }

    #[inline(always)]
    fn halves(self, halves: &[u16; 32], out: &mut [f32; 32]) {
        crate::dequant::halves_to_f32(halves, out)
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: &[u8; 32]) -> [u8; 32] {
        use std::arch::aarch64::{vld1q_u8, vqtbl1q_u8, vst1q_u8};
        let (indices, mut out) = (indices.map(|index| index & 15), [0; 32]);
        for (out, indices) in
            out.as_chunks_mut::<16>().0.iter_mut().zip(indices.as_chunks::<16>().0)
        {
            // SAFETY: loads and store are of the 16 bytes of their arrays, without a wish for
            // alignment. NEON belongs to the target.
            unsafe {
                let (table, indices) = (vld1q_u8(table.as_ptr()), vld1q_u8(indices.as_ptr()));
                vst1q_u8(out.as_mut_ptr(), vqtbl1q_u8(table, indices));
            }
        }
        out
    }

    #[cfg(not(target_arch = "aarch64"))]
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: &[u8; 32]) -> [u8; 32] {
        indices.map(|index| table[usize::from(index & 15)])
    }
}

/// Runs `kernel` in the best instantiation for this machine.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(machine) = x86::Avx2::detect() {
        return machine.run(kernel);
    }
    kernel.run(Plain)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernel, Machine};
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_broadcastsi128_si256, _mm256_cvtph_ps,
        _mm256_loadu_si256, _mm256_shuffle_epi8, _mm256_storeu_ps, _mm256_storeu_si256,
    };

    /// A processor with AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    impl Avx2 {
        #[inline]
        pub(super) fn detect() -> Option<Avx2> {
            let all = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            all.then_some(Avx2(()))
        }

        #[inline]
        pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: a value of this type is only made where the processor has all three.
            unsafe { instance(kernel, self) }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn instance<K: Kernel>(kernel: K, machine: Avx2) -> K::Output {
        kernel.run(machine)
    }

    impl Machine for Avx2 {
        #[inline(always)]
        fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
            a.mul_add(b, c)
        }

        #[inline(always)]
        fn halves(self, halves: &[u16; 32], out: &mut [f32; 32]) {
            for (out, halves) in
                out.as_chunks_mut::<8>().0.iter_mut().zip(halves.as_chunks::<8>().0)
            {
                // SAFETY: eight halves are the 16 bytes that are read, eight singles the 32 that
                // are written, neither with a wish for alignment; the processor has AVX and F16C,
                // or there were no `self`.
                unsafe {
                    let halves = _mm_loadu_si128(halves.as_ptr().cast::<__m128i>());
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(halves));
                }
            }
        }

        #[inline(always)]
        fn look_up(self, table: &[u8; 16], indices: &[u8; 32]) -> [u8; 32] {
            let (indices, mut out) = (indices.map(|index| index & 15), [0; 32]);
            // SAFETY: the loads take the 16 bytes of the table and the 32 of the indices, the store
            // fills the 32 of the result, none with a wish for alignment; the processor has AVX2, or
            // there were no `self`. Indices are below 16, so that none means zero.
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast::<__m128i>());
                let indices = _mm256_loadu_si256(indices.as_ptr().cast::<__m256i>());
                let found = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices);
                _mm256_storeu_si256(out.as_mut_ptr().cast::<__m256i>(), found);
            }
            out
        }
    }
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// How a kernel writes what it is done with.
pub(crate) trait Store {
    /// Writes `from` to `to`.
    fn store<const N: usize>(&self, from: &[u8; N], to: &mut [u8; N]);
}

/// Plain stores: what is written stays in the caches as far as it fits.
pub(crate) struct Cached;

impl Store for Cached {
    #[inline(always)]
    fn store<const N: usize>(&self, from: &[u8; N], to: &mut [u8; N]) {
        *to = *from;
    }
}

/// Stores past the caches, where the machine has them and the place is aligned: for what is written
/// once, is too large to stay in a cache, and so need not be fetched into one before it is
/// overwritten. The pieces of a cache line must follow each other closely to be written as one.
///
/// Such stores are not ordered with others. The value stands for the promise that they are by the
/// time it is dropped, so that whoever is told afterwards that the bytes are there sees them.
pub(crate) struct NonTemporal(());

impl NonTemporal {
    /// Begins; drop it before anyone else may look at what was written.
    #[inline(always)]
    pub(crate) fn new() -> NonTemporal {
        NonTemporal(())
    }
}

impl Store for NonTemporal {
    #[inline(always)]
    fn store<const N: usize>(&self, from: &[u8; N], to: &mut [u8; N]) {
        #[cfg(target_arch = "x86_64")]
        if to.as_ptr().cast::<std::arch::x86_64::__m128i>().is_aligned() && N.is_multiple_of(16) {
            use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
            for at in (0..N).step_by(16) {
                // SAFETY: N is a multiple of 16, so `at + 16` is at most the length of both arrays,
                // which do not overlap, as one is borrowed mutably. `to` is aligned to the 16 bytes
                // the store wants, checked above, and hence `to + at`; the load wants no alignment.
                // SSE2 belongs to the target.
                unsafe {
                    let piece = _mm_loadu_si128(from.as_ptr().add(at).cast::<__m128i>());
                    _mm_stream_si128(to.as_mut_ptr().add(at).cast::<__m128i>(), piece);
                }
            }
            return;
        }
        *to = *from;
    }
}

impl Drop for NonTemporal {
    #[inline]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE, which has this fence, belongs to the target.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

/// Has the lines of `bytes` fetched into the caches, for reads in an order that the processor does
/// not foresee. A hint.
#[inline(always)]
pub(crate) fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a fetch ahead reads nothing that the program could see and faults at no address;
        // this one is inside a slice besides. SSE belongs to the target.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stores<const N: usize>() {
        let from: [u8; N] = std::array::from_fn(|i| (i * 7 + 1) as u8);
        for start in 0..=LINE {
            let mut to = vec![0xee; 3 * LINE + N];
            NonTemporal::new().store(&from, to[start..].first_chunk_mut().unwrap());
            assert_eq!(to[start..][..N], from);
            assert!(to[..start].iter().chain(&to[start + N..]).all(|&byte| byte == 0xee));
        }
    }

    #[test]
    fn what_is_looked_up_is_the_entry() {
        struct LookUp<'a>(&'a [u8; 16], &'a [u8; 32]);

        impl Kernel for LookUp<'_> {
            type Output = [u8; 32];

            #[inline(always)]
            fn run(self, machine: impl Machine) -> [u8; 32] {
                machine.look_up(self.0, self.1)
            }
        }

        let table: [u8; 16] = std::array::from_fn(|i| (i * 17 + 3) as u8);
        for start in 0..=u8::MAX {
            let indices: [u8; 32] = std::array::from_fn(|i| start.wrapping_add(i as u8 * 7));
            let expected = indices.map(|index| table[usize::from(index % 16)]);
            assert_eq!(dispatch(LookUp(&table, &indices)), expected);
            assert_eq!(LookUp(&table, &indices).run(Plain), expected);
        }
    }

    #[test]
    fn non_temporal_stores_are_stores() {
        stores::<0>();
        stores::<8>();
        stores::<16>();
        stores::<17>();
        stores::<32>();
        stores::<64>();
    }

    #[test]
    fn a_fetch_may_be_of_anything() {
        fetch(&[]);
        fetch(&[1; 1000]);
    }
}
