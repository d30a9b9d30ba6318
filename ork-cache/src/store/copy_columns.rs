//! Copies a range of columns out of a tiled weight.

use rknpu_sys::layout::Layout;

/// Fills `out`, tiled as `part`, with the columns of `whole` from `column` on. `read(offset, to)`
/// reads bytes of the whole weight; runs that lie together are read at once.
///
/// `column` and the width of `part` are multiples of the tile width, K and precision those of
/// `whole`.
///
/// # Errors
/// Those of `read`.
pub(super) fn copy_columns<E>(
    whole: &Layout,
    column: u32,
    part: &Layout,
    out: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (precision, tile) = (part.precision(), part.precision().tile_width());
    for slice in part.slices() {
        let bytes = precision.tile_bytes(slice.kp);
        let start = slice.offset as usize;
        let mut run: Option<(u64, usize, usize)> = None;
        for t in 0..slice.nc / tile {
            let at = tile_offset(whole, slice.k0, column + slice.n0 + t * tile);
            let to = start + t as usize * bytes as usize;
            match &mut run {
                Some((from, first, len)) if *from + *len as u64 == at => {
                    debug_assert_eq!(*first + *len, to);
                    *len += bytes as usize;
                }
                _ => {
                    if let Some((from, first, len)) = run.replace((at, to, bytes as usize)) {
                        read(from, &mut out[first..first + len])?;
                    }
                }
            }
        }
        if let Some((from, first, len)) = run {
            read(from, &mut out[first..first + len])?;
        }
        out[start + slice.bytes as usize..start + slice.padded_bytes() as usize].fill(0);
    }
    Ok(())
}

/// Byte at which the tile of channel `n` in the slice of row `k` begins.
fn tile_offset(whole: &Layout, k: u32, n: u32) -> u64 {
    let place = whole.element(k, n).and_then(|(i, element)| Some((whole.slice(i)?, element)));
    // Both lie in the matrix: the part was cut from it.
    place.map_or(0, |(slice, element)| {
        slice.offset + element * u64::from(whole.precision().bits()) / 8
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use rknpu_sys::layout::Precision;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn each_element_is_that_of_the_whole(
            k in 1u32..70,
            n in 1u32..9,
            from in 0u32..9,
            int4: bool,
            wide: bool,
        ) {
            let precision = if int4 { Precision::Int4 } else { Precision::Int8 };
            let tile = precision.tile_width();
            // With `wide` the whole spans two slices of columns and the part crosses into the second.
            let before = if wide { 8192 / tile - 3 } else { 0 };
            let k = k * 32;
            let whole = Layout::new(k, (before + n + from) * tile, precision).unwrap();
            let part = Layout::new(k, n * tile, precision).unwrap();
            let column = (before + from) * tile;
            let bytes: Vec<u8> = (0..whole.bytes()).map(|i| (i * 31 + i / 251) as u8).collect();
            let mut out = vec![0xAA; part.bytes() as usize];
            copy_columns(&whole, column, &part, &mut out, |at, to| {
                to.copy_from_slice(&bytes[at as usize..at as usize + to.len()]);
                Ok::<(), ()>(())
            })
            .unwrap();
            let byte = |l: &Layout, data: &[u8], k, n| {
                let (slice, element) = l.element(k, n).unwrap();
                let bit = element * u64::from(precision.bits());
                data[(l.slice(slice).unwrap().offset + bit / 8) as usize]
            };
            for k in (0..k).step_by(37) {
                for n in 0..part.n() {
                    prop_assert_eq!(byte(&part, &out, k, n), byte(&whole, &bytes, k, column + n));
                }
            }
        }
    }
}
