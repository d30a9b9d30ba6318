//! Two rows at a time from f32 to their places in a tile.

use super::{Quality, Quantiser, Step, float16};
use crate::simd::{Cached, Kernel, Machine, NonTemporal, Store};
use crate::tile::BLOCK;

/// How 32 codes become the bytes of a run.
pub(super) trait Run<const BYTES: usize>: Sync {
    /// Packs codes; `level` is what a code stands for.
    fn pack(codes: &[i8; 32], level: impl Fn(i8) -> i8) -> [u8; BYTES];
}

/// A byte for each code, holding its level.
pub(super) struct Levels;

impl Run<32> for Levels {
    #[inline(always)]
    fn pack(codes: &[i8; 32], level: impl Fn(i8) -> i8) -> [u8; 32] {
        codes.map(|code| level(code) as u8)
    }
}

/// Two codes a byte, the even one low.
pub(super) struct Nibbles;

impl Run<16> for Nibbles {
    #[inline(always)]
    fn pack(codes: &[i8; 32], _: impl Fn(i8) -> i8) -> [u8; 16] {
        std::array::from_fn(|i| (codes[2 * i] & 15) as u8 | (codes[2 * i + 1] << 4) as u8)
    }
}

/// Sums of [`Quality`], in lanes so that the additions of a run do not wait for each other. Which
/// value goes to which lane is fixed, and so is the sum.
#[derive(Default)]
pub(super) struct Lanes {
    error: [f64; 8],
    energy: [f64; 8],
}

impl Lanes {
    #[inline(always)]
    fn add(&mut self, values: &[f32; 32], weights: Option<&[f32; 32]>, actual: &[f32; 32]) {
        for i in 0..32 {
            let weight = weights.map_or(1.0, |w| f64::from(w[i]));
            let (value, off) = (f64::from(values[i]), f64::from(values[i] - actual[i]));
            self.error[i % 8] += weight * off * off;
            self.energy[i % 8] += weight * value * value;
        }
    }

    pub(super) fn sum(&self) -> Quality {
        Quality { error: self.error.iter().sum(), energy: self.energy.iter().sum() }
    }
}

/// A row and what belongs to it.
pub(super) struct Row<'a> {
    /// Its K values.
    pub(super) values: &'a [f32],
    /// Where its scales go, one per group.
    pub(super) scales: &'a mut [f32],
}

/// What is measured on the way, and how much each k matters.
pub(super) struct Measure<'a> {
    /// Sums so far.
    pub(super) lanes: &'a mut Lanes,
    /// Importance of each k.
    pub(super) importance: Option<&'a [f32]>,
}

/// Quantises rows whose channels are neighbours in the tile. Two at a time, because the bytes of
/// two fill a cache line between them.
pub(super) struct Emit<'a, 'r, 'p, Q, R, const ROWS: usize, const BYTES: usize> {
    pub(super) run: std::marker::PhantomData<R>,
    pub(super) quantiser: &'a Q,
    pub(super) rows: [Row<'r>; ROWS],
    /// Values that share a scale; a multiple of 32.
    pub(super) group: usize,
    /// First byte of the first row's runs in a block.
    pub(super) at: usize,
    /// The tile's part of each k-slice.
    pub(super) parts: &'a mut [&'p mut [u8]],
    /// The way past the caches, where that is the faster one.
    pub(super) non_temporal: Option<&'a NonTemporal>,
    pub(super) measure: Option<Measure<'a>>,
}

impl<Q: Quantiser, R: Run<BYTES>, const ROWS: usize, const BYTES: usize> Kernel
    for Emit<'_, '_, '_, Q, R, ROWS, BYTES>
{
    /// Which row holds a value that is not finite.
    type Output = Result<(), usize>;

    #[inline(always)]
    fn run(mut self, machine: impl Machine) -> Result<(), usize> {
        // Without this the compiler keeps what only measuring needs alive in the loop.
        match (self.measure.take(), self.non_temporal) {
            (None, None) => self.emit(machine, &Cached, |_, _, _, _| ()),
            (None, Some(non_temporal)) => self.emit(machine, non_temporal, |_, _, _, _| ()),
            (Some(Measure { lanes, importance }), _) => {
                self.emit(machine, &Cached, |k, values, levels, scale| {
                    let weights = importance.and_then(|weights| weights[k..].first_chunk());
                    lanes.add(values, weights, &levels.map(|level| f32::from(level) * scale));
                })
            }
        }
    }
}

impl<Q: Quantiser, R: Run<BYTES>, const ROWS: usize, const BYTES: usize>
    Emit<'_, '_, '_, Q, R, ROWS, BYTES>
{
    /// `see` is told k, values, levels and scale of every run.
    #[inline(always)]
    fn emit(
        self,
        machine: impl Machine,
        way: &impl Store,
        mut see: impl FnMut(usize, &[f32; 32], [i8; 32], f32),
    ) -> Result<(), usize> {
        let Emit { quantiser, mut rows, group, at, parts, .. } = self;
        let mut runs = rows.each_ref().map(|row| row.values.as_chunks::<32>().0.iter());
        let mut steps = [Step::default(); ROWS];
        let (mut k, mut left) = (0, 0);
        for part in parts {
            for block in part.as_chunks_mut::<BLOCK>().0 {
                if left == 0 {
                    left = group / 32;
                    for (i, row) in rows.iter_mut().enumerate() {
                        let scale = quantiser.scale(&row.values[k..k + group]).ok_or(i)?;
                        row.scales[k / group] = scale;
                        steps[i] = Step::new(scale);
                    }
                }
                left -= 1;
                for i in 0..ROWS {
                    let Some(values) = runs[i].next() else { return Ok(()) };
                    let codes = quantiser.codes(machine, values, steps[i]);
                    let run = R::pack(&codes, |code| quantiser.level(code));
                    if let Some(to) = block[at + i * BYTES..].first_chunk_mut() {
                        way.store(&run, to);
                    }
                    see(k, values, codes.map(|code| quantiser.level(code)), steps[i].scale);
                }
                k += 32;
            }
        }
        Ok(())
    }
}

/// One row of half floats to its place; the NPU's fp16 runs are a cache line each.
pub(super) struct EmitHalf<'a, 'b> {
    pub(super) values: &'a [f32],
    /// First byte of the row's runs in a block.
    pub(super) at: usize,
    pub(super) parts: &'a mut [&'b mut [u8]],
    pub(super) measure: Option<Measure<'a>>,
}

impl Kernel for EmitHalf<'_, '_> {
    /// `None` when a value is not finite as a half float.
    type Output = Option<()>;

    #[inline(always)]
    fn run(mut self, _: impl Machine) -> Option<()> {
        let mut runs = self.values.as_chunks::<32>().0.iter().enumerate();
        for part in self.parts {
            for (block, (index, values)) in
                part.as_chunks_mut::<BLOCK>().0.iter_mut().zip(&mut runs)
            {
                let mut actual = [0.0; 32];
                let out = block[self.at..self.at + 64].as_chunks_mut::<2>().0;
                for ((out, actual), &value) in out.iter_mut().zip(&mut actual).zip(values) {
                    let half = float16::to_half(value)?;
                    *out = half.to_le_bytes();
                    *actual = crate::dequant::half_to_f32(half);
                }
                if let Some(measure) = &mut self.measure {
                    let weights = measure.importance.and_then(|w| w[index * 32..].first_chunk());
                    measure.lanes.add(values, weights, &actual);
                }
            }
        }
        Some(())
    }
}
