//! Llama-shaped GGUF files of any size, made up: for demonstrations, tests and benches.
//!
//! The numbers are noise of a believable size. The same shape and seed give the same bytes on every
//! machine. Files are written as a stream, so one of several gigabytes takes no memory.
//!
//! ```
//! use ork_weights::model::{Model, OpenOptions, synth::Shape};
//!
//! let file = tempfile::NamedTempFile::with_suffix(".gguf")?;
//! Shape { experts: 4, ..Shape::tiny() }.write(file.as_file())?;
//! let model = Model::open(file.path(), &OpenOptions::default())?;
//! assert!(model.has_experts());
//! assert!(model.weight("blk.0.ffn_up_exps.weight#3").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::dequant::TensorType;
use std::io::{self, Write};

/// What to make.
///
/// ```
/// use ork_weights::model::synth::Shape;
///
/// let dense = Shape::tiny();
/// let experts = Shape { experts: 4, ..dense };
/// let mut file = Vec::new();
/// assert_eq!(experts.write(&mut file)?, experts.bytes());
/// assert_eq!(file.len() as u64, experts.bytes());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Width of the model; a multiple of 256, as block types need.
    pub embedding: u32,
    /// Width between the feed-forward matrices; a multiple of 256.
    pub feed_forward: u32,
    /// Layers.
    pub layers: u32,
    /// Rows of the embedding table and the output head.
    pub vocabulary: u32,
    /// Experts of each layer, 0 for a dense model.
    pub experts: u32,
    /// Seed of the noise.
    pub seed: u64,
}

/// Alignment of tensors in the file.
const ALIGNMENT: u64 = 32;
/// Bytes of noise made at a time; whole blocks of every type are cut from it.
const CHUNK: usize = 1 << 20;

/// Types the matrices of successive layers have, so that every kernel gets something to do.
const MATRIX_TYPES: [TensorType; 6] = [
    TensorType::Q4_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::Q5_0,
    TensorType::Q5_K,
    TensorType::F16,
];

struct Made {
    name: String,
    dimensions: Vec<u64>,
    kind: TensorType,
}

impl Made {
    fn bytes(&self) -> u64 {
        let rows: u64 = self.dimensions[1..].iter().product();
        self.kind.row_bytes(self.dimensions[0]).unwrap_or(0) * rows
    }
}

impl Shape {
    /// Under a megabyte: two layers.
    ///
    /// ```
    /// use ork_weights::model::synth::Shape;
    ///
    /// assert!(Shape::tiny().bytes() < 4 << 20);
    /// ```
    pub const fn tiny() -> Shape {
        Shape { embedding: 256, feed_forward: 512, layers: 2, vocabulary: 320, experts: 0, seed: 1 }
    }

    /// About 100 MB.
    ///
    /// ```
    /// use ork_weights::model::synth::Shape;
    ///
    /// assert!((90_000_000..110_000_000).contains(&Shape::demo().bytes()));
    /// ```
    pub fn demo() -> Shape {
        Shape::sized(100_000_000)
    }

    /// About `bytes` long, by the number of layers.
    ///
    /// ```
    /// use ork_weights::model::synth::Shape;
    /// let shape = Shape::sized(200_000_000);
    /// assert!((180_000_000..=220_000_000).contains(&shape.bytes()));
    /// ```
    pub fn sized(bytes: u64) -> Shape {
        let mut shape = Shape {
            embedding: 1024,
            feed_forward: 2816,
            layers: 1,
            vocabulary: 8192,
            experts: 0,
            seed: 1,
        };
        if bytes > 4 << 30 {
            // The width of a 7B model, so that files of many gigabytes have few tensors.
            shape = Shape { embedding: 4096, feed_forward: 11008, vocabulary: 32000, ..shape };
        }
        let (one, two) = (shape.bytes(), Shape { layers: 7, ..shape }.bytes());
        let each = (two - one) / 6;
        let layers = 1 + (bytes.saturating_sub(one) + each / 2) / each;
        Shape { layers: u32::try_from(layers).unwrap_or(u32::MAX), ..shape }
    }

    /// Length of the file.
    ///
    /// ```
    /// use ork_weights::model::synth::Shape;
    ///
    /// let one = Shape { layers: 1, ..Shape::tiny() };
    /// assert!(one.bytes() < Shape::tiny().bytes());
    /// ```
    pub fn bytes(&self) -> u64 {
        let tensors = self.tensors();
        let header = self.header(&tensors).len() as u64;
        let padded = |made: &Made| made.bytes().next_multiple_of(ALIGNMENT);
        header + tensors.iter().map(padded).sum::<u64>()
    }

    /// Writes the file and returns its length.
    ///
    /// ```
    /// use ork_weights::model::synth::Shape;
    ///
    /// let mut file = Vec::new();
    /// Shape::tiny().write(&mut file)?;
    /// assert!(file.starts_with(b"GGUF"));
    /// assert!(Shape { embedding: 100, ..Shape::tiny() }.write(&mut file).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `out`; [`io::ErrorKind::InvalidInput`] when a dimension is 0 or not the multiple it
    /// must be.
    pub fn write(&self, mut out: impl Write) -> io::Result<u64> {
        let fits = |value: u32, of: u32| value != 0 && value.is_multiple_of(of);
        if !fits(self.embedding, 256)
            || !fits(self.feed_forward, 256)
            || self.vocabulary == 0
            || self.layers == 0
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{self:?}: widths must be multiples of 256, and nothing 0"),
            ));
        }
        let tensors = self.tensors();
        let header = self.header(&tensors);
        out.write_all(&header)?;
        let mut written = header.len() as u64;
        let mut buffer = Vec::with_capacity(CHUNK);
        for (index, made) in tensors.iter().enumerate() {
            let mut noise = Noise::new(self.seed, index as u64);
            let mut left = made.bytes();
            while left != 0 {
                let block = made.kind.block_bytes() as u64;
                let bytes = left.min(CHUNK as u64 / block * block);
                buffer.clear();
                noise.blocks(made.kind, bytes as usize, &mut buffer);
                out.write_all(&buffer)?;
                left -= bytes;
            }
            let padding = made.bytes().next_multiple_of(ALIGNMENT) - made.bytes();
            out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
            written += made.bytes() + padding;
        }
        out.flush()?;
        Ok(written)
    }

    fn tensors(&self) -> Vec<Made> {
        let (e, f) = (u64::from(self.embedding), u64::from(self.feed_forward));
        let (kv, v) = ((e / 4).next_multiple_of(64), u64::from(self.vocabulary));
        let mut out = Vec::new();
        let mut add = |name: String, dimensions: &[u64], kind| {
            out.push(Made { name, dimensions: dimensions.to_vec(), kind });
        };
        add("token_embd.weight".into(), &[e, v], TensorType::Q8_0);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let kind = |i: u32| MATRIX_TYPES[(layer + i) as usize % MATRIX_TYPES.len()];
            add(name("attn_norm"), &[e], TensorType::F32);
            add(name("attn_q"), &[e, e], kind(0));
            add(name("attn_k"), &[e, kv], kind(1));
            add(name("attn_v"), &[e, kv], kind(2));
            add(name("attn_output"), &[e, e], kind(3));
            add(name("ffn_norm"), &[e], TensorType::F32);
            match u64::from(self.experts) {
                0 => {
                    add(name("ffn_gate"), &[e, f], kind(4));
                    add(name("ffn_up"), &[e, f], kind(5));
                    add(name("ffn_down"), &[f, e], kind(6));
                }
                x => {
                    add(name("ffn_gate_inp"), &[e, x], TensorType::F32);
                    add(name("ffn_gate_exps"), &[e, f, x], kind(4));
                    add(name("ffn_up_exps"), &[e, f, x], kind(5));
                    add(name("ffn_down_exps"), &[f, e, x], kind(6));
                }
            }
        }
        add("output_norm.weight".into(), &[e], TensorType::F32);
        add("output.weight".into(), &[e, v], TensorType::Q6_K);
        out
    }

    fn header(&self, tensors: &[Made]) -> Vec<u8> {
        let mut out = Vec::new();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        let numbers = [
            ("llama.block_count", self.layers),
            ("llama.embedding_length", self.embedding),
            ("llama.feed_forward_length", self.feed_forward),
            ("llama.attention.head_count", (self.embedding / 64).max(1)),
            ("llama.attention.head_count_kv", (self.embedding / 256).max(1)),
            ("llama.context_length", 2048),
            ("llama.vocab_size", self.vocabulary),
            ("llama.expert_count", self.experts),
            ("llama.expert_used_count", self.experts.min(2)),
            ("general.alignment", ALIGNMENT as u32),
        ];
        let texts = [("general.architecture", "llama"), ("general.name", "synthetic")];
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(((numbers.len() + texts.len()) as u64).to_le_bytes());
        for (key, value) in texts {
            text(&mut out, key);
            out.extend(8u32.to_le_bytes());
            text(&mut out, value);
        }
        for (key, value) in numbers {
            text(&mut out, key);
            out.extend(4u32.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        let mut offset = 0u64;
        for made in tensors {
            text(&mut out, &made.name);
            out.extend((made.dimensions.len() as u32).to_le_bytes());
            for dimension in &made.dimensions {
                out.extend(dimension.to_le_bytes());
            }
            out.extend(made.kind.ggml().unwrap_or(0).to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += made.bytes().next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        out
    }
}

/// Noise of one tensor.
struct Noise {
    state: u64,
}

impl Noise {
    fn new(seed: u64, tensor: u64) -> Noise {
        let state = seed ^ (tensor + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Noise { state: (state ^ (state >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1 }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// Appends `bytes` of blocks whose values are around a hundredth.
    fn blocks(&mut self, kind: TensorType, bytes: usize, out: &mut Vec<u8>) {
        let start = out.len();
        while out.len() < start + bytes {
            out.extend(self.next().to_le_bytes());
        }
        out.truncate(start + bytes);
        // Bytes whose exponent bits decide the size of a block's values, with the bits they get.
        let set: &[(usize, u8, u8)] = match kind {
            TensorType::F32 => &[(3, 0x00, 0x3c), (2, 0x7f, 0x00)],
            TensorType::F16 => &[(1, 0x83, 0x20)],
            TensorType::Q8_0 => &[(1, 0x03, 0x08)],
            TensorType::Q5_0 => &[(1, 0x03, 0x14)],
            TensorType::Q4_K | TensorType::Q5_K => &[(1, 0x03, 0x04), (3, 0x03, 0x08)],
            TensorType::Q6_K => &[(209, 0x03, 0x00)],
            _ => &[],
        };
        for block in out[start..].chunks_exact_mut(kind.block_bytes()) {
            for &(at, keep, bits) in set {
                block[at] = block[at] & keep | bits;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dequant::dequantise;

    #[test]
    fn values_are_believable() {
        for kind in MATRIX_TYPES.into_iter().chain([TensorType::F32]) {
            let mut raw = Vec::new();
            Noise::new(1, 2).blocks(kind, 64 * kind.block_bytes(), &mut raw);
            let mut values = vec![0f32; 64 * kind.block_elements()];
            dequantise(kind, &raw, &mut values).unwrap();
            let most = values.iter().fold(0f32, |most, v| most.max(v.abs()));
            assert!((1e-3..1.0).contains(&most), "{kind} {most}");
        }
    }

    #[test]
    fn the_same_every_time_and_another_with_another_seed() {
        let make = |shape: Shape| {
            let mut out = Vec::new();
            shape.write(&mut out).unwrap();
            out
        };
        let tiny = Shape::tiny();
        assert_eq!(make(tiny), make(tiny));
        assert_ne!(make(tiny), make(Shape { seed: 2, ..tiny }));
        assert!(tiny.bytes() < 4 << 20);
    }

    #[test]
    fn shapes_that_cannot_be() {
        let tiny = Shape::tiny();
        for shape in [
            Shape { embedding: 128, ..tiny },
            Shape { feed_forward: 0, ..tiny },
            Shape { vocabulary: 0, ..tiny },
            Shape { layers: 0, ..tiny },
        ] {
            let error = shape.write(io::sink()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let demo = Shape::demo().bytes();
        assert!((90_000_000..110_000_000).contains(&demo), "{demo}");
        let large = Shape::sized(9_000_000_000).bytes();
        assert!((8_500_000_000..9_500_000_000).contains(&large), "{large}");
    }
}
