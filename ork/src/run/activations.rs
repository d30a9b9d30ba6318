//! Inputs and digests: the same on every machine, whatever the order of loads.

use rknpu::matmul::{Element, Int4, Int8, Rows};
use rknpu::{Host, Layout, Precision};

/// Inputs made with one number of noise.
const WORD: u32 = 8;

/// Made-up activations: noise that depends on weight, row and column only, so that it can be made
/// where the NPU reads it.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// Number of the weight.
    pub weight: usize,
    /// First row.
    pub row: usize,
}

/// Element types in which noise can be made.
pub trait Noisy: Element<Output = i32> {
    /// Writes the inputs from an even column `first` on as they are stored.
    fn store(noise: impl Iterator<Item = i8>, out: &mut [Self::Stored]);
}

impl Noisy for Int8 {
    fn store(noise: impl Iterator<Item = i8>, out: &mut [i8]) {
        out.iter_mut().zip(noise).for_each(|(to, value)| *to = value);
    }
}

impl Noisy for Int4 {
    fn store(noise: impl Iterator<Item = i8>, out: &mut [u8]) {
        let mut noise = noise.map(|value| value >> 4);
        for to in out {
            let (Some(low), Some(high)) = (noise.next(), noise.next()) else { return };
            *to = low as u8 & 0xf | (high as u8) << 4;
        }
    }
}

impl Noise {
    /// Makes the inputs of all `rows` in place.
    ///
    /// # Errors
    /// None: every row is one of theirs.
    pub fn write<E: Noisy>(self, rows: &mut Rows<E, Host>) -> rknpu::Result<()> {
        for row in 0..rows.m() {
            for (inputs, run) in rows.row_mut(row)? {
                E::store(self.values(row, inputs.start), run);
            }
        }
        Ok(())
    }

    /// The same on the CPU: row-major `[rows][K]`.
    pub fn values_of(self, rows: usize, layout: &Layout) -> Vec<i8> {
        let int4 = layout.precision() == Precision::Int4;
        let value = |value: i8| if int4 { value >> 4 } else { value };
        (0..rows).flat_map(|row| self.values(row, 0).take(layout.k() as usize).map(value)).collect()
    }

    /// The inputs of a row from column `first` on, a multiple of [`WORD`].
    fn values(self, row: usize, first: u32) -> impl Iterator<Item = i8> {
        let row = mix((self.weight as u64) << 32 | (self.row + row) as u64);
        let words = (u64::from(first / WORD)..).map(move |word| mix(row.wrapping_add(word)));
        words.flat_map(|word| word.to_le_bytes().map(|byte| byte as i8))
    }
}

/// The finaliser of SplitMix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A digest of results that are read where they lie, in whatever pieces and order: a sum over weights
/// of sums over places and values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Digest {
    value: u64,
    /// Of the weight at hand.
    sum: u64,
}

impl Digest {
    /// Adds results of neighbouring columns, the first at place `at` of the weight's `[M][N]`.
    pub fn add(&mut self, at: u64, results: &[i32]) {
        let term = |(at, value): (u64, &i32)| {
            let term = (at << 32 | u64::from(*value as u32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (term ^ term >> 32).wrapping_mul(0x94d0_49bb_1331_11eb)
        };
        let terms = (at..).zip(results).map(term);
        self.sum = self.sum.wrapping_add(terms.fold(0, u64::wrapping_add));
    }

    /// Ends weight number `weight`.
    pub fn end_weight(&mut self, weight: usize) {
        self.value = self.value.wrapping_add(mix(mix(self.sum) ^ weight as u64));
        self.sum = 0;
    }

    /// The digest of `times` as many passes with the same results.
    pub fn repeated(&self, times: u32) -> u64 {
        self.value.wrapping_mul(times.into())
    }

    /// The digest of all weights ended so far.
    pub fn value(&self) -> u64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rknpu::{Device, Matmul, MatmulLimits};

    #[test]
    fn digests_depend_on_values_and_places_not_on_pieces() {
        let values: Vec<i32> = (-5000..5000).collect();
        let digest = |pieces: &[(u64, &[i32])]| {
            let mut digest = Digest::default();
            pieces.iter().for_each(|(at, values)| digest.add(*at, values));
            digest.end_weight(0);
            digest.value()
        };
        let whole = digest(&[(0, &values)]);
        assert_eq!(digest(&[(77, &values[77..]), (0, &values[..77])]), whole);
        let mut other = values.clone();
        other.swap(3, 4);
        assert_ne!(digest(&[(0, &other)]), whole);
        other = values.clone();
        other[9999] ^= 1 << 31;
        assert_ne!(digest(&[(0, &other)]), whole);
        assert_ne!(digest(&[(1, &values)]), whole);
        // Which weight a result is of counts, the order in which they came does not.
        let two = |results: [(usize, i32); 2]| {
            let mut digest = Digest::default();
            for (weight, value) in results {
                digest.add(0, &[value]);
                digest.end_weight(weight);
            }
            digest.value()
        };
        assert_eq!(two([(0, 1), (1, 2)]), two([(1, 2), (0, 1)]));
        assert_ne!(two([(0, 1), (1, 2)]), two([(0, 2), (1, 1)]));
    }

    #[test]
    fn noise_in_device_memory_is_that_of_the_cpu() {
        let device = Device::simulated(Default::default()).unwrap();
        let (domain, cores) = (device.domain(0).unwrap(), device.cores().unwrap());
        let limits = MatmulLimits { rows: 3, k: 1056, n: 64 };
        let noise = Noise { weight: 5, row: 2 };

        let int8 = Matmul::int8(&domain, &cores, limits).unwrap();
        let mut rows = int8.activations().lease(3, 1056).unwrap();
        noise.write(&mut rows).unwrap();
        let layout = Layout::new(1056, 32, Precision::Int8).unwrap();
        let want = noise.values_of(3, &layout);
        for (row, want) in want.chunks(1056).enumerate() {
            let mut got = Vec::new();
            rows.row_mut(row).unwrap().for_each(|(_, run)| got.extend_from_slice(run));
            assert_eq!(got, want);
        }
        // A block of later rows is what it is in all of them.
        let later = Noise { weight: 5, row: 3 };
        assert_eq!(later.values_of(2, &layout), want[1056..]);
        assert_ne!(Noise { weight: 6, row: 2 }.values_of(3, &layout), want);

        let int4 = Matmul::int4(&domain, &cores, limits).unwrap();
        let mut rows = int4.activations().lease(3, 1056).unwrap();
        noise.write(&mut rows).unwrap();
        let want = noise.values_of(3, &Layout::new(1056, 64, Precision::Int4).unwrap());
        assert!(want.iter().all(|value| (-8..8).contains(value)));
        let sign = |nibble: u8| ((nibble << 4) as i8) >> 4;
        for (row, want) in want.chunks(1056).enumerate() {
            let mut got = Vec::new();
            rows.row_mut(row).unwrap().for_each(|(_, run)| {
                got.extend(run.iter().flat_map(|byte| [sign(byte & 15), sign(byte >> 4)]));
            });
            assert_eq!(got, want);
        }
    }
}
