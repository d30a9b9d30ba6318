//! Quantising a weight straight into memory, a large one in pieces.

use super::error::ModelError;
use super::{Model, Weight};
use crate::pieces::{pieces, place_scales, tiled_parts};
use crate::quantise::{Quality, QuantiseError, Recipe, quantise};
use std::ops::Range;

/// Bytes of a weight in its file that are read whole: what reading a larger one may take of memory
/// is a piece.
const WHOLE: u64 = 32 << 20;

impl Model {
    pub(super) fn quantise_into(
        &self,
        weight: &Weight,
        recipe: &Recipe<'_>,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, ModelError> {
        if weight.bytes <= WHOLE {
            return self.with_rows(weight, 0..weight.n, |rows| quantise(rows, recipe, out, scales));
        }
        let pieces = pieces(weight, u64::from(weight.k) * u64::from(weight.n));
        self.quantise_pieces(weight, pieces, recipe, out, scales)
    }

    /// Quantises each of `pieces`, which are whole tiles and pages, and puts it to its place.
    fn quantise_pieces(
        &self,
        weight: &Weight,
        pieces: impl Iterator<Item = Range<u32>>,
        recipe: &Recipe<'_>,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<Quality, ModelError> {
        let refuse = |error| ModelError::quantise(&weight.name)(error);
        let (tier, k, n) = (recipe.tier, weight.k, weight.n);
        let whole = tier.layout(k, n).map_err(refuse)?;
        for (buffer, length, expected) in [
            ("tiled weight", out.len(), whole.bytes() as usize),
            ("scales", scales.len(), tier.scales(k, n)),
        ] {
            if length != expected {
                return Err(refuse(QuantiseError::Length { buffer, length, expected }));
            }
        }
        let (mut quality, mut tiles, mut own) = (Quality::default(), Vec::new(), Vec::new());
        for channels in pieces {
            let count = channels.end - channels.start;
            let layout = tier.layout(k, count).map_err(refuse)?;
            tiles.resize(layout.bytes() as usize, 0);
            own.resize(tier.scales(k, count), 0.0);
            quality += self.with_rows(weight, channels.clone(), |rows| {
                quantise(rows, recipe, &mut tiles, &mut own)
            })?;
            for part in tiled_parts(&whole, &layout, &channels) {
                let to = part.to as usize;
                out[to..to + part.from.len()].copy_from_slice(&tiles[part.from]);
            }
            place_scales(&own, n, &channels, scales);
        }
        Ok(quality)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{OpenOptions, synth::Shape};
    use crate::pieces::of_bytes;
    use crate::quantise::Tier;

    #[test]
    fn pieces_are_quantised_as_the_whole() {
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        // More than a k-slice, and more channels than the smallest piece.
        let shape = Shape { embedding: 1280, feed_forward: 768, layers: 1, ..Shape::tiny() };
        shape.write(file.as_file()).unwrap();
        let model = Model::open(file.path(), &OpenOptions::default()).unwrap();
        let weight = model.weight("blk.0.ffn_up.weight").unwrap();
        for tier in ["int8", "fp16", "nf4", "int4:32", "rotated-int8", "int4-as-int8:64"] {
            let recipe = Recipe::new(tier.parse::<Tier>().unwrap());
            let layout = recipe.tier.layout(weight.k, weight.n).unwrap();
            let scales = recipe.tier.scales(weight.k, weight.n);
            let (mut out, mut own) = (vec![1; layout.bytes() as usize], vec![1.0; scales]);
            let (mut whole, mut all) = (vec![2; out.len()], vec![2.0; scales]);
            model.quantise_into(weight, &recipe, &mut whole, &mut all).unwrap();
            let pieces: Vec<_> = of_bytes(weight.n, weight.bytes, 1).collect();
            assert!(pieces.len() > 2);
            model.quantise_pieces(weight, pieces.into_iter(), &recipe, &mut out, &mut own).unwrap();
            assert!(out == whole, "{tier}");
            assert_eq!(own, all, "{tier}");
            let mut more = vec![0.0; scales + 1];
            for (bytes, scales) in [(0, scales), (out.len(), scales + 1)] {
                let pieces = of_bytes(weight.n, weight.bytes, 1);
                let (out, more) = (&mut out[..bytes], &mut more[..scales]);
                let short = model.quantise_pieces(weight, pieces, &recipe, out, more);
                assert!(matches!(short, Err(ModelError::Quantise { .. })), "{tier}");
            }
        }
    }
}
