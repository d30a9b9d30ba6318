//! A whole weight, tile by tile, over the threads of the current rayon pool.

use super::emit::{Emit, EmitHalf, Lanes, Levels, Measure, Nibbles, Row, Run};
use super::int4::{Native, Uniform};
use super::int8::{Int8, Taken};
use super::nf4::Nf4;
use super::rows::{Rows, length};
use super::{LEAST_ABSMAX, Quality, QuantiseError, Quantiser, Recipe, Tier, rotate};
use crate::simd::{LINE, NonTemporal, dispatch};
use crate::tile::{TilesMut, prefers_non_temporal};
use rayon::prelude::*;
use rknpu_sys::layout::{Layout, Precision};
use std::borrow::Cow;
use std::marker::PhantomData;

/// Quantises `rows` to what the NPU reads, with zeros around a matrix that does not tile: `out` in [`Tier::layout`], `scales` per channel or
/// `[group][channel]`, [`Tier::scales`] of them. Tiles are spread over the threads of the current
/// rayon pool; the bytes do not depend on their number.
///
/// ```
/// use ork_weights::dequant::TensorType;
/// use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
///
/// // 32 channels of 32 inputs, channel c holding c + 1 everywhere.
/// let raw: Vec<u8> = (0..32 * 32).flat_map(|i| (1.0 + (i / 32) as f32).to_le_bytes()).collect();
/// let rows = Rows::new(TensorType::F32, 32, 32, &raw)?;
/// let layout = Tier::Int8.layout(32, 32)?;
/// let (mut tiled, mut scales) = (vec![0; layout.bytes() as usize], [0.0; 32]);
/// quantise(&rows, &Recipe::new(Tier::Int8), &mut tiled, &mut scales)?;
/// assert!(tiled[..1024].iter().all(|&code| code == 127));
/// assert_eq!(scales[31], 32.0 / 127.0);
/// # Ok::<(), ork_weights::quantise::QuantiseError>(())
/// ```
///
/// # Errors
/// [`QuantiseError`]; `out` and `scales` then hold no weight.
pub fn quantise(
    rows: &Rows<'_>,
    recipe: &Recipe<'_>,
    out: &mut [u8],
    scales: &mut [f32],
) -> Result<Quality, QuantiseError> {
    pack(rows, &recipe.tier.layout(rows.k(), rows.n())?, recipe, out, scales)
}

/// Quantises `rows` into `out` and `scales`, which have the shape of `layout`.
///
/// The layout's precision chooses between the two forms of a tier that has two: the int4 tiles it
/// is stored as, or the int8 tiles the NPU reads. Scales come per channel, or `[group][channel]`.
pub(super) fn pack(
    rows: &Rows<'_>,
    layout: &Layout,
    recipe: &Recipe<'_>,
    out: &mut [u8],
    scales: &mut [f32],
) -> Result<Quality, QuantiseError> {
    let (k, n) = (layout.k(), layout.n());
    let groups = recipe.tier.groups(k)? as usize;
    length("tiled weight", out.len(), layout.bytes() as usize)?;
    length("scales", scales.len(), recipe.tier.scales(k, n))?;
    let importance = importance(rows, recipe, k)?;
    let recipe = &Recipe { importance: importance.as_deref(), ..*recipe };
    let job = Job { rows, layout, recipe, groups };
    if groups == 1 {
        return job.of_tier(out, scales);
    }
    let mut by_channel = vec![0.0; scales.len()];
    let quality = job.of_tier(out, &mut by_channel)?;
    for (group, out) in scales.chunks_exact_mut(n as usize).enumerate() {
        for (out, channel) in out.iter_mut().zip(by_channel.chunks_exact(groups)) {
            *out = channel[group];
        }
    }
    Ok(quality)
}

/// Quantises rows to the compact form of [`Tier::O4n1`] and [`Tier::Nf4`]: nibbles row by row, K / 2
/// bytes each.
pub(super) fn compact(
    rows: &Rows<'_>,
    layout: &Layout,
    recipe: &Recipe<'_>,
    out: &mut [u8],
    scales: &mut [f32],
) -> Result<Quality, QuantiseError> {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    length("compact codes", out.len(), k / 2 * n)?;
    length("scales", scales.len(), n)?;
    let importance = importance(rows, recipe, layout.k())?;
    let importance = importance.as_deref();
    let recipe = &Recipe { importance, ..*recipe };
    match recipe.tier {
        Tier::Nf4 => nibbles(rows, k, recipe, &Nf4 { importance }, out, scales),
        _ => nibbles(rows, k, recipe, &Uniform { importance }, out, scales),
    }
}

/// The importance of `k` inputs, of which those that the rows do not have matter nothing.
fn importance<'a>(
    rows: &Rows<'_>,
    recipe: &Recipe<'a>,
    k: u32,
) -> Result<Option<Cow<'a, [f32]>>, QuantiseError> {
    let Some(importance) = recipe.importance else { return Ok(None) };
    length("importance", importance.len(), rows.k() as usize)?;
    if rows.k() == k {
        return Ok(Some(Cow::Borrowed(importance)));
    }
    let mut padded = importance.to_vec();
    padded.resize(k as usize, 0.0);
    Ok(Some(Cow::Owned(padded)))
}

fn nibbles<Q: Quantiser>(
    rows: &Rows<'_>,
    k: usize,
    recipe: &Recipe<'_>,
    quantiser: &Q,
    out: &mut [u8],
    scales: &mut [f32],
) -> Result<Quality, QuantiseError> {
    // A row of nibbles is a tile of one channel whose blocks are its runs; blocks of a tile are
    // larger, so runs go through one of them.
    let work = out.par_chunks_exact_mut(k / 2).zip(scales.par_chunks_exact_mut(1)).enumerate();
    let parts = work.map_init(
        || (vec![0f32; k], vec![0u8; k / 32 * crate::tile::BLOCK]),
        |(values, blocks), (index, (out, scales))| {
            rows.read(index, values);
            let mut lanes = Lanes::default();
            let emitted = dispatch(Emit {
                run: PhantomData::<Nibbles>,
                quantiser,
                rows: [Row { values, scales }],
                group: k,
                at: 0,
                parts: &mut [blocks],
                non_temporal: None,
                measure: measured(recipe, &mut lanes),
            });
            emitted.map_err(|_| QuantiseError::NotFinite { channel: rows.channel(index) })?;
            for (out, block) in
                out.as_chunks_mut::<16>().0.iter_mut().zip(blocks.as_chunks::<1024>().0)
            {
                out.copy_from_slice(&block[..16]);
            }
            Ok(lanes.sum())
        },
    );
    total(parts.collect())
}

fn measured<'a>(recipe: &Recipe<'a>, lanes: &'a mut Lanes) -> Option<Measure<'a>> {
    recipe.measure.then_some(Measure { lanes, importance: recipe.importance })
}

/// Sums in the order of the channels, so that threads do not change the result.
fn total(parts: Result<Vec<Quality>, QuantiseError>) -> Result<Quality, QuantiseError> {
    let mut total = Quality::default();
    for part in parts? {
        total += part;
    }
    Ok(total)
}

struct Job<'a> {
    rows: &'a Rows<'a>,
    layout: &'a Layout,
    recipe: &'a Recipe<'a>,
    groups: usize,
}

impl Job<'_> {
    /// `scales` are `[channel][group]`.
    fn of_tier(&self, out: &mut [u8], scales: &mut [f32]) -> Result<Quality, QuantiseError> {
        let importance = self.recipe.importance;
        let int4 = self.layout.precision() == Precision::Int4;
        match self.recipe.tier {
            Tier::Fp16 => self.halves(out),
            Tier::Int8 if self.rows.are_codes() => {
                self.codes::<_, Levels, 32>(&Taken, out, scales)?;
                // Nothing is lost.
                self.own_scales(scales);
                Ok(Quality::default())
            }
            Tier::Int8 | Tier::RotatedInt8 { .. } => {
                self.codes::<_, Levels, 32>(&Int8, out, scales)
            }
            Tier::O4n1 => self.codes::<_, Levels, 32>(&Uniform { importance }, out, scales),
            Tier::Nf4 => self.codes::<_, Levels, 32>(&Nf4 { importance }, out, scales),
            Tier::Int4 { .. } | Tier::Int4AsInt8 { .. } if int4 => {
                self.codes::<_, Nibbles, 16>(&Native, out, scales)
            }
            Tier::Int4 { .. } | Tier::Int4AsInt8 { .. } => {
                self.codes::<_, Levels, 32>(&Native, out, scales)
            }
        }
    }

    fn codes<Q: Quantiser, R: Run<BYTES> + Send, const BYTES: usize>(
        &self,
        quantiser: &Q,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, QuantiseError> {
        let (k, groups) = (self.layout.k() as usize, self.groups);
        let width = self.layout.precision().tile_width() as usize;
        let rotated = self.recipe.tier.is_rotated();
        // Two rows must fill lines of the cache, or they would be written twice.
        let whole_lines = 2 * BYTES == LINE && out.as_ptr().addr().is_multiple_of(LINE);
        let non_temporal = whole_lines && prefers_non_temporal(out.len());
        let mut columns = TilesMut::split(self.layout, out);
        let tiles = columns.par_tiles().zip(scales.par_chunks_exact_mut(width * groups));
        let parts = tiles.enumerate().map_init(
            || vec![0f32; 2 * k],
            |buffer, (tile, (parts, scales))| {
                let non_temporal = non_temporal.then(NonTemporal::new);
                let mut lanes = Lanes::default();
                for (pair, scales) in scales.chunks_exact_mut(2 * groups).enumerate() {
                    let channel = tile * width + 2 * pair;
                    let (first, second) = buffer.split_at_mut(k);
                    for (i, row) in [&mut *first, &mut *second].into_iter().enumerate() {
                        match quantiser.takes_codes() {
                            true => self.rows.read_codes(channel + i, row),
                            false => self.rows.read(channel + i, row),
                        }
                        if rotated {
                            rotate(row);
                        }
                    }
                    let (scales0, scales1) = scales.split_at_mut(groups);
                    let channel = self.rows.channel(channel);
                    let emitted = dispatch(Emit {
                        run: PhantomData::<R>,
                        quantiser,
                        rows: [
                            Row { values: first, scales: scales0 },
                            Row { values: second, scales: scales1 },
                        ],
                        group: k / groups,
                        at: 2 * pair * BYTES,
                        parts,
                        non_temporal: non_temporal.as_ref(),
                        measure: measured(self.recipe, &mut lanes),
                    });
                    emitted.map_err(|i| QuantiseError::NotFinite { channel: channel + i })?;
                }
                Ok(lanes.sum())
            },
        );
        total(parts.collect())
    }

    /// The scales of codes that were taken.
    fn own_scales(&self, scales: &mut [f32]) {
        for (index, out) in scales.iter_mut().enumerate() {
            *out = self.rows.scales(index).first().copied().unwrap_or(LEAST_ABSMAX / 127.0);
        }
    }

    fn halves(&self, out: &mut [u8]) -> Result<Quality, QuantiseError> {
        let width = self.layout.precision().tile_width() as usize;
        let mut columns = TilesMut::split(self.layout, out);
        let parts = columns.par_tiles().enumerate().map_init(
            || vec![0f32; self.layout.k() as usize],
            |values, (tile, parts)| {
                let mut lanes = Lanes::default();
                for row in 0..width {
                    let channel = tile * width + row;
                    self.rows.read(channel, values);
                    let emitted = dispatch(EmitHalf {
                        values,
                        at: row * 64,
                        parts,
                        measure: measured(self.recipe, &mut lanes),
                    });
                    let channel = self.rows.channel(channel);
                    emitted.ok_or(QuantiseError::NotFinite { channel })?;
                }
                Ok(lanes.sum())
            },
        );
        total(parts.collect())
    }
}
