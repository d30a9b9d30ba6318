//! Element types: what goes in, what comes out, and how rows reach the NPU and results come back.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use rknpu_sys::layout::Precision;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{Error, Result};
use crate::program::output_bytes;

/// int8 in, i32 out.
///
/// ```
/// use rknpu::matmul::{Int8, Matmul};
///
/// /// What an engine keeps: the element type is part of it.
/// struct Layer {
///     matmul: Matmul<Int8>,
/// }
/// # let device = rknpu::Device::simulated(Default::default())?;
/// # let limits = rknpu::MatmulLimits { rows: 1, k: 64, n: 32 };
/// let layer = Layer { matmul: Matmul::int8(&device.domain(0)?, &device.cores()?, limits)? };
/// assert_eq!(layer.matmul.limits().k, 64);
/// # Ok::<(), rknpu::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Int8 {}

/// Half floats in, f32 out.
#[derive(Clone, Copy, Debug)]
pub enum Fp16 {}

/// 4-bit integers in, one in an `i8` each; i32 out, summed on the CPU from the i16 results of each
/// K slice. A slice's sum saturates at the limits of i16.
#[derive(Clone, Copy, Debug)]
pub enum Int4 {}

/// An element type of a [`Matmul`](super::Matmul).
///
/// | type | `Input` | `Stored` | `Partial` | `Output` |
/// |---|---|---|---|---|
/// | [`Int8`] | `i8` | `i8` | `i32` | `i32` |
/// | [`Fp16`] | `f16` | `f16` | `f32` | `f32` |
/// | [`Int4`] | `i8`, -8 to 7 | `u8`, two inputs each, the first in the low half | `i16` | `i32` |
///
/// `Input` is what rows are copied from, `Stored` what they are in the device's memory; `Partial` is what
/// the NPU writes for a K slice, `Output` the sum of those.
///
/// ```
/// use rknpu::matmul::{Element, Matmul};
///
/// /// Of whatever precision.
/// fn widest<E: Element>(matmul: &Matmul<E>) -> u32 {
///     matmul.limits().n
/// }
/// # let device = rknpu::Device::simulated(Default::default())?;
/// # let limits = rknpu::MatmulLimits { rows: 1, k: 64, n: 32 };
/// let matmul = Matmul::int8(&device.domain(0)?, &device.cores()?, limits)?;
/// assert_eq!(widest(&matmul), 32);
/// # Ok::<(), rknpu::Error>(())
/// ```
pub trait Element: sealed::Steps {}

impl Element for Int8 {}
impl Element for Fp16 {}
impl Element for Int4 {}

pub(crate) mod sealed {
    use super::{FromBytes, Immutable, Precision, Result};

    /// The steps around a job.
    pub trait Steps {
        /// Of the activations.
        type Input: Copy + 'static;
        /// Of the activations in the device's memory.
        type Stored: Copy + 'static;
        /// Of the NPU's results for a K slice.
        type Partial: FromBytes + Immutable + Copy + 'static;
        /// Of the results.
        type Output: Copy + Default + 'static;
        /// As the device calls it.
        const PRECISION: Precision;

        /// Refuses values that the NPU cannot take.
        fn check(activations: &[Self::Input], k: usize) -> Result<()>;

        /// Writes inputs of one row as the NPU reads them.
        fn write(inputs: &[Self::Input], out: &mut [u8]);

        /// Device memory as what is stored there.
        fn stored(bytes: &mut [u8]) -> Option<&mut [Self::Stored]>;

        /// Adds the next K slice's result.
        fn add(sum: Self::Output, part: Self::Partial) -> Self::Output;
    }
}

use sealed::Steps;

/// Bytes of one result.
pub(crate) const fn result_bytes<E: Steps>() -> usize {
    output_bytes(E::PRECISION) as usize
}

impl Steps for Int8 {
    type Input = i8;
    type Stored = i8;
    type Partial = i32;
    type Output = i32;
    const PRECISION: Precision = Precision::Int8;

    fn check(_: &[i8], _: usize) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn write(inputs: &[i8], out: &mut [u8]) {
        out.copy_from_slice(inputs.as_bytes());
    }

    fn stored(bytes: &mut [u8]) -> Option<&mut [i8]> {
        <[i8]>::mut_from_bytes(bytes).ok()
    }

    #[inline]
    fn add(sum: i32, part: i32) -> i32 {
        // K is bounded so that no sum of products leaves i32.
        sum.wrapping_add(part)
    }
}

impl Steps for Fp16 {
    type Input = f16;
    type Stored = f16;
    type Partial = f32;
    type Output = f32;
    const PRECISION: Precision = Precision::Fp16;

    fn check(_: &[f16], _: usize) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn write(inputs: &[f16], out: &mut [u8]) {
        out.copy_from_slice(inputs.reinterpret_cast().as_bytes());
    }

    fn stored(bytes: &mut [u8]) -> Option<&mut [f16]> {
        <[u16]>::mut_from_bytes(bytes).ok().map(|bits| bits.reinterpret_cast_mut())
    }

    #[inline]
    fn add(sum: f32, part: f32) -> f32 {
        sum + part
    }
}

impl Steps for Int4 {
    type Input = i8;
    type Stored = u8;
    type Partial = i16;
    type Output = i32;
    const PRECISION: Precision = Precision::Int4;

    fn check(activations: &[i8], k: usize) -> Result<()> {
        match activations.iter().position(|v| !(-8..=7).contains(v)) {
            None => Ok(()),
            Some(at) => {
                Err(Error::Int4Range { value: activations[at], row: at / k, column: at % k })
            }
        }
    }

    #[inline]
    fn write(inputs: &[i8], out: &mut [u8]) {
        for (byte, pair) in out.iter_mut().zip(inputs.chunks_exact(2)) {
            *byte = (pair[0] as u8 & 0xf) | (pair[1] as u8) << 4;
        }
    }

    fn stored(bytes: &mut [u8]) -> Option<&mut [u8]> {
        Some(bytes)
    }

    #[inline]
    fn add(sum: i32, part: i16) -> i32 {
        sum + i32::from(part)
    }
}

/// Writes the sums of a row's partial results, one from each K slice, into `out`: two slices at a
/// time, so that `out` is passed over half as often. `parts` has a row of `out.len()` for each slice,
/// `apart` elements from each other: the plan that laid them out is the caller's.
#[inline]
pub(crate) fn sum<E: Steps>(
    parts: &[E::Partial],
    apart: usize,
    slices: usize,
    out: &mut [E::Output],
) {
    let len = out.len();
    let row = |slice: usize| &parts[slice * apart..][..len];
    for slice in (0..slices).step_by(2) {
        let (a, b) = (row(slice), (slice + 1 < slices).then(|| row(slice + 1)));
        let start = |o: E::Output| if slice == 0 { E::Output::default() } else { o };
        match b {
            Some(b) => {
                for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
                    *o = E::add(E::add(start(*o), a), b);
                }
            }
            None => {
                for (o, &a) in out.iter_mut().zip(a) {
                    *o = E::add(start(*o), a);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_every_slice_are_summed() {
        for slices in 1..6usize {
            // Rows of 3, 5 apart, the first row's values 1, 2, 3 and each slice's ten times as much.
            let parts: Vec<i32> = (0..slices)
                .flat_map(|s| {
                    (1..=5).map(move |i| if i > 3 { 999 } else { i * 10i32.pow(s as u32) })
                })
                .collect();
            let ones: i32 = (0..slices).map(|s| 10i32.pow(s as u32)).sum();
            let mut out = [-7; 3];
            sum::<Int8>(&parts, 5, slices, &mut out);
            assert_eq!(out, [ones, 2 * ones, 3 * ones]);
        }
    }

    #[test]
    fn int4_values_are_packed_low_nibble_first_and_checked() {
        let mut out = [0u8; 2];
        Int4::write(&[-8, 7, -1, 0], &mut out);
        assert_eq!(out, [0x78, 0x0f]);
        let error = Int4::check(&[0, 7, -9, 0], 2).unwrap_err();
        assert!(matches!(error, Error::Int4Range { value: -9, row: 1, column: 0 }));
    }
}
