//! One algorithm, compiled once per instruction set.
//!
//! Kernels are written once, as plain loops over fixed-size arrays that the compiler turns into
//! vector code; what differs between machines is only which instructions it may use. A kernel is
//! inlined into a function for each set, and [`dispatch`] picks the best one the machine has.
//!
//! * aarch64: NEON belongs to the target, so the one instantiation uses it.
//! * x86-64: AVX2 when the processor has it, else the SSE2 of the target.
//!
//! No instantiation may fuse a multiplication with an addition or reorder a sum: all give the
//! same bits, which is what makes a conversion reproducible from one machine to the next.

/// Work that is to be compiled for several instruction sets. `run` and all it calls in its inner
/// loops must be `#[inline(always)]`, or the vector code ends up outside the instantiation.
pub(crate) trait Kernel {
    /// What it answers.
    type Output;

    /// The algorithm.
    fn run(self) -> Self::Output;
}

/// Runs `kernel` in the best instantiation for this machine.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, checked on the line above.
        return unsafe { avx2(kernel) };
    }
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// How a kernel writes what it is done with.
pub(crate) trait Store {
    /// Writes `from` to `to`.
    fn store<const N: usize>(&self, from: &[u8; N], to: &mut [u8; N]);
}

/// Plain stores: what is written stays in the caches as far as it fits.
pub(crate) struct ThroughCaches;

impl Store for ThroughCaches {
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
pub(crate) struct PastCaches(());

impl PastCaches {
    /// Begins; drop it before anyone else may look at what was written.
    #[inline(always)]
    pub(crate) fn new() -> PastCaches {
        PastCaches(())
    }
}

impl Store for PastCaches {
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

impl Drop for PastCaches {
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
            PastCaches::new().store(&from, to[start..].first_chunk_mut().unwrap());
            assert_eq!(to[start..][..N], from);
            assert!(to[..start].iter().chain(&to[start + N..]).all(|&byte| byte == 0xee));
        }
    }

    #[test]
    fn stores_past_the_caches_are_stores() {
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
