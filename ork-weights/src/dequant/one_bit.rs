//! Signs with a scale.

// The name is the type's own.
#![allow(non_camel_case_types)]

use super::{Block, half_at, part};

pub(super) struct Q1_0;

impl Block<18, 128> for Q1_0 {
    /// A half float, then a bit a value, the lowest first: set for plus, clear for minus.
    #[inline(always)]
    fn decode(raw: &[u8; 18], out: &mut [f32; 128]) {
        let (d, bits) = (half_at(raw, 0), part::<16>(raw, 2));
        for (out, byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
            *out = std::array::from_fn(|i| if byte >> i & 1 == 1 { d } else { -d });
        }
    }
}
