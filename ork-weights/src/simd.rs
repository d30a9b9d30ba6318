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
