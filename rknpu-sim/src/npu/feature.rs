//! Where the input lies, from the registers alone.

use rknpu_sys::regs::cna;

use super::cube::{ATOM, Cube};
use super::matmul::aligned;
use super::refusal::Refusal;
use super::registers::Registers;

/// A line of one pixel, in the 4-byte units of an input that is not row-major.
const LINE_OF_ONE_PIXEL: u32 = 4;

/// The input of `m` rows.
///
/// With CONV_CON1 bit 29 (lines not grouped), DMA_CON1 counts bytes from row to row in units of 16
/// and a row lies in one piece. Without it, a row is one atom in each of many planes, and a plane's
/// pitch in atoms is the sum of line stride and surface stride; int4 batches are the exception, their
/// rows lie in one piece at a pitch of DMA_CON1 × 16. Inferred from programs that run on boards.
pub(super) fn cube(r: &Registers, m: u32, row_bytes: u32, batch: bool) -> Result<Cube, Refusal> {
    r.only(cna::DMA_CON1, &[cna::DMA_CON1_LINE_STRIDE])?;
    r.only(cna::DMA_CON2, &[cna::DMA_CON2_SURF_STRIDE])?;
    let base = aligned(r, cna::FEATURE_DATA_ADDR)?;
    let line = r.field(cna::DMA_CON1, cna::DMA_CON1_LINE_STRIDE);
    let surface = signed_surface(r);
    let atoms = row_bytes as usize / ATOM;
    let rows = m as usize;
    let row_major = r.field(cna::CONV_CON1, cna::CONV_CON1_ROW_MAJOR) == 1;
    if row_major || batch {
        let row_step = u64::from(line) * ATOM as u64;
        if row_major && surface != 0 {
            return Err(r.unexpected(cna::DMA_CON2, "0 (a row is one piece)".into()));
        }
        if batch && row_step != 2 * u64::from(row_bytes) {
            let expected = format!("{} (two rows of {row_bytes} bytes)", row_bytes as usize / 8);
            return Err(r.unexpected(cna::DMA_CON1, expected));
        }
        if m > 1 && row_step < u64::from(row_bytes) {
            let expected = format!("at least {atoms}, 16-byte units from row to row");
            return Err(r.unexpected(cna::DMA_CON1, expected));
        }
        return Ok(Cube { base, rows, row_step, atoms, run: atoms, run_step: 0 });
    }
    r.expect(cna::DMA_CON1, LINE_OF_ONE_PIXEL, "a line of one 16-byte pixel")?;
    // A single row with surface stride 0 is known to run with its planes packed.
    let plane = if m == 1 && surface == 0 { 1 } else { i64::from(LINE_OF_ONE_PIXEL) + surface };
    let planes = u64::try_from(plane).unwrap_or(0);
    let cube =
        Cube { base, rows, row_step: ATOM as u64, atoms, run: 1, run_step: planes * ATOM as u64 };
    if !cube.is_disjoint() {
        let expected = format!(
            "a surface stride such that planes are at least {m} atoms apart (4 × (M / 4 - 1) for M \
             a multiple of 4, -3 for M = 1); here they are {plane} apart"
        );
        return Err(r.unexpected(cna::DMA_CON2, expected));
    }
    Ok(cube)
}

/// The surface stride as a signed number of 28 bits.
fn signed_surface(r: &Registers) -> i64 {
    let raw = r.field(cna::DMA_CON2, cna::DMA_CON2_SURF_STRIDE);
    i64::from((raw << 4) as i32 >> 4)
}
