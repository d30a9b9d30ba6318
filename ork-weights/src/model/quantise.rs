//! Quantising a weight straight into memory, a large one in pieces.

use super::error::ModelError;
use super::{Model, Weight};
use crate::pieces::{PIECE, of_bytes, pieces, place_scales, tiled_parts};
use crate::quantise::{Quality, QuantiseError, Recipe, length, quantise};
use std::ops::Range;

/// Bytes of a weight in its file that are read whole: what reading a larger one may take of memory
/// is a piece.
const WHOLE: u64 = 32 << 20;

impl Model {
    /// [`Model::quantise_with`] for some channels alone: `out` is tiled and `scales` are as if they
    /// were a weight of their own. Codes and scales are those that the channels have in the whole, of
    /// which nothing else is read or made.
    ///
    /// ```
    /// use ork_weights::quantise::{Recipe, Tier};
    ///
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// let (weight, recipe) = (&model.weights()[0], Recipe::new(Tier::Int8));
    /// let mut tiled = vec![0; Tier::Int8.layout(weight.k, 64)?.bytes() as usize];
    /// let mut scales = [0.0; 64];
    /// model.quantise_channels(weight, 32..96, &recipe, &mut tiled, &mut scales)?;
    /// assert!(scales.iter().all(|scale| *scale > 0.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::quantise`], for as many channels; [`ModelError::Quantise`] for channels that the
    /// weight does not have.
    pub fn quantise_channels(
        &self,
        weight: &Weight,
        channels: Range<u32>,
        recipe: &Recipe<'_>,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, ModelError> {
        let count = weight.has(&channels)?;
        let bytes = weight.channel_bytes() * u64::from(count);
        if bytes <= WHOLE {
            return self.with_rows(weight, channels, |rows| quantise(rows, recipe, out, scales));
        }
        let packed = u64::from(weight.k) * u64::from(count);
        let pieces = of_bytes(count, packed.max(bytes), PIECE);
        self.assemble(weight, channels, pieces, recipe, out, scales)
    }

    /// [`Model::quantise_with`], the tiles a piece at a time: `take(offset, bytes)` gets each run of
    /// them and where it belongs in the tiled weight. The runs cover it once, paddings included, in no
    /// order. What a piece takes of memory, 16 MiB in most weights, is all that is needed.
    ///
    /// ```
    /// use ork_weights::model::ModelError;
    /// use ork_weights::quantise::{Recipe, Tier};
    ///
    /// # use ork_weights::model::{Model, OpenOptions};
    /// # let file = ork_weights::doc::model()?;
    /// let model = Model::open(file.path(), &OpenOptions::default())?;
    /// let (weight, recipe) = (&model.weights()[0], Recipe::new(Tier::Int8));
    /// let mut scales = vec![0.0; Tier::Int8.scales(weight.k, weight.n)];
    /// let mut bytes = 0;
    /// model.quantise_in_pieces(weight, &recipe, &mut scales, |_offset, tiles| {
    ///     bytes += tiles.len() as u64; // to a file, say
    ///     Ok::<(), ModelError>(())
    /// })?;
    /// assert_eq!(bytes, Tier::Int8.layout(weight.k, weight.n)?.bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::quantise`]; what `take` returns, which ends it.
    pub fn quantise_in_pieces<E: From<ModelError>>(
        &self,
        weight: &Weight,
        recipe: &Recipe<'_>,
        scales: &mut [f32],
        take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Quality, E> {
        let pieces = pieces(weight, u64::from(weight.k) * u64::from(weight.n));
        self.each_piece(weight, 0..weight.n, pieces, recipe, scales, take)
    }

    /// Quantises each of `pieces` of the channels `of`, and puts it to its place in `out`.
    fn assemble(
        &self,
        weight: &Weight,
        of: Range<u32>,
        pieces: impl Iterator<Item = Range<u32>>,
        recipe: &Recipe<'_>,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, ModelError> {
        let layout = recipe.tier.layout(weight.k, of.end - of.start);
        layout
            .and_then(|layout| length("tiled weight", out.len(), layout.bytes() as usize))
            .map_err(ModelError::quantise(&weight.name))?;
        self.each_piece(weight, of, pieces, recipe, scales, |offset, tiles| {
            let to = offset as usize;
            out[to..to + tiles.len()].copy_from_slice(tiles);
            Ok(())
        })
    }

    /// Quantises each of `pieces` of the channels `of`, counted from the first of these; pieces are
    /// whole tiles and pages.
    fn each_piece<E: From<ModelError>>(
        &self,
        weight: &Weight,
        of: Range<u32>,
        pieces: impl Iterator<Item = Range<u32>>,
        recipe: &Recipe<'_>,
        scales: &mut [f32],
        mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Quality, E> {
        let refuse = |error| ModelError::quantise(&weight.name)(error);
        let (tier, k, n) = (recipe.tier, weight.k, of.end - of.start);
        let whole = tier.layout(k, n).map_err(refuse)?;
        length("scales", scales.len(), tier.scales(k, n)).map_err(refuse)?;
        let groups = tier.groups(whole.k()).map_err(refuse)? as usize;
        let (mut quality, mut tiles, mut own) = (Quality::default(), Vec::new(), Vec::new());
        for channels in pieces {
            let layout = tier.layout(k, channels.end - channels.start).map_err(refuse)?;
            tiles.resize(layout.bytes() as usize, 0);
            own.resize(tier.scales(k, channels.end - channels.start), 0.0);
            let rows = of.start + channels.start..of.start + channels.end;
            quality +=
                self.with_rows(weight, rows, |rows| quantise(rows, recipe, &mut tiles, &mut own))?;
            for part in tiled_parts(&whole, &layout, &channels) {
                take(part.to, &tiles[part.from])?;
            }
            place_scales(&own, groups, channels.start, scales);
        }
        Ok(quality)
    }
}

impl Weight {
    /// How many `channels` are, if all of them are there.
    fn has(&self, channels: &Range<u32>) -> Result<u32, ModelError> {
        let count = channels.end.saturating_sub(channels.start);
        if count > 0 && channels.end <= self.n {
            return Ok(count);
        }
        let (channels, n) = (channels.clone(), self.n);
        Err(ModelError::quantise(&self.name)(QuantiseError::Channels { channels, n }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{OpenOptions, synth::Shape};
    use crate::quantise::Tier;
    use proptest::prelude::*;
    use rknpu_sys::layout::{Layout, N_SLICE};

    /// Every tier, the grouped ones both ways.
    const TIERS: [&str; 11] = [
        "int8",
        "fp16",
        "o4n1",
        "nf4",
        "int4",
        "int4:32",
        "rotated-int8",
        "rotated-int8:64",
        "int4-as-int8",
        "int4-as-int8:64",
        "int4-as-int8:128",
    ];

    fn recipe(tier: &str) -> Recipe<'static> {
        Recipe::new(tier.parse::<Tier>().unwrap())
    }

    fn opened(shape: Shape) -> (tempfile::NamedTempFile, Model) {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        shape.write(file.as_file()).unwrap();
        let model = Model::open(file.path(), &OpenOptions::default()).unwrap();
        (file, model)
    }

    /// A weight's layout, tiles and scales.
    fn whole(model: &Model, weight: &Weight, recipe: &Recipe<'_>) -> (Layout, Vec<u8>, Vec<f32>) {
        let layout = recipe.tier.layout(weight.k, weight.n).unwrap();
        let mut tiles = vec![2; layout.bytes() as usize];
        let mut scales = vec![2.0; recipe.tier.scales(weight.k, weight.n)];
        model.quantise_with(weight, recipe, &mut tiles, &mut scales).unwrap();
        (layout, tiles, scales)
    }

    #[test]
    fn pieces_are_quantised_as_the_whole() {
        // More than a k-slice, and more channels than the smallest piece.
        let shape = Shape { embedding: 1280, feed_forward: 768, layers: 1, ..Shape::tiny() };
        let (_file, model) = opened(shape);
        let weight = model.weight("blk.0.ffn_up.weight").unwrap();
        let all = || 0..weight.n;
        for tier in TIERS {
            let recipe = recipe(tier);
            let (_, tiles, scales) = whole(&model, weight, &recipe);
            let pieces = || of_bytes(weight.n, weight.bytes, 1);
            assert!(pieces().count() > 2);
            let (mut out, mut own) = (vec![1; tiles.len()], vec![1.0; scales.len()]);
            model.assemble(weight, all(), pieces(), &recipe, &mut out, &mut own).unwrap();
            assert!(out == tiles, "{tier}");
            assert_eq!(own, scales, "{tier}");

            let (mut out, mut own) = (vec![1; tiles.len()], vec![1.0; scales.len()]);
            let taken = model.quantise_in_pieces(weight, &recipe, &mut own, |at, run| {
                out[at as usize..][..run.len()].copy_from_slice(run);
                Ok::<(), ModelError>(())
            });
            taken.unwrap();
            assert!(out == tiles && own == scales, "{tier}");

            let mut more = vec![0.0; scales.len() + 1];
            for (bytes, scales) in [(0, scales.len()), (out.len(), scales.len() + 1)] {
                let (out, more) = (&mut out[..bytes], &mut more[..scales]);
                let short = model.assemble(weight, all(), pieces(), &recipe, out, more);
                assert!(matches!(short, Err(ModelError::Quantise { .. })), "{tier}");
            }
        }
    }

    #[test]
    fn what_cannot_be_taken_ends_it() {
        let (_file, model) = opened(Shape::tiny());
        let weight = &model.weights()[0];
        let (recipe, mut scales) = (recipe("int8"), vec![0.0; weight.n as usize]);
        let full = || ModelError::io("write", std::path::Path::new("x"))(std::io::Error::other(""));
        let mut runs = 0;
        let ended = model.quantise_in_pieces(weight, &recipe, &mut scales, |_, _| {
            runs += 1;
            Err(full())
        });
        assert!(matches!(ended, Err(ModelError::Io { .. })) && runs == 1);
        let short = model.quantise_in_pieces(weight, &recipe, &mut [0.0; 3], |_, _| Err(full()));
        assert!(matches!(short, Err(ModelError::Quantise { .. })));
    }

    #[test]
    fn channels_that_are_not_there_are_refused() {
        let (_file, model) = opened(Shape::tiny());
        let weight = &model.weights()[0];
        #[expect(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
        let wrong = [0..0, 64..32, 32..weight.n + 32, u32::MAX - 32..u32::MAX];
        for channels in wrong {
            let none = model.quantise_channels(weight, channels, &recipe("int8"), &mut [], &mut []);
            let text = none.unwrap_err().to_string();
            assert!(text.contains(&format!("has {}", weight.n)), "{text}");
        }
    }

    #[test]
    fn channels_are_quantised_as_in_the_whole() {
        // More channels than an n-slice, more inputs than a k-slice.
        let shape =
            Shape { embedding: 1280, feed_forward: N_SLICE + 512, layers: 1, ..Shape::tiny() };
        let (_file, model) = opened(shape);
        let weight = model.weight("blk.0.ffn_up.weight").unwrap();
        for tier in TIERS {
            let recipe = recipe(tier);
            let (layout, tiles, scales) = whole(&model, weight, &recipe);
            let bits = layout.precision().bits();
            let code = |layout: &Layout, tiles: &[u8], k, n| {
                let (slice, element) = layout.element(k, n).unwrap();
                let bit = element * u64::from(bits);
                let at = (layout.slice(slice).unwrap().offset + bit / 8) as usize;
                match bits {
                    4 => [tiles[at] >> (bit % 8) & 15, 0],
                    8 => [tiles[at], 0],
                    _ => [tiles[at], tiles[at + 1]],
                }
            };
            let widths = 1..=(weight.n / 64);
            let cases = (widths, any::<prop::sample::Index>(), any::<bool>());
            let config =
                ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) };
            let test = |(width, first, in_pieces): (u32, prop::sample::Index, bool)| {
                let count = width * 64;
                let first = first.index((weight.n - count) as usize + 1) as u32;
                let part = recipe.tier.layout(weight.k, count).unwrap();
                let mut out = vec![3; part.bytes() as usize];
                let mut own = vec![3.0; recipe.tier.scales(weight.k, count)];
                let channels = first..first + count;
                let done = if in_pieces {
                    let pieces = of_bytes(count, u64::MAX, 1);
                    model.assemble(weight, channels, pieces, &recipe, &mut out, &mut own)
                } else {
                    model.quantise_channels(weight, channels, &recipe, &mut out, &mut own)
                };
                done.unwrap();
                for n in 0..count {
                    for k in (n % 31..weight.k).step_by(97) {
                        let (mine, theirs) =
                            (code(&part, &out, k, n), code(&layout, &tiles, k, first + n));
                        prop_assert_eq!(mine, theirs, "{} {} {}", tier, k, first + n);
                    }
                }
                let rows = scales.chunks_exact(weight.n as usize);
                for (own, all) in own.chunks_exact(count as usize).zip(rows) {
                    prop_assert_eq!(own, &all[first as usize..][..count as usize], "{}", tier);
                }
                Ok(())
            };
            proptest::test_runner::TestRunner::new(config).run(&cases, test).unwrap();
        }
    }
}
