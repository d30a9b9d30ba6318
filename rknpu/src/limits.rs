//! Every limit of hardware and driver: rows, banks and channels of a register program, domains, bytes, times.
//!
//! CBUF, the buffer that input and weights share in a core, has 12 banks of 32 KiB. A program holds all
//! its input rows there (`data` banks) and streams the weights through the rest, of which an output
//! tile (32 bytes for each k) must fit. The closed form behind the values that the vendor's runtime
//! programs is `data = ceil(rows × row bytes / 32 KiB)`, `weights = 12 − data`; it is inferred, and
//! agrees with every value captured on boards. Row limits here stay at 8 data banks, the most that
//! public programs have been seen to use at their largest shapes.
//!
//! Every limit stands here, so that a board can correct it in one place.
//!
//! ```
//! use rknpu::{Precision, limits};
//!
//! assert_eq!(limits::rows(Precision::Int8, 4096), 64); // rows of 4096 inputs that fit one program
//! ```

use std::time::Duration;

use rknpu_sys::layout::Precision;
use rknpu_sys::regs::{CBUF_BANK_BYTES, CBUF_BANKS};

/// Banks that input rows may take.
pub(crate) const DATA_BANKS: u32 = 8;
/// Rows of a program at most; public programs have run up to 544.
pub const ROWS: u32 = 512;
/// K of a matmul at most: beyond it, an i32 sum of int8 products can overflow.
pub const K: u32 = 131_072;
/// Programs chained in one submit at most; public programs have run about 860.
pub const CHAIN: u32 = 768;
/// Bytes of a buffer at most: what a domain maps, 4 GiB less the page at address 0.
pub const BUFFER: u64 = DOMAIN;
/// Bytes that a domain can map.
pub const DOMAIN: u64 = (1 << 32) - (1 << 12);
/// Programs in a job of the mainline driver, whose limit of 500 ms is for the job, on a core that others may
/// use. The longest program multiplies 2 × 10⁹ pairs, 20 ms at a tenth of the core's speed (derived).
pub(crate) const TASKS_PER_JOB: usize = 4;
/// Jobs of a submission that the mainline driver has at a time: few, so that all have ended soon.
pub(crate) const JOBS_IN_FLIGHT: usize = 16;
/// Bytes of a page.
pub(crate) const PAGE: u64 = rknpu_sys::layout::PAGE;
/// Domains of a driver that has real ones.
pub const DOMAINS: u32 = 16;
/// Timeout of a job unless another is set. Generous: a job that ends in the 100 ms after its timeout
/// leaves the driver's domain count wrong until a reboot.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the first call in another domain than the last: without one, about one switch in 50,000
/// wedged a board; with this one, none of a million did (measured by the C project).
pub(crate) const SWITCH_SETTLE: Duration = Duration::from_micros(50);
/// Work that makes a further core worth its hand-over, in bytes of weights, each weighed by
/// `1 + rows / 32`: a submit costs about 170 µs and a core reads about 10 bytes of weights a
/// nanosecond (measured by the C project).
pub(crate) const WORK_PER_CORE: u64 = 1 << 20;

/// Bytes of one row of `kp` inputs.
pub(crate) const fn row_bytes(precision: Precision, kp: u32) -> u32 {
    (kp as u64 * precision.bits() as u64 / 8) as u32
}

/// Banks for input and weights of a program with `rows` rows of `kp` inputs; `None` when they do not
/// fit.
pub(crate) const fn banks(precision: Precision, rows: u32, kp: u32) -> Option<(u32, u32)> {
    let bytes = rows as u64 * row_bytes(precision, kp) as u64;
    let data = bytes.div_ceil(CBUF_BANK_BYTES as u64);
    if data == 0 || data > (CBUF_BANKS - weight_banks(kp)) as u64 {
        return None;
    }
    Some((data as u32, CBUF_BANKS - data as u32))
}

/// Banks that an output tile of `kp` inputs needs.
pub(crate) const fn weight_banks(kp: u32) -> u32 {
    let banks = kp.div_ceil(1024);
    if banks == 0 { 1 } else { banks }
}

/// Rows that a program with `kp` inputs takes at most; 1 where only a single row is known to work.
///
/// ```
/// use rknpu::{Precision, limits};
///
/// assert_eq!(limits::rows(Precision::Int8, 1024), 256);
/// assert_eq!(limits::rows(Precision::Fp16, 2048), 64);
/// assert_eq!(limits::rows(Precision::Int4, 1024), 1);
/// ```
pub const fn rows(precision: Precision, kp: u32) -> u32 {
    if matches!(precision, Precision::Int4) {
        // Batches exist, with rows two apart and results in blocks; single rows are the safe form.
        return 1;
    }
    let data = if CBUF_BANKS - weight_banks(kp) < DATA_BANKS {
        CBUF_BANKS - weight_banks(kp)
    } else {
        DATA_BANKS
    };
    let rows = data * CBUF_BANK_BYTES / row_bytes(precision, kp);
    if rows == 0 {
        1
    } else if rows > ROWS {
        ROWS
    } else {
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_equal_what_was_captured_on_boards() {
        // fp16, M × K -> the register's value (weight banks high, data banks low).
        for (m, k, value) in [
            (64, 256, 0xb1),
            (64, 512, 0xa2),
            (64, 1024, 0x84),
            (128, 256, 0xa2),
            (128, 512, 0x84),
            (128, 1024, 0x48),
            (192, 256, 0x93),
            (192, 512, 0x66),
            (192, 1024, 0x1b),
            (256, 256, 0x84),
            (256, 512, 0x48),
        ] {
            if (m, k) == (192, 1024) {
                // 12 banks of data, capped at 11 on the captured program; refused here.
                assert_eq!(banks(Precision::Fp16, m, k), None);
                continue;
            }
            let (data, weights) = banks(Precision::Fp16, m, k).unwrap();
            assert_eq!(weights << 4 | data, value, "{m}x{k}");
        }
    }

    #[test]
    fn every_row_limit_fits_its_banks() {
        for precision in [Precision::Int8, Precision::Fp16, Precision::Int4] {
            for kp in (32..=precision.k_slice()).step_by(32) {
                let rows = rows(precision, kp);
                assert!((1..=ROWS).contains(&rows));
                assert!(banks(precision, rows, kp).is_some(), "{precision:?} {rows}x{kp}");
            }
        }
    }
}
