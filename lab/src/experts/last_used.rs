//! The plainest guess: the same experts again.

use ork_cache::experts::Predictor;

/// The experts that the layer used for the last token.
#[derive(Debug, Default)]
pub(crate) struct LastUsed {
    last: Vec<Vec<u32>>,
}

impl Predictor for LastUsed {
    fn name(&self) -> &'static str {
        "last-used"
    }

    fn observe(&mut self, layer: u32, experts: &[u32]) {
        if self.last.len() <= layer as usize {
            self.last.resize_with(layer as usize + 1, Vec::new);
        }
        let last = &mut self.last[layer as usize];
        last.clear();
        last.extend(experts);
    }

    fn predict(&mut self, layer: u32, most: usize, out: &mut Vec<u32>) {
        if let Some(last) = self.last.get(layer as usize) {
            out.extend(last.iter().take(most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_s_experts_of_a_layer_are_guessed() {
        let mut last = LastUsed::default();
        last.observe(0, &[5, 9]);
        last.observe(1, &[2]);
        let mut guesses = Vec::new();
        last.predict(0, 8, &mut guesses);
        last.predict(2, 8, &mut guesses);
        assert_eq!(guesses, [5, 9]);
        last.predict(0, 1, &mut guesses);
        assert_eq!(guesses, [5, 9, 5]);
    }
}
