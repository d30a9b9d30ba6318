//! Sizes that K, N and dtype give.

use rknpu_sys::layout::{Layout, LayoutError, N_SLICE, PAGE};

use super::o4n1;
use crate::pack::Dtype;

/// Bytes of a blob without a stamp, padding included.
pub(crate) fn bytes(k: u32, n: u32, dtype: Dtype) -> Result<u64, LayoutError> {
    let layout = dtype.layout(k, n)?;
    match dtype.stored() {
        Some(precision) => Ok(Layout::new(layout.k(), layout.n(), precision)?.bytes()),
        None => Ok(o4n1::bytes(layout.k(), layout.n())),
    }
}

/// Whether a blob of this size has a stamp page in front; `None` when the size is neither. Compact
/// blobs have a header of their own and never a stamp.
pub(crate) fn stamped(bytes: u64, expected: u64, dtype: Dtype) -> Option<bool> {
    if bytes == expected {
        Some(false)
    } else {
        (dtype != Dtype::O4n1 && expected.checked_add(PAGE) == Some(bytes)).then_some(true)
    }
}

/// Bytes of the int8 copy tiled over the full K, which versions 4 to 7 may carry behind an int8 blob.
pub(crate) fn full_k_bytes(k: u32, n: u32) -> u64 {
    let padded = |channels: u32| (u64::from(k) * u64::from(channels)).div_ceil(PAGE) * PAGE;
    let last = n % N_SLICE;
    u64::from(n / N_SLICE) * padded(N_SLICE) + if last == 0 { 0 } else { padded(last) }
}

/// Whether a scale count fits: none beside a compact blob or half floats, one per channel for int8, one per channel
/// or per group of K and channel for the rotated forms.
pub(crate) fn scale_count_fits(count: u32, k: u32, n: u32, dtype: Dtype) -> bool {
    match dtype {
        Dtype::O4n1 | Dtype::Fp16 => count == 0,
        Dtype::Int8 => count == n,
        Dtype::Int4 | Dtype::RotatedInt8 | Dtype::Int4AsInt8 => {
            let groups = count / n;
            groups != 0 && count.is_multiple_of(n) && k.is_multiple_of(groups)
        }
    }
}
