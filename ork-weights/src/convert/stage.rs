//! Quantising one weight, or a piece of a large one, while the one before it is written.

use super::report::WeightReport;
use super::{ConvertError, Options};
use crate::model::{Model, ModelError, Weight};
use crate::pack::{PackError, PackWriter, WeightHeader, o4n1_header};
use crate::pieces::{parts, pieces, place_scales};
use crate::quantise::{Quality, Recipe, Tier, blob_bytes, blob_scales, encode};
use rknpu_sys::layout::Layout;
use std::ops::Range;
use std::sync::mpsc;

/// Bytes of packed pieces in memory at once. A piece that is larger alone is alone.
const IN_FLIGHT: usize = 24 << 20;

/// A weight to convert.
pub(super) struct Work<'a> {
    pub(super) weight: &'a Weight,
    pub(super) tier: Tier,
    pub(super) layout: Layout,
    /// Scale groups along K.
    pub(super) groups: usize,
    /// Bytes of the blob.
    pub(super) blob: u64,
    /// Scales beside it.
    pub(super) scales: usize,
}

impl Work<'_> {
    fn bytes(&self) -> u64 {
        self.blob + 4 * self.scales as u64
    }

    pub(super) fn header(&self) -> WeightHeader<'_> {
        let Weight { name, k, n, .. } = self.weight;
        WeightHeader { name, k: *k, n: *n, dtype: self.tier.dtype() }
    }
}

/// Channels of a weight that wait to be written.
struct Packed<'a> {
    work: &'a Work<'a>,
    channels: Range<u32>,
    blob: Vec<u8>,
    scales: Vec<f32>,
    quality: Quality,
}

pub(super) struct Stage<'a> {
    pub(super) model: &'a Model,
    pub(super) options: &'a Options<'a>,
}

impl Stage<'_> {
    /// Works through `plan`, reporting each weight in its order, and gives the writer back.
    pub(super) fn run(
        &self,
        mut writer: PackWriter,
        plan: &[Work<'_>],
        mut done: impl FnMut(WeightReport),
    ) -> Result<PackWriter, ConvertError> {
        let left: Vec<bool> = plan.iter().map(|work| writer.contains(&work.weight.name)).collect();
        std::thread::scope(|scope| {
            let (to_writer, packed) = mpsc::channel::<Packed<'_>>();
            let (to_packer, written) = mpsc::channel::<Vec<u8>>();
            let measure = self.options.measure;
            let writing = scope.spawn(move || {
                Writing { measure, to_packer }.run(&mut writer, packed)?;
                Ok::<PackWriter, ConvertError>(writer)
            });
            let packing = self.pack(plan, &left, &to_writer, &written, &mut done);
            drop(to_writer);
            let writer = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            packing.and(writer)
        })
    }

    fn pack<'w>(
        &self,
        plan: &'w [Work<'w>],
        left: &[bool],
        to_writer: &mpsc::Sender<Packed<'w>>,
        written: &mpsc::Receiver<Vec<u8>>,
        done: &mut impl FnMut(WeightReport),
    ) -> Result<(), ConvertError> {
        let (mut in_flight, mut spares) = (0, Vec::<Vec<u8>>::new());
        for (index, (work, left)) in plan.iter().zip(left).enumerate() {
            let weight = work.weight;
            let report = WeightReport::new(weight, work.tier, work.bytes());
            if *left {
                done(WeightReport { resumed: true, ..report });
                continue;
            }
            if let Some(next) = plan.get(index + 1) {
                self.model.will_read(next.weight);
            }
            let importance = match (self.options.imatrix, work.tier.codebook()) {
                (Some(imatrix), Some(_)) => imatrix.importance(weight)?,
                _ => None,
            };
            let recipe = Recipe {
                tier: work.tier,
                importance: importance.as_deref(),
                measure: self.options.measure,
            };
            let mut quality = Quality::default();
            for channels in pieces(weight, work.blob) {
                let bytes = blob_bytes(work.tier, weight.k, channels.end - channels.start)
                    .map_err(ModelError::quantise(&weight.name))?
                    as usize;
                while in_flight != 0 && in_flight + bytes > IN_FLIGHT {
                    match written.recv() {
                        Ok(buffer) => {
                            in_flight -= buffer.capacity();
                            spares.push(buffer);
                        }
                        // The writer failed; joining it says why.
                        Err(mpsc::RecvError) => return Ok(()),
                    }
                }
                // Memory is used again: what is freed here would lie about in the allocator.
                let fits = spares.iter().position(|spare| spare.capacity() >= bytes);
                let mut blob = fits.map_or_else(Vec::new, |at| spares.swap_remove(at));
                if fits.is_none() {
                    spares.clear();
                }
                blob.resize(bytes, 0);
                let packed = self.encode(work, channels, &recipe, blob)?;
                quality += packed.quality;
                in_flight += packed.blob.capacity();
                if to_writer.send(packed).is_err() {
                    return Ok(());
                }
            }
            if self.options.evict_source {
                self.model.evict(weight);
            }
            done(report.measured(self.options.measure.then_some(quality)));
        }
        Ok(())
    }

    fn encode<'w>(
        &self,
        work: &'w Work<'w>,
        channels: Range<u32>,
        recipe: &Recipe<'_>,
        mut blob: Vec<u8>,
    ) -> Result<Packed<'w>, ConvertError> {
        let count = channels.end - channels.start;
        let mut scales = vec![0.0; blob_scales(work.tier, work.weight.k, count)];
        let quality = self.model.with_rows(work.weight, channels.clone(), |rows| {
            encode(rows, recipe, &mut blob, &mut scales)
        })?;
        Ok(Packed { work, channels, blob, scales, quality })
    }
}

/// The writing half.
struct Writing {
    measure: bool,
    /// Where buffers go back to. The packer is gone only when it failed, and its error is the one
    /// that counts.
    to_packer: mpsc::Sender<Vec<u8>>,
}

impl Writing {
    fn run(
        &self,
        writer: &mut PackWriter,
        packed: mpsc::Receiver<Packed<'_>>,
    ) -> Result<(), PackError> {
        let mut packed = packed.into_iter();
        while let Some(first) = packed.next() {
            self.weight(writer, first, &mut packed)?;
        }
        Ok(())
    }

    /// Writes the weight that begins with `piece`.
    fn weight<'a>(
        &self,
        writer: &mut PackWriter,
        mut piece: Packed<'a>,
        more: &mut impl Iterator<Item = Packed<'a>>,
    ) -> Result<(), PackError> {
        let Work { weight, tier, .. } = *piece.work;
        let (k, n) = (weight.k, weight.n);
        let mut scales = vec![0.0; piece.work.scales];
        let mut quality = Quality::default();
        let mut out = writer.begin(piece.work.header())?;
        let Work { layout, groups, .. } = *piece.work;
        if let Some(codebook) = tier.codebook() {
            out.write_at(0, &o4n1_header(layout.k(), layout.n(), codebook))?;
        }
        loop {
            for part in parts(tier, k, n, &piece.channels) {
                out.write_at(part.to, piece.blob.get(part.from).unwrap_or_default())?;
            }
            place_scales(&piece.scales, groups, piece.channels.start, &mut scales);
            quality += piece.quality;
            let _ = self.to_packer.send(piece.blob);
            if piece.channels.end == n {
                return out.finish(&scales, self.measure.then(|| quality.relative_rms() as f32));
            }
            match more.next() {
                Some(next) => piece = next,
                None => return Ok(()),
            }
        }
    }
}
