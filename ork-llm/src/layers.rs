//! Linear layers on the NPU, and on the CPU where few rows do not pay: those of `ork-linear`.

use crate::linear::{LinearError, Linears, Product, Weight};
use ork_linear::Layers;

impl Linears for Layers {
    fn weight(&self, name: &str) -> Option<Weight> {
        let number = self.find(name)?;
        let (k, n) = self.shape(number)?;
        Some(Weight { id: u32::try_from(number).ok()?, k, n })
    }

    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError> {
        let products = products.iter_mut().map(|product| ork_linear::Product {
            weight: product.weight.id as usize,
            out: &mut *product.out,
        });
        Ok(Layers::multiply(self, rows, input, products)?)
    }

    fn expect(&mut self, rows: usize, groups: &[&[Weight]]) {
        // A weight of each tells it from the others.
        let firsts = groups.iter().filter_map(|group| group.first());
        self.route(rows, firsts.map(|weight| weight.id as usize));
    }

    fn next(&mut self, waiting: &[&[Weight]]) -> usize {
        self.next_ready(waiting.iter().map(|group| group.iter().map(|weight| weight.id as usize)))
    }
}
