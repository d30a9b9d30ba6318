//! f32 to half floats.

/// Nearest half float, ties to even; `None` when the value is not finite or too large for one.
#[inline(always)]
pub(super) fn to_half(value: f32) -> Option<u16> {
    let half = half::f16::from_f32(value);
    half.is_finite().then(|| half.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges() {
        assert_eq!(to_half(1.0), Some(0x3c00));
        assert_eq!(to_half(65504.0), Some(0x7bff));
        assert_eq!(to_half(65520.0), None);
        assert_eq!(to_half(f32::NAN), None);
        assert_eq!(to_half(1e-9), Some(0));
        // Halfway between two halves, to the even one.
        assert_eq!(to_half(1.0 + 1.0 / 2048.0), Some(0x3c00));
        assert_eq!(to_half(1.0 + 3.0 / 2048.0), Some(0x3c02));
    }
}
