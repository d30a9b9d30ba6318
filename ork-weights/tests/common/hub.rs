//! Folders of the hub, made up as a stream, of any size.

use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

/// How the matrices are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// BF16.
    Half,
    /// FP8, and BF16 scales of blocks of 128 × 128.
    Fp8,
}

/// Makes a folder of a model of one layer and its head, in two files and their index. Gives the bytes
/// of its weights.
pub fn folder(at: &Path, kept: Kept, embedding: usize, inner: usize, words: usize) -> Result<u64> {
    let matrices = [
        ("model.layers.0.mlp.gate_proj", inner, embedding),
        ("model.layers.0.mlp.up_proj", inner, embedding),
        ("model.layers.0.mlp.down_proj", embedding, inner),
        ("lm_head", words, embedding),
    ];
    let (mut map, mut bytes) = (Vec::new(), 0);
    for (number, part) in [&matrices[..2], &matrices[2..]].into_iter().enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", number + 1);
        let (mut header, mut sizes, mut end) = (Vec::new(), Vec::new(), 0);
        for (matrix, n, k) in part {
            let mut tensor = |name: String, dtype: &str, shape: [usize; 2], each: usize| {
                let length = each * shape[0] * shape[1];
                let range = [end, end + length];
                end += length;
                header.push(format!(
                    r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{range:?}}}"#
                ));
                map.push(format!(r#""{name}":"model-{:05}-of-00002.safetensors""#, number + 1));
                sizes.push((dtype == "F8_E4M3", length));
            };
            let weight = format!("{matrix}.weight");
            match kept {
                Kept::Half => tensor(weight, "BF16", [*n, *k], 2),
                Kept::Fp8 => {
                    tensor(weight.clone(), "F8_E4M3", [*n, *k], 1);
                    let blocks = [n.div_ceil(128), k.div_ceil(128)];
                    tensor(format!("{weight}_scale_inv"), "BF16", blocks, 2);
                }
            }
        }
        let header = format!("{{{}}}", header.join(","));
        let mut out = BufWriter::new(File::create(at.join(name))?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        for (codes, length) in sizes {
            bytes += length as u64;
            write(&mut out, codes, length)?;
        }
        out.into_inner()?.sync_all()?;
    }
    let index = format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, map.join(","));
    std::fs::write(at.join("model.safetensors.index.json"), index)?;
    let config = r#"{"model_type":"llama","quantization_config":{"weight_block_size":[128,128]}}"#;
    std::fs::write(at.join("config.json"), config)?;
    Ok(bytes)
}

/// Finite values of believable sizes.
fn write(out: &mut impl Write, codes: bool, length: usize) -> Result<()> {
    let noise: Vec<u8> = (0..64usize << 10)
        .map(|i| {
            let noise = (i.wrapping_mul(2_654_435_761) >> 13) as u8;
            match codes {
                true => noise & 0xb7,                         // small, and never NaN
                false if i % 2 == 1 => 0x3c | (noise & 0x81), // BF16 of about 0.01
                false => noise,
            }
        })
        .collect();
    let mut left = length;
    while left > 0 {
        let some = left.min(noise.len());
        out.write_all(&noise[..some])?;
        left -= some;
    }
    Ok(())
}
