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
const LINE: usize = 64;

/// Copies past the caches, where the machine can: for what is written once, is too large to stay in
/// a cache, and so need not be fetched into one before it is overwritten.
///
/// Such stores are not ordered with others. The value stands for the promise that they are by the
/// time it is dropped, so that whoever is told afterwards that the bytes are there sees them.
pub(crate) struct PastCaches(());

impl PastCaches {
    /// Begins; drop it before anyone else may look at what was copied.
    pub(crate) fn new() -> PastCaches {
        PastCaches(())
    }

    /// Copies `from` to `to`; of different lengths the shorter counts. Only whole cache lines go
    /// past the caches; what lies before the first and behind the last is copied as ever.
    #[inline]
    pub(crate) fn copy(&self, from: &[u8], to: &mut [u8]) {
        let bytes = from.len().min(to.len());
        let (from, to) = (&from[..bytes], &mut to[..bytes]);
        let head = to.as_ptr().align_offset(LINE).min(bytes);
        let lines = (bytes - head) / LINE * LINE;
        to[..head].copy_from_slice(&from[..head]);
        copy_lines(&from[head..head + lines], &mut to[head..head + lines]);
        to[head + lines..].copy_from_slice(&from[head + lines..]);
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

#[cfg(target_arch = "x86_64")]
#[inline]
fn copy_lines(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    if !to.as_ptr().cast::<__m128i>().is_aligned() {
        // Only where `align_offset` knows no way.
        return to.copy_from_slice(from);
    }
    let bytes = from.len().min(to.len());
    let to = to.as_mut_ptr();
    for at in (0..bytes / 16 * 16).step_by(16) {
        // SAFETY: `at + 16` is at most the length of both slices, which do not overlap, as one is
        // borrowed mutably. `to` is aligned to the 16 bytes the store wants, checked above, and
        // hence `to + at`; the load wants no alignment. SSE2 belongs to the target.
        unsafe {
            let piece = _mm_loadu_si128(from.as_ptr().add(at).cast::<__m128i>());
            _mm_stream_si128(to.add(at).cast::<__m128i>(), piece);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn copy_lines(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
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

    #[test]
    fn copies_past_the_caches_are_copies() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for start in 0..LINE + 1 {
            for bytes in [0, 1, 15, 16, 63, 64, 65, 128, 200, 900] {
                let mut to = vec![0xee; 1000];
                PastCaches::new().copy(&from[start..][..bytes], &mut to[start..]);
                assert_eq!(to[start..][..bytes], from[start..][..bytes]);
                assert!(to[..start].iter().chain(&to[start + bytes..]).all(|&byte| byte == 0xee));
                to.fill(0);
                PastCaches::new().copy(&from, &mut to[start..start + bytes]);
                assert_eq!(to[start..][..bytes], from[..bytes]);
            }
        }
        fetch(&from);
        fetch(&[]);
    }
}
