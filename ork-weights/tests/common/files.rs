//! Model files of half floats, made by hand.

use ork_weights::dequant::TensorType;

/// A name, and dimensions as the file has them.
pub type Tensor<'a> = (&'a str, &'a [u64]);

/// A GGUF that says its architecture and nothing else.
pub fn gguf(architecture: &str, tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(1u64.to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, architecture);
    let mut offset = 0u64;
    for (name, dimensions) in tensors {
        text(&mut out, name);
        out.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(TensorType::F16.ggml().unwrap().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (2 * dimensions.iter().product::<u64>()).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(halves(offset as usize / 2));
    out
}

/// A safetensors file.
pub fn safetensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let (mut header, mut at) = (String::from("{"), 0);
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<u64>();
        let comma = if at == 0 { "" } else { "," };
        header += &format!(
            "{comma}\"{name}\":{{\"dtype\":\"F16\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
        );
        at = end;
    }
    header.push('}');
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(halves(at as usize / 2));
    out
}

/// Half floats of believable sizes, each another than its neighbours.
fn halves(count: usize) -> impl Iterator<Item = u8> {
    (0..count).flat_map(|i| (0x2c00 + ((i * 7919) % 1021) as u16).to_le_bytes())
}
