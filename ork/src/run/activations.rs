//! Inputs and digests: the same on every machine, whatever the order of loads.

use rknpu::{Layout, Precision};
use xxhash_rust::xxh3::Xxh3Default;

/// Starts of consecutive weights' inputs lie this far apart, so that no two see the same rows.
const STRIDE: usize = 64;

/// Made-up activations: fixed noise, of which each weight takes its own piece.
#[derive(Debug)]
pub struct Activations {
    int8: Vec<i8>,
    /// The same in the range of int4.
    int4: Vec<i8>,
    rows: usize,
}

impl Activations {
    /// `rows` rows for each of these weights.
    pub fn new(rows: usize, layouts: &[Layout]) -> Activations {
        let values = |layout: &Layout| rows * layout.k() as usize;
        let most = layouts.iter().map(values).max().unwrap_or(0);
        let mut state = 0x6f72_6b5f_6e6f_6973;
        let int8: Vec<i8> = (0..most + STRIDE * layouts.len())
            .map(|_| (splitmix(&mut state) >> 56) as i8)
            .collect();
        let has_int4 = layouts.iter().any(|layout| layout.precision() == Precision::Int4);
        let int4 =
            if has_int4 { int8.iter().map(|value| value >> 4).collect() } else { Vec::new() };
        Activations { int8, int4, rows }
    }

    /// Row-major `[rows][K]` for weight number `index`.
    pub fn of(&self, index: usize, layout: &Layout) -> &[i8] {
        let from = STRIDE * index;
        let to = from + self.rows * layout.k() as usize;
        match layout.precision() {
            Precision::Int4 => &self.int4[from..to],
            Precision::Int8 | Precision::Fp16 => &self.int8[from..to],
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// XXH3-64 over results as little-endian bytes.
#[derive(Clone, Default)]
pub struct Digest(Xxh3Default);

impl Digest {
    /// Adds results.
    pub fn add(&mut self, results: &[i32]) {
        let mut bytes = [0u8; 4096];
        for chunk in results.chunks(bytes.len() / 4) {
            for (to, value) in bytes.chunks_exact_mut(4).zip(chunk) {
                to.copy_from_slice(&value.to_le_bytes());
            }
            self.0.update(&bytes[..chunk.len() * 4]);
        }
    }

    /// The digest so far.
    pub fn value(&self) -> u64 {
        self.0.digest()
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({:016x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_do_not_depend_on_pieces() {
        let values: Vec<i32> = (-5000..5000).collect();
        let (mut whole, mut pieces) = (Digest::default(), Digest::default());
        whole.add(&values);
        values.chunks(77).for_each(|piece| pieces.add(piece));
        assert_eq!(whole.value(), pieces.value());
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(whole.value(), xxhash_rust::xxh3::xxh3_64(&bytes));
    }

    #[test]
    fn int4_inputs_are_in_range() {
        let layouts = [
            Layout::new(64, 64, Precision::Int8).unwrap(),
            Layout::new(32, 64, Precision::Int4).unwrap(),
        ];
        let activations = Activations::new(3, &layouts);
        assert_eq!(activations.of(0, &layouts[0]).len(), 3 * 64);
        assert!(activations.of(1, &layouts[1]).iter().all(|v| (-8..8).contains(v)));
        assert_ne!(activations.of(0, &layouts[0])[..64], activations.of(1, &layouts[0])[..64]);
    }
}
