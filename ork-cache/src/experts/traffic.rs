//! Made-up routings with the traits that real ones have: some experts are popular, tokens resemble
//! the one before, and layers depend on each other.

/// Parameters of made-up routings. The same seed gives the same routings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Layers.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a token goes to.
    pub active: u32,
    /// Exponent of Zipf's law: the i-th most popular expert is used in proportion to `i^-zipf`.
    /// Which expert is how popular differs from layer to layer.
    pub zipf: f64,
    /// Probability that an expert of the last token is used again by the next one.
    pub stickiness: f64,
    /// Probability that an expert is the one that follows an expert of the layer before.
    pub coupling: f64,
    /// Seed.
    pub seed: u64,
}

impl Traffic {
    /// Routings of `tokens` tokens: `[token][layer][active]`, experts of one layer distinct.
    pub fn tokens(&self, tokens: usize) -> Vec<Vec<Vec<u32>>> {
        let mut random = Random(self.seed);
        let n = self.experts as usize;
        let orders: Vec<Vec<u32>> = (0..self.layers).map(|_| random.shuffled(n)).collect();
        let follows: Vec<Vec<u32>> = (0..self.layers).map(|_| random.shuffled(n)).collect();
        let mut sums = Vec::with_capacity(n);
        let mut sum = 0.0;
        for i in 1..=n {
            sum += (i as f64).powf(-self.zipf);
            sums.push(sum);
        }
        let active = self.active.min(self.experts) as usize;
        let mut last: Vec<Vec<u32>> = vec![Vec::new(); self.layers as usize];
        (0..tokens)
            .map(|_| {
                for layer in 0..self.layers as usize {
                    let mut chosen: Vec<u32> = Vec::with_capacity(active);
                    for i in 0..active {
                        let (again, coupled) = (random.unit(), random.unit());
                        if let Some(&old) = last[layer].get(i).filter(|_| again < self.stickiness)
                            && !chosen.contains(&old)
                        {
                            chosen.push(old);
                            continue;
                        }
                        if layer > 0 && coupled < self.coupling {
                            let from = last[layer - 1][i];
                            let next = follows[layer][from as usize];
                            if !chosen.contains(&next) {
                                chosen.push(next);
                                continue;
                            }
                        }
                        while chosen.len() == i {
                            let at = sums.partition_point(|&s| s < random.unit() * sum).min(n - 1);
                            let expert = orders[layer][at];
                            if !chosen.contains(&expert) {
                                chosen.push(expert);
                            }
                        }
                    }
                    last[layer] = chosen;
                }
                last.clone()
            })
            .collect()
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut list: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            list.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
        list
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn routings_are_distinct_repeatable_and_as_skewed_as_asked() {
        let traffic = Traffic {
            layers: 3,
            experts: 16,
            active: 4,
            zipf: 1.0,
            stickiness: 0.3,
            coupling: 0.3,
            seed: 7,
        };
        let tokens = traffic.tokens(300);
        assert_eq!(tokens, traffic.tokens(300));
        let mut count = [0u32; 16];
        for token in &tokens {
            for layer in token {
                let mut sorted = layer.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), 4);
            }
            token[0].iter().for_each(|&e| count[e as usize] += 1);
        }
        count.sort_unstable();
        assert!(count[15] > 3 * count[4], "{count:?}");
    }
}
