//! The same products on the CPU, to check the device by.

use std::num::NonZero;
use std::thread;

use rknpu::{Layout, Precision};

/// `out[m][n] = Σ activations[m][k] · codes[n][k]`, over all the machine's threads. Sums of int4
/// saturate as i16 within each K slice, as the NPU's do.
pub fn product(layout: &Layout, codes: &[i8], activations: &[i8], out: &mut [i32]) {
    let (k, n) = (layout.k() as usize, layout.n() as usize);
    let rows = activations.len() / k.max(1);
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(rows.max(1));
    let each = rows.div_ceil(threads).max(1);
    thread::scope(|scope| {
        for (inputs, out) in activations.chunks(each * k).zip(out.chunks_mut(each * n)) {
            scope.spawn(move || {
                // A channel's codes are read once for all rows of the thread.
                for (channel, codes) in codes.chunks_exact(k).enumerate() {
                    for (inputs, out) in inputs.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
                        out[channel] = sum(layout.precision(), inputs, codes);
                    }
                }
            });
        }
    });
}

fn sum(precision: Precision, inputs: &[i8], codes: &[i8]) -> i32 {
    match precision {
        Precision::Int4 => {
            let slice = precision.k_slice() as usize;
            let slices = inputs.chunks(slice).zip(codes.chunks(slice));
            slices.map(|(a, b)| dot(a, b).clamp(i16::MIN.into(), i16::MAX.into())).sum()
        }
        Precision::Int8 | Precision::Fp16 => dot(inputs, codes),
    }
}

fn dot(a: &[i8], b: &[i8]) -> i32 {
    // Products of a K of at most 2^17 stay far inside i32; larger ones wrap as the NPU's sums do.
    a.iter().zip(b).fold(0i32, |sum, (x, y)| sum.wrapping_add(i32::from(*x) * i32::from(*y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_product_by_hand() {
        let layout = Layout::new(32, 32, Precision::Int8).unwrap();
        let codes: Vec<i8> = (0..32).flat_map(|n| vec![n as i8; 32]).collect();
        let activations: Vec<i8> = [vec![1; 32], vec![-2; 32], vec![0; 32]].concat();
        let mut out = vec![7; 3 * 32];
        product(&layout, &codes, &activations, &mut out);
        assert_eq!(out[31], 31 * 32);
        assert_eq!(out[32 + 3], -2 * 3 * 32);
        assert!(out[64..].iter().all(|v| *v == 0));
    }

    #[test]
    fn all_threads_give_what_one_loop_gives() {
        let layout = Layout::new(1056, 96, Precision::Int8).unwrap();
        let noise = |i: usize| (i * 31 + i / 7 * 13) as i8;
        let tiled: Vec<u8> = (0..layout.bytes() as usize).map(|i| noise(i) as u8).collect();
        let activations: Vec<i8> = (0..7 * 1056).map(noise).collect();
        let codes = ork_weights::reference::codes(&layout, &tiled).unwrap();
        let (mut ours, mut theirs) = (vec![0; 7 * 96], vec![0; 7 * 96]);
        product(&layout, &codes, &activations, &mut ours);
        ork_weights::reference::sums(&layout, &tiled, &activations, &mut theirs).unwrap();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn int4_saturates() {
        let layout = Layout::new(1024, 64, Precision::Int4).unwrap();
        let mut out = vec![0; 64];
        product(&layout, &vec![7; 1024 * 64], &vec![7; 1024], &mut out);
        assert!(out.iter().all(|v| *v == i32::from(i16::MAX)));
    }
}
