//! Linear layers in int8: rows of f32 in, rows of f32 out, with one arithmetic for NPU and CPU.
//!
//! A row is transformed as the weight was, cut into int8 planes, and multiplied with the weight's
//! codes; the sums of a row's planes are joined and scaled. Sums of int8 products are exact, on the NPU
//! as on the CPU, and everything else is the same code on the CPU. So who computes does not show in the
//! bits of a result, nor does the cut of a batch, the number of threads or the processor.
//!
//! # Layers of a model
//!
//! [`open`] puts models on a device through `ork_cache`, resident or streamed within a budget. Each is then
//! [`Layers`]: lists of [`Product`]s that share their input go in, f32 rows come back. From [`NPU_ROWS`]
//! rows on the NPU computes, fewer are the CPU's, which reads the same memory; when the NPU fails in the
//! middle, the CPU goes on with the same results. [`open`] has an example.
//!
//! fp16 weights are the exact form: f32 rows, f32 sums in one order. The NPU's order is its own, so they are
//! the CPU's alone.
//!
//! # Without a device
//!
//! [`QuantisedRows`] are prepared once for all products that share them, [`TiledWeight`] is a weight as the
//! NPU reads it and as packs hold it, and [`Cpu`] multiplies.
//!
//! ```
//! use ork_linear::{Cpu, Depth, Output, QuantisedRows, Transform, TiledWeight};
//! use ork_weights::dequant::TensorType;
//! use ork_weights::quantise::{Recipe, Rows, Tier, quantise};
//!
//! // A weight of 64 inputs and 32 outputs, each output the sum of two inputs.
//! let tier = Tier::RotatedInt8 { group: None };
//! let value = |n: usize, k: usize| if k / 2 == n { 1f32 } else { 0.0 };
//! let raw: Vec<u8> = (0..32 * 64).flat_map(|i| value(i / 64, i % 64).to_le_bytes()).collect();
//! let layout = tier.layout(64, 32)?;
//! let (mut tiles, mut scales) = (vec![0; layout.bytes() as usize], [0.0; 32]);
//! quantise(&Rows::new(TensorType::F32, 64, 32, &raw)?, &Recipe::new(tier), &mut tiles, &mut scales)?;
//!
//! let input: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//! let mut rows = QuantisedRows::new(Depth::Bits16);
//! rows.quantise(&input, 64, Transform::of(tier))?;
//! let mut out = [0.0; 32];
//! let weight = TiledWeight::new(layout, &tiles, &scales, Transform::of(tier))?;
//! Cpu::default().multiply(&weight, &rows, Output { rows: &mut out, n: 32, column: 0 })?;
//! assert!((out[5] - (input[10] + input[11])).abs() < 0.01);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod cpu;
mod error;
mod halves;
mod int8;
mod kernel;
mod layers;
#[cfg(test)]
mod noise;
mod rows;
mod weight;

pub use cpu::{Cpu, Output};
pub use error::{Error, Result};
pub use layers::{Layers, NPU_ROWS, Product, Setup, open};
pub use rows::{Depth, ParseDepthError, QuantisedRows, Transform};
pub use weight::{TiledWeight, multiplies, packs_on_the_way};
