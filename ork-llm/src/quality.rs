//! How much a cheaper arithmetic changes what a model says.

use crate::decoder::Decoder;
use crate::error::Result;
use crate::sample::most_likely;

/// Rows of a pass: a large vocabulary's logits take a megabyte each.
const BLOCK: usize = 32;

/// How far the shares that one model gives tokens are from those of another.
///
/// ```
/// use ork_llm::Quality;
///
/// let mut quality = Quality::default();
/// quality.add(&[1.0, 2.0, 0.0], &[1.0, 2.0, 0.0]);
/// assert_eq!((quality.mean_kl(), quality.agreement()), (0.0, 1.0));
/// quality.add(&[1.0, 2.0, 0.0], &[2.0, 1.0, 0.0]);
/// assert!(quality.mean_kl() > 0.0 && quality.agreement() == 0.5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Quality {
    /// Positions that were compared.
    pub positions: u64,
    /// Sum of the divergences.
    pub kl: f64,
    /// The largest of them.
    pub worst_kl: f64,
    /// Positions at which both hold the same token for the most likely one.
    pub agreed: u64,
}

impl Quality {
    /// Compares the logits of one position.
    pub fn add(&mut self, reference: &[f32], other: &[f32]) {
        let (p, q) = (log_sum(reference), log_sum(other));
        let terms = reference.iter().zip(other).map(|(a, b)| {
            let (a, b) = (f64::from(*a) - p, f64::from(*b) - q);
            match a.exp() {
                0.0 => 0.0,
                share => share * (a - b),
            }
        });
        // Rounding makes a zero slightly negative.
        let kl = terms.sum::<f64>().max(0.0);
        self.positions += 1;
        self.kl += kl;
        self.worst_kl = self.worst_kl.max(kl);
        self.agreed += u64::from(most_likely(reference) == most_likely(other));
    }

    /// Mean Kullback–Leibler divergence of the other's shares from the reference's, in nats.
    pub fn mean_kl(&self) -> f64 {
        self.kl / self.positions.max(1) as f64
    }

    /// Share of the positions at which the most likely token is the same.
    pub fn agreement(&self) -> f64 {
        self.agreed as f64 / self.positions.max(1) as f64
    }
}

fn log_sum(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f64::NEG_INFINITY, |most, x| most.max(f64::from(*x)));
    most + logits.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
}

/// Compares two models at every position of a text, cut into windows of `window` tokens.
/// `progress` is told the positions compared so far.
///
/// ```
/// use ork_llm::{Decoder, Reference, compare};
/// # use ork_weights::model::{gguf::Tensors, synth::Shape};
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
/// # let decoder = || -> Result<Decoder, Box<dyn std::error::Error>> {
/// #     let tensors = Tensors::open(file.path())?;
/// #     let linears = Reference::f32(&tensors)?;
/// #     Ok(Decoder::new(tensors, Box::new(linears))?)
/// # };
/// let (mut one, mut same) = (decoder()?, decoder()?);
/// let quality = compare(&mut one, &mut same, &[5, 6, 7, 8, 9], 4, |_positions| {})?;
/// assert_eq!((quality.positions, quality.mean_kl()), (5, 0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Decoder::forward`]; [`Error::Draft`](crate::Error::Draft) for vocabularies of two sizes.
pub fn compare(
    reference: &mut Decoder,
    other: &mut Decoder,
    tokens: &[u32],
    window: usize,
    mut progress: impl FnMut(u64),
) -> Result<Quality> {
    let vocabulary = reference.config().vocabulary;
    if other.config().vocabulary != vocabulary {
        let reason = format!("{} tokens, not {vocabulary}", other.config().vocabulary);
        return Err(crate::Error::Draft { reason });
    }
    let mut quality = Quality::default();
    for window in tokens.chunks(window.max(1)) {
        let mut caches = [reference.cache(window.len()), other.cache(window.len())];
        let [first, second] = &mut caches;
        for block in window.chunks(BLOCK) {
            let wanted = reference.forward(first, block, block.len())?;
            let found = other.forward(second, block, block.len())?;
            let rows = wanted.chunks_exact(vocabulary).zip(found.chunks_exact(vocabulary));
            rows.for_each(|(wanted, found)| quality.add(wanted, found));
            progress(quality.positions);
        }
    }
    Ok(quality)
}
