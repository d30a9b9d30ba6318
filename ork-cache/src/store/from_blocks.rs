//! Weights made of blocks in somebody else's memory.

use std::fmt;
use std::ops::Range;

use ork_weights::dequant::TensorType;
use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
use rknpu_sys::layout::Layout;

use super::{Expected, StoreError};

/// Memory that holds weights, and may be taken away.
pub trait Blocks: fmt::Debug + Send + Sync {
    /// Shows `work` the blocks of a weight, a row for each channel as in a GGUF file; `false` when they
    /// are gone. Called from any thread.
    fn with(&self, weight: usize, work: &mut dyn FnMut(&[u8])) -> bool;
}

/// A weight of [`Store::from_blocks`](super::Store::from_blocks).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockWeight {
    /// Its name; `name#index` for an expert.
    pub name: Box<str>,
    /// Inputs.
    pub k: u32,
    /// Output channels.
    pub n: u32,
    /// Type of its blocks.
    pub kind: TensorType,
}

#[derive(Debug)]
pub(super) struct FromBlocks {
    weights: Vec<BlockWeight>,
    tier: Tier,
    blocks: Box<dyn Blocks>,
}

/// Channels that are quantised at a time where only their scales are wanted.
const CHANNELS: u32 = 1024;

impl FromBlocks {
    pub(super) fn new(
        weights: Vec<BlockWeight>,
        tier: Tier,
        blocks: Box<dyn Blocks>,
    ) -> FromBlocks {
        FromBlocks { weights, tier, blocks }
    }

    /// Writes the columns from `column` on, as many as `layout` has; of a whole weight the scales
    /// become known.
    pub(super) fn quantise(
        &self,
        item: usize,
        expected: Expected<'_>,
        column: u32,
        layout: &Layout,
        out: &mut [u8],
    ) -> Result<(), StoreError> {
        let mut scales = vec![0f32; self.tier.scales(layout.k(), layout.n())];
        self.channels(item, expected, expected.channels(column, layout), out, &mut scales)?;
        if *layout == expected.item.layout {
            let _ = expected.form.scales.set(scales.into());
        }
        Ok(())
    }

    /// The scales of a weight, without its tiles.
    pub(super) fn scales(
        &self,
        item: usize,
        expected: Expected<'_>,
    ) -> Result<Vec<f32>, StoreError> {
        let (k, n) = (expected.item.k, expected.item.n);
        let width = expected.item.layout.n() as usize;
        let mut all = vec![0f32; self.tier.scales(k, n)];
        let mut tiles = Vec::new();
        for first in (0..n).step_by(CHANNELS as usize) {
            let count = CHANNELS.min(n - first);
            let refuse = |source| StoreError::Tier { name: expected.item.name.clone(), source };
            let layout = self.tier.layout(k, count).map_err(refuse)?;
            tiles.resize(layout.bytes() as usize, 0);
            let mut own = vec![0f32; self.tier.scales(k, count)];
            self.channels(item, expected, first..first + count, &mut tiles, &mut own)?;
            // A row for each group.
            for (all, own) in all.chunks_mut(width).zip(own.chunks(layout.n() as usize)) {
                let places = all.iter_mut().skip(first as usize);
                places.zip(own).for_each(|(place, own)| *place = *own);
            }
        }
        Ok(all)
    }

    fn channels(
        &self,
        item: usize,
        expected: Expected<'_>,
        channels: Range<u32>,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<(), StoreError> {
        let known = self.weights.len();
        let weight = self.weights.get(item).ok_or(StoreError::Unknown { item, known })?;
        let name = || expected.item.name.clone();
        let row = weight.kind.row_bytes(weight.k.into()).unwrap_or(0);
        let bytes = row * u64::from(channels.start)..row * u64::from(channels.end);
        let mut done = Ok(());
        let there = self.blocks.with(item, &mut |blocks| {
            let raw = blocks.get(bytes.start as usize..bytes.end as usize).unwrap_or_default();
            let count = channels.end.saturating_sub(channels.start);
            let rows = Rows::new(weight.kind, weight.k, count, raw);
            let rows = rows.map(|rows| rows.starting_at(channels.start as usize));
            done = rows
                .and_then(|rows| quantise(&rows, &Recipe::new(self.tier), out, scales).map(drop));
        });
        if !there {
            return Err(StoreError::Gone { name: name() });
        }
        done.map_err(|source| StoreError::Tier { name: name(), source })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Store;
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    struct Memory(Vec<u8>, Arc<AtomicBool>);

    impl Blocks for Memory {
        fn with(&self, _: usize, work: &mut dyn FnMut(&[u8])) -> bool {
            let there = self.1.load(Ordering::Relaxed);
            if there {
                work(&self.0);
            }
            there
        }
    }

    fn store(there: &Arc<AtomicBool>) -> Store {
        let (k, n) = (60, 1024 + 90);
        let value = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 65536.0 - 128.0;
        let raw = (0..k * n).flat_map(|i| value(i).to_le_bytes()).collect();
        let weight = BlockWeight { name: "w".into(), k, n, kind: TensorType::F32 };
        let tier = Tier::RotatedInt8 { group: None };
        Store::from_blocks(vec![weight], tier, Box::new(Memory(raw, there.clone()))).unwrap()
    }

    #[test]
    fn columns_and_scales_are_those_of_the_whole() {
        let there = Arc::new(AtomicBool::new(true));
        let whole = store(&there);
        let layout = whole.items()[0].layout;
        let mut tiles = vec![0; layout.bytes() as usize];
        whole.load(0, 0, &layout, &mut tiles).unwrap();

        let parts = store(&there);
        assert_eq!(parts.scales(0).unwrap(), whole.scales(0).unwrap());
        let part = Layout::new(64, 96, layout.precision()).unwrap();
        let mut got = vec![0; part.bytes() as usize];
        parts.load(0, 1024, &part, &mut got).unwrap();
        let mut want = vec![0; part.bytes() as usize];
        super::super::copy_columns(&layout, 1024, &part, &mut want, |at, to| {
            to.copy_from_slice(&tiles[at as usize..at as usize + to.len()]);
            Ok::<(), ()>(())
        })
        .unwrap();
        assert!(got == want);
        assert_eq!(parts.given().packed, 1);
    }

    #[test]
    fn memory_that_is_gone_is_an_error() {
        let there = Arc::new(AtomicBool::new(true));
        let store = store(&there);
        there.store(false, Ordering::Relaxed);
        let layout = store.items()[0].layout;
        let mut tiles = vec![0; layout.bytes() as usize];
        let error = store.load(0, 0, &layout, &mut tiles).unwrap_err();
        assert!(matches!(error, StoreError::Gone { .. }) && error.to_string().contains("\"w\""));
        assert!(matches!(store.scales(0), Err(StoreError::Gone { .. })));
    }
}
