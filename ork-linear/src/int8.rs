//! From sums to results: int8 products of rows in one plane or two.

use crate::kernel::{self, Isa, ROWS, TILE, TileSums, Work};
use crate::rows::QuantisedRows;
use crate::weight::TiledWeight;

/// Fills `out`, `[tile][M][channel]`, from tile number `first` on.
pub(crate) fn tiles(weight: &TiledWeight<'_>, rows: &QuantisedRows, first: usize, out: &mut [f32]) {
    let (k, planes) = (rows.k() as usize, rows.depth().planes());
    let at_once = ROWS / planes;
    for (i, out) in out.chunks_mut(rows.m() * TILE).enumerate() {
        let tile = first + i;
        let scales = &weight.scales[tile * TILE..][..TILE];
        let codes = rows.codes().chunks(at_once * planes * k);
        let row_sums = rows.row_sums().chunks(at_once * planes);
        let row_scales = rows.scales().chunks(at_once);
        let parts = codes.zip(row_sums).zip(row_scales).zip(out.chunks_mut(at_once * TILE));
        for (((codes, row_sums), row_scales), out) in parts {
            let (layout, tiles) = (&weight.layout, weight.tiles);
            let sums = kernel::dispatch(TileSums { layout, tiles, tile, codes, row_sums });
            let sums = sums.chunks_exact(planes).zip(row_scales).zip(out.chunks_exact_mut(TILE));
            for ((sums, &row_scale), out) in sums {
                match sums {
                    [sums] => kernel::dispatch(Scale { sums, scales, row_scale, out }),
                    [high, low] => {
                        kernel::dispatch(High { sums: high, out });
                        kernel::dispatch(Low { sums: low, scales, row_scale, out });
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Results of a row in one plane from its sums.
pub(crate) struct Scale<'a> {
    pub(crate) sums: &'a [i32],
    pub(crate) scales: &'a [f32],
    pub(crate) row_scale: f32,
    pub(crate) out: &'a mut [f32],
}

impl Work for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Isa) {
        for ((out, sum), scale) in self.out.iter_mut().zip(self.sums).zip(self.scales) {
            *out = *sum as f32 * scale * self.row_scale;
        }
    }
}

/// The high plane's part of a row's results.
pub(crate) struct High<'a> {
    pub(crate) sums: &'a [i32],
    pub(crate) out: &'a mut [f32],
}

impl Work for High<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Isa) {
        for (out, sum) in self.out.iter_mut().zip(self.sums) {
            *out = *sum as f32 * 256.0;
        }
    }
}

/// Joins the low plane to it.
pub(crate) struct Low<'a> {
    pub(crate) sums: &'a [i32],
    pub(crate) scales: &'a [f32],
    pub(crate) row_scale: f32,
    pub(crate) out: &'a mut [f32],
}

impl Work for Low<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Isa) {
        for ((out, sum), scale) in self.out.iter_mut().zip(self.sums).zip(self.scales) {
            *out = (*out + *sum as f32) * scale * self.row_scale;
        }
    }
}
