//! Weights whose files have a row for each input, as GPT-2's and fused experts have.

use super::Weight;
use super::file::ModelFile;
use std::io;
use std::ops::Range;

/// Some channels of `weight`, which are columns of its file, as rows. Its type has values, not blocks.
pub(super) fn read(
    file: &ModelFile,
    weight: &Weight,
    channels: &Range<u32>,
) -> io::Result<Vec<u8>> {
    let each = weight.kind.block_bytes();
    let (k, n) = (weight.k as usize, weight.n as usize);
    let count = (channels.end - channels.start) as usize;
    let (mut row, mut out) = (vec![0; count * each], vec![0; count * k * each]);
    for input in 0..k {
        let at = (input * n + channels.start as usize) * each;
        file.read_at(weight.offset + at as u64, &mut row)?;
        for (channel, value) in row.chunks_exact(each).enumerate() {
            let to = (channel * k + input) * each;
            out[to..to + each].copy_from_slice(value);
        }
    }
    Ok(out)
}
