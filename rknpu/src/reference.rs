//! The same arithmetic on the CPU, slowly and plainly: what results are checked against.
//!
//! ```
//! use rknpu::{Layout, Precision, reference};
//!
//! let layout = Layout::new(64, 32, Precision::Int8)?;
//! let mut tiled = vec![0; layout.bytes() as usize];
//! reference::tile_i8(layout, |_, n| n as i8, &mut tiled);
//! let out = reference::matmul_i8(layout, &tiled, &[1; 64]);
//! assert_eq!(out[31], 64 * 31);
//! # Ok::<(), rknpu::sys::layout::LayoutError>(())
//! ```

use half::f16;
use rknpu_sys::layout::{LOW_NIBBLE_FIRST, Layout, Precision};

/// Byte of the tiled weight in which `W[k][n]` is, and whether it is the high half; `None` outside the
/// matrix.
fn place(layout: Layout, k: u32, n: u32) -> Option<(usize, bool)> {
    let (slice, element) = layout.element(k, n)?;
    let start = layout.slice(slice)?.offset;
    let bits = u64::from(layout.precision().bits());
    let high = bits == 4 && (element % 2 == 1) == LOW_NIBBLE_FIRST;
    Some(((start + element * bits / 8) as usize, high))
}

/// Tiles an int8 weight, given element by element, into `out` of [`Layout::bytes`] bytes. Elements that
/// lie beyond a shorter `out` are left out.
///
/// ```
/// use rknpu::{Layout, Precision, reference};
///
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let mut tiled = vec![0; layout.bytes() as usize];
/// reference::tile_i8(layout, |k, n| if n == 1 { k as i8 } else { 0 }, &mut tiled);
/// assert_eq!(tiled[32..36], [0, 1, 2, 3]); // the 32 k of channel 1
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn tile_i8(layout: Layout, weight: impl Fn(u32, u32) -> i8, out: &mut [u8]) {
    each(layout, |k, n, at, _| {
        if let Some(byte) = out.get_mut(at) {
            *byte = weight(k, n) as u8;
        }
    });
}

/// Tiles an fp16 weight, as [`tile_i8`].
///
/// ```
/// use rknpu::{Layout, Precision, f16, reference};
///
/// let layout = Layout::new(32, 16, Precision::Fp16)?;
/// let mut tiled = vec![0; layout.bytes() as usize];
/// reference::tile_f16(layout, |_, _| f16::ONE, &mut tiled);
/// assert_eq!(tiled[..2], f16::ONE.to_le_bytes());
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn tile_f16(layout: Layout, weight: impl Fn(u32, u32) -> f16, out: &mut [u8]) {
    each(layout, |k, n, at, _| {
        if let Some(bytes) = out.get_mut(at..at + 2) {
            bytes.copy_from_slice(&weight(k, n).to_le_bytes());
        }
    });
}

/// Tiles an int4 weight of values -8..=7, as [`tile_i8`].
///
/// ```
/// use rknpu::{Layout, Precision, reference};
///
/// let layout = Layout::new(32, 64, Precision::Int4)?;
/// let mut tiled = vec![0; layout.bytes() as usize];
/// reference::tile_i4(layout, |k, _| if k == 0 { -1 } else { 1 }, &mut tiled);
/// assert_eq!(tiled[0], 0x1f); // the even k in the low half
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn tile_i4(layout: Layout, weight: impl Fn(u32, u32) -> i8, out: &mut [u8]) {
    each(layout, |k, n, at, high| {
        if let Some(byte) = out.get_mut(at) {
            let code = weight(k, n) as u8 & 0xf;
            *byte = if high { *byte & 0x0f | code << 4 } else { *byte & 0xf0 | code };
        }
    });
}

fn each(layout: Layout, mut f: impl FnMut(u32, u32, usize, bool)) {
    for k in 0..layout.k() {
        for n in 0..layout.n() {
            if let Some((at, high)) = place(layout, k, n) {
                f(k, n, at, high);
            }
        }
    }
}

/// `out[m][n] = Σ activations[m][k] · weight[k][n]` of an int8 weight.
///
/// ```
/// use rknpu::{Layout, Precision, reference};
///
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let mut tiled = vec![0; layout.bytes() as usize];
/// reference::tile_i8(layout, |k, n| (k == n) as i8, &mut tiled);
/// let row: Vec<i8> = (0..32).collect();
/// let out = reference::matmul_i8(layout, &tiled, &row);
/// assert!(out.iter().zip(row).all(|(o, a)| *o == i32::from(a)));
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn matmul_i8(layout: Layout, tiled: &[u8], activations: &[i8]) -> Vec<i32> {
    let weight = |at: usize, _| i32::from(tiled.get(at).copied().unwrap_or(0) as i8);
    multiply(layout, activations, weight, i32::wrapping_add)
}

/// As [`matmul_i8`] for int4: each K slice's sum saturates as an i16, then they are added.
///
/// ```
/// use rknpu::{Layout, Precision, reference};
///
/// let layout = Layout::new(1024, 64, Precision::Int4)?;
/// let mut tiled = vec![0; layout.bytes() as usize];
/// reference::tile_i4(layout, |_, _| 7, &mut tiled);
/// let out = reference::matmul_i4(layout, &tiled, &[7; 1024]);
/// assert_eq!(out[0], i32::from(i16::MAX)); // 50176 does not fit
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn matmul_i4(layout: Layout, tiled: &[u8], activations: &[i8]) -> Vec<i32> {
    let weight = |at: usize, high: bool| {
        let byte = tiled.get(at).copied().unwrap_or(0);
        let code = if high { byte >> 4 } else { byte & 0xf };
        i32::from((code << 4) as i8 >> 4)
    };
    multiply(layout, activations, weight, |a, b| a + b.clamp(i16::MIN.into(), i16::MAX.into()))
}

/// As [`matmul_i8`] for fp16, summed in f64. The NPU sums in another order and precision: compare
/// with a tolerance, or use values whose sums are exact in f32.
///
/// ```
/// use rknpu::{Layout, Precision, f16, reference};
///
/// let layout = Layout::new(32, 16, Precision::Fp16)?;
/// let mut tiled = vec![0; layout.bytes() as usize];
/// reference::tile_f16(layout, |_, n| f16::from_f32(n as f32 / 2.0), &mut tiled);
/// let out = reference::matmul_f16(layout, &tiled, &[f16::ONE; 32]);
/// assert_eq!(out[3], 48.0);
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn matmul_f16(layout: Layout, tiled: &[u8], activations: &[f16]) -> Vec<f32> {
    let weights = columns(layout, |at, _| {
        let bytes = tiled.get(at..at + 2);
        bytes.map_or(0.0, |b| f64::from(f16::from_le_bytes([b[0], b[1]])))
    });
    let k = layout.k() as usize;
    let mut out = Vec::new();
    for row in activations.chunks_exact(k) {
        for column in weights.chunks_exact(k) {
            let products = row.iter().zip(column).map(|(a, w)| f64::from(*a) * w);
            out.push(products.sum::<f64>() as f32);
        }
    }
    out
}

/// Sums products by K slice; `join` adds a slice's sum to a result.
fn multiply(
    layout: Layout,
    activations: &[i8],
    weight: impl Fn(usize, bool) -> i32,
    join: impl Fn(i32, i32) -> i32,
) -> Vec<i32> {
    let weights = columns(layout, weight);
    let (k, k_slice) = (layout.k() as usize, layout.precision().k_slice() as usize);
    let mut out = Vec::new();
    for row in activations.chunks_exact(k) {
        for column in weights.chunks_exact(k) {
            let slices = row.chunks(k_slice).zip(column.chunks(k_slice));
            out.push(slices.fold(0, |result, (row, column)| {
                let products = row.iter().zip(column).map(|(a, w)| i32::from(*a) * w);
                join(result, products.fold(0, i32::wrapping_add))
            }));
        }
    }
    out
}

/// The weight's elements, column by column.
fn columns<T>(layout: Layout, weight: impl Fn(usize, bool) -> T) -> Vec<T> {
    let elements = (0..layout.n()).flat_map(|n| (0..layout.k()).map(move |k| (k, n)));
    elements.filter_map(|(k, n)| place(layout, k, n)).map(|(at, high)| weight(at, high)).collect()
}

/// Bytes of `layout`'s weight filled with codes from a seed, the same on every machine: for probes and
/// tests that need some weight. Values stay small, so that sums are exact in every precision.
///
/// ```
/// use rknpu::{Layout, Precision, reference};
///
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let (mut one, mut two) = ([0; 4096], [0; 4096]);
/// reference::fill(layout, 1, &mut one);
/// reference::fill(layout, 1, &mut two);
/// assert_eq!(one, two); // the same seed
/// # Ok::<(), rknpu::sys::layout::LayoutError>(())
/// ```
pub fn fill(layout: Layout, seed: u64, out: &mut [u8]) {
    let mut state = seed | 1;
    match layout.precision() {
        Precision::Fp16 => {
            for pair in out.chunks_exact_mut(2) {
                let value = f16::from_f32((next(&mut state) % 9) as f32 - 4.0);
                pair.copy_from_slice(&value.to_le_bytes());
            }
        }
        Precision::Int8 | Precision::Int4 => {
            for byte in out {
                *byte = next(&mut state) as u8;
            }
        }
    }
}

/// A linear congruential generator's high byte.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state >> 56
}
