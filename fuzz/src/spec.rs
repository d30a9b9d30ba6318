//! Packs described by a few bytes, for the targets that start from a good one.

use std::path::Path;

use arbitrary::{Arbitrary, Result, Unstructured};
use ork_weights::pack::Entry;
use ork_weights::pack::{
    Codebook, Dtype, Identity, PackError, PackWriter, Summary, WeightHeader, WriterOptions,
    o4n1_header,
};

/// A pack to write.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) options: WriterOptions,
    pub(crate) identity: Option<Identity>,
    pub(crate) weights: Vec<Weight>,
}

/// A weight of it.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) k: u32,
    pub(crate) n: u32,
    pub(crate) dtype: Dtype,
    pub(crate) blob: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) error: Option<f32>,
}

impl<'a> Arbitrary<'a> for Spec {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Spec> {
        let options = WriterOptions {
            version: *u.choose(&[2, 3, 5, 7])?,
            recipe: u.arbitrary()?,
            ..WriterOptions::default()
        };
        let (size, modified_ns, sample_hash, full_hash) = u.arbitrary()?;
        let identity = Identity { size, modified_ns, sample_hash, full_hash };
        let identity = u.arbitrary::<bool>()?.then_some(identity);
        let count = u.int_in_range(0..=4)?;
        let weights = (0..count).map(|number| weight(u, number)).collect::<Result<_>>()?;
        Ok(Spec { options, identity, weights })
    }
}

fn weight(u: &mut Unstructured<'_>, number: u32) -> Result<Weight> {
    let dtype = *u.choose(&Dtype::ALL)?;
    // A second slice along K now and then; the least shapes otherwise.
    let k = 32 * if u.ratio(1, 16)? { 33 } else { u.int_in_range(1..=4)? };
    let n = 64 * u.int_in_range(1..=2)?;
    // A matrix that does not fill them now and then: less than a tile of any form is padding.
    let short = if u.ratio(1, 4)? { u.int_in_range(1..=15)? } else { 0 };
    let groups = if dtype.is_rotated() { *u.choose(&[1, k / 32])? } else { 1 };
    let fill: u8 = u.arbitrary()?;
    let scale = f32::from(u.arbitrary::<u16>()?) / 1000.0;
    // Half floats are the weights themselves.
    let count = if dtype == Dtype::Fp16 { 0 } else { n * groups };
    let (mut blob, mut scales) = (Vec::new(), vec![scale; count as usize]);
    match dtype.stored() {
        Some(precision) => {
            let layout = rknpu_sys::layout::Layout::new(k, n, precision)
                .map_err(|_| arbitrary::Error::IncorrectFormat)?;
            blob.resize(layout.bytes() as usize, fill);
        }
        None => {
            let book = *u.choose(&[Codebook::Uniform, Codebook::Nf4])?;
            blob.extend(o4n1_header(k, n, book));
            blob.extend(scales.drain(..).flat_map(f32::to_le_bytes));
            blob.resize(blob.len() + (k * n / 2) as usize, fill);
        }
    }
    let name = format!("{number}{}", u.choose(&["", ".weight", "#7", "\u{e9}"])?);
    let error = u.arbitrary::<bool>()?.then_some(0.25);
    Ok(Weight { name, k: k - short, n: n - short, dtype, blob, scales, error })
}

impl Spec {
    /// Adds the first `count` weights that the writer does not have yet.
    pub(crate) fn add(&self, writer: &mut PackWriter, count: usize) -> Result<(), PackError> {
        for w in self.weights.iter().take(count) {
            if !writer.contains(&w.name) {
                let header = WeightHeader { name: &w.name, k: w.k, n: w.n, dtype: w.dtype };
                let mut weight = writer.begin(header)?;
                weight.write_at(0, &w.blob)?;
                weight.finish(&w.scales, w.error)?;
            }
        }
        Ok(())
    }

    /// Writes the whole pack.
    pub(crate) fn write(&self, path: &Path) -> Result<Summary, PackError> {
        let mut writer = PackWriter::create(path, self.identity.as_ref(), self.options.clone())?;
        self.add(&mut writer, usize::MAX)?;
        writer.finish()
    }
}

impl Weight {
    /// Whether an entry describes this weight.
    pub(crate) fn is(&self, entry: &Entry) -> bool {
        *entry.name == *self.name
            && (entry.k, entry.n, entry.dtype) == (self.k, self.n, self.dtype)
            && entry.error() == self.error
    }
}

/// A folder in memory where there is one: syncing a disk would be all that is measured.
pub(crate) fn folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}
