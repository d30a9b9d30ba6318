//! Codes of one byte, whose scales stand elsewhere.

/// What an E4M3 byte stands for: a sign, four bits of exponent (7 more), three of mantissa; the largest
/// magnitude is no number, and there are no infinities.
pub(super) const fn e4m3(byte: u8) -> f32 {
    let sign = ((byte & 0x80) as u32) << 24;
    let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => 0x7fc0_0000,
        // A subnormal is m × 2⁻⁹.
        (0, m) => (m as f32 * 0.001_953_125).to_bits(),
        (e, m) => (e + 120) << 23 | m << 20,
    };
    f32::from_bits(sign | magnitude)
}

/// All of them.
static E4M3: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = e4m3(byte as u8);
        byte += 1;
    }
    table
};

#[inline(always)]
pub(super) fn e4m3s(raw: &[u8], out: &mut [f32]) {
    for (out, byte) in out.iter_mut().zip(raw) {
        *out = E4M3[usize::from(*byte)];
    }
}

#[inline(always)]
pub(super) fn i8s(raw: &[u8], out: &mut [f32]) {
    for (out, byte) in out.iter_mut().zip(raw) {
        *out = f32::from(*byte as i8);
    }
}
