//! Passes that an interrupt ends between two products: a long prompt takes minutes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ork_llm::{LinearError, Linears, Product, Weight};

/// Linear layers that compute until somebody asks them to end.
pub(super) struct Interruptible {
    linears: Box<dyn Linears>,
    asked: Arc<AtomicBool>,
}

/// Why a product was not computed.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

impl Interruptible {
    pub(super) fn new(linears: Box<dyn Linears>, asked: &Arc<AtomicBool>) -> Interruptible {
        Interruptible { linears, asked: asked.clone() }
    }
}

/// Whether a text ended because somebody asked for it.
pub(super) fn is_interrupt(error: &ork_llm::Error) -> bool {
    matches!(error, ork_llm::Error::Linear { source, .. } if source.is::<Interrupted>())
}

impl Linears for Interruptible {
    fn weight(&self, name: &str) -> Option<Weight> {
        self.linears.weight(name)
    }

    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError> {
        match self.asked.load(Ordering::Relaxed) {
            true => Err(Box::new(Interrupted)),
            false => self.linears.multiply(rows, input, products),
        }
    }

    fn expect(&mut self, rows: usize, groups: &[&[Weight]]) {
        self.linears.expect(rows, groups);
    }

    fn next(&mut self, waiting: &[&[Weight]]) -> usize {
        self.linears.next(waiting)
    }
}
