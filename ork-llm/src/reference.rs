//! The linear layers in f32 on the CPU: what everything else is measured against.

use crate::linear::{LinearError, Linears, Product, Weight};
use crate::math::dots;
use ork_weights::dequant::{TensorType, dequantise};
use ork_weights::model::ModelError;
use ork_weights::model::gguf::{Tensor, Tensors};
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;

/// Products of fewer values than this are not given to other threads, which would only be waited for.
const WORTH_A_THREAD: usize = 256 << 10;

/// Channels that one thread computes at a time.
const CHANNELS: usize = 16;

/// The matrices of a model, multiplied in f32 on the threads of the current rayon pool.
///
/// A row's sum has one order: the same bits on every machine, for any number of threads and any
/// batch. [`f32`](Reference::f32) keeps the weights as f32 and is fast;
/// [`light`](Reference::light) keeps them as the file has them, a quarter of the memory or less, and
/// makes f32 of them each time. Both give the same bits.
///
/// ```
/// use ork_llm::{Linears, Product, Reference};
/// use ork_weights::model::gguf::Tensors;
/// # use ork_weights::model::synth::Shape;
/// # let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
/// # Shape::tiny().write(file.as_file())?;
///
/// let tensors = Tensors::open(file.path())?;
/// let (mut fast, mut light) = (Reference::f32(&tensors)?, Reference::light(&tensors)?);
/// assert!(light.bytes() * 2 < fast.bytes());
///
/// let input = [0.5; 256];
/// let (mut a, mut b) = ([0.0; 512], [0.0; 512]);
/// for (linears, out) in [(&mut fast, &mut a), (&mut light, &mut b)] {
///     let weight = linears.weight("blk.0.ffn_up.weight").ok_or("no such weight")?;
///     linears.multiply(1, &input, &mut [Product { weight, out }])?;
/// }
/// assert_eq!(a, b);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Debug)]
pub struct Reference {
    names: HashMap<Box<str>, Weight>,
    matrices: Vec<Matrix>,
    /// Results of a batch, a channel after the other.
    columns: Vec<f32>,
}

/// A matrix: the rows of its channels.
#[derive(Debug)]
enum Matrix {
    Values(Vec<f32>),
    Blocks(TensorType, Vec<u8>),
}

impl Reference {
    /// Keeps the weights as f32.
    ///
    /// # Errors
    /// [`ModelError`] when a matrix cannot be read.
    pub fn f32(tensors: &Tensors) -> Result<Reference, ModelError> {
        Reference::new(tensors, |name, rows, values| {
            let mut out = vec![0.0; values];
            tensors.read(name, rows, &mut out)?;
            Ok(Matrix::Values(out))
        })
    }

    /// Keeps the weights as the file has them.
    ///
    /// # Errors
    /// [`ModelError`] when a matrix cannot be read.
    pub fn light(tensors: &Tensors) -> Result<Reference, ModelError> {
        Reference::new(tensors, |name, rows, _| {
            tensors.with(name, rows, |kind, raw| Matrix::Blocks(kind, raw.to_vec()))
        })
    }

    fn new(
        tensors: &Tensors,
        read: impl Fn(&str, std::ops::Range<u64>, usize) -> Result<Matrix, ModelError>,
    ) -> Result<Reference, ModelError> {
        let mut of = Reference { names: HashMap::new(), matrices: Vec::new(), columns: Vec::new() };
        let has_head = tensors.get("output.weight").is_some();
        for tensor in tensors.iter() {
            if !multiplies(tensor, has_head) {
                continue;
            }
            let name = &*tensor.name;
            let (k, n) = (tensor.dimensions[0], tensor.dimensions[1]);
            let experts = tensor.dimensions.get(2).copied();
            let too_large = || ModelError::Tensor {
                name: name.into(),
                reason: format!("{k} × {n} is more than can be multiplied"),
            };
            let narrow = |value: u64| u32::try_from(value).map_err(|_| too_large());
            let values = usize::try_from(k.saturating_mul(n)).map_err(|_| too_large())?;
            for expert in 0..experts.unwrap_or(1) {
                let id = narrow(of.matrices.len() as u64)?;
                of.matrices.push(read(name, expert * n..(expert + 1) * n, values)?);
                let name = match experts {
                    None => name.into(),
                    Some(_) => format!("{name}#{expert}").into_boxed_str(),
                };
                of.names.insert(name, Weight { id, k: narrow(k)?, n: narrow(n)? });
            }
        }
        Ok(of)
    }

    /// Bytes that the weights take.
    pub fn bytes(&self) -> usize {
        let bytes = |matrix: &Matrix| match matrix {
            Matrix::Values(values) => size_of_val(&values[..]),
            Matrix::Blocks(_, raw) => raw.len(),
        };
        self.matrices.iter().map(bytes).sum()
    }
}

/// Whether a tensor is a matrix of a linear layer.
fn multiplies(tensor: &Tensor, has_head: bool) -> bool {
    let matrix = matches!(&*tensor.dimensions, [_, n] | [_, n, _] if *n > 1);
    let router = tensor.name.contains("ffn_gate_inp");
    let table = &*tensor.name == "token_embd.weight" && has_head;
    matrix && tensor.kind().is_some() && !router && !table
}

impl Matrix {
    /// The `k` values of a channel; `buffer` is memory for them.
    fn channel<'a>(&'a self, channel: usize, k: usize, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Matrix::Values(values) => values.get(channel * k..(channel + 1) * k).unwrap_or(&[]),
            Matrix::Blocks(kind, raw) => {
                let bytes = kind.row_bytes(k as u64).unwrap_or(0) as usize;
                buffer.resize(k, 0.0);
                let row = raw.get(channel * bytes..(channel + 1) * bytes);
                match row.map(|row| dequantise(*kind, row, buffer)) {
                    Some(Ok(())) => buffer,
                    _ => &[],
                }
            }
        }
    }

    /// Writes the products of channels `first`.. with all rows: `out[channel][row]`.
    fn multiply(&self, input: &[f32], k: usize, rows: usize, first: usize, out: &mut [f32]) {
        thread_local! {
            static CHANNEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        CHANNEL.with_borrow_mut(|buffer| {
            for (index, out) in out.chunks_exact_mut(rows).enumerate() {
                let channel = self.channel(first + index, k, buffer);
                let row = |row: usize| &input[row * k..(row + 1) * k];
                let (pairs, last) = out.as_chunks_mut::<2>();
                for (pair, out) in pairs.iter_mut().enumerate() {
                    *out = dots([row(2 * pair), row(2 * pair + 1)], channel);
                }
                for out in last {
                    [*out] = dots([row(rows - 1)], channel);
                }
            }
        });
    }
}

impl Linears for Reference {
    fn weight(&self, name: &str) -> Option<Weight> {
        self.names.get(name).copied()
    }

    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError> {
        for Product { weight, out } in products {
            let (k, n) = (weight.k as usize, weight.n as usize);
            let matrix = self.matrices.get(weight.id as usize);
            let matrix = matrix.ok_or_else(|| format!("{weight:?} is of another model"))?;
            if rows == 0 || input.len() != rows * k || out.len() != rows * n {
                let (input, out) = (input.len(), out.len());
                return Err(format!(
                    "{rows} rows of {k} inputs and {n} outputs are not {input} and {out} values"
                )
                .into());
            }
            if rows * k * n < WORTH_A_THREAD {
                self.columns.resize(rows * n, 0.0);
                matrix.multiply(input, k, rows, 0, &mut self.columns);
                for (channel, column) in self.columns.chunks_exact(rows).enumerate() {
                    for (row, value) in column.iter().enumerate() {
                        out[row * n + channel] = *value;
                    }
                }
                continue;
            }
            if rows == 1 {
                out.par_chunks_mut(CHANNELS).enumerate().for_each(|(chunk, out)| {
                    matrix.multiply(input, k, 1, chunk * CHANNELS, out);
                });
                continue;
            }
            self.columns.resize(rows * n, 0.0);
            let columns = self.columns.par_chunks_mut(CHANNELS * rows);
            columns.enumerate().for_each(|(chunk, out)| {
                matrix.multiply(input, k, rows, chunk * CHANNELS, out);
            });
            let columns = &self.columns;
            out.par_chunks_mut(n).enumerate().for_each(|(row, out)| {
                for (channel, out) in out.iter_mut().enumerate() {
                    *out = columns[channel * rows + row];
                }
            });
        }
        Ok(())
    }
}
