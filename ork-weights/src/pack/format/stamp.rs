//! The page that newer packers put in front of every tiled blob.

use rknpu_sys::layout::{Layout, N_SLICE, PAGE, Precision};

use super::bytes::Cursor;
use crate::pack::error::{PackError, Result};

/// "OAPK" on disk.
const MAGIC: u32 = 0x4B50_414F;
/// Bytes that [`check`] looks at.
pub(crate) const FIELDS: usize = 28;
const SOC: &[u8; 6] = b"rk3588";

/// Hash over what the tile layout depends on: two rules of the packer, the format token, the chip's K
/// slice for half floats, N slice, buffer elements and cores, then its name. FNV-1a, 32 bits; 0 becomes 1.
const fn capability_id(token: u32) -> u32 {
    const fn eat(mut hash: u32, bytes: &[u8]) -> u32 {
        let mut i = 0;
        while i < bytes.len() {
            hash = (hash ^ bytes[i] as u32).wrapping_mul(16_777_619);
            i += 1;
        }
        hash
    }
    let fields = [1, 2, token, Precision::Fp16.k_slice(), N_SLICE, 32768, 3];
    let mut hash = 2_166_136_261;
    let mut i = 0;
    while i < fields.len() {
        hash = eat(hash, &fields[i].to_le_bytes());
        i += 1;
    }
    match eat(hash, SOC) {
        0 => 1,
        hash => hash,
    }
}

/// The driver's number of a precision, inferred from the order of its macros.
const fn driver_dtype(precision: Precision) -> u32 {
    match precision {
        Precision::Fp16 => 0,
        Precision::Int8 => 1,
        Precision::Int4 => 2,
    }
}

/// Name and value of every field that must agree.
fn fields(layout: &Layout, token: u32) -> [(&'static str, u32); 7] {
    [
        ("magic", MAGIC),
        ("format token", token),
        ("capability id", capability_id(token)),
        ("dtype", driver_dtype(layout.precision())),
        ("K", layout.k()),
        ("N", layout.n()),
        ("header size", PAGE as u32),
    ]
}

/// Whether a stamp that starts with `page` belongs to a blob with this layout.
pub(crate) fn check(page: &[u8], name: &str, layout: &Layout, token: u32) -> Result<()> {
    let mut at = Cursor::new(page);
    for (field, expected) in fields(layout, token) {
        let found = at.u32().unwrap_or(0);
        if found != expected {
            return Err(PackError::Stamp {
                name: name.into(),
                field,
                found: found.into(),
                expected: expected.into(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_id_of_the_rk3588() {
        assert_eq!(capability_id(0), 0x5B87_5632);
    }
}
