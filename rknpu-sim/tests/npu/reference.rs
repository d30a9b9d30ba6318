//! Operands, where they lie, and their product by plain loops.

use half::{bf16, f16};

use crate::encode::{Shape, Types};

/// A small generator, so that a failing case can be told by its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

/// Input `[m][k]` and weights `[k][n]` as numbers that their types hold exactly.
pub(crate) struct Operands {
    pub(crate) a: Vec<f32>,
    pub(crate) b: Vec<f32>,
}

impl Operands {
    pub(crate) fn random(s: Shape, random: &mut Random) -> Operands {
        let mut values = |count: u32| {
            (0..count)
                .map(|_| match s.types {
                    Types::Int8Int32 | Types::Int8Int8 { .. } => random.next() as i8 as f32,
                    Types::Fp16Fp32 | Types::Fp16Fp16 => {
                        f16::from_f32((random.next() % 4096) as f32 / 1024.0 - 2.0).to_f32()
                    }
                    Types::Bf16Fp32 => (random.next() % 256) as f32 / 64.0 - 2.0,
                    Types::Int4Int16 => (random.next() % 16) as f32 - 8.0,
                })
                .collect()
        };
        Operands { a: values(s.m * s.k), b: values(s.k * s.n) }
    }

    /// The weights as they lie: tiles of channels, blocks of 32 k, channel after channel.
    pub(crate) fn weights(&self, s: Shape) -> Vec<u8> {
        let (t, kt) = (s.types.tile(), s.k / 32);
        let mut elements = vec![0.0; (s.k * s.n) as usize];
        for k in 0..s.k {
            for n in 0..s.n {
                let at = ((n / t * kt + k / 32) * t + n % t) * 32 + k % 32;
                elements[at as usize] = self.b[(k * s.n + n) as usize];
            }
        }
        pack(s.types, &elements)
    }

    /// The input row by row, `pitch` elements apart.
    pub(crate) fn rows(&self, s: Shape, pitch: u32) -> Vec<u8> {
        let mut elements = vec![0.0; (pitch * s.m) as usize];
        for (row, values) in self.a.chunks_exact(s.k as usize).enumerate() {
            elements[row * pitch as usize..][..s.k as usize].copy_from_slice(values);
        }
        pack(s.types, &elements)
    }

    /// The input in planes of 16-byte atoms.
    pub(crate) fn planes(&self, s: Shape) -> Vec<u8> {
        let c2 = 16 * s.k / s.types.row_bytes(s.k);
        let mut elements = vec![0.0; (s.m * s.k) as usize];
        for m in 0..s.m {
            for k in 0..s.k {
                elements[((k / c2 * s.m + m) * c2 + k % c2) as usize] =
                    self.a[(m * s.k + k) as usize];
            }
        }
        pack(s.types, &elements)
    }

    /// Each element of the product, in output bytes.
    pub(crate) fn product(&self, s: Shape) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for m in 0..s.m as usize {
            for n in 0..s.n as usize {
                let terms = (0..s.k as usize)
                    .map(|k| (self.a[m * s.k as usize + k], self.b[k * s.n as usize + n]));
                let whole = || terms.clone().map(|(a, b)| a as i64 * b as i64).sum::<i64>();
                let float = || terms.clone().fold(0.0f32, |sum, (a, b)| sum + a * b);
                out.push(match s.types {
                    Types::Int8Int32 => (whole() as i32).to_le_bytes().to_vec(),
                    Types::Int8Int8 { multiplier, shift } => {
                        let exact = (whole() * i64::from(multiplier as i16)) as f64
                            / 2f64.powi(shift as i32);
                        vec![exact.round_ties_even().clamp(-128.0, 127.0) as i8 as u8]
                    }
                    Types::Fp16Fp32 | Types::Bf16Fp32 => float().to_le_bytes().to_vec(),
                    Types::Fp16Fp16 => f16::from_f32(float()).to_le_bytes().to_vec(),
                    Types::Int4Int16 => {
                        (whole().clamp(-32768, 32767) as i16).to_le_bytes().to_vec()
                    }
                });
            }
        }
        out
    }
}

pub(crate) fn pack(types: Types, elements: &[f32]) -> Vec<u8> {
    match types {
        Types::Int8Int32 | Types::Int8Int8 { .. } => {
            elements.iter().map(|e| *e as i8 as u8).collect()
        }
        Types::Fp16Fp32 | Types::Fp16Fp16 => {
            elements.iter().flat_map(|e| f16::from_f32(*e).to_le_bytes()).collect()
        }
        Types::Bf16Fp32 => elements.iter().flat_map(|e| bf16::from_f32(*e).to_le_bytes()).collect(),
        Types::Int4Int16 => elements
            .chunks_exact(2)
            .map(|pair| (pair[0] as i8 as u8 & 0xf) | (pair[1] as i8 as u8) << 4)
            .collect(),
    }
}
