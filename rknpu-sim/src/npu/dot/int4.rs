//! int4: two codes a byte, widened so that the int8 dot products take them.

/// Appends the codes of `packed` as bytes: the low nibble is the even element, both two's complement.
/// (The order of the nibbles is inferred; public drivers that pack so get right results.)
pub(in super::super) fn widen(packed: &[u8], codes: &mut Vec<u8>) {
    codes.extend(packed.iter().flat_map(|byte| {
        let low = ((byte << 4) as i8 >> 4) as u8;
        let high = (*byte as i8 >> 4) as u8;
        [low, high]
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_gives_two_codes() {
        let packed: Vec<u8> = (0..=255).collect();
        let mut codes = Vec::new();
        widen(&packed, &mut codes);
        for (byte, pair) in packed.iter().zip(codes.chunks_exact(2)) {
            let code = |nibble: u8| if nibble < 8 { nibble } else { nibble.wrapping_sub(16) };
            assert_eq!(pair, [code(byte % 16), code(byte / 16)]);
        }
    }
}
