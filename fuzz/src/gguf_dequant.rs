//! Any bytes as blocks of every type.

use ork_weights::dequant::{TensorType, dequantise};

/// The first byte chooses a type, the rest are blocks: no panic, whole rows equal to their blocks
/// one by one, and lengths that do not fit refused.
pub fn gguf_dequant(data: &[u8]) {
    let Some((first, raw)) = data.split_first() else { return };
    let types: Vec<TensorType> = TensorType::all().collect();
    let kind = types[usize::from(*first) % types.len()];
    let (bytes, elements) = (kind.block_bytes(), kind.block_elements());
    let blocks = raw.len() / bytes;
    let mut whole = vec![0f32; blocks * elements];
    let raw = &raw[..blocks * bytes];
    dequantise(kind, raw, &mut whole).expect("whole blocks");
    let mut one = vec![0f32; elements];
    for (block, values) in raw.chunks_exact(bytes).zip(whole.chunks_exact(elements)) {
        dequantise(kind, block, &mut one).expect("one block");
        let same = one.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{kind}: a block alone differs from the block in its row");
    }
    if blocks != 0 {
        assert!(dequantise(kind, &raw[1..], &mut whole).is_err());
        assert!(dequantise(kind, raw, &mut whole[1..]).is_err());
    }
}
