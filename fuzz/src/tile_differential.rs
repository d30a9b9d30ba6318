//! Tiling and int8 quantising against the layout's formula and the rule as written.

use arbitrary::{Arbitrary, Unstructured};
use ork_weights::dequant::TensorType;
use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
use ork_weights::tile::{rows_bytes, tile, untile};
use rknpu_sys::layout::{Layout, Precision};

#[derive(Arbitrary, Debug)]
struct Case {
    precision: u8,
    k: u8,
    n: u8,
    /// Repeated as often as the matrix needs.
    content: Vec<u8>,
}

/// A shape and some bytes: every element must lie where the formula puts it, and the way back must
/// lead back; as f32 they must quantise to the rule's codes, or be refused for what is not finite.
pub fn tile_differential(data: &[u8]) {
    let Ok(case) = Case::arbitrary(&mut Unstructured::new(data)) else { return };
    if case.content.is_empty() {
        return;
    }
    let precision =
        [Precision::Int8, Precision::Fp16, Precision::Int4][usize::from(case.precision % 3)];
    let k = (u32::from(case.k) + 1) * 32;
    let n = (u32::from(case.n % 3) + 1) * precision.tile_width();
    let layout = Layout::new(k, n, precision).expect("multiples of what must divide them");
    let content = |bytes: u64| -> Vec<u8> {
        // The step keeps rows of a power of two from being equal.
        (0..bytes as usize).map(|i| case.content[(i + i / 97) % case.content.len()]).collect()
    };

    let rows = content(rows_bytes(&layout));
    let mut tiled = vec![0x55; layout.bytes() as usize];
    tile(&layout, &rows, &mut tiled).expect("buffers of the layout's sizes");
    assert_eq!(tiled, placed(&layout, |k, n| element(&layout, &rows, k, n)));
    let mut back = vec![0; rows.len()];
    untile(&layout, &tiled, &mut back).expect("buffers of the layout's sizes");
    assert_eq!(back, rows);

    if precision == Precision::Int8 {
        quantised(&layout, &content(u64::from(k) * u64::from(n) * 4));
    }
}

/// Element (k, n) of a row-major matrix.
fn element(layout: &Layout, rows: &[u8], k: u32, n: u32) -> u16 {
    let at = n as usize * layout.k() as usize + k as usize;
    match layout.precision() {
        Precision::Int4 => u16::from(rows[at / 2] >> (at % 2 * 4) & 15),
        Precision::Int8 => rows[at].into(),
        Precision::Fp16 => u16::from_le_bytes([rows[2 * at], rows[2 * at + 1]]),
    }
}

/// A tiled weight by the formula, one element at a time.
fn placed(layout: &Layout, element: impl Fn(u32, u32) -> u16) -> Vec<u8> {
    let mut out = vec![0; layout.bytes() as usize];
    for n in 0..layout.n() {
        for k in 0..layout.k() {
            let (slice, at) = layout.element(k, n).expect("inside the matrix");
            let base = layout.slice(slice).expect("a slice of the layout").offset as usize;
            let (at, value) = (at as usize, element(k, n));
            match layout.precision() {
                Precision::Int4 => out[base + at / 2] |= (value as u8) << (at % 2 * 4),
                Precision::Int8 => out[base + at] = value as u8,
                Precision::Fp16 => {
                    out[base + 2 * at..base + 2 * at + 2].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
    out
}

fn quantised(layout: &Layout, raw: &[u8]) {
    let (k, n) = (layout.k(), layout.n());
    let values: Vec<f32> =
        raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let rows = Rows::new(TensorType::F32, k, n, raw).expect("whole rows");
    let mut tiled = vec![0; layout.bytes() as usize];
    let mut scales = vec![0.0; n as usize];
    let done = quantise(&rows, &Recipe::new(Tier::Int8), &mut tiled, &mut scales);
    assert_eq!(done.is_ok(), values.iter().all(|value| value.is_finite()), "{done:?}");
    if done.is_err() {
        return;
    }
    let expected: Vec<f32> = values
        .chunks_exact(k as usize)
        .map(|row| row.iter().fold(1e-9f32, |most, value| most.max(value.abs())) / 127.0)
        .collect();
    assert_eq!(scales, expected);
    let code = |k_at: u32, n_at: u32| {
        let value = values[(n_at * k + k_at) as usize];
        (value / expected[n_at as usize]).round_ties_even().clamp(-127.0, 127.0) as i8 as u8
    };
    assert_eq!(tiled, placed(layout, |k, n| code(k, n).into()));
}
