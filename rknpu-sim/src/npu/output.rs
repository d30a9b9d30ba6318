//! Where results go and in which form.

use half::f16;
use rknpu_sys::regs::{Field, dpu};

use super::cube::{ATOM, Cube};
use super::matmul::{Kind, Pixels, Requant, aligned};
use super::refusal::Refusal;
use super::registers::Registers;

/// [`dpu::BS_OW_CFG`]: output size code, three times.
const SIZE_E: [Field; 3] = [Field::new(10, 8), Field::new(7, 5), Field::new(4, 2)];
/// [`dpu::BS_OW_CFG`]: set by some encodings, clear in others.
const OD_BYPASS: Field = Field::new(1, 1);
/// Bytes that one logical row of an int4 batch occupies per block of 64 channels, and rows counted.
const BATCH_BLOCK: u64 = 512;
/// Atoms of 64 int16.
const BATCH_ATOMS: usize = 8;

/// The output of `m` rows, which are `pixels`, and `n` channels.
///
/// Atom `a` of row `m` goes to `a × surface stride + m × (1 + notch)` atoms: a surface stride of 1
/// with a notch of a row makes row-major, one of M without a notch makes planes. Atoms come in groups of
/// the size code + 1, and SURFACE_ADD atoms lie from group to group: with more than the group takes,
/// results have gaps. A batch of int4 rows is written at four times its pitch in blocks of 64 channels,
/// as public drivers found.
pub(super) fn cube(
    r: &Registers,
    kind: Kind,
    pixels: Pixels,
    m: u32,
    n: u32,
    batch: bool,
) -> Result<Cube, Refusal> {
    let base = aligned(r, dpu::DST_BASE_ADDR)?;
    r.only(dpu::DST_SURF_STRIDE, &[dpu::DST_SURF_STRIDE_ATOMS])?;
    r.only(dpu::DATA_CUBE_NOTCH_ADDR, &[dpu::NOTCH_0, dpu::NOTCH_1])?;
    r.only(dpu::DATA_CUBE_CHANNEL, &[dpu::CHANNEL_ORIGINAL, dpu::CHANNEL])?;
    r.only(dpu::SURFACE_ADD, &[dpu::SURFACE_ADD_ATOMS])?;
    let surface = r.field(dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS);
    let group = group_atoms(r, kind)?;
    let add = r.field(dpu::SURFACE_ADD, dpu::SURFACE_ADD_ATOMS);
    let per_atom = ATOM as u32 / kind.output_bytes();
    let (rows, atoms) = (m as usize, (n / per_atom) as usize);
    if r.field(dpu::DATA_CUBE_CHANNEL, dpu::CHANNEL) != n - 1 {
        return Err(
            r.unexpected(dpu::DATA_CUBE_CHANNEL, format!("N - 1 = {} in bits 12..0", n - 1))
        );
    }
    if batch {
        r.expect(dpu::WDMA_SIZE_1, 0, "0 for int4 batches")?;
        r.expect(dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS.put(1), "one atom")?;
        r.expect(dpu::SURFACE_ADD, dpu::SURFACE_ADD_ATOMS.put(group), "a group of atoms")?;
        let notch = n / 4 - 1;
        let both = dpu::NOTCH_1.put(notch) | dpu::NOTCH_0.put(notch);
        r.expect(dpu::DATA_CUBE_NOTCH_ADDR, both, "N / 4 - 1 twice")?;
        let run_step = BATCH_BLOCK * u64::from(m);
        let cube = Cube { base, rows, row_step: BATCH_BLOCK, atoms, run: BATCH_ATOMS, run_step };
        return Ok(cube);
    }
    let Pixels { width, height } = pixels;
    if m > 1 {
        let size = dpu::WDMA_SIZE_1_HEIGHT.put(height - 1) | dpu::WDMA_SIZE_1_WIDTH.put(width - 1);
        r.expect(dpu::WDMA_SIZE_1, size, "height - 1 and width - 1")?;
    }
    let notch = r.field(dpu::DATA_CUBE_NOTCH_ADDR, dpu::NOTCH_1);
    if width > 1 && notch != 0 {
        return Err(r.unexpected(dpu::DATA_CUBE_NOTCH_ADDR, "0 for lines of many pixels".into()));
    }
    let row_step = (u64::from(notch) + 1) * ATOM as u64;
    let steady = u64::from(add) == u64::from(surface) * u64::from(group);
    let (run, run_step) = match (surface, steady) {
        (1, true) => (atoms, 0),
        (1, false) if atoms <= group as usize => (atoms, 0),
        (1, false) => (group as usize, u64::from(add) * ATOM as u64),
        (_, true) => (1, u64::from(surface) * ATOM as u64),
        (_, false) => {
            let expected =
                format!("{} (surface stride times {group})", surface.wrapping_mul(group));
            return Err(r.unexpected(dpu::SURFACE_ADD, expected));
        }
    };
    let cube = Cube { base, rows, row_step, atoms, run, run_step };
    if !cube.is_disjoint() {
        return Err(r.shape(format!(
            "output atoms overlap: surface stride {surface} atoms, {add} from group to group, row stride \
             {} atoms, {m} rows of {atoms} atoms; expected surface stride 1 and notch {} (row-major) or \
             surface stride {m} and notch 0 (planes)",
            notch + 1,
            atoms - 1
        )));
    }
    consistent(r, &cube, n, per_atom)?;
    Ok(cube)
}

/// The registers that repeat the pitch of a row.
fn consistent(r: &Registers, cube: &Cube, n: u32, per_atom: u32) -> Result<(), Refusal> {
    if cube.rows == 1 {
        return Ok(());
    }
    let low = r.field(dpu::DATA_CUBE_NOTCH_ADDR, dpu::NOTCH_0);
    let high = r.field(dpu::DATA_CUBE_NOTCH_ADDR, dpu::NOTCH_1);
    let pitch = r.field(dpu::DATA_CUBE_CHANNEL, dpu::CHANNEL_ORIGINAL) + 1;
    if low != high && low as usize != cube.atoms - 1 {
        let expected = format!("{high} or {} (atoms of a row - 1) in bits 12..0", cube.atoms - 1);
        return Err(r.unexpected(dpu::DATA_CUBE_NOTCH_ADDR, expected));
    }
    if pitch != n && pitch != (high + 1) * per_atom {
        let expected = format!(
            "N - 1 = {} or {} (elements from row to row - 1) in bits 28..16",
            n - 1,
            (high + 1) * per_atom - 1
        );
        return Err(r.unexpected(dpu::DATA_CUBE_CHANNEL, expected));
    }
    Ok(())
}

/// Atoms that the output stage writes together, by the registers that say how wide results are.
fn group_atoms(r: &Registers, kind: Kind) -> Result<u32, Refusal> {
    let size_e = match kind {
        Kind::Int8ToInt32 | Kind::Int4ToInt16 => 7,
        Kind::Fp16ToFp32 | Kind::Bf16ToFp32 => 3,
        Kind::Fp16ToFp16 | Kind::Int8ToInt8(_) => 1,
    };
    let sizes = SIZE_E.iter().fold(0, |bits, field| bits | field.put(size_e));
    if r.get(dpu::BS_OW_CFG) & !OD_BYPASS.mask() != sizes {
        let expected = format!("{sizes:#x} with or without bit 1 (size code {size_e} three times)");
        return Err(r.unexpected(dpu::BS_OW_CFG, expected));
    }
    Ok(size_e + 1)
}

/// Converts sums to output elements, little-endian, at the start of `bytes`.
pub(super) fn store_ints(kind: Kind, sums: &[i32], bytes: &mut [u8]) {
    match kind {
        Kind::Int8ToInt8(requant) => {
            for (byte, sum) in bytes.iter_mut().zip(sums) {
                *byte = requant.apply(*sum) as u8;
            }
        }
        Kind::Int4ToInt16 => store(sums, bytes, |sum| {
            (sum.clamp(i16::MIN.into(), i16::MAX.into()) as i16).to_le_bytes()
        }),
        _ => store(sums, bytes, i32::to_le_bytes),
    }
}

/// Converts sums to output elements, little-endian, at the start of `bytes`; fp16 rounds ties to even.
pub(super) fn store_floats(kind: Kind, sums: &[f32], bytes: &mut [u8]) {
    match kind {
        Kind::Fp16ToFp16 => store(sums, bytes, |sum| f16::from_f32(sum).to_le_bytes()),
        _ => store(sums, bytes, f32::to_le_bytes),
    }
}

fn store<T: Copy, const N: usize>(sums: &[T], bytes: &mut [u8], convert: impl Fn(T) -> [u8; N]) {
    for (element, sum) in bytes.as_chunks_mut().0.iter_mut().zip(sums) {
        *element = convert(*sum);
    }
}

impl Requant {
    fn apply(self, sum: i32) -> i8 {
        let product = i64::from(sum) * i64::from(self.multiplier);
        let floor = product >> self.shift;
        let rest = product - (floor << self.shift);
        let half = (1i64 << self.shift) / 2;
        let up = self.shift > 0 && (rest > half || rest == half && floor & 1 == 1);
        (floor + i64::from(up)).clamp(i8::MIN.into(), i8::MAX.into()) as i8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requantising_rounds_ties_to_even_and_saturates() {
        let half = Requant { multiplier: 1, shift: 1 };
        let results = [61, 79, -15, 1, 3, -1, -3, 300, -300].map(|sum| half.apply(sum));
        assert_eq!(results, [30, 40, -8, 0, 2, 0, -2, 127, -128]);
        assert_eq!(Requant { multiplier: 1, shift: 0 }.apply(-7), -7);
        assert_eq!(Requant { multiplier: -1, shift: 62 }.apply(i32::MIN), 0);
    }

    #[test]
    fn int16_results_saturate() {
        let mut bytes = [0; 6];
        store_ints(Kind::Int4ToInt16, &[32768, -32769, 5], &mut bytes);
        assert_eq!(bytes, [0xff, 0x7f, 0x00, 0x80, 5, 0]);
    }
}
