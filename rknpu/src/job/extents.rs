//! Which memory a program makes the NPU read and write: bounds, from every register that goes into an
//! address.
//!
//! Where several registers say the same thing (rows stand in six of them) the largest counts, since which of
//! them a unit of the NPU goes by is not known. Where bounds would need what is not known, the program is
//! refused. All figures fit: registers are 32 bits, products are taken in 128.

use rknpu_sys::regs::{ATOM_BYTES, CBUF_BANKS, Field, Format, cna, core, dpu};

use super::allowed_registers::Registers;
use crate::buffer::{Buffer, OnDevice};
use crate::program::ProgramError;

/// Bytes of a CBUF entry.
const CBUF_ENTRY: u128 = 64;
/// The unit in which input and output are addressed, in bytes.
const ATOM: u128 = ATOM_BYTES as u128;
/// [`dpu::BS_OW_CFG`]: size code of the results, three times; bit 1 is set by some encodings.
const SIZE_CODES: [Field; 3] = [Field::new(10, 8), Field::new(7, 5), Field::new(4, 2)];
const SIZE_BYPASS: Field = Field::new(1, 1);
/// Line stride of an input in planes: one pixel of 16 bytes, in units of 4.
const LINE_OF_ONE_PIXEL: u32 = 4;
/// Bytes that a counted row of an int4 batch takes in each block of 64 output channels.
const INT4_BLOCK: (u128, u128) = (512, 64);

/// What a range is, and whether it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Input,
    Weights,
    Output,
}

impl Operand {
    /// As errors name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Operand::Input => "input",
            Operand::Weights => "weights",
            Operand::Output => "output",
        }
    }
}

/// A range of addresses outside of which a program's operand is not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) operand: Operand,
    /// First address.
    pub(super) iova: u64,
    /// Bytes, above 0.
    pub(super) len: u64,
}

/// Refuses a program that reads or writes outside of `buffers`.
pub(super) fn check(
    registers: &Registers,
    buffers: &[Buffer<OnDevice>],
) -> Result<[Extent; 3], ProgramError> {
    let extents = extents(registers)?;
    for Extent { operand, iova, len } in extents {
        let covers = |buffer: &Buffer<OnDevice>| {
            // Both ends of a buffer are at most 4 GiB.
            iova.checked_sub(buffer.iova())
                .and_then(|offset| (buffer.len() as u64).checked_sub(offset))
                .is_some_and(|room| len <= room)
        };
        if !buffers.iter().any(covers) {
            let (program, what) = (registers.program(), operand.name());
            return Err(ProgramError::Outside { program, what, address: iova, len });
        }
    }
    Ok(extents)
}

/// The first word of what a program writes, unless one of `all` reads it.
pub(super) fn mark(of: &[Extent; 3], all: &[[Extent; 3]]) -> Option<u64> {
    let word = of.iter().find(|extent| extent.operand == Operand::Output)?.iova;
    let reads = |extent: &Extent| {
        let inside = word < extent.iova.saturating_add(extent.len) && extent.iova < word + 4;
        extent.operand != Operand::Output && inside
    };
    (!all.iter().flatten().any(reads)).then_some(word)
}

/// What the registers say of the matmul.
struct Shape {
    input: Format,
    output: Format,
    /// Rows of the input, and of the output.
    rows: [u128; 2],
    /// Output channels that the weights have, and that are written.
    channels: [u128; 2],
    /// Inputs of a row, in bytes.
    row: u128,
}

impl Shape {
    /// Whether rows of the input are counted twice and the output is written in blocks.
    fn is_int4_batch(&self) -> bool {
        self.input == Format::Int4 && self.rows[1] > 1
    }
}

/// The ranges that a program's input, weights and output lie in.
///
/// # Errors
/// A value that leaves the ranges unknown; an address that is 0 or between atoms.
pub(super) fn extents(r: &Registers) -> Result<[Extent; 3], ProgramError> {
    let shape = shape(r)?;
    cbuf(r, &shape)?;
    let extent = |operand: Operand, register, len: u128| {
        let iova = u64::from(r.get(register));
        if iova == 0 || !iova.is_multiple_of(ATOM_BYTES.into()) {
            return Err(ProgramError::Address { what: operand.name(), address: iova });
        }
        // More than any address space has is as good as all.
        let len = u64::try_from(len).unwrap_or(u64::MAX).max(1);
        Ok(Extent { operand, iova, len })
    };
    Ok([
        extent(Operand::Input, cna::FEATURE_DATA_ADDR, input(r, &shape)?)?,
        extent(Operand::Weights, cna::DCOMP_ADDR0, weights(r, &shape)?)?,
        extent(Operand::Output, dpu::DST_BASE_ADDR, output(r, &shape)?)?,
    ])
}

/// Formats, on which all units must agree, and sizes.
fn shape(r: &Registers) -> Result<Shape, ProgramError> {
    let wide = "how a width other than 1 moves addresses is not known";
    for (register, field, width) in [
        (cna::DATA_SIZE0, cna::DATA_SIZE0_WIDTH, 1),
        (cna::FC_DATA_SIZE0, cna::DATA_SIZE0_WIDTH, 1),
        (cna::DATA_SIZE2, Field::new(31, 0), 1),
        (core::DATAOUT_SIZE_0, core::DATAOUT_SIZE_0_WIDTH, 0),
        (dpu::DATA_CUBE_WIDTH, Field::new(31, 0), 0),
        (dpu::WDMA_SIZE_1, dpu::WDMA_SIZE_1_WIDTH, 0),
    ] {
        if r.field(register, field) != width {
            return Err(r.refuse(register, wide));
        }
    }

    let proc = r.field(cna::CONV_CON1, cna::CONV_CON1_PROC_PRECISION);
    for (register, field) in [
        (cna::CONV_CON1, cna::CONV_CON1_IN_PRECISION),
        (core::MISC_CFG, core::MISC_CFG_PROC_PRECISION),
        (dpu::DATA_FORMAT, dpu::DATA_FORMAT_IN_PRECISION),
        (dpu::DATA_FORMAT, dpu::DATA_FORMAT_PROC_PRECISION),
    ] {
        if r.field(register, field) != proc {
            return Err(r.refuse(register, "the units disagree on the element type"));
        }
    }
    let out = r.field(dpu::DATA_FORMAT, dpu::DATA_FORMAT_OUT_PRECISION);
    let (input, output, size_code) = match (Format::from_code(proc), Format::from_code(out)) {
        (Some(Format::Int8), Some(Format::Int32)) => (Format::Int8, Format::Int32, 7),
        (Some(Format::Int8), Some(Format::Int8)) => (Format::Int8, Format::Int8, 1),
        (Some(Format::Fp16), Some(Format::Fp32)) => (Format::Fp16, Format::Fp32, 3),
        (Some(Format::Fp16), Some(Format::Fp16)) => (Format::Fp16, Format::Fp16, 1),
        (Some(Format::Int4), Some(Format::Int16)) => (Format::Int4, Format::Int16, 7),
        _ => return Err(r.refuse(dpu::DATA_FORMAT, "no matmul from and to these types is known")),
    };
    let sizes = SIZE_CODES.iter().fold(0, |bits, field| bits | field.put(size_code));
    if r.get(dpu::BS_OW_CFG) & !SIZE_BYPASS.mask() != sizes {
        return Err(r.refuse(dpu::BS_OW_CFG, "it is not the size code of the output's type"));
    }
    let surface = r.field(dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS);
    let add = r.field(dpu::SURFACE_ADD, dpu::SURFACE_ADD_ATOMS);
    if u64::from(add) != u64::from(surface) * u64::from(size_code + 1) {
        let why =
            "it is not the surface stride times the output's size, as all known programs have";
        return Err(r.refuse(dpu::SURFACE_ADD, why));
    }

    let largest = |of: &[u64]| u128::from(of.iter().copied().max().unwrap_or(0));
    let count = |register, field| u64::from(r.field(register, field));
    // Units of the NPU go by their own registers: what feeds the array by the first ones, the output by any.
    let read_rows = largest(&[
        count(cna::DATA_SIZE0, cna::DATA_SIZE0_HEIGHT),
        count(cna::FC_DATA_SIZE0, cna::DATA_SIZE0_HEIGHT),
        r.get(cna::DATA_SIZE3).into(),
        1,
    ]);
    let written_rows = largest(&[
        count(core::DATAOUT_SIZE_0, core::DATAOUT_SIZE_0_HEIGHT) + 1,
        u64::from(r.get(dpu::DATA_CUBE_HEIGHT)) + 1,
        count(dpu::WDMA_SIZE_1, dpu::WDMA_SIZE_1_HEIGHT) + 1,
    ]);
    let kernels = count(cna::WEIGHT_SIZE2, cna::WEIGHT_SIZE2_KERNELS);
    let channels = largest(&[
        kernels,
        u64::from(r.get(core::DATAOUT_SIZE_1)) + 1,
        count(dpu::DATA_CUBE_CHANNEL, dpu::CHANNEL) + 1,
        count(dpu::DATA_CUBE_CHANNEL, dpu::CHANNEL_ORIGINAL) + 1,
        u64::from(r.get(dpu::WDMA_SIZE_0)) + 1,
    ]);
    let inputs = largest(&[
        count(cna::DATA_SIZE1, cna::DATA_SIZE1_CHANNEL),
        count(cna::DATA_SIZE1, cna::DATA_SIZE1_CHANNEL_REAL) + 1,
        r.get(cna::FC_DATA_SIZE1).into(),
    ]);
    Ok(Shape {
        input,
        output,
        rows: [read_rows, read_rows.max(written_rows)],
        channels: [kernels.into(), channels],
        row: (inputs * bits(input)).div_ceil(8),
    })
}

/// What CBUF takes in and keeps.
fn cbuf(r: &Registers, shape: &Shape) -> Result<(), ProgramError> {
    let banks = r.field(cna::CBUF_CON0, cna::CBUF_CON0_DATA_BANK)
        + r.field(cna::CBUF_CON0, cna::CBUF_CON0_WEIGHT_BANK);
    if banks > CBUF_BANKS {
        return Err(r.refuse(cna::CBUF_CON0, "CBUF has 12 banks"));
    }
    let kept = [cna::CBUF_CON0_DATA_REUSE, cna::CBUF_CON0_WEIGHT_REUSE];
    if r.program() == 0 && kept.iter().any(|field| r.field(cna::CBUF_CON0, *field) != 0) {
        return Err(r.refuse(cna::CBUF_CON0, "the job before it left nothing to keep in CBUF"));
    }
    if u128::from(r.get(cna::CBUF_CON1)) > shape.row.div_ceil(CBUF_ENTRY) {
        return Err(r.refuse(cna::CBUF_CON1, "a row of the input has fewer entries"));
    }
    let ahead = r.field(cna::CONV_CON2, cna::CONV_CON2_FEATURE_GRAINS);
    if u128::from(ahead) > shape.rows[0] + 1 {
        return Err(r.refuse(cna::CONV_CON2, "the input has fewer rows to fetch ahead"));
    }
    Ok(())
}

/// Bytes from the input's address to its end.
///
/// With bit 29 of CONV_CON1 a row lies in one piece, and DMA_CON1 goes from row to row in atoms. Without, a
/// row is an atom in each of many planes: the rows of a plane follow each other, and from plane to plane it
/// is line stride and surface stride together. Batches of int4 rows are the exception and lie as with bit
/// 29. Inferred from programs that run on boards.
fn input(r: &Registers, shape: &Shape) -> Result<u128, ProgramError> {
    let Shape { rows: [rows, _], row, .. } = *shape;
    let batch = shape.is_int4_batch();
    let line = r.get(cna::DMA_CON1);
    // 28 bits, two's complement.
    let surface = (r.get(cna::DMA_CON2) << 4) as i32 >> 4;
    let pieces = (rows - 1) * u128::from(line) * ATOM + row;
    if r.field(cna::CONV_CON1, cna::CONV_CON1_ROW_MAJOR) == 1 {
        if surface != 0 {
            return Err(r.refuse(cna::DMA_CON2, "rows in one piece have no surfaces"));
        }
        return Ok(pieces);
    }
    if line != LINE_OF_ONE_PIXEL && !batch {
        return Err(r.refuse(cna::DMA_CON1, "lines of more than one atom are not known in planes"));
    }
    // A single row with a surface stride of 0 is known to have its planes packed.
    let step = if rows <= 1 && surface == 0 { 1 } else { i64::from(line) + i64::from(surface) };
    let step = u128::try_from(step).map_err(|_| {
        r.refuse(cna::DMA_CON2, "the planes would go down from the input's address")
    })?;
    let planes = row.div_ceil(ATOM).max(1);
    let cubes = (planes - 1) * step.max(1) * ATOM + rows * ATOM;
    Ok(if batch { pieces.max(cubes) } else { cubes })
}

/// Bytes from the weights' address to their end: gapless, of as many channels as any register of theirs says.
fn weights(r: &Registers, shape: &Shape) -> Result<u128, ProgramError> {
    let kernel = [cna::WEIGHT_SIZE2_WIDTH, cna::WEIGHT_SIZE2_HEIGHT];
    if kernel.iter().any(|field| r.field(cna::WEIGHT_SIZE2, *field) != 1) {
        return Err(r.refuse(cna::WEIGHT_SIZE2, "kernels other than 1 by 1 are not known"));
    }
    let channel = u128::from(r.get(cna::WEIGHT_SIZE1)).max(shape.row);
    Ok(u128::from(r.get(cna::WEIGHT_SIZE0)).max(channel * shape.channels[0]))
}

/// Bytes from the output's address to its end.
///
/// Atom `a` of row `m` goes to `a` surface strides and `m` times 1 + notch; batches of int4 rows are written
/// in blocks of 64 channels, each counted row at 512 bytes. Inferred from programs that run on boards.
fn output(r: &Registers, shape: &Shape) -> Result<u128, ProgramError> {
    let surface = u128::from(r.field(dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS));
    let notch = [dpu::NOTCH_0, dpu::NOTCH_1].map(|n| r.field(dpu::DATA_CUBE_NOTCH_ADDR, n));
    let row_step = u128::from(notch[0].max(notch[1])) + 1;
    let [_, rows] = shape.rows;
    let [_, columns] = shape.channels;
    let atoms = (columns * bits(shape.output)).div_ceil(8 * ATOM);
    let cubes = (rows - 1) * row_step + (atoms - 1) * surface.max(1) + 1;
    let (row_bytes, block) = INT4_BLOCK;
    let spread = if shape.is_int4_batch() { rows * row_bytes * columns.div_ceil(block) } else { 0 };
    Ok((cubes * ATOM).max(spread))
}

/// Bits of an element.
fn bits(format: Format) -> u128 {
    match format {
        Format::Int4 => 4,
        Format::Int8 => 8,
        Format::Int16 | Format::Fp16 | Format::Bf16 => 16,
        Format::Int32 | Format::Fp32 => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AMOUNT, MatmulProgram, output_bytes};
    use rknpu_sys::layout::Precision;
    use rknpu_sys::regs::Command;

    const BASES: [u64; 3] = [0xffff_0000, 0xfff0_0000, 0xffe0_0000];

    /// Extents of a program of the encoder with some registers changed.
    fn changed(
        precision: Precision,
        m: u32,
        changes: &[(u16, u32)],
    ) -> Result<[Extent; 3], ProgramError> {
        let [input, weights, output] = BASES;
        let matmul =
            MatmulProgram { precision, m, k: 64, n: 64, input, weights, output, next: None };
        let mut commands: Vec<Command> = matmul.encode().unwrap()[..AMOUNT as usize].to_vec();
        for (register, value) in changes {
            for command in commands.iter_mut().filter(|c| c.register == *register) {
                command.value = *value;
            }
        }
        extents(&Registers::read(0, &commands)?)
    }

    fn lens(precision: Precision, m: u32, changes: &[(u16, u32)]) -> [u64; 3] {
        changed(precision, m, changes).unwrap().map(|extent| extent.len)
    }

    #[test]
    fn the_encoder_s_programs_touch_what_their_shape_says() {
        for (precision, m) in [(Precision::Int8, 5), (Precision::Fp16, 5), (Precision::Int4, 1)] {
            let row = u64::from(64 * precision.bits() / 8);
            let out = u64::from(m * 64 * output_bytes(precision));
            assert_eq!(lens(precision, m, &[]), [u64::from(m) * row, 64 * row, out]);
            let all = changed(precision, m, &[]).unwrap();
            assert_eq!(all.map(|extent| extent.iova), BASES);
        }
    }

    #[test]
    fn of_registers_that_repeat_a_size_the_largest_counts() {
        let int8 = |changes: &[(u16, u32)]| lens(Precision::Int8, 2, changes);
        let [input, weights, output] = int8(&[]);
        let rows = 1 << 16 | 9;
        for (register, value) in
            [(cna::DATA_SIZE0, rows), (cna::FC_DATA_SIZE0, rows), (cna::DATA_SIZE3, 9)]
        {
            let [i, w, o] = int8(&[(register, value)]);
            assert_eq!([i, w, o], [9 * 64, weights, 9 * 64 * 4], "{register:#x}");
        }
        for register in [core::DATAOUT_SIZE_0, dpu::DATA_CUBE_HEIGHT, dpu::WDMA_SIZE_1] {
            let value = if register == dpu::DATA_CUBE_HEIGHT { 8 } else { 8 << 16 };
            assert_eq!(int8(&[(register, value)]), [input, weights, 9 * 64 * 4], "{register:#x}");
        }
        let wide = (64 * 4 / 16 + 96 * 4 / 16) * 16;
        for (register, value) in [
            (core::DATAOUT_SIZE_1, 95),
            (dpu::WDMA_SIZE_0, 95),
            (dpu::DATA_CUBE_CHANNEL, 95 << 16 | 63),
            (dpu::DATA_CUBE_CHANNEL, 63 << 16 | 95),
        ] {
            assert_eq!(int8(&[(register, value)]), [input, weights, wide], "{register:#x}");
        }
        let kernels = (cna::WEIGHT_SIZE2, 0x0101_0000 | 96);
        assert_eq!(int8(&[kernels]), [input, 96 * 64, wide]);
        for (register, value) in [
            (cna::DATA_SIZE1, 63 << 16 | 96),
            (cna::DATA_SIZE1, 95 << 16 | 64),
            (cna::FC_DATA_SIZE1, 96),
        ] {
            // Two rows at a line stride of 64 bytes.
            assert_eq!(int8(&[(register, value)]), [64 + 96, 64 * 96, output], "{register:#x}");
        }
        assert_eq!(int8(&[(cna::WEIGHT_SIZE0, 9999)])[1], 9999);
        assert_eq!(int8(&[(cna::WEIGHT_SIZE1, 100)])[1], 100 * 64);
        assert_eq!(int8(&[(cna::DMA_CON1, 10)])[0], 160 + 64);
        for notch in [31 << 16 | 15, 15 << 16 | 31] {
            assert_eq!(int8(&[(dpu::DATA_CUBE_NOTCH_ADDR, notch)])[2], 32 * 16 + 16 * 16);
        }
        // No figure is too large.
        let far = [(cna::DMA_CON1, 0x0fff_ffff), (cna::DATA_SIZE3, 0x003f_ffff)];
        assert!(int8(&far)[0] > 1 << 53);
    }

    #[test]
    fn what_leaves_the_addresses_unknown_is_refused() {
        for (register, value) in [
            (cna::DATA_SIZE0, 2 << 16 | 2),
            (cna::FC_DATA_SIZE0, 2 << 16 | 2),
            (cna::DATA_SIZE2, 2),
            (core::DATAOUT_SIZE_0, 1 << 16 | 1),
            (dpu::DATA_CUBE_WIDTH, 1),
            (dpu::WDMA_SIZE_1, 1 << 16 | 1),
            (cna::CONV_CON1, 0x2000_0020),
            (core::MISC_CFG, 0x201),
            (dpu::DATA_FORMAT, 0x8800_0000),
            (dpu::DATA_FORMAT, 0x8000_0002),
            (dpu::DATA_FORMAT, 0x2000_0000),
            (dpu::BS_OW_CFG, 0x124),
            (dpu::SURFACE_ADD, 0x40),
            (dpu::DST_SURF_STRIDE, 0x20),
            (cna::CBUF_CON0, 0xc1),
            (cna::CBUF_CON0, 0x10b1),
            (cna::CBUF_CON0, 0x20b1),
            (cna::CBUF_CON1, 2),
            (cna::CONV_CON2, 4 << 4),
            (cna::DMA_CON2, 1),
            (cna::WEIGHT_SIZE2, 0x0201_0040),
            (cna::WEIGHT_SIZE2, 0x0102_0040),
        ] {
            let error = changed(Precision::Int8, 2, &[(register, value)]).unwrap_err();
            // A stride that its double contradicts is told by the double.
            let named = if register == dpu::DST_SURF_STRIDE { dpu::SURFACE_ADD } else { register };
            let of = if register == cna::CONV_CON1 { None } else { Some(named) };
            let refused = matches!(error, ProgramError::Value { register, .. }
                if of.is_none_or(|of| of == register));
            assert!(refused, "{register:#x} = {value:#x}: {error}");
        }
        // In planes: lines of one atom, and planes that go upwards.
        let planes = (cna::CONV_CON1, 0);
        for (changes, named) in [
            ([planes, (cna::DMA_CON1, 5)], cna::DMA_CON1),
            ([planes, (cna::DMA_CON2, 0x0fff_fff0)], cna::DMA_CON2),
        ] {
            let error = changed(Precision::Int8, 2, &changes).unwrap_err();
            assert!(matches!(error, ProgramError::Value { register, .. } if register == named));
        }
        for (register, address) in
            [(cna::FEATURE_DATA_ADDR, 8), (cna::DCOMP_ADDR0, 0), (dpu::DST_BASE_ADDR, 0xffff_fff1)]
        {
            let error = changed(Precision::Int8, 2, &[(register, address)]).unwrap_err();
            assert!(matches!(error, ProgramError::Address { .. }), "{error}");
        }
    }
}
