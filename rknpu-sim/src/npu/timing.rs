//! How long a core is busy with a job: a model, so that overlap can be studied on any machine.

use super::matmul::{Kind, Matmul};

/// Speeds of one core. The defaults are an RK3588's.
///
/// A job takes the submit floor once, and per program the longer of its arithmetic and its weight
/// stream; input and output are small beside the weights and are not counted.
///
/// ```
/// use rknpu_sim::npu::Timing;
///
/// let timing = Timing { submit_floor_ns: 10_000, ..Timing::default() };
/// assert!(timing.int8_ops_per_second > timing.fp16_ops_per_second);
/// assert_eq!(Timing::instant().submit_floor_ns, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time of a job that computes nothing. 167 µs were measured on boards, submit call included.
    pub submit_floor_ns: u64,
    /// int8 operations (a multiply-add is two) a second: 1024 multiply-adds a cycle at 1 GHz.
    pub int8_ops_per_second: u64,
    /// fp16 operations a second: half of int8's.
    pub fp16_ops_per_second: u64,
    /// int4 operations a second: twice int8's.
    pub int4_ops_per_second: u64,
    /// Bytes of int8 and fp16 weights a second. 28.5 GB/s were measured on boards.
    pub weight_bytes_per_second: u64,
    /// Bytes of int4 weights a second. 10 GB/s were measured on boards: unpacking bounds it.
    pub int4_weight_bytes_per_second: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            submit_floor_ns: 167_000,
            int8_ops_per_second: 2_000_000_000_000,
            fp16_ops_per_second: 1_000_000_000_000,
            int4_ops_per_second: 4_000_000_000_000,
            weight_bytes_per_second: 28_500_000_000,
            int4_weight_bytes_per_second: 10_000_000_000,
        }
    }
}

impl Timing {
    /// No time at all. A speed of 0 counts as unlimited.
    ///
    /// ```
    /// use rknpu_sim::npu::Timing;
    ///
    /// assert_eq!(Timing::instant().int8_ops_per_second, 0); // unlimited
    /// ```
    pub const fn instant() -> Timing {
        Timing {
            submit_floor_ns: 0,
            int8_ops_per_second: 0,
            fp16_ops_per_second: 0,
            int4_ops_per_second: 0,
            weight_bytes_per_second: 0,
            int4_weight_bytes_per_second: 0,
        }
    }

    /// Nanoseconds of one program, without the submit floor.
    pub(super) fn program_ns(&self, matmul: &Matmul) -> u64 {
        let (ops, bytes) = match matmul.kind {
            Kind::Int8ToInt32 | Kind::Int8ToInt8(_) => {
                (self.int8_ops_per_second, self.weight_bytes_per_second)
            }
            Kind::Fp16ToFp32 | Kind::Fp16ToFp16 | Kind::Bf16ToFp32 => {
                (self.fp16_ops_per_second, self.weight_bytes_per_second)
            }
            Kind::Int4ToInt16 => (self.int4_ops_per_second, self.int4_weight_bytes_per_second),
        };
        let work = 2 * u64::from(matmul.m) * u64::from(matmul.k) * u64::from(matmul.n);
        let stream = if matmul.weights.resident { 0 } else { matmul.weights.bytes() };
        nanoseconds(work, ops).max(nanoseconds(stream, bytes))
    }

    /// Nanoseconds of an element-wise program of that many halves: both inputs come from memory.
    pub(super) fn element_wise_ns(&self, elements: u64) -> u64 {
        nanoseconds(4 * elements, self.weight_bytes_per_second)
    }
}

fn nanoseconds(amount: u64, per_second: u64) -> u64 {
    if per_second == 0 {
        return 0;
    }
    let ns = u128::from(amount) * 1_000_000_000 / u128::from(per_second);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_speeds_do_not_overflow() {
        assert_eq!(nanoseconds(28_500, 28_500_000_000), 1000);
        assert_eq!(nanoseconds(u64::MAX, 1), u64::MAX);
        assert_eq!(nanoseconds(5, 0), 0);
    }
}
