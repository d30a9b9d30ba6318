//! What a pass must give, computed on the CPU from the same codes.

use std::sync::Arc;

use ork_cache::Store;
use ork_cache::plan::Item;
use ork_weights::reference;

use super::activations::{Digest, Noise};
use crate::error::{Error, Result};

/// Sums of weight `index` for as many rows as `out` has, the first of them number `first`.
pub(super) fn sums(store: &Store, index: usize, first: usize, out: &mut [i32]) -> Result<()> {
    let Item { k, n, layout, .. } = &store.items()[index];
    let mut tiled = vec![0; layout.bytes() as usize];
    store.load_uncounted(index, 0, layout, &mut tiled).map_err(Error::Store)?;
    let rows = out.len() / *n as usize;
    let mut inputs = Noise { weight: index, row: first }.values_of(rows, layout);
    // The NPU multiplies padding by something, which is right only if the padding is zeros.
    for row in inputs.chunks_exact_mut(layout.k() as usize) {
        row[*k as usize..].fill(0);
    }
    let sums = |out: &mut [i32]| {
        reference::sums(layout, &tiled, &inputs, out)
            .map_err(|error| Error::Source(Arc::new(error)))
    };
    if *n == layout.n() {
        return sums(out);
    }
    let mut all = vec![0; rows * layout.n() as usize];
    sums(&mut all)?;
    for (out, all) in out.chunks_exact_mut(*n as usize).zip(all.chunks_exact(layout.n() as usize)) {
        out.copy_from_slice(&all[..*n as usize]);
    }
    Ok(())
}

/// Digest of all results of `passes` passes of `rows` rows, each of which uses every weight.
///
/// # Errors
/// A weight that cannot be read.
pub fn digest(store: &Store, rows: u32, passes: u32) -> Result<u64> {
    let mut digest = Digest::default();
    for (index, item) in store.items().iter().enumerate() {
        let mut out = vec![0; rows as usize * item.n as usize];
        sums(store, index, 0, &mut out)?;
        digest.add(0, &out);
        digest.end_weight(index);
    }
    Ok(digest.repeated(passes))
}
