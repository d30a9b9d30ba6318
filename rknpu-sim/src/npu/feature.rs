//! Where the input lies, from the registers alone.

use rknpu_sys::regs::cna;

use super::cube::{ATOM, Cube};
use super::matmul::{Pixels, aligned};
use super::refusal::Refusal;
use super::registers::Registers;

/// A line of one pixel, in the 4-byte units of an input that is not row-major.
pub(super) const LINE_OF_ONE_PIXEL: u32 = 4;

/// -3, in 28 bits: with a line of one pixel, planes of one atom.
pub(super) const SURFACE_OF_ONE_ROW: u32 = 0x0fff_fffd;

/// The input of `m` rows, which are `pixels`.
///
/// Atom `c` of a pixel lies in plane `c`. Without CONV_CON1 bit 29, DMA_CON1 counts a line in units of
/// 4 bytes, and a plane's pitch in atoms is the sum of line stride and surface stride. With it, DMA_CON1
/// counts from line to line in atoms, and planes are the width and the surface stride apart: lines of one
/// pixel are then rows in one piece, and one line of many pixels takes part in planes of any length.
/// int4 batches are the exception, their rows lie in one piece at a pitch of DMA_CON1 atoms. Inferred from
/// programs that run on boards; all that are known are one of these.
pub(super) fn cube(
    r: &Registers,
    pixels: Pixels,
    m: u32,
    row_bytes: u32,
    batch: bool,
) -> Result<Cube, Refusal> {
    r.only(cna::DMA_CON1, &[cna::DMA_CON1_LINE_STRIDE])?;
    r.only(cna::DMA_CON2, &[cna::DMA_CON2_SURF_STRIDE])?;
    let base = aligned(r, cna::FEATURE_DATA_ADDR)?;
    let line = r.field(cna::DMA_CON1, cna::DMA_CON1_LINE_STRIDE);
    let surface = signed_surface(r);
    let atoms = row_bytes as usize / ATOM;
    let rows = m as usize;
    let Pixels { width, height } = pixels;
    if batch {
        let row_step = u64::from(line) * ATOM as u64;
        if row_step != 2 * u64::from(row_bytes) {
            let expected = format!("{} (two rows of {row_bytes} bytes)", row_bytes as usize / 8);
            return Err(r.unexpected(cna::DMA_CON1, expected));
        }
        return Ok(Cube { base, rows, row_step, atoms, run: atoms, run_step: 0 });
    }
    let row_major = r.field(cna::CONV_CON1, cna::CONV_CON1_ROW_MAJOR) == 1;
    let (row_atoms, plane) = if row_major {
        if width > 1 && height > 1 {
            let expected = "a width or a height of 1 where CONV_CON1 has bit 29".into();
            return Err(r.unexpected(cna::DATA_SIZE0, expected));
        }
        if width == 1 && surface != 0 {
            return Err(r.unexpected(cna::DMA_CON2, "0 (a row is one piece)".into()));
        }
        (if width > 1 { 1 } else { line }, i64::from(width) + surface)
    } else {
        if height > 1 && line != LINE_OF_ONE_PIXEL * width {
            let expected = format!("{} (a line of {width} 16-byte pixels)", 4 * width);
            return Err(r.unexpected(cna::DMA_CON1, expected));
        }
        // A single row with surface stride 0 is known to run with its planes packed.
        (1, if m == 1 && surface == 0 { 1 } else { i64::from(line) + surface })
    };
    let planes = u64::try_from(plane).unwrap_or(0);
    let row_step = u64::from(row_atoms) * ATOM as u64;
    let (run, run_step) = if planes == 1 { (atoms, 0) } else { (1, planes * ATOM as u64) };
    let cube = Cube { base, rows, row_step, atoms, run, run_step };
    if !cube.is_disjoint() {
        let (register, expected) = if row_major && planes == 1 {
            (cna::DMA_CON1, format!("at least {atoms}, 16-byte units from row to row"))
        } else {
            let expected = format!(
                "a surface stride such that planes are at least {m} atoms apart (4 × (M / 4 - 1) for M \
                 a multiple of 4, -3 for M = 1); here they are {plane} apart"
            );
            (cna::DMA_CON2, expected)
        };
        return Err(r.unexpected(register, expected));
    }
    Ok(cube)
}

/// The surface stride as a signed number of 28 bits.
fn signed_surface(r: &Registers) -> i64 {
    let raw = r.field(cna::DMA_CON2, cna::DMA_CON2_SURF_STRIDE);
    i64::from((raw << 4) as i32 >> 4)
}
