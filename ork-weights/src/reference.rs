//! Matrix multiplication on the CPU with the same codes, for checking what an NPU gives.
//!
//! Plain loops, one for every tier.
//!
//! Activations are quantised as the C project does: int8 per row (absmax / 127, halves away from
//! zero), for [`Tier::Int4`] int4 per row (absmax / 7, ties to even); rotated first where the weight
//! is; per group where the weight's scales are. [`matmul`] sums exactly in i32; an NPU adds int4
//! products in 16 bits, which [`sums`] does too.
//!
//! ```
//! use ork_weights::dequant::TensorType;
//! use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
//! use ork_weights::reference;
//!
//! // The identity: what goes in comes out, to within the rounding of int8.
//! let identity: Vec<u8> = (0..32 * 32)
//!     .flat_map(|i| (if i % 33 == 0 { 1f32 } else { 0.0 }).to_le_bytes())
//!     .collect();
//! let rows = Rows::new(TensorType::F32, 32, 32, &identity)?;
//! let (mut tiled, mut scales) = (vec![0; 4096], vec![0.0; 32]);
//! quantise(&rows, &Recipe::new(Tier::Int8), &mut tiled, &mut scales)?;
//!
//! let activations: Vec<f32> = (0..32).map(|i| i as f32).collect();
//! let mut out = vec![0.0; 32];
//! reference::matmul(Tier::Int8, 32, 32, &tiled, &scales, &activations, &mut out)?;
//! assert!(out.iter().zip(&activations).all(|(y, x)| (y - x).abs() < 0.2));
//! # Ok::<(), ork_weights::quantise::QuantiseError>(())
//! ```

use crate::dequant::half_to_f32;
use crate::quantise::{QuantiseError, Tier, length, rotate};
use crate::tile::{rows_bytes, untile};
use rayon::prelude::*;
use rknpu_sys::layout::{Layout, Precision};

/// Codes of a tiled int8 or int4 weight, row-major `[N][K]`.
///
/// ```
/// use ork_weights::reference;
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(32, 64, Precision::Int4)?;
/// let mut tiled = vec![0u8; 4096];
/// tiled[0] = 0xf1; // k 0 and 1 of channel 0
/// assert_eq!(reference::codes(&layout, &tiled)?[..2], [1, -1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`QuantiseError::Length`] when `tiled` is not [`Layout::bytes`] long.
pub fn codes(layout: &Layout, tiled: &[u8]) -> Result<Vec<i8>, QuantiseError> {
    let rows = rows(layout, tiled)?;
    Ok(match layout.precision() {
        Precision::Int4 => {
            rows.iter().flat_map(|byte| [(byte << 4) as i8 >> 4, *byte as i8 >> 4]).collect()
        }
        _ => rows.iter().map(|byte| *byte as i8).collect(),
    })
}

/// What an NPU's int8 or int4 multiplication must give, bit for bit: `activations` `[M][K]`, `out`
/// `[M][N]` sums, which wrap as i32; those of int4 saturate as i16 within each K slice. On all threads
/// of the current rayon pool.
///
/// ```
/// use ork_weights::reference;
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(32, 32, Precision::Int8)?;
/// let tiled = vec![2; 4096]; // every code is 2
/// let mut out = [0; 64];
/// reference::sums(&layout, &tiled, &[3; 64], &mut out)?; // two rows
/// assert_eq!(out, [2 * 3 * 32; 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`QuantiseError::Length`] when `tiled` does not fit the layout, or `out` and `activations` are not
/// of the same whole number of rows.
pub fn sums(
    layout: &Layout,
    tiled: &[u8],
    activations: &[i8],
    out: &mut [i32],
) -> Result<(), QuantiseError> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let m = batch(k, n, activations.len(), out.len())?;
    let codes = codes(layout, tiled)?;
    let slice = layout.precision().k_slice() as usize;
    let sum = |row: &[i8], channel: &[i8]| match layout.precision() {
        Precision::Int4 => {
            let slices = row.chunks(slice).zip(channel.chunks(slice));
            slices.map(|(a, b)| dot(a, b).clamp(i16::MIN.into(), i16::MAX.into())).sum()
        }
        Precision::Int8 | Precision::Fp16 => dot(row, channel),
    };
    let each = m.div_ceil(rayon::current_num_threads()).max(1);
    let blocks = activations.par_chunks(each * k).zip(out.par_chunks_mut(each * n));
    blocks.for_each(|(rows, out)| {
        // A channel's codes are read once for all rows of a block.
        for (at, channel) in codes.chunks_exact(k).enumerate() {
            for (row, out) in rows.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
                out[at] = sum(row, channel);
            }
        }
    });
    Ok(())
}

/// The whole product of a tier: `activations` `[M][K]`, `tiled` and `scales` as
/// [`quantise`](crate::quantise::quantise) gives them, `out` `[M][N]`, all of the matrix without its padding.
///
/// ```
/// use ork_weights::{quantise::Tier, reference};
///
/// let (tiled, scales) = (vec![127; 4096], [1.0 / 127.0; 32]); // a weight of ones
/// let mut out = [0.0; 32];
/// reference::matmul(Tier::Int8, 32, 32, &tiled, &scales, &[0.5; 32], &mut out)?;
/// assert!(out.iter().all(|sum| (sum - 16.0).abs() < 1e-4));
/// # Ok::<(), ork_weights::quantise::QuantiseError>(())
/// ```
///
/// # Errors
/// [`QuantiseError`] when K, N or the groups do not suit the tier, or a buffer's length does not.
pub fn matmul(
    tier: Tier,
    k: u32,
    n: u32,
    tiled: &[u8],
    scales: &[f32],
    activations: &[f32],
    out: &mut [f32],
) -> Result<(), QuantiseError> {
    let layout = tier.layout(k, n)?;
    length("scales", scales.len(), tier.scales(k, n))?;
    let groups = tier.groups(layout.k())? as usize;
    let (inputs, outputs) = (k as usize, n as usize);
    batch(inputs, outputs, activations.len(), out.len())?;
    // The matrix may be smaller than what is tiled.
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let rows = activations.chunks_exact(inputs).map(|row| {
        let mut row = row.to_vec();
        row.resize(k, 0.0);
        row
    });
    let rows = rows.zip(out.chunks_exact_mut(outputs));
    if tier == Tier::Fp16 {
        return halves(&layout, tiled, rows);
    }
    let codes = codes(&layout, tiled)?;
    let group = k / groups;
    for (mut row, out) in rows {
        if tier.is_rotated() {
            rotate(&mut row);
        }
        out.fill(0.0);
        for (g, values) in row.chunks_exact(group).enumerate() {
            let (quantised, scale) = activation(tier, values);
            for (channel, out) in out.iter_mut().enumerate() {
                let codes = &codes[channel * k + g * group..][..group];
                *out += scale * scales[g * n + channel] * dot(&quantised, codes) as f32;
            }
        }
    }
    Ok(())
}

/// Codes of a row of activations, or a group of it, and their scale.
fn activation(tier: Tier, values: &[f32]) -> (Vec<i8>, f32) {
    let most = values.iter().fold(1e-9f32, |most, value| most.max(value.abs()));
    match tier {
        Tier::Int4 { .. } => {
            let scale = most / 7.0;
            let code = |value: &f32| (value / scale).round_ties_even().clamp(-8.0, 7.0) as i8;
            (values.iter().map(code).collect(), scale)
        }
        _ => {
            let code = |value: &f32| (value * 127.0 / most).round().clamp(-127.0, 127.0) as i8;
            (values.iter().map(code).collect(), most / 127.0)
        }
    }
}

/// Half floats, products and sums in f32.
fn halves<'a>(
    layout: &Layout,
    tiled: &[u8],
    activations: impl Iterator<Item = (Vec<f32>, &'a mut [f32])>,
) -> Result<(), QuantiseError> {
    let k = layout.k() as usize;
    let rows = rows(layout, tiled)?;
    let weights: Vec<f32> =
        rows.as_chunks().0.iter().map(|bytes| half_to_f32(u16::from_le_bytes(*bytes))).collect();
    for (row, out) in activations {
        let row: Vec<f32> = row.iter().map(|value| half::f16::from_f32(*value).to_f32()).collect();
        for (out, channel) in out.iter_mut().zip(weights.chunks_exact(k)) {
            *out = row.iter().zip(channel).map(|(a, b)| a * b).sum();
        }
    }
    Ok(())
}

fn dot(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).fold(0, |sum: i32, (a, b)| sum.wrapping_add(i32::from(*a) * i32::from(*b)))
}

fn rows(layout: &Layout, tiled: &[u8]) -> Result<Vec<u8>, QuantiseError> {
    length("tiled weight", tiled.len(), layout.bytes() as usize)?;
    let mut rows = vec![0; rows_bytes(layout) as usize];
    let untiled = untile(layout, tiled, &mut rows);
    debug_assert!(untiled.is_ok(), "the lengths were checked");
    Ok(rows)
}

/// Rows of activations, which there must be as many of in the output.
fn batch(k: usize, n: usize, activations: usize, out: usize) -> Result<usize, QuantiseError> {
    let m = activations / k;
    length("activations", activations, m * k)?;
    length("output", out, m * n)?;
    Ok(m)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequant::TensorType;
    use crate::quantise::{Recipe, Rows, quantise};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Noise of [−1, 1).
    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2) | 1;
        (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// Relative RMS error of a tier's product against that of the floats.
    fn error(tier: Tier, k: u32, n: u32, seed: u64) -> f64 {
        let weights = noise((k * n) as usize, seed);
        let activations = noise(3 * k as usize, seed + 1);
        let raw: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let rows = Rows::new(TensorType::F32, k, n, &raw).unwrap();
        let layout = tier.layout(k, n).unwrap();
        let mut tiled = vec![0; layout.bytes() as usize];
        let mut scales = vec![0.0; tier.scales(k, n)];
        quantise(&rows, &Recipe::new(tier), &mut tiled, &mut scales).unwrap();
        let mut out = vec![0.0; 3 * n as usize];
        matmul(tier, k, n, &tiled, &scales, &activations, &mut out).unwrap();
        let (k, n) = (k as usize, n as usize);
        let (mut off, mut all) = (0.0, 0.0);
        for (i, out) in out.iter().enumerate() {
            let (row, channel) = (&activations[i / n * k..][..k], &weights[i % n * k..][..k]);
            let exact: f64 =
                row.iter().zip(channel).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            off += (f64::from(*out) - exact).powi(2);
            all += exact * exact;
        }
        (off / all).sqrt()
    }

    #[test]
    fn every_tier_multiplies_to_about_the_product() {
        for (tier, most) in [
            (Tier::Fp16, 0.001),
            (Tier::Int8, 0.02),
            (Tier::RotatedInt8 { group: None }, 0.03),
            (Tier::RotatedInt8 { group: Some(32) }, 0.02),
            (Tier::O4n1, 0.12),
            (Tier::Nf4, 0.15),
            (Tier::Int4AsInt8 { group: None }, 0.25),
            (Tier::Int4AsInt8 { group: Some(64) }, 0.2),
            (Tier::Int4 { group: None }, 0.35),
            (Tier::Int4 { group: Some(64) }, 0.25),
        ] {
            let error = error(tier, 1088, 64, 3);
            assert!(error < most && error > 0.0, "{tier}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn sums_follow_the_layouts_formula(
            int4: bool, k in 1u32..40, m in 0usize..3, seed: u64,
        ) {
            let precision = if int4 { Precision::Int4 } else { Precision::Int8 };
            let layout = Layout::new(k * 32, 64, precision).unwrap();
            let byte = |value: f32| (value * 128.0) as i8;
            let tiled: Vec<u8> =
                noise(layout.bytes() as usize, seed).into_iter().map(|v| byte(v) as u8).collect();
            let activations: Vec<i8> =
                noise(m * k as usize * 32, seed + 1).into_iter().map(byte).collect();
            let mut out = vec![0; m * 64];
            sums(&layout, &tiled, &activations, &mut out).unwrap();
            for (i, out) in out.iter().enumerate() {
                let slice_of = |at| layout.element(at, (i % 64) as u32).unwrap().0;
                let product = |at| {
                        let (slice, element) = layout.element(at, (i % 64) as u32).unwrap();
                        let base = layout.slice(slice).unwrap().offset as usize;
                        let code = match precision {
                            Precision::Int4 => {
                                let byte = tiled[base + element as usize / 2];
                                ((byte >> (element % 2 * 4)) << 4) as i8 >> 4
                            }
                            _ => tiled[base + element as usize] as i8,
                        };
                    let row = i / 64 * k as usize * 32;
                    i32::from(code) * i32::from(activations[row + at as usize])
                };
                let mut slices = BTreeMap::<_, i32>::new();
                (0..k * 32).for_each(|at| *slices.entry(slice_of(at)).or_default() += product(at));
                let saturate = |sum: i32| match precision {
                    Precision::Int4 => sum.clamp(i16::MIN.into(), i16::MAX.into()),
                    _ => sum,
                };
                prop_assert_eq!(*out, slices.into_values().map(saturate).sum::<i32>());
            }
        }
    }

    #[test]
    fn int4_saturates_within_a_slice() {
        let layout = Layout::new(1024, 64, Precision::Int4).unwrap();
        let tiled = vec![0x77; layout.bytes() as usize];
        let mut out = vec![0; 2 * 64];
        sums(&layout, &tiled, &[vec![7; 1024], vec![-8; 1024]].concat(), &mut out).unwrap();
        assert!(out[..64].iter().all(|v| *v == i32::from(i16::MAX)));
        assert!(out[64..].iter().all(|v| *v == i32::from(i16::MIN)));
    }

    #[test]
    fn lengths_must_fit() {
        let layout = Layout::new(32, 32, Precision::Int8).unwrap();
        assert!(codes(&layout, &[0; 1024]).is_err());
        assert!(sums(&layout, &[0; 4096], &[0; 33], &mut [0; 32]).is_err());
        assert!(sums(&layout, &[0; 4096], &[0; 32], &mut [0; 33]).is_err());
        let product = |scales: &[f32], activations: &[f32], out: &mut [f32]| {
            matmul(Tier::Int8, 32, 32, &[0; 4096], scales, activations, out)
        };
        assert!(product(&[0.0; 31], &[0.0; 32], &mut [0.0; 32]).is_err());
        assert!(product(&[0.0; 32], &[0.0; 31], &mut [0.0; 32]).is_err());
        assert!(product(&[0.0; 32], &[0.0; 32], &mut [0.0; 64]).is_err());
        assert!(product(&[0.0; 32], &[0.0; 32], &mut [0.0; 32]).is_ok());
    }
}
