//! A weight as a pack stores it.

use super::whole::{compact, pack};
use super::{Quality, QuantiseError, Recipe, Rows, Tier};
use crate::pack::o4n1_header;
use rknpu_sys::layout::{Layout, Precision};

/// Bytes of the blob of a K × N weight, padded as in [`Tier::layout`].
///
/// ```
/// use ork_weights::quantise::{Tier, blob_bytes};
/// assert_eq!(blob_bytes(Tier::Int8, 1024, 64)?, 1024 * 64);
/// assert_eq!(blob_bytes(Tier::Nf4, 1024, 64)?, 20 + 4 * 64 + 1024 * 64 / 2);
/// # Ok::<(), ork_weights::quantise::QuantiseError>(())
/// ```
///
/// # Errors
/// [`QuantiseError::Layout`], [`QuantiseError::Group`].
pub fn blob_bytes(tier: Tier, k: u32, n: u32) -> Result<u64, QuantiseError> {
    let layout = stored_layout(tier, k, n)?;
    let (k, n) = (layout.k(), layout.n());
    Ok(match tier.codebook() {
        Some(codebook) => {
            let header = o4n1_header(k, n, codebook).len() as u64;
            header + 4 * u64::from(n) + u64::from(k) * u64::from(n) / 2
        }
        None => layout.bytes(),
    })
}

/// Scales beside the blob; 0 when the blob holds them itself.
///
/// ```
/// use ork_weights::quantise::{Tier, blob_scales};
///
/// assert_eq!(blob_scales(Tier::Int8, 1024, 64), 64);
/// assert_eq!(blob_scales(Tier::Nf4, 1024, 64), 0); // in the blob
/// ```
pub fn blob_scales(tier: Tier, k: u32, n: u32) -> usize {
    match tier.codebook() {
        Some(_) => 0,
        None => tier.scales(k, n),
    }
}

/// Quantises `rows` to what a pack stores: `blob` ([`blob_bytes`] long) and `scales`
/// ([`blob_scales`] of them). For the tiers that are stored as they are computed this is
/// [`quantise`](super::quantise).
///
/// ```
/// use ork_weights::dequant::TensorType;
/// use ork_weights::quantise::{Recipe, Rows, Tier, blob_bytes, encode};
///
/// let raw = 1f32.to_le_bytes().repeat(32 * 64);
/// let rows = Rows::new(TensorType::F32, 32, 64, &raw)?;
/// let mut blob = vec![0; blob_bytes(Tier::O4n1, 32, 64)? as usize];
/// encode(&rows, &Recipe::new(Tier::O4n1), &mut blob, &mut [])?;
/// assert_eq!(blob[20..24], (1f32 / 7.0).to_le_bytes()); // the first scale
/// assert_eq!(blob[20 + 4 * 64], 0x77); // two codes of 7
/// # Ok::<(), ork_weights::quantise::QuantiseError>(())
/// ```
///
/// # Errors
/// [`QuantiseError`]; `blob` and `scales` then hold no weight.
pub fn encode(
    rows: &Rows<'_>,
    recipe: &Recipe<'_>,
    blob: &mut [u8],
    scales: &mut [f32],
) -> Result<Quality, QuantiseError> {
    let layout = stored_layout(recipe.tier, rows.k(), rows.n())?;
    let (k, n) = (layout.k(), layout.n());
    let Some(codebook) = recipe.tier.codebook() else {
        return pack(rows, &layout, recipe, blob, scales);
    };
    super::rows::length("blob", blob.len(), blob_bytes(recipe.tier, k, n)? as usize)?;
    super::rows::length("scales", scales.len(), 0)?;
    let header = o4n1_header(k, n, codebook);
    let (head, rest) = blob.split_at_mut(header.len());
    let (scale_bytes, codes) = rest.split_at_mut(4 * n as usize);
    head.copy_from_slice(&header);
    let mut scales = vec![0.0; n as usize];
    let quality = compact(rows, &layout, recipe, codes, &mut scales)?;
    for (out, scale) in scale_bytes.as_chunks_mut::<4>().0.iter_mut().zip(scales) {
        *out = scale.to_le_bytes();
    }
    Ok(quality)
}

/// Layout of the tiles on disk; for a compact blob, that of what it inflates to.
pub(crate) fn stored_layout(tier: Tier, k: u32, n: u32) -> Result<Layout, QuantiseError> {
    let loaded = tier.layout(k, n)?;
    match tier {
        Tier::Int4AsInt8 { .. } => Ok(Layout::padded(k, n, Precision::Int4)?),
        _ => Ok(loaded),
    }
}
