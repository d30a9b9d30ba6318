//! Made-up routings with the traits that real ones have: some experts are popular, tokens resemble
//! the one before, and layers depend on each other.

/// Parameters of made-up routings. The same seed gives the same routings.
///
/// ```
/// use ork::run::traffic::Traffic;
///
/// let traffic = Traffic {
///     layers: 2,
///     experts: 8,
///     active: 2,
///     zipf: 1.0,
///     stickiness: 0.2,
///     coupling: 0.2,
///     seed: 1,
/// };
/// assert_eq!(traffic.tokens(10), traffic.tokens(10));
/// ```
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
    ///
    /// ```
    /// # use ork::run::traffic::Traffic;
    /// # let traffic = Traffic {
    /// #     layers: 2, experts: 8, active: 2, zipf: 1.0, stickiness: 0.2, coupling: 0.2, seed: 1,
    /// # };
    /// let tokens = traffic.tokens(10);
    /// assert_eq!((tokens.len(), tokens[0].len(), tokens[0][0].len()), (10, 2, 2));
    /// ```
    pub fn tokens(&self, tokens: usize) -> Vec<Vec<Vec<u32>>> {
        self.stream().take(tokens).collect()
    }

    /// The same without end, token by token.
    ///
    /// ```
    /// use ork::run::traffic::Traffic;
    ///
    /// let traffic = Traffic::zipf(2, 8, 3, 1.0);
    /// let token = traffic.stream().next().ok_or("there is always one more")?;
    /// assert_eq!((token.len(), token[0].len()), (2, 3)); // layers, active experts
    /// # Ok::<(), &str>(())
    /// ```
    pub fn stream(&self) -> Tokens {
        let mut random = Random(self.seed);
        let n = self.experts as usize;
        let orders = (0..self.layers).map(|_| random.shuffled(n)).collect();
        let follows = (0..self.layers).map(|_| random.shuffled(n)).collect();
        let (mut sums, mut sum) = (Vec::with_capacity(n), 0.0);
        for i in 1..=n {
            sum += (i as f64).powf(-self.zipf);
            sums.push(sum);
        }
        let last = vec![Vec::new(); self.layers as usize];
        Tokens { traffic: *self, random, orders, follows, sums, last }
    }

    /// Routings in which tokens and layers do not depend on each other.
    pub fn zipf(layers: u32, experts: u32, active: u32, zipf: f64) -> Traffic {
        Traffic { layers, experts, active, zipf, stickiness: 0.0, coupling: 0.0, seed: 1 }
    }
}

/// Made-up routings, token by token: `[layer][active]`. See [`Traffic::stream`].
#[derive(Clone, Debug)]
pub struct Tokens {
    traffic: Traffic,
    random: Random,
    /// Experts of each layer, the most popular first.
    orders: Vec<Vec<u32>>,
    /// What follows each expert of the layer before.
    follows: Vec<Vec<u32>>,
    /// Sums of Zipf's law up to each rank.
    sums: Vec<f64>,
    last: Vec<Vec<u32>>,
}

impl Iterator for Tokens {
    type Item = Vec<Vec<u32>>;

    fn next(&mut self) -> Option<Self::Item> {
        let n = self.traffic.experts as usize;
        let active = self.traffic.active.min(self.traffic.experts) as usize;
        for layer in 0..self.last.len() {
            let mut chosen: Vec<u32> = Vec::with_capacity(active);
            for i in 0..active {
                let (again, coupled) = (self.random.unit(), self.random.unit());
                let sticky = again < self.traffic.stickiness;
                if let Some(&old) = self.last[layer].get(i).filter(|_| sticky)
                    && !chosen.contains(&old)
                {
                    chosen.push(old);
                    continue;
                }
                if layer > 0 && coupled < self.traffic.coupling {
                    let from = self.last[layer - 1][i];
                    let next = self.follows[layer][from as usize];
                    if !chosen.contains(&next) {
                        chosen.push(next);
                        continue;
                    }
                }
                let sum = self.sums.last().copied().unwrap_or(0.0);
                while chosen.len() == i {
                    let point = self.random.unit() * sum;
                    let at = self.sums.partition_point(|&s| s < point).min(n - 1);
                    let expert = self.orders[layer][at];
                    if !chosen.contains(&expert) {
                        chosen.push(expert);
                    }
                }
            }
            self.last[layer] = chosen;
        }
        Some(self.last.clone())
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_zipfs_law() {
        let tokens: Vec<_> = Traffic::zipf(1, 8, 1, 1.0).stream().take(20_000).collect();
        let mut count = [0u32; 8];
        tokens.iter().for_each(|token| count[token[0][0] as usize] += 1);
        count.sort_unstable_by(|a, b| b.cmp(a));
        let all: f64 = (1..=8).map(|rank| 1.0 / f64::from(rank)).sum();
        for (rank, count) in (1..).zip(count) {
            let want = 20_000.0 / f64::from(rank) / all;
            let off = (f64::from(count) - want).abs();
            assert!(off < 5.0 * want.sqrt(), "rank {rank}: {count} uses, {want:.0} expected");
        }
    }

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
