//! Guessing the experts of the next layer before its router has run.
//!
//! A guess is only ever loaded in time that nobody needs and into a slot that no use waits for; a
//! wrong one costs bandwidth.

use std::fmt;

/// Learns from routings as they happen and guesses the next.
pub trait Predictor: Send + fmt::Debug {
    /// Name for reports.
    fn name(&self) -> &'static str;

    /// A layer was routed to `experts`. Layers are observed in order, token by token.
    fn observe(&mut self, layer: u32, experts: &[u32]);

    /// Adds the `most` likeliest experts of `layer`, whose router has not run yet, to `out`: each
    /// once, likeliest first.
    fn predict(&mut self, layer: u32, most: usize, out: &mut Vec<u32>);
}

/// The experts that the layer used most, older uses counting less.
#[derive(Debug)]
pub struct Popularity {
    experts: usize,
    keep: f32,
    scores: Vec<Vec<f32>>,
    ranked: Vec<u32>,
}

impl Popularity {
    /// For layers of `experts` experts; each observation multiplies older ones by `keep` (0 to 1).
    pub fn new(experts: u32, keep: f32) -> Popularity {
        let keep = keep.clamp(0.0, 1.0);
        Popularity { experts: experts as usize, keep, scores: Vec::new(), ranked: Vec::new() }
    }

    fn layer(&mut self, layer: u32) -> &mut Vec<f32> {
        if self.scores.len() <= layer as usize {
            let experts = self.experts;
            self.scores.resize_with(layer as usize + 1, || vec![0.0; experts]);
        }
        &mut self.scores[layer as usize]
    }
}

impl Predictor for Popularity {
    fn name(&self) -> &'static str {
        "popularity"
    }

    fn observe(&mut self, layer: u32, experts: &[u32]) {
        let keep = self.keep;
        let scores = self.layer(layer);
        scores.iter_mut().for_each(|s| *s *= keep);
        for &expert in experts {
            if let Some(score) = scores.get_mut(expert as usize) {
                *score += 1.0;
            }
        }
    }

    fn predict(&mut self, layer: u32, most: usize, out: &mut Vec<u32>) {
        let mut ranked = std::mem::take(&mut self.ranked);
        rank(self.layer(layer), most, &mut ranked, out);
        self.ranked = ranked;
    }
}

/// What followed the experts of the layer before: a table of transitions learned as it runs, with
/// popularity where it knows nothing yet.
#[derive(Debug)]
pub struct Transition {
    experts: usize,
    keep: f32,
    /// For each layer, `[expert of the layer before][expert]`.
    tables: Vec<Vec<f32>>,
    popularity: Popularity,
    before: Vec<u32>,
    scores: Vec<f32>,
    ranked: Vec<u32>,
}

impl Transition {
    /// For layers of `experts` experts. A row of the table fades by `keep` whenever its expert is
    /// used. Takes `4 · layers · experts²` bytes.
    pub fn new(experts: u32, keep: f32) -> Transition {
        Transition {
            experts: experts as usize,
            keep: keep.clamp(0.0, 1.0),
            tables: Vec::new(),
            popularity: Popularity::new(experts, keep),
            before: Vec::new(),
            scores: vec![0.0; experts as usize],
            ranked: Vec::new(),
        }
    }
}

impl Predictor for Transition {
    fn name(&self) -> &'static str {
        "transition"
    }

    fn observe(&mut self, layer: u32, experts: &[u32]) {
        self.popularity.observe(layer, experts);
        let n = self.experts;
        if self.tables.len() <= layer as usize {
            self.tables.resize_with(layer as usize + 1, || vec![0.0; n * n]);
        }
        if layer > 0 {
            let table = &mut self.tables[layer as usize];
            for &from in &self.before {
                let row = table.get_mut(from as usize * n..(from as usize + 1) * n);
                for row in row.into_iter() {
                    row.iter_mut().for_each(|s| *s *= self.keep);
                    for &to in experts {
                        if let Some(score) = row.get_mut(to as usize) {
                            *score += 1.0;
                        }
                    }
                }
            }
        }
        self.before.clear();
        self.before.extend(experts);
    }

    fn predict(&mut self, layer: u32, most: usize, out: &mut Vec<u32>) {
        let n = self.experts;
        // Each row says how likely an expert follows; popularity breaks ties and fills what is new.
        let popular = self.popularity.layer(layer);
        let sum: f32 = popular.iter().sum::<f32>().max(1e-9);
        for (score, popular) in self.scores.iter_mut().zip(popular.iter()) {
            *score = popular / sum;
        }
        if let Some(table) = self.tables.get(layer as usize).filter(|_| layer > 0) {
            for &from in &self.before {
                let Some(row) = table.get(from as usize * n..(from as usize + 1) * n) else {
                    continue;
                };
                let sum: f32 = row.iter().sum();
                if sum > 0.0 {
                    for (score, s) in self.scores.iter_mut().zip(row) {
                        *score += s / sum;
                    }
                }
            }
        }
        let mut ranked = std::mem::take(&mut self.ranked);
        rank(&self.scores, most, &mut ranked, out);
        self.ranked = ranked;
    }
}

/// Adds the `most` places with the highest positive scores, highest first, the lower of equals.
fn rank(scores: &[f32], most: usize, ranked: &mut Vec<u32>, out: &mut Vec<u32>) {
    ranked.clear();
    ranked.extend((0..scores.len() as u32).filter(|&i| scores[i as usize] > 0.0));
    ranked.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
    out.extend(ranked.iter().take(most));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn guess(p: &mut dyn Predictor, layer: u32, most: usize) -> Vec<u32> {
        let mut out = Vec::new();
        p.predict(layer, most, &mut out);
        out
    }

    #[test]
    fn each_learns_what_it_says() {
        let mut popular = Popularity::new(4, 0.9);
        let mut transition = Transition::new(4, 0.9);
        // Layer 1 uses 3 after 0 and 2 after 1.
        for i in 0..20 {
            let (a, b) = if i % 3 == 0 { (0, 3) } else { (1, 2) };
            for p in [&mut popular as &mut dyn Predictor, &mut transition] {
                p.observe(0, &[a]);
                p.observe(1, &[b]);
            }
        }
        assert_eq!(guess(&mut popular, 1, 1), [2]);
        transition.observe(0, &[0]);
        assert_eq!(guess(&mut transition, 1, 1), [3]);
        transition.observe(0, &[1]);
        assert_eq!(guess(&mut transition, 1, 2), [2, 3]);
    }

    #[test]
    fn experts_outside_the_model_are_ignored() {
        for p in [&mut Popularity::new(2, 0.5) as &mut dyn Predictor, &mut Transition::new(2, 0.5)]
        {
            p.observe(0, &[7]);
            p.observe(1, &[7, 1]);
            assert_eq!(guess(p, 1, 9), [1]);
            assert!(guess(p, 5, 9).is_empty());
        }
    }
}
