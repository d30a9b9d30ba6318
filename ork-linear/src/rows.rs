//! Rows of activations as int8 planes.

use std::fmt;
use std::str::FromStr;

use ork_weights::quantise::{Tier, rotate};
use rayon::prelude::*;

use crate::error::{Error, Result, length};
use crate::kernel::{self, Isa, RUN, Work};

/// How finely a row of activations is quantised.
///
/// A plane is a row of int8 codes. Both planes of a row are rows of the same int8 product, so that
/// weights are read once for both, and sums stay exact.
///
/// ```
/// use ork_linear::Depth;
///
/// assert_eq!("8".parse(), Ok(Depth::Bits8));
/// assert_eq!((Depth::Bits8.planes(), Depth::Bits16.planes()), (1, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Depth {
    /// One plane: x ≈ s · c.
    Bits8,
    /// Two planes: x ≈ s · (256 · high + low).
    Bits16,
}

impl Depth {
    /// Int8 rows that a row becomes.
    pub const fn planes(self) -> usize {
        match self {
            Depth::Bits8 => 1,
            Depth::Bits16 => 2,
        }
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Depth::Bits8 => "8",
            Depth::Bits16 => "16",
        })
    }
}

/// A text that names no [`Depth`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no depth of activations: 8 or 16")]
pub struct ParseDepthError(Box<str>);

impl FromStr for Depth {
    type Err = ParseDepthError;

    fn from_str(text: &str) -> Result<Depth, ParseDepthError> {
        match text {
            "8" => Ok(Depth::Bits8),
            "16" => Ok(Depth::Bits16),
            _ => Err(ParseDepthError(text.into())),
        }
    }
}

/// What was done to each channel of a weight before it was quantised, and must be done to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Nothing.
    None,
    /// The Hadamard transform of [`rotate`], which spreads outliers over a block.
    Hadamard,
}

impl Transform {
    /// The transform of a tier.
    ///
    /// ```
    /// use ork_linear::Transform;
    /// use ork_weights::quantise::Tier;
    ///
    /// assert_eq!(Transform::of(Tier::Int8), Transform::None);
    /// assert_eq!(Transform::of(Tier::RotatedInt8 { group: None }), Transform::Hadamard);
    /// ```
    pub const fn of(tier: Tier) -> Transform {
        if tier.is_rotated() { Transform::Hadamard } else { Transform::None }
    }
}

impl fmt::Display for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transform::None => "none",
            Transform::Hadamard => "Hadamard",
        })
    }
}

/// Rows of activations, quantised: what the products of a list share.
///
/// A row is scaled by its largest magnitude, after the transform. The codes depend on the row alone,
/// not on the rows beside it nor on the processor. Zeros give zeros. A row that holds NaN or an
/// infinity gives a row of NaN. Rows whose magnitudes are near the ends of f32 are quantised as well
/// as others; their results may overflow to infinity or be subnormal, as those of f32 may.
///
/// It keeps its memory from batch to batch.
///
/// ```
/// use ork_linear::{Depth, QuantisedRows, Transform};
///
/// let mut rows = QuantisedRows::new(Depth::Bits16);
/// let mut row = [0f32; 32];
/// (row[0], row[1]) = (1.0, -0.5);
/// rows.quantise(&row, 32, Transform::None)?;
/// assert_eq!((rows.m(), rows.plane_rows()), (1, 2));
/// let (high, low) = rows.codes().split_at(32);
/// assert_eq!((high[0], low[0]), (127, 127)); // 256 · 127 + 127 = 32639 stands for 1
/// assert_eq!((high[1], low[1]), (-64, 64)); // −16320
/// # Ok::<(), ork_linear::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuantisedRows {
    depth: Depth,
    transform: Transform,
    k: u32,
    codes: Vec<i8>,
    row_sums: Vec<i32>,
    scales: Vec<f32>,
    /// The rows, transformed.
    values: Vec<f32>,
}

/// A row's values, its codes, their sums, its scale.
type Row<'a> = (((&'a mut [f32], &'a mut [i8]), &'a mut [i32]), &'a mut f32);

/// Values that a thread should have to do.
const VALUES_PER_TASK: usize = 1 << 14;

impl QuantisedRows {
    /// No rows yet.
    pub fn new(depth: Depth) -> QuantisedRows {
        QuantisedRows {
            depth,
            transform: Transform::None,
            k: 0,
            codes: Vec::new(),
            row_sums: Vec::new(),
            scales: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Takes `rows`, row-major `[M][K]`, instead of what was there; M is what the length gives. On the
    /// threads of the current rayon pool, where there is enough to do. A K that is no multiple of 32 is
    /// rounded up to one, and rows get zeros, as weights do.
    ///
    /// # Errors
    /// [`Error::Length`] when K is 0 or within a run of 2^32, or `rows` are not whole; nothing changed then.
    pub fn quantise(&mut self, rows: &[f32], k: u32, transform: Transform) -> Result<()> {
        let inputs = k as usize;
        let wide = k.checked_next_multiple_of(RUN as u32).filter(|_| k > 0);
        let wrong = Error::Length { what: "inputs of a row", got: inputs, want: RUN };
        let wide = wide.ok_or(wrong)?;
        let m = rows.len() / inputs;
        length("rows", rows.len(), m * inputs)?;
        let (width, planes) = (wide as usize, self.depth.planes());
        (self.k, self.transform) = (wide, transform);
        self.codes.resize(m * planes * width, 0);
        self.row_sums.resize(m * planes, 0);
        self.scales.resize(m, 0.0);
        self.values.clear();
        pad(rows, inputs, width, &mut self.values);

        let depth = self.depth;
        let each = (VALUES_PER_TASK / width).max(1);
        let row = |(((values, codes), sums), scale): Row<'_>| {
            *scale = quantise_row(values, transform, depth, codes);
            for (sum, plane) in sums.iter_mut().zip(codes.chunks_exact(width)) {
                *sum = kernel::dispatch(SumOf(plane));
            }
        };
        // One task would still go to another thread, and this one would wait for it.
        if m <= each {
            let codes = self.codes.chunks_mut(planes * width);
            let rows = self.values.chunks_mut(width).zip(codes);
            rows.zip(self.row_sums.chunks_mut(planes)).zip(&mut self.scales).for_each(row);
        } else {
            let codes = self.codes.par_chunks_mut(planes * width);
            let rows = self.values.par_chunks_mut(width).with_min_len(each).zip(codes);
            rows.zip(self.row_sums.par_chunks_mut(planes)).zip(&mut self.scales).for_each(row);
        }
        Ok(())
    }

    /// Rows.
    pub fn m(&self) -> usize {
        self.scales.len()
    }

    /// Inputs of each, padding included.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// How finely they are quantised.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// How they were transformed.
    pub fn transform(&self) -> Transform {
        self.transform
    }

    /// Rows of codes: a row's planes follow each other, the high one first.
    pub fn plane_rows(&self) -> usize {
        self.row_sums.len()
    }

    /// The codes, row-major `[M · planes][K]`.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// What a step of a row's lowest plane stands for.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The sum of each plane row's codes.
    pub(crate) fn row_sums(&self) -> &[i32] {
        &self.row_sums
    }

    /// Refuses a weight that these rows are not for.
    pub(crate) fn are_for(&self, k: u32, transform: Transform) -> Result<()> {
        if (self.k, self.transform) == (k, transform) {
            return Ok(());
        }
        let (rows_k, rows_transform) = (self.k, self.transform);
        Err(Error::Rows { rows_k, rows_transform, k, transform })
    }
}

/// Appends rows of `inputs` values to `out`, with zeros up to `width`.
pub(crate) fn pad(rows: &[f32], inputs: usize, width: usize, out: &mut Vec<f32>) {
    if inputs == width {
        out.extend_from_slice(rows);
        return;
    }
    out.reserve(rows.len() / inputs * width);
    for row in rows.chunks_exact(inputs) {
        out.extend_from_slice(row);
        out.resize(out.len() + width - inputs, 0.0);
    }
}

/// Magnitudes beyond this, or below its reciprocal, are brought nearer to one first: neither the sums
/// of the transform nor the reciprocal of a scale then leave the range of f32.
const FAR: f32 = (1u128 << 64) as f32;

/// Largest code of both planes together.
const MOST: f32 = 127.0 * 257.0;

/// 1.5 × 2²³: adding it rounds to the nearest whole number, ties to even, whose two's complement then
/// are the low bits of the sum.
const ROUNDER: f32 = 12_582_912.0;

/// Transforms `values` and writes their codes, plane by plane; gives the scale.
fn quantise_row(values: &mut [f32], transform: Transform, depth: Depth, codes: &mut [i8]) -> f32 {
    let most = kernel::dispatch(Absmax(values));
    if !most.is_finite() {
        codes.fill(0);
        return f32::NAN;
    }
    let by = match most {
        most if most >= FAR => 1.0 / FAR,
        most if most <= 1.0 / FAR => FAR,
        _ => 1.0,
    };
    if by != 1.0 {
        values.iter_mut().for_each(|value| *value *= by);
    }
    if transform == Transform::Hadamard {
        rotate(values);
    }
    let most = kernel::dispatch(Absmax(values));
    if most == 0.0 {
        codes.fill(0);
        return 0.0;
    }
    // Dividing by a power of two is exact.
    match depth {
        Depth::Bits8 => {
            kernel::dispatch(Codes { values, per_step: 127.0 / most, codes });
            most / 127.0 / by
        }
        Depth::Bits16 => {
            let (high, low) = codes.split_at_mut(values.len());
            kernel::dispatch(TwoPlanes { values, per_step: MOST / most, high, low });
            most / MOST / by
        }
    }
}

/// The largest magnitude, or something that is not finite.
struct Absmax<'a>(&'a [f32]);

impl Work for Absmax<'_> {
    type Output = f32;

    #[inline(always)]
    fn run(self, _: impl Isa) -> f32 {
        // Magnitudes order like their bits, and NaN and infinity come above all finite ones.
        let most =
            self.0.iter().fold(0, |most: u32, value| most.max(value.to_bits() & 0x7fff_ffff));
        f32::from_bits(most)
    }
}

struct SumOf<'a>(&'a [i8]);

impl Work for SumOf<'_> {
    type Output = i32;

    #[inline(always)]
    fn run(self, _: impl Isa) -> i32 {
        self.0.iter().fold(0, |sum, code| sum + i32::from(*code))
    }
}

/// The nearest whole number of steps. No clamp is needed: the largest rounds to 127.
struct Codes<'a> {
    values: &'a [f32],
    per_step: f32,
    codes: &'a mut [i8],
}

impl Work for Codes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Isa) {
        for (code, value) in self.codes.iter_mut().zip(self.values) {
            *code = (value * self.per_step + ROUNDER).to_bits() as i8;
        }
    }
}

/// The nearest whole number of steps, as 256 · high + low with low from −128 to 127.
struct TwoPlanes<'a> {
    values: &'a [f32],
    per_step: f32,
    high: &'a mut [i8],
    low: &'a mut [i8],
}

impl Work for TwoPlanes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Isa) {
        for ((high, low), value) in self.high.iter_mut().zip(self.low).zip(self.values) {
            let steps = (value * self.per_step + ROUNDER).to_bits() as i16;
            *low = steps as i8;
            *high = (steps.wrapping_sub(i16::from(*low)) >> 8) as i8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use proptest::prelude::*;

    /// By the rule, in f64, one value at a time.
    fn naive(row: &[f32], transform: Transform, depth: Depth) -> (f64, Vec<i64>) {
        let mut row = row.to_vec();
        if transform == Transform::Hadamard {
            rotate(&mut row);
        }
        let most = row.iter().fold(0f64, |most, v| most.max(f64::from(v.abs())));
        let steps = if depth == Depth::Bits8 { 127.0 } else { 32639.0 };
        (most / steps, row.iter().map(|v| (f64::from(*v) / most * steps).round() as i64).collect())
    }

    fn depths() -> impl Strategy<Value = Depth> {
        prop_oneof![Just(Depth::Bits8), Just(Depth::Bits16)]
    }

    fn transforms() -> impl Strategy<Value = Transform> {
        prop_oneof![Just(Transform::None), Just(Transform::Hadamard)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn codes_stand_for_the_values(
            depth in depths(), transform in transforms(), k in 1u32..40, m in 1usize..4,
            seed: u64, exponent in -60i32..60,
        ) {
            let k = k * 32;
            let by = 2f32.powi(exponent);
            let values: Vec<f32> =
                Noise::new(seed).values(m * k as usize).into_iter().map(|v| v * by).collect();
            let mut rows = QuantisedRows::new(depth);
            rows.quantise(&values, k, transform).unwrap();
            prop_assert_eq!((rows.m(), rows.plane_rows()), (m, m * depth.planes()));
            let planes = rows.codes().chunks(k as usize * depth.planes());
            for ((row, planes), scale) in values.chunks(k as usize).zip(planes).zip(rows.scales()) {
                let (want_scale, want) = naive(row, transform, depth);
                prop_assert!((f64::from(*scale) / want_scale - 1.0).abs() < 1e-6);
                for (i, want) in want.into_iter().enumerate() {
                    let got = match depth {
                        Depth::Bits8 => i64::from(planes[i]),
                        Depth::Bits16 =>
                            256 * i64::from(planes[i]) + i64::from(planes[k as usize + i]),
                    };
                    // A tie may fall to either side.
                    prop_assert!((got - want).abs() <= 1, "{} {}", got, want);
                    let most = if depth == Depth::Bits8 { 127 } else { 32639 };
                    prop_assert!(got.abs() <= most);
                }
            }
            let sums: Vec<i32> = rows.codes().chunks(k as usize)
                .map(|plane| plane.iter().map(|code| i32::from(*code)).sum()).collect();
            prop_assert_eq!(rows.row_sums(), sums);
        }

        /// Whatever a row holds: finite rows have finite codes, others are NaN, and no row changes
        /// another's codes.
        #[test]
        fn any_bits_are_rows(
            depth in depths(), transform in transforms(),
            bits in prop::collection::vec(any::<u32>(), 3 * 64), finite: bool,
        ) {
            let value = |bits: u32| match f32::from_bits(bits) {
                value if finite && !value.is_finite() => 1.0,
                value => value,
            };
            let values: Vec<f32> = bits.into_iter().map(value).collect();
            let mut rows = QuantisedRows::new(depth);
            rows.quantise(&values, 64, transform).unwrap();
            let mut alone = QuantisedRows::new(depth);
            for (m, row) in values.chunks(64).enumerate() {
                let all_finite = row.iter().all(|value| value.is_finite());
                prop_assert_eq!(rows.scales()[m].is_finite(), all_finite);
                alone.quantise(row, 64, transform).unwrap();
                let width = 64 * depth.planes();
                prop_assert_eq!(alone.codes(), &rows.codes()[m * width..][..width]);
                prop_assert_eq!(alone.scales()[0].to_bits(), rows.scales()[m].to_bits());
            }
        }
    }

    /// All that is done to a row beside the transform.
    struct Everything<'a>(&'a [f32]);

    impl Work for Everything<'_> {
        type Output = (u32, i32, Vec<i8>, Vec<i8>, Vec<i8>);

        #[inline(always)]
        fn run(self, isa: impl Isa) -> Self::Output {
            let values = self.0;
            let new = || vec![0; values.len()];
            let (mut codes, mut high, mut low) = (new(), new(), new());
            let most = Absmax(values).run(isa);
            Codes { values, per_step: 127.0 / most, codes: &mut codes }.run(isa);
            let per_step = MOST / most;
            TwoPlanes { values, per_step, high: &mut high, low: &mut low }.run(isa);
            (most.to_bits(), SumOf(&codes).run(isa), codes, high, low)
        }
    }

    #[test]
    fn all_processors_quantise_alike() {
        let values = Noise::new(7).values(4096 + 32);
        let all = kernel::each(|| Everything(&values));
        for (name, got) in &all {
            assert_eq!(*got, all[0].1, "{name}");
        }
    }

    #[test]
    fn zeros_huge_and_tiny_rows() {
        for depth in [Depth::Bits8, Depth::Bits16] {
            for transform in [Transform::None, Transform::Hadamard] {
                let mut rows = QuantisedRows::new(depth);
                rows.quantise(&[0.0; 64], 32, transform).unwrap();
                assert_eq!(rows.scales(), [0.0, 0.0]);
                assert!(rows.codes().iter().all(|code| *code == 0));
                for size in [f32::MAX, 1e30, 1.0, 1e-30, 1e-42, f32::from_bits(1)] {
                    let row: Vec<f32> =
                        (0..32).map(|i| if i % 3 == 0 { size } else { -size }).collect();
                    rows.quantise(&row, 32, transform).unwrap();
                    assert!(rows.codes().contains(&127) || rows.codes().contains(&-127));
                    assert!(rows.scales()[0].is_finite(), "{size}");
                }
                let one = [1.0; 32];
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut batch = [one, one].concat();
                    batch[5] = bad;
                    rows.quantise(&batch, 32, transform).unwrap();
                    assert!(rows.scales()[0].is_nan() && rows.scales()[1].is_finite());
                }
            }
        }
    }

    #[test]
    fn lengths_must_fit() {
        let mut rows = QuantisedRows::new(Depth::Bits8);
        for (len, k) in [(33, 32), (40, 32), (0, 0), (31, 32)] {
            let error = rows.quantise(&vec![0.0; len], k, Transform::None);
            assert!(matches!(error, Err(Error::Length { .. })), "{len} {k}");
        }
        rows.quantise(&[], 32, Transform::None).unwrap();
        assert_eq!(rows.m(), 0);
    }
}
