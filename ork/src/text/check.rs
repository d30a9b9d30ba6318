//! Products of the NPU against the same ones of the CPU, before any of them becomes text.

use ork_linear::NPU_ROWS;
use ork_llm::{LinearError, Linears, Product, Weight};

/// What the CPU does not give.
#[derive(Debug, thiserror::Error)]
#[error("{name}: row {row}, column {column}: the device says {device}, the CPU {cpu}")]
pub(super) struct Differs {
    name: Box<str>,
    row: usize,
    column: usize,
    device: f32,
    cpu: f32,
}

/// Multiplies made-up rows by a weight: as many as the NPU computes, and the first and the last of them
/// alone, which the CPU does. `Ok(None)` where all bits are equal.
pub(super) fn compare(
    linears: &mut dyn Linears,
    name: &str,
    weight: Weight,
) -> Result<Option<Differs>, LinearError> {
    let (k, n) = (weight.k as usize, weight.n as usize);
    let input: Vec<f32> = (0..NPU_ROWS * k).map(noise).collect();
    let mut many = vec![0.0; NPU_ROWS * n];
    linears.multiply(NPU_ROWS, &input, &mut [Product { weight, out: &mut many }])?;
    let mut one = vec![0.0; n];
    for row in [0, NPU_ROWS - 1] {
        let input = &input[row * k..][..k];
        linears.multiply(1, input, &mut [Product { weight, out: &mut one }])?;
        let pairs = many[row * n..].iter().zip(&one).enumerate();
        for (column, (device, cpu)) in pairs {
            if device.to_bits() != cpu.to_bits() {
                let (device, cpu) = (*device, *cpu);
                return Ok(Some(Differs { name: name.into(), row, column, device, cpu }));
            }
        }
    }
    Ok(None)
}

/// Value `i` of rows that are alike nowhere, from -1 to 1.
fn noise(i: usize) -> f32 {
    let mixed = (i as u32).wrapping_add(1).wrapping_mul(0x9e37_79b1);
    (mixed ^ (mixed >> 15)) as i32 as f32 / 2f32.powi(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of a row; where many rows are asked for, the last one's last column is `off` from it.
    struct Sums {
        off: f32,
    }

    impl Linears for Sums {
        fn weight(&self, _: &str) -> Option<Weight> {
            Some(Weight { id: 0, k: 8, n: 4 })
        }

        fn multiply(
            &mut self,
            rows: usize,
            input: &[f32],
            products: &mut [Product<'_>],
        ) -> Result<(), LinearError> {
            for product in products {
                for (row, out) in input.chunks(8).zip(product.out.chunks_mut(4)) {
                    out.fill(row.iter().sum());
                }
                if rows > 1 {
                    product.out[rows * 4 - 1] += self.off;
                }
            }
            Ok(())
        }
    }

    #[test]
    fn one_value_that_differs_is_named() {
        let compare = |off| {
            let mut linears = Sums { off };
            let weight = linears.weight("").unwrap();
            compare(&mut linears, "blk.0.ffn_up.weight", weight).unwrap()
        };
        assert!(compare(0.0).is_none());
        let text = compare(0.5).expect("a value differs").to_string();
        assert!(text.starts_with("blk.0.ffn_up.weight: row 31, column 3: the device"), "{text}");
    }
}
