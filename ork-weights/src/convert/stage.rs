//! Quantising one weight while the one before it is written.

use super::report::WeightReport;
use super::{ConvertError, Options};
use crate::model::{Model, Weight};
use crate::pack::{Dtype, PackWriter};
use crate::quantise::{Quality, Recipe, Tier};
use std::sync::mpsc;

/// Bytes of packed weights in memory at once. A weight that is larger alone is alone.
const IN_FLIGHT: u64 = 40 << 20;

/// A weight to convert.
pub(super) struct Work<'a> {
    pub(super) weight: &'a Weight,
    pub(super) tier: Tier,
    pub(super) dtype: Dtype,
    /// Bytes of the blob.
    pub(super) blob: u64,
    /// Scales beside it.
    pub(super) scales: usize,
}

impl Work<'_> {
    fn bytes(&self) -> u64 {
        self.blob + 4 * self.scales as u64
    }
}

/// A weight that waits to be written.
struct Packed<'a> {
    work: &'a Work<'a>,
    blob: Vec<u8>,
    scales: Vec<f32>,
    quality: Option<Quality>,
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
            let writing = scope.spawn(move || {
                for packed in packed {
                    add(&mut writer, &packed)?;
                    // The packer is gone only when it failed; its error is the one that counts.
                    let _ = to_packer.send(packed.blob);
                }
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
        let mut in_flight = 0;
        let mut spare = Vec::new();
        for (index, (work, left)) in plan.iter().zip(left).enumerate() {
            let report = WeightReport::new(work.weight, work.tier, work.bytes());
            if *left {
                done(WeightReport { resumed: true, ..report });
                continue;
            }
            if let Some(next) = plan.get(index + 1) {
                self.model.will_read(next.weight);
            }
            while in_flight != 0 && in_flight + work.blob > IN_FLIGHT {
                match written.recv() {
                    Ok(buffer) => {
                        in_flight -= buffer.len() as u64;
                        spare = buffer;
                    }
                    // The writer failed; joining it says why.
                    Err(mpsc::RecvError) => return Ok(()),
                }
            }
            let mut blob = std::mem::take(&mut spare);
            blob.resize(work.blob as usize, 0);
            let packed = self.encode(work, blob)?;
            in_flight += work.blob;
            done(report.measured(packed.quality));
            if to_writer.send(packed).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn encode<'w>(
        &self,
        work: &'w Work<'w>,
        mut blob: Vec<u8>,
    ) -> Result<Packed<'w>, ConvertError> {
        let importance = match (self.options.imatrix, work.tier.codebook()) {
            (Some(imatrix), Some(_)) => imatrix.importance(work.weight)?,
            _ => None,
        };
        let recipe = Recipe {
            tier: work.tier,
            importance: importance.as_deref(),
            stochastic: self.options.stochastic,
            measure: self.options.measure,
        };
        let mut scales = vec![0.0; work.scales];
        let quality = self.model.encode(work.weight, &recipe, &mut blob, &mut scales)?;
        if self.options.evict_source {
            self.model.evict(work.weight);
        }
        Ok(Packed { work, blob, scales, quality: self.options.measure.then_some(quality) })
    }
}

fn add(writer: &mut PackWriter, packed: &Packed<'_>) -> Result<(), ConvertError> {
    let Work { weight, dtype, .. } = packed.work;
    let error = packed.quality.map(|quality| quality.relative_rms() as f32);
    writer.add_measured(
        &weight.name,
        weight.k,
        weight.n,
        *dtype,
        &packed.blob,
        &packed.scales,
        error,
    )?;
    Ok(())
}
