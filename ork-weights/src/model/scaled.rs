//! Weights in two tensors, one of codes and one of their scales, as files of the hub have them; and
//! kinds of codes that are not read.
//!
//! | codes | scales | value |
//! |---|---|---|
//! | `X.weight` F8_E4M3 | `X.weight_scale_inv`, `X.weight_scale`: of all, of channels, of blocks | code · scale |
//! | `X.weight` I8 | `X.weight_scale`, of all or of channels | code · scale |
//! | `X.weight` I8 | `X.SCB`, of channels (bitsandbytes) | code · scale / 127 |
//! | `X.weight_packed` U8, two E2M1 | `X.weight_scale` F8_E4M3 of 16, `X.weight_global_scale` | code · scale / global |
//! | `X.weight` U8, two E2M1 | `X.weight_scale` F8_E4M3 of 16, `X.weight_scale_2` (ModelOpt) | code · scale · scale_2 |
//! | `X.weight_packed` U8, two E2M1 | `X.weight_scale` U8, powers of two of 32 | code · scale |
//! | `X_blocks` U8, two E2M1 | `X_scales` U8, powers of two of 32 (gpt-oss) | code · scale |
//!
//! Source: the formats' writers (compressed-tensors 0.20, ModelOpt) and model cards of the hub.

use super::error::ModelError;
use super::file::ModelFile;
use super::select::Candidate;
use crate::dequant::{TensorType, dequantise};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Where the scales of a matrix are, and which of its values share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scaling {
    shard: usize,
    /// Of the first of the matrix's scales.
    offset: u64,
    kind: ScaleType,
    /// Outputs that share a scale.
    pub(super) outputs: u32,
    /// Inputs that share a scale.
    pub(super) inputs: u32,
    /// Scales of a row of blocks.
    pub(super) columns: u32,
    factor: Factor,
}

/// What all scales are multiplied or divided by, as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Factor {
    One,
    Times(u32),
    Over(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleType {
    Floats(TensorType),
    /// A byte is the exponent of a power of two, 127 more.
    Powers,
}

impl ScaleType {
    fn of(tensor: &Candidate) -> Option<ScaleType> {
        use TensorType::{BF16, F8_E4M3, F16, F32};
        match &tensor.kind {
            Ok(kind @ (F32 | F16 | BF16 | F8_E4M3)) => Some(ScaleType::Floats(*kind)),
            Err(kind) if matches!(kind.as_str(), "U8" | "F8_E8M0") => Some(ScaleType::Powers),
            _ => None,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            ScaleType::Floats(kind) => kind.block_bytes() as u64,
            ScaleType::Powers => 1,
        }
    }

    fn decode(self, raw: &[u8], out: &mut [f32]) {
        match self {
            ScaleType::Floats(kind) => {
                let read = dequantise(kind, raw, out);
                debug_assert!(read.is_ok(), "as long as the type says");
            }
            // NaN for 255, as the format says; the smallest is a subnormal.
            ScaleType::Powers => {
                for (out, byte) in out.iter_mut().zip(raw) {
                    *out = match byte {
                        0 => f32::from_bits(0x0040_0000),
                        255 => f32::NAN,
                        _ => f32::from_bits(u32::from(*byte) << 23),
                    };
                }
            }
        }
    }
}

impl Scaling {
    /// That of matrix `index` of a stack, each of which has `outputs`.
    pub(super) fn of_stack(self, index: u32, outputs: u32) -> Scaling {
        let rows = u64::from(outputs.div_ceil(self.outputs.max(1)));
        let each = rows * u64::from(self.columns) * self.kind.bytes();
        Scaling { offset: self.offset.saturating_add(each * u64::from(index)), ..self }
    }

    /// Reads the rows of scales that `channels` need.
    pub(super) fn read(self, files: &[ModelFile], channels: &Range<u32>) -> io::Result<Vec<f32>> {
        let file = files.get(self.shard).ok_or_else(|| io::Error::other("no such file"))?;
        let rows = channels.start / self.outputs..channels.end.div_ceil(self.outputs);
        let count = (rows.end - rows.start) as usize * self.columns as usize;
        let each = self.kind.bytes();
        let start = self.offset + u64::from(rows.start) * u64::from(self.columns) * each;
        let mut raw = vec![0; count * each as usize];
        file.read_at(start, &mut raw)?;
        let mut out = vec![0.0; count];
        self.kind.decode(&raw, &mut out);
        match self.factor {
            Factor::One => {}
            Factor::Times(by) => out.iter_mut().for_each(|scale| *scale *= f32::from_bits(by)),
            Factor::Over(by) => out.iter_mut().for_each(|scale| *scale /= f32::from_bits(by)),
        }
        Ok(out)
    }
}

/// Methods whose codes are not read, by ends of their tensors' names.
const NOT_READ: [(&str, &str); 11] = [
    (".g_idx", "a model quantised by GPTQ, whose codes are not read"),
    (".qweight", "a model quantised by AWQ or GPTQ, whose codes are not read"),
    (".weight.absmax", "a model in bitsandbytes' four bits, which are not read"),
    (".weight.quant_map", "a model in bitsandbytes' four bits, which are not read"),
    (".weight_shape", "packed by compressed-tensors (codes of GPTQ or AWQ), which are not read"),
    (".q_weight", "an EXL2 model, whose codes are not read"),
    (".trellis", "an EXL3 model, whose codes are not read"),
    (".W_q", "a model quantised by HQQ, whose codes are not read"),
    (".codebooks", "a model quantised by AQLM, whose codes are not read"),
    (".Qidxs", "a model quantised by QuIP#, whose codes are not read"),
    (".quant_state.bitsandbytes__fp4", "a model in bitsandbytes' four bits, which are not read"),
];

/// What is no model, by a part of all names.
const NO_MODELS: [(&str, &str, &str); 3] = [
    ("lora_", "a LoRA adapter", "merge it into its model first, and take what comes out"),
    (".exp_avg", "the state of an optimizer", "take the model's own file"),
    ("hada_w", "a LoHa adapter", "merge it into its model first, and take what comes out"),
];

/// What to take in their place.
const INSTEAD: &str = "take the model's own safetensors (BF16 or F16), or a GGUF of it";

/// Refuses a model that is quantised by a method whose codes are not read.
fn refuse_methods(path: &Path, tensors: &[Candidate]) -> Result<(), ModelError> {
    for (part, what, instead) in NO_MODELS {
        if !tensors.is_empty() && tensors.iter().all(|tensor| tensor.name.contains(part)) {
            return Err(ModelError::NoModel { path: path.to_owned(), what, instead });
        }
    }
    for (end, what) in NOT_READ {
        if tensors.iter().any(|tensor| tensor.name.ends_with(end)) {
            return Err(ModelError::NoModel { path: path.to_owned(), what, instead: INSTEAD });
        }
    }
    let has = |name: &str| tensors.iter().any(|tensor| *tensor.name == *name);
    let of_mlx = |tensor: &Candidate| {
        matches!(&tensor.kind, Err(kind) if kind == "U32")
            && tensor.name.strip_suffix(".weight").is_some_and(|of| has(&format!("{of}.scales")))
    };
    if tensors.iter().find(|tensor| tensor.name.ends_with(".weight")).is_some_and(of_mlx) {
        let what = "a model quantised by MLX, whose codes are not read";
        return Err(ModelError::NoModel { path: path.to_owned(), what, instead: INSTEAD });
    }
    Ok(())
}

/// Puts codes and scales together: what is a weight has its matrix's name and shape then, and what only
/// scales says so. `block` are the outputs and inputs of a block, where config.json names them.
pub(super) fn pair(
    path: &Path,
    tensors: &mut [Candidate],
    files: &[ModelFile],
    block: Option<[u32; 2]>,
) -> Result<(), ModelError> {
    refuse_methods(path, tensors)?;
    let codes = |tensor: &Candidate| {
        matches!(tensor.kind, Ok(TensorType::F8_E4M3 | TensorType::I8))
            || matches!(&tensor.kind, Err(kind) if kind == "U8")
    };
    if !tensors.iter().any(codes) {
        return Ok(());
    }
    let places: HashMap<Box<str>, usize> =
        tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
    for at in 0..tensors.len() {
        if !codes(&tensors[at]) || tensors[at].side.is_some() {
            continue;
        }
        let found = Found { tensors, places: &places, files, block };
        if let Some(paired) = found.of(&tensors[at])? {
            for side in paired.sides {
                tensors[side].side = Some(format!("of the codes of {:?}", paired.name));
            }
            let tensor = &mut tensors[at];
            tensor.name = paired.name;
            tensor.dimensions = paired.dimensions;
            (tensor.kind, tensor.scaling) = match paired.kind {
                Ok((kind, scaling)) => (Ok(kind), scaling),
                Err(why) => (Err(why), None),
            };
        }
    }
    Ok(())
}

/// What was found of a tensor of codes.
struct Paired {
    name: Box<str>,
    dimensions: Vec<u64>,
    kind: Result<(TensorType, Option<Scaling>), String>,
    sides: Vec<usize>,
}

struct Found<'a> {
    tensors: &'a [Candidate],
    places: &'a HashMap<Box<str>, usize>,
    files: &'a [ModelFile],
    block: Option<[u32; 2]>,
}

impl Found<'_> {
    fn place(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    fn of(&self, codes: &Candidate) -> Result<Option<Paired>, ModelError> {
        let name = &*codes.name;
        let stem = name.strip_suffix(".weight");
        // A stack's tensor is a parameter of its own: its scales are called after it.
        let of = |end: &str| match stem {
            Some(stem) => self.place(&format!("{stem}.weight{end}")),
            None => self.place(&format!("{name}{end}")),
        };
        let mut sides: Vec<usize> = ["input_scale", "input_global_scale"]
            .iter()
            .filter_map(|end| self.place(&format!("{}.{end}", stem.unwrap_or(name))))
            .collect();
        let done = |name: &str, dimensions, kind, sides| {
            Ok(Some(Paired { name: name.into(), dimensions, kind, sides }))
        };
        match codes.kind {
            Ok(kind @ (TensorType::F8_E4M3 | TensorType::I8)) => {
                let (scale, factor) = match of("_scale_inv").or_else(|| of("_scale")) {
                    Some(scale) => (Some(scale), Factor::One),
                    None => {
                        let row = stem.and_then(|stem| self.place(&format!("{stem}.SCB")));
                        (row, Factor::Over(127f32.to_bits()))
                    }
                };
                let zero = of("_zero_point");
                sides.extend(scale.into_iter().chain(zero));
                let kind = match (scale, kind) {
                    _ if zero.is_some() => Err(format!("{kind} with zero points")),
                    (None, TensorType::I8) => Err("I8, without scales".into()),
                    // Cast, not scaled.
                    (None, _) => Ok((kind, None)),
                    (Some(scale), _) => self
                        .scaling(&codes.dimensions, scale, factor)
                        .map(|scaling| (kind, Some(scaling))),
                };
                done(name, codes.dimensions.clone(), kind, sides)
            }
            _ => self.of_pairs(codes, sides),
        }
    }

    /// Codes of four bits, two a byte.
    fn of_pairs(
        &self,
        codes: &Candidate,
        mut sides: Vec<usize>,
    ) -> Result<Option<Paired>, ModelError> {
        let name = &*codes.name;
        let (matrix, scale, global) = if let Some(stem) = name.strip_suffix(".weight_packed") {
            let global = self.place(&format!("{stem}.weight_global_scale"));
            (format!("{stem}.weight"), format!("{stem}.weight_scale"), global.map(|g| (g, true)))
        } else if let Some(stem) = name.strip_suffix("_blocks") {
            (stem.to_owned(), format!("{stem}_scales"), None)
        } else if let Some(stem) = name.strip_suffix(".weight") {
            let global = self.place(&format!("{stem}.weight_scale_2"));
            (name.to_owned(), format!("{stem}.weight_scale"), global.map(|g| (g, false)))
        } else {
            return Ok(None);
        };
        let Some(scale) = self.place(&scale) else { return Ok(None) };
        if matrix != name && self.place(&matrix).is_some() {
            return Ok(None);
        }
        sides.push(scale);
        let mut factor = Factor::One;
        if let Some((global, inverse)) = global {
            sides.push(global);
            let value = self.scalar(global)?.to_bits();
            factor = if inverse { Factor::Over(value) } else { Factor::Times(value) };
        }
        let mut dimensions = codes.dimensions.clone();
        if name.ends_with("_blocks") {
            // Blocks of 16 bytes are a dimension of their own.
            let [16, blocks, rest @ ..] = &dimensions[..] else { return Ok(None) };
            dimensions =
                std::iter::once(blocks.saturating_mul(32)).chain(rest.iter().copied()).collect();
        } else if let Some(first) = dimensions.first_mut() {
            *first = first.saturating_mul(2);
        }
        let scaling = self.scaling(&dimensions, scale, factor);
        let kind = scaling.map(|scaling| (TensorType::E2M1, Some(scaling)));
        Ok(Some(Paired { name: matrix.into(), dimensions, kind, sides }))
    }

    /// The only value of a tensor.
    fn scalar(&self, at: usize) -> Result<f32, ModelError> {
        let tensor = &self.tensors[at];
        let refuse = |reason: &str| ModelError::Tensor {
            name: tensor.name.clone(),
            reason: reason.to_owned(),
        };
        let (Some(kind), Some(file)) = (ScaleType::of(tensor), self.files.get(tensor.shard)) else {
            return Err(refuse("is no scale"));
        };
        if tensor.bytes != kind.bytes() {
            return Err(refuse("holds more than the one scale that it should"));
        }
        let mut raw = vec![0; tensor.bytes as usize];
        let read = file.read_at(tensor.offset, &mut raw);
        read.map_err(|error| file.failed(&*tensor.name, tensor.offset, error))?;
        let mut value = [0.0];
        kind.decode(&raw, &mut value);
        Ok(value[0])
    }

    /// How the scales of tensor `at` lie over a matrix of these dimensions, or a stack of them.
    fn scaling(&self, dimensions: &[u64], at: usize, factor: Factor) -> Result<Scaling, String> {
        let scales = &self.tensors[at];
        let shape = |d: &[u64]| d.iter().rev().map(u64::to_string).collect::<Vec<_>>().join(" × ");
        let refuse = || {
            let (of, scales) = (shape(dimensions), shape(&scales.dimensions));
            format!("codes of {of} with scales of {scales}, which do not fit")
        };
        let [k, n, stack @ ..] = dimensions else { return Err(refuse()) };
        let stack: u64 = stack.iter().product();
        let (Ok(k), Ok(n)) = (u32::try_from(*k), u32::try_from(*n)) else { return Err(refuse()) };
        let kind = ScaleType::of(scales).ok_or_else(refuse)?;
        let count: u64 = scales.dimensions.iter().product();
        if k == 0 || n == 0 || stack == 0 || scales.bytes != count.saturating_mul(kind.bytes()) {
            return Err(refuse());
        }
        let each = count / stack;
        let (outputs, inputs, columns) = match scales.dimensions[..] {
            _ if each == 1 => (n, k, 1),
            [1, ..] | [_] if each == u64::from(n) => (1, k, 1),
            [columns, rows, ..] if columns.checked_mul(rows) == Some(each) => {
                let [block_n, block_k] = self.block.map_or([None; 2], |block| block.map(Some));
                let outputs = share(n, rows, block_n).ok_or_else(refuse)?;
                let inputs = share(k, columns, block_k).ok_or_else(refuse)?;
                (outputs, inputs, columns as u32)
            }
            _ => return Err(refuse()),
        };
        if each * stack != count {
            return Err(refuse());
        }
        let (shard, offset) = (scales.shard, scales.offset);
        Ok(Scaling { shard, offset, kind, outputs, inputs, columns, factor })
    }
}

/// Blocks of the published FP8 models, where config.json does not say.
const BLOCK: u32 = 128;

/// How many of `all` values share a scale, of which there are `scales`.
fn share(all: u32, scales: u64, known: Option<u32>) -> Option<u32> {
    let fits = |each: &u32| all > 0 && *each > 0 && u64::from(all.div_ceil(*each)) == scales;
    let even = u32::try_from(scales).ok().filter(|s| *s > 0 && all.is_multiple_of(*s));
    let even = even.map(|scales| all / scales);
    [known, Some(BLOCK), even].into_iter().flatten().find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_from_their_number() {
        assert_eq!(share(576, 5, None), Some(128));
        assert_eq!(share(130, 2, None), Some(128)); // not 65
        assert_eq!(share(144, 9, None), Some(16));
        assert_eq!(share(100, 1, None), Some(128)); // one, as long as it holds all
        assert_eq!(share(512, 1, None), Some(512));
        assert_eq!(share(96, 2, Some(64)), Some(64));
        for (all, scales) in [(100, 0), (100, 7), (7, u64::MAX), (0, 0)] {
            assert_eq!(share(all, scales, None), None, "{all} {scales}");
        }
    }

    #[test]
    fn powers_of_two_are_bytes() {
        let mut out = [0.0; 4];
        ScaleType::Powers.decode(&[0, 1, 127, 254], &mut out);
        assert_eq!(out, [2f32.powi(-127), 2f32.powi(-126), 1.0, 2f32.powi(127)]);
    }
}
