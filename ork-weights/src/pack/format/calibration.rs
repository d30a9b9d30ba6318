//! Measurements that a tool of the C project appends to version 7 packs.

use super::bytes::Cursor;
use super::footer::Footer;
use crate::pack::error::{PackError, Result};

/// Speed measurements of one board, kept in a pack; meaningful there only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calibration {
    /// Highest clock of the CPU in kHz.
    pub cpu_max_khz: u32,
    /// Number of big cores.
    pub big_cores: u32,
    /// Format token of the packer.
    pub token: u32,
    /// Bit 0: all big cores ran with the governor `performance`.
    pub flags: u32,
    /// FNV-64 of the kernel's release and version.
    pub kernel_hash: u64,
    /// The measurements.
    pub rows: Vec<CalibrationRow>,
}

/// One measurement. K = N = 0: least batch for the NPU anywhere; K = 0xFFFF_FFFF and N = 0: the decode
/// route; otherwise the least batch for this shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalibrationRow {
    /// Rows of the weight.
    pub k: u32,
    /// Channels of the weight.
    pub n: u32,
    /// What was found.
    pub value: u32,
}

/// Reads the block that the footer names; `region` begins at the index, `index_end` is where it ends.
pub(crate) fn parse(
    region: &[u8],
    footer: &Footer,
    index_end: u64,
    footer_at: u64,
) -> Result<Option<Calibration>> {
    let Some((offset, rows)) = footer.calibration else { return Ok(None) };
    let out_of_range =
        || PackError::CalibrationRange { offset, rows, index_end, footer: footer_at };
    let bytes = 24 + 16 * u64::from(rows);
    let end = offset.checked_add(bytes).ok_or_else(out_of_range)?;
    if offset < index_end || end > footer_at {
        return Err(out_of_range());
    }
    // Inside the region by the check above, so the slice and every field exist.
    let start = usize::try_from(offset - footer.index).map_err(|_| out_of_range())?;
    let block = region.get(start..).ok_or_else(out_of_range)?;
    read(Cursor::new(block), rows).map(Some).ok_or_else(out_of_range)
}

fn read(mut at: Cursor<'_>, rows: u32) -> Option<Calibration> {
    let mut block = Calibration {
        cpu_max_khz: at.u32()?,
        big_cores: at.u32()?,
        token: at.u32()?,
        flags: at.u32()?,
        kernel_hash: at.u64()?,
        rows: Vec::with_capacity(rows as usize),
    };
    for _ in 0..rows {
        block.rows.push(CalibrationRow { k: at.u32()?, n: at.u32()?, value: at.u32()? });
        at.u32()?;
    }
    Some(block)
}
