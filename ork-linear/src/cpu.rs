//! Products on the CPU.

use rayon::prelude::*;
use rknpu_sys::layout::Precision;

use crate::error::{Error, Result, length};
use crate::halves;
use crate::int8;
use crate::rows::QuantisedRows;
use crate::weight::TiledWeight;

/// Where the columns of a result go: into rows that may be wider than the weight, which is part of a
/// larger one then.
///
/// ```
/// use ork_linear::Output;
///
/// let mut out = [0.0; 2 * 96];
/// let second_third = Output { rows: &mut out, n: 96, column: 32 };
/// ```
#[derive(Debug)]
pub struct Output<'a> {
    /// Row-major `[M][N]`.
    pub rows: &'a mut [f32],
    /// N of all columns.
    pub n: usize,
    /// The first of those that are computed.
    pub column: usize,
}

impl Output<'_> {
    /// Refuses places that `m` rows of `n` columns do not have.
    fn check(&self, m: usize, n: usize) -> Result<()> {
        length("results", self.rows.len(), m.saturating_mul(self.n))?;
        match self.column.checked_add(n) {
            Some(end) if end <= self.n => Ok(()),
            end => {
                Err(Error::Length { what: "columns", got: self.n, want: end.unwrap_or(usize::MAX) })
            }
        }
    }

    /// A row's columns that a weight of `n` channels fills.
    pub(crate) fn row(&mut self, row: usize, n: usize) -> &mut [f32] {
        let start = row.saturating_mul(self.n).saturating_add(self.column);
        self.rows.get_mut(start..start.saturating_add(n)).unwrap_or_default()
    }
}

/// Multiplies on the CPU, on the threads of the current rayon pool.
///
/// The results are those of the NPU, bit for bit, and the same for every cut of a batch, every number
/// of threads and every processor. It keeps its memory from product to product.
///
/// ```
/// use ork_linear::{Cpu, Depth, Output, QuantisedRows, Transform, TiledWeight};
/// use rknpu_sys::layout::{Layout, Precision};
///
/// let layout = Layout::new(64, 32, Precision::Int8)?;
/// let tiles = vec![127; layout.bytes() as usize];
/// let weight = TiledWeight::new(layout, &tiles, &[1.0 / 127.0; 32], Transform::None)?; // of ones
/// let mut rows = QuantisedRows::new(Depth::Bits16);
/// rows.quantise(&[0.5; 64], 64, Transform::None)?;
///
/// let mut out = [0.0; 32];
/// Cpu::default().multiply(&weight, &rows, Output { rows: &mut out, n: 32, column: 0 })?;
/// assert!(out.iter().all(|sum| (sum - 32.0).abs() < 1e-4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Cpu {
    /// Results tile by tile: `[tile][M][channel]`.
    tiles: Vec<f32>,
}

/// Bytes of weights that a thread should have to read, at least.
const BYTES_PER_TASK: usize = 64 << 10;
/// Tasks for each thread: some are slower than others.
const TASKS_PER_THREAD: usize = 4;

impl Cpu {
    /// Multiplies `rows` by an int8 weight.
    ///
    /// # Errors
    /// [`Error::Precision`] for another weight; [`Error::Rows`] when the rows were prepared for another
    /// K or transform; [`Error::Length`] when the output has not a place for every result.
    pub fn multiply(
        &mut self,
        weight: &TiledWeight<'_>,
        rows: &QuantisedRows,
        out: Output<'_>,
    ) -> Result<()> {
        takes(weight, Precision::Int8)?;
        rows.are_for(weight.layout.k(), weight.transform())?;
        self.tiles(weight, rows.m(), out, |first, tiles| int8::tiles(weight, rows, first, tiles))
    }

    /// Multiplies `rows`, row-major `[M][K]`, by an fp16 weight: products and sums in f32, in an order
    /// that depends on K alone. K is that of the layout: rows of a padded weight have zeros behind them.
    ///
    /// # Errors
    /// As [`Cpu::multiply`].
    pub fn multiply_halves(
        &mut self,
        weight: &TiledWeight<'_>,
        rows: &[f32],
        out: Output<'_>,
    ) -> Result<()> {
        takes(weight, Precision::Fp16)?;
        let k = weight.layout.k() as usize;
        let m = rows.len() / k;
        length("rows", rows.len(), m * k)?;
        self.tiles(weight, m, out, |first, tiles| halves::tiles(weight, rows, first, tiles))
    }

    /// `fill` computes some tiles, `[tile][M][channel]`, from the one of a number on.
    fn tiles(
        &mut self,
        weight: &TiledWeight<'_>,
        m: usize,
        mut out: Output<'_>,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Result<()> {
        let (k, n) = (weight.layout.k() as usize, weight.layout.n() as usize);
        out.check(m, weight.channels)?;
        if m == 0 {
            return Ok(());
        }
        let width = weight.layout.precision().tile_width() as usize;
        let (count, threads) = (n / width, rayon::current_num_threads());
        let least = BYTES_PER_TASK.div_ceil(k * width);
        let each = count.div_ceil(threads * TASKS_PER_THREAD).max(least);
        // The columns of one row are its tiles, one after the other.
        let in_place = m == 1 && weight.channels == n;
        let results = match in_place {
            true => out.row(0, n),
            false => {
                self.tiles.resize(m * n, 0.0);
                &mut self.tiles
            }
        };
        let task = |(i, tiles): (usize, &mut [f32])| fill(i * each, tiles);
        let size = each * m * width;
        match each < count && threads > 1 {
            true => results.par_chunks_mut(size).enumerate().for_each(task),
            false => results.chunks_mut(size).enumerate().for_each(task),
        }
        if !in_place {
            for row in 0..m {
                let places = out.row(row, weight.channels).chunks_mut(width);
                for (place, tile) in places.zip(self.tiles.chunks_exact(m * width)) {
                    place.copy_from_slice(&tile[row * width..][..place.len()]);
                }
            }
        }
        Ok(())
    }
}

fn takes(weight: &TiledWeight<'_>, want: Precision) -> Result<()> {
    let got = weight.layout.precision();
    if got == want { Ok(()) } else { Err(Error::Precision { got, want }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::rows::{Depth, Transform};
    use ork_weights::dequant::TensorType;
    use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
    use ork_weights::reference;
    use proptest::prelude::*;
    use rknpu_sys::layout::Layout;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    /// A weight of noise, and the values it was made of.
    struct Made {
        tier: Tier,
        layout: Layout,
        tiles: Vec<u8>,
        scales: Vec<f32>,
        values: Vec<f32>,
    }

    impl Made {
        fn new(tier: Tier, k: u32, n: u32, seed: u64) -> Made {
            let values = Noise::new(seed).values((k * n) as usize);
            let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let layout = tier.layout(k, n).unwrap();
            let mut tiles = vec![0; layout.bytes() as usize];
            let mut scales = vec![0.0; tier.scales(k, n)];
            let rows = Rows::new(TensorType::F32, k, n, &raw).unwrap();
            quantise(&rows, &Recipe::new(tier), &mut tiles, &mut scales).unwrap();
            Made { tier, layout, tiles, scales, values }
        }

        fn weight(&self) -> TiledWeight<'_> {
            let transform = Transform::of(self.tier);
            TiledWeight::new(self.layout, &self.tiles, &self.scales, transform).unwrap()
        }

        fn multiply(&self, depth: Depth, input: &[f32]) -> Vec<f32> {
            let (k, n) = (self.layout.k(), self.layout.n() as usize);
            let mut out = vec![f32::NAN; input.len() / k as usize * n];
            let output = Output { rows: &mut out, n, column: 0 };
            if self.tier == Tier::Fp16 {
                Cpu::default().multiply_halves(&self.weight(), input, output).unwrap();
                return out;
            }
            let mut rows = QuantisedRows::new(depth);
            rows.quantise(input, k, Transform::of(self.tier)).unwrap();
            Cpu::default().multiply(&self.weight(), &rows, output).unwrap();
            out
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn tiers() -> impl Strategy<Value = Tier> {
        let rotated = Tier::RotatedInt8 { group: None };
        prop_oneof![Just(Tier::Int8), Just(rotated), Just(Tier::Nf4), Just(Tier::Fp16)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A row's results are the same alone, in any batch and on any number of threads.
        #[test]
        fn rows_do_not_meet(
            tier in tiers(), two: bool, k in 1u32..70, n in 1u32..9, m in 1usize..20, cut in 0usize..20,
            threads in 2usize..5, seed: u64,
        ) {
            let depth = if two { Depth::Bits16 } else { Depth::Bits8 };
            let made = Made::new(tier, k * 32, n * 32, seed);
            let input = Noise::new(!seed).values(m * k as usize * 32);
            let all = made.multiply(depth, &input);
            let (first, second) = input.split_at(cut.min(m) * k as usize * 32);
            let cut = [made.multiply(depth, first), made.multiply(depth, second)].concat();
            prop_assert_eq!(bits(&all), bits(&cut));
            let threaded = pool(threads).install(|| made.multiply(depth, &input));
            prop_assert_eq!(bits(&all), bits(&threaded));
        }

        /// The results are the exact sums of the codes, joined and scaled in this order.
        #[test]
        fn results_are_scaled_sums(two: bool, k in 1u32..40, m in 1usize..9, seed: u64) {
            let depth = if two { Depth::Bits16 } else { Depth::Bits8 };
            let (k, n) = (k * 32, 64);
            let made = Made::new(Tier::RotatedInt8 { group: None }, k, n as u32, seed);
            let input = Noise::new(!seed).values(m * k as usize);
            let mut rows = QuantisedRows::new(depth);
            rows.quantise(&input, k, Transform::Hadamard).unwrap();
            let mut sums = vec![0; rows.plane_rows() * n];
            reference::sums(&made.layout, &made.tiles, rows.codes(), &mut sums).unwrap();
            let got = made.multiply(depth, &input);
            for (row, sums) in sums.chunks(n * depth.planes()).enumerate() {
                for (channel, got) in got[row * n..][..n].iter().enumerate() {
                    let joined = match depth {
                        Depth::Bits8 => sums[channel] as f32,
                        Depth::Bits16 => sums[channel] as f32 * 256.0 + sums[n + channel] as f32,
                    };
                    let want = joined * made.scales[channel] * rows.scales()[row];
                    prop_assert_eq!(got.to_bits(), want.to_bits());
                }
            }
        }

        /// fp16 products are sums in eight lanes, one multiplication and one addition at a time.
        #[test]
        fn halves_are_added_in_this_order(k in 1u32..140, m in 1usize..12, seed: u64) {
            let (k, n) = (k as usize * 32, 32);
            let made = Made::new(Tier::Fp16, k as u32, n as u32, seed);
            let input = Noise::new(!seed).values(m * k);
            let got = made.multiply(Depth::Bits8, &input);
            for (row, got) in input.chunks(k).zip(got.chunks(n)) {
                for (channel, got) in made.values.chunks(k).zip(got) {
                    let mut lanes = [0f32; 8];
                    for (i, (x, w)) in row.iter().zip(channel).enumerate() {
                        lanes[i % 8] += x * half::f16::from_f32(*w).to_f32();
                    }
                    let [a, b, c, d, e, f, g, h] = lanes;
                    let want = ((a + e) + (c + g)) + ((b + f) + (d + h));
                    prop_assert_eq!(got.to_bits(), want.to_bits());
                }
            }
        }
    }

    /// Relative error against the floats: each form is as fine as it says.
    #[test]
    fn each_form_is_about_the_product() {
        let (k, n, m) = (1088usize, 64usize, 3usize);
        let rotated = Tier::RotatedInt8 { group: None };
        for (tier, depth, most) in [
            (Tier::Fp16, Depth::Bits8, 0.0005),
            (Tier::Int8, Depth::Bits16, 0.006),
            (rotated, Depth::Bits16, 0.008),
            (Tier::Int8, Depth::Bits8, 0.01),
            (rotated, Depth::Bits8, 0.012),
            (Tier::Nf4, Depth::Bits16, 0.15),
        ] {
            let made = Made::new(tier, k as u32, n as u32, 3);
            let input = Noise::new(4).values(m * k);
            let got = made.multiply(depth, &input);
            let (mut off, mut all) = (0.0, 0.0);
            for (i, got) in got.iter().enumerate() {
                let (row, channel) = (&input[i / n * k..][..k], &made.values[i % n * k..][..k]);
                let products = row.iter().zip(channel).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let exact: f64 = products.sum();
                off += (f64::from(*got) - exact).powi(2);
                all += exact * exact;
            }
            let error = (off / all).sqrt();
            assert!(error < most && error > 0.0, "{tier}, {depth} bits: {error}");
        }
    }

    #[test]
    fn columns_go_to_their_places_and_no_others() {
        let made = Made::new(Tier::Int8, 64, 64, 5);
        for m in [1, 3] {
            let input = Noise::new(6).values(m * 64);
            let want = made.multiply(Depth::Bits8, &input);
            let mut rows = QuantisedRows::new(Depth::Bits8);
            rows.quantise(&input, 64, Transform::None).unwrap();
            let mut out = vec![7.0; m * 200];
            let output = Output { rows: &mut out, n: 200, column: 100 };
            Cpu::default().multiply(&made.weight(), &rows, output).unwrap();
            for (row, want) in out.chunks(200).zip(want.chunks(64)) {
                assert_eq!(row[100..164], *want);
                assert!(row[..100].iter().chain(&row[164..]).all(|value| *value == 7.0));
            }
        }
    }

    #[test]
    fn rows_of_zeros_and_nan() {
        let made = Made::new(Tier::RotatedInt8 { group: None }, 64, 32, 8);
        for depth in [Depth::Bits8, Depth::Bits16] {
            let mut input = Noise::new(9).values(4 * 64);
            input[..64].fill(0.0);
            input[70] = f32::NAN;
            input[130] = f32::INFINITY;
            let out = made.multiply(depth, &input);
            assert!(out[..32].iter().all(|value| *value == 0.0));
            assert!(out[32..96].iter().all(|value| value.is_nan()));
            assert!(out[96..].iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let made = Made::new(Tier::Int8, 64, 32, 1);
        let halves = Made::new(Tier::Fp16, 64, 32, 1);
        let mut rows = QuantisedRows::new(Depth::Bits8);
        rows.quantise(&[1.0; 64], 64, Transform::None).unwrap();
        let mut cpu = Cpu::default();
        let mut out = [0.0; 64];
        let places = [(32, 32, 0), (64, 63, 0), (64, 64, 33), (64, 64, usize::MAX)];
        for (len, n, column) in places {
            let output = Output { rows: &mut out[..len], n, column };
            let fits = (len, n, column) == (32, 32, 0);
            assert_eq!(
                cpu.multiply(&made.weight(), &rows, output).is_ok(),
                fits,
                "{len} {n} {column}"
            );
        }
        fn output(out: &mut [f32; 64]) -> Output<'_> {
            Output { rows: &mut out[..32], n: 32, column: 0 }
        }
        let wrong = cpu.multiply(&halves.weight(), &rows, output(&mut out));
        assert!(matches!(wrong, Err(Error::Precision { .. })));
        let wrong = cpu.multiply_halves(&made.weight(), &[0.0; 64], output(&mut out));
        assert!(matches!(wrong, Err(Error::Precision { .. })));
        assert!(cpu.multiply_halves(&halves.weight(), &[0.0; 65], output(&mut out)).is_err());
        rows.quantise(&[1.0; 64], 64, Transform::Hadamard).unwrap();
        let wrong = cpu.multiply(&made.weight(), &rows, output(&mut out));
        assert!(matches!(wrong, Err(Error::Rows { .. })));
        rows.quantise(&[1.0; 32], 32, Transform::None).unwrap();
        let wrong = cpu.multiply(&made.weight(), &rows, output(&mut out));
        assert!(matches!(wrong, Err(Error::Rows { .. })));
    }
}
