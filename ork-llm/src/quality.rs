//! How much a cheaper arithmetic changes what a model says.

use crate::decoder::Decoder;
use crate::error::Result;
use crate::sample::most_likely;

/// Rows of a pass: a large vocabulary's logits take a megabyte each.
const BLOCK: usize = 32;

/// How far the shares that one model gives tokens are from those of another, and how well the other
/// guesses what a text says.
///
/// ```
/// use ork_llm::Quality;
///
/// let mut quality = Quality::default();
/// quality.add(&[1.0, 2.0, 0.0], &[1.0, 2.0, 0.0], None);
/// assert_eq!((quality.mean_kl(), quality.agreement()), (0.0, 1.0));
/// quality.add(&[1.0, 2.0, 0.0], &[2.0, 1.0, 0.0], Some(0)); // token 0 followed
/// assert!(quality.mean_kl() > 0.0 && quality.agreement() == 0.5);
/// assert!(quality.perplexity() < 3.0);
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
    /// Positions whose next token is known.
    pub followed: u64,
    /// Sum of -ln of the shares that the other gave those tokens.
    pub surprise: f64,
}

impl Quality {
    /// Compares the logits of one position, which the token `next` follows where that is known.
    pub fn add(&mut self, reference: &[f32], other: &[f32], next: Option<u32>) {
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
        if let Some(logit) = next.and_then(|next| other.get(next as usize)) {
            self.followed += 1;
            self.surprise += q - f64::from(*logit);
        }
    }

    /// Mean Kullback–Leibler divergence of the other's shares from the reference's, in nats.
    pub fn mean_kl(&self) -> f64 {
        self.kl / self.positions.max(1) as f64
    }

    /// Share of the positions at which the most likely token is the same.
    pub fn agreement(&self) -> f64 {
        self.agreed as f64 / self.positions.max(1) as f64
    }

    /// Among how many equally likely tokens the other would have had to guess, on average.
    pub fn perplexity(&self) -> f64 {
        (self.surprise / self.followed.max(1) as f64).exp()
    }
}

fn log_sum(logits: &[f32]) -> f64 {
    let most = logits.iter().fold(f64::NEG_INFINITY, |most, x| most.max(f64::from(*x)));
    most + logits.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
}

/// Reads a text of its own, from the first token of `tokens`, and gives `take` the logits of every
/// position, [`Config::vocabulary`](crate::Config::vocabulary) values, with the token that follows.
///
/// ```
/// use ork_llm::{Decoder, Quality, Reference, read_text};
/// # use ork_weights::model::{gguf::Tensors, synth::Shape};
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
/// # let tensors = Tensors::open(file.path())?;
/// # let linears = Reference::f32(&tensors)?;
/// # let mut decoder = Decoder::new(tensors, Box::new(linears))?;
///
/// let mut quality = Quality::default();
/// read_text(&mut decoder, &[5, 6, 7, 8, 9], |logits, next| quality.add(logits, logits, next))?;
/// assert_eq!((quality.positions, quality.followed, quality.mean_kl()), (5, 4, 0.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`Decoder::forward`].
pub fn read_text(
    decoder: &mut Decoder,
    tokens: &[u32],
    mut take: impl FnMut(&[f32], Option<u32>),
) -> Result<()> {
    let vocabulary = decoder.config().vocabulary;
    let mut cache = decoder.cache(tokens.len());
    let mut following = tokens.iter().copied().skip(1);
    for block in tokens.chunks(BLOCK) {
        let logits = decoder.forward(&mut cache, block, block.len())?;
        logits.chunks_exact(vocabulary).for_each(|logits| take(logits, following.next()));
    }
    Ok(())
}
