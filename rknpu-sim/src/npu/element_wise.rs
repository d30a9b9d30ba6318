//! Element-wise programs: the output stage with both inputs from memory, without the array.
//!
//! Modelled is what public programs run on boards and check there: halves added, subtracted, multiplied,
//! divided, the larger and the smaller one, to halves or fp32; and bytes or halves that go through
//! unchanged.

use half::f16;
use rknpu_sys::regs::{Format, dpu, rdma};

use super::constants;
use super::cube::{ATOM, Cube};
use super::matmul::aligned;
use super::refusal::Refusal;
use super::registers::Registers;
use crate::engine::{Bus, BusFault, Unit};

/// Halves of an atom.
const HALVES: usize = ATOM / 2;
/// [`dpu::EW_DATA_SIZE`] and [`rdma::ERDMA_DATA_SIZE`] of halves.
const TWO_BYTES: u32 = 2;
/// [`dpu::EW_DATA_MODE`] and [`rdma::ERDMA_DATA_MODE`]: an operand for each element.
const EACH: u32 = 1;

/// What is done to two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Maximum,
    Minimum,
    Sum,
    Quotient,
    Difference,
    Product,
}

/// An element-wise program, fully validated. All matrices are planes of atoms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ElementWise {
    /// `None`: the source is copied.
    operation: Option<Operation>,
    source: Cube,
    operand: Cube,
    output: Cube,
    /// Whether results are fp32 rather than of the source's format.
    widens: bool,
}

impl ElementWise {
    /// Reads and validates the registers.
    pub(super) fn decode(r: &Registers) -> Result<ElementWise, Refusal> {
        constants::output(r, true)?;
        for (register, what) in [
            (dpu::OFFSET_PEND, "no pending offset"),
            (dpu::OUT_CVT_OFFSET, "no output offset"),
            (dpu::OUT_CVT_SHIFT, "no output shift"),
            (rdma::PAD_CFG, "no padding"),
            (rdma::SRC_DMA_CFG, "no line notch"),
            (rdma::SURF_NOTCH, "no surface notch"),
            (rdma::EW_SURF_NOTCH, "no surface notch"),
        ] {
            r.expect(register, 0, what)?;
        }
        let format = Format::from_code(r.field(dpu::DATA_FORMAT, dpu::DATA_FORMAT_IN_PRECISION));
        formats(r, format)?;
        let operation = operation(r, format)?;
        let out = Format::from_code(r.field(dpu::DATA_FORMAT, dpu::DATA_FORMAT_OUT_PRECISION));
        let widens =
            out == Some(Format::Fp32) && format == Some(Format::Fp16) && operation.is_some();
        if !widens && out != format {
            let expected = "results of the input's format, or fp32 of two halves".into();
            return Err(r.unexpected(dpu::DATA_FORMAT, expected));
        }
        // A quotient is of halves already, so that nothing is left to convert.
        let halves = format == Some(Format::Fp16) && operation != Some(Operation::Quotient);
        let plain = if halves { 0x1_0001 } else { 1 };
        // Programs of the field that never write it work.
        let scale = r.get(dpu::OUT_CVT_SCALE);
        if !widens && scale != plain && r.written(dpu::OUT_CVT_SCALE).is_some() {
            let expected = "0x10001 for halves, 1 for quotients and bytes".into();
            return Err(r.unexpected(dpu::OUT_CVT_SCALE, expected));
        }
        let bytes = if format == Some(Format::Fp16) { 2 } else { 1 };
        let size = Size::read(r, bytes)?;
        let operand = match operation {
            Some(_) => size.cube(
                aligned(r, rdma::EW_BASE_ADDR)?,
                // Bits 31..4, as the output's.
                dpu::DST_SURF_STRIDE_ATOMS.get(r.get(rdma::EW_SURF_STRIDE)),
                1,
            ),
            None => Cube { base: 0, rows: 0, row_step: 0, atoms: 0, run: 1, run_step: 0 },
        };
        let pixels = size.pixels as u32;
        let source = size.cube(aligned(r, rdma::SRC_BASE_ADDR)?, pixels, 1);
        let surface = r.field(dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS);
        let output = size.cube(aligned(r, dpu::DST_BASE_ADDR)?, surface, 1 + usize::from(widens));
        // fp32 results of four elements take one of the two atoms that belong to a source's.
        let short = widens && size.pixels == 1 && size.atoms == 1 && surface == 0;
        let output = if short { Cube { atoms: 1, ..output } } else { output };
        for (cube, register) in [(&operand, rdma::EW_SURF_STRIDE), (&output, dpu::DST_SURF_STRIDE)]
        {
            if cube.rows > 0 && !cube.is_disjoint() {
                let expected = format!("planes at least {pixels} atoms apart");
                return Err(r.unexpected(register, expected));
            }
        }
        Ok(ElementWise { operation, source, operand, output, widens })
    }

    /// Elements of the source.
    pub(super) fn elements(&self) -> u64 {
        (self.source.rows * self.source.atoms * HALVES) as u64
    }

    /// Executes the program that stands at `program`.
    pub(super) fn execute(&self, bus: &mut dyn Bus, program: u32) -> Result<(), Refusal> {
        let access = |what| move |fault: BusFault| Refusal::Access { program, what, fault };
        let read = |cube: &Cube, what| {
            let base = u64::from(cube.base);
            let mut rows = Vec::new();
            let bytes = bus.read(Unit::DpuRead, base, cube.extent()).map_err(access(what))?;
            cube.gather(bytes, &mut rows);
            Ok(rows)
        };
        let source = read(&self.source, "reading the source")?;
        let results = match self.operation {
            None => source,
            Some(operation) => {
                let operand = read(&self.operand, "reading the operands")?;
                operation.all(&source, &operand, self.widens)
            }
        };
        let (output, base) = (&self.output, u64::from(self.output.base));
        // Before anything is written: a program that faults has written nothing.
        bus.writable(base, output.extent()).map_err(access("writing the output"))?;
        let staged = results.chunks_exact(results.len() / output.rows.max(1));
        for (row, results) in staged.enumerate() {
            for (first, atoms) in output.runs() {
                let at = base + output.offset(row, first);
                bus.write(Unit::DpuWrite, at, &results[first * ATOM..][..atoms * ATOM])
                    .map_err(access("writing the output"))?;
            }
        }
        Ok(())
    }
}

impl Operation {
    fn of(self, a: f32, b: f32) -> f32 {
        match self {
            Operation::Maximum => a.max(b),
            Operation::Minimum => a.min(b),
            Operation::Sum => a + b,
            Operation::Quotient => a / b,
            Operation::Difference => a - b,
            Operation::Product => a * b,
        }
    }

    /// Results of all pairs of halves.
    fn all(self, a: &[u8], b: &[u8], widens: bool) -> Vec<u8> {
        let half = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
        let pairs = a.as_chunks().0.iter().zip(b.as_chunks().0);
        let mut results = Vec::with_capacity(if widens { 2 * a.len() } else { a.len() });
        for (a, b) in pairs {
            let result = self.of(half(a), half(b));
            if widens {
                results.extend_from_slice(&result.to_le_bytes());
            } else {
                results.extend_from_slice(&f16::from_f32(result).to_le_bytes());
            }
        }
        results
    }
}

/// Pixels, and atoms of each.
#[derive(Clone, Copy, Debug)]
struct Size {
    pixels: usize,
    atoms: usize,
}

impl Size {
    /// The sizes that output stage and inputs state, which must agree; `bytes` of an element.
    fn read(r: &Registers, bytes: u32) -> Result<Size, Refusal> {
        let (width, height) = (r.get(dpu::DATA_CUBE_WIDTH), r.get(dpu::DATA_CUBE_HEIGHT));
        let channels = r.field(dpu::DATA_CUBE_CHANNEL, dpu::CHANNEL);
        r.expect(rdma::DATA_CUBE_WIDTH, width, "as the output's")?;
        r.expect(rdma::DATA_CUBE_HEIGHT, height, "as the output's")?;
        if r.field(rdma::DATA_CUBE_CHANNEL, dpu::CHANNEL) != channels {
            let expected = format!("{channels:#x} in bits 12..0 (as the output's)");
            return Err(r.unexpected(rdma::DATA_CUBE_CHANNEL, expected));
        }
        r.expect(dpu::DATA_CUBE_NOTCH_ADDR, 0, "no notch")?;
        let per_atom = ATOM as u32 / bytes;
        if !(channels + 1).is_multiple_of(per_atom) {
            let expected = format!("a multiple of {per_atom} - 1, in bits 12..0");
            return Err(r.unexpected(dpu::DATA_CUBE_CHANNEL, expected));
        }
        if !dpu::WDMA_SIZE_1_WIDTH.fits(width) || !dpu::WDMA_SIZE_1_HEIGHT.fits(height) {
            return Err(r.unexpected(dpu::DATA_CUBE_WIDTH, "13 bits, as the height".into()));
        }
        let pixels = (width as usize + 1) * (height as usize + 1);
        Ok(Size { pixels, atoms: ((channels + 1) / per_atom) as usize })
    }

    /// Planes of all pixels, `surface` atoms apart, `wide` of them for each atom of the source.
    fn cube(self, base: u32, surface: u32, wide: usize) -> Cube {
        let (row_step, run_step) = (ATOM as u64, u64::from(surface) * ATOM as u64);
        Cube { base, rows: self.pixels, row_step, atoms: self.atoms * wide, run: 1, run_step }
    }
}

/// The formats of output stage and inputs, which must agree.
fn formats(r: &Registers, format: Option<Format>) -> Result<(), Refusal> {
    if !matches!(format, Some(Format::Int8 | Format::Fp16)) {
        return Err(r.unexpected(dpu::DATA_FORMAT, "int8 or fp16 in bits 28..26".into()));
    }
    let code = format.map_or(0, Format::code);
    let mode = |field| r.field(rdma::FEATURE_MODE_CFG, field);
    let agree = r.field(dpu::DATA_FORMAT, dpu::DATA_FORMAT_PROC_PRECISION) == code
        && mode(rdma::FEATURE_MODE_IN_PRECISION) == code
        && mode(rdma::FEATURE_MODE_PROC_PRECISION) == code;
    if !agree || mode(rdma::FEATURE_MODE_FLYING) == 0 {
        let expected = format!("format {code} twice, as in DATA_FORMAT, and bit 0 set");
        return Err(r.unexpected(rdma::FEATURE_MODE_CFG, expected));
    }
    r.only(
        rdma::FEATURE_MODE_CFG,
        &[
            rdma::FEATURE_MODE_FLYING,
            rdma::FEATURE_MODE_FP16_TO_FP32,
            rdma::FEATURE_MODE_PROC_PRECISION,
            rdma::FEATURE_MODE_BURST,
            rdma::FEATURE_MODE_IN_PRECISION,
        ],
    )
}

/// What the element-wise stage does; `None`, nothing.
fn operation(r: &Registers, format: Option<Format>) -> Result<Option<Operation>, Refusal> {
    let field = |field| r.field(dpu::EW_CFG, field);
    if field(dpu::EW_BYPASS) == 1 {
        return Ok(None);
    }
    let plain = field(dpu::EW_OP_BYPASS) == 0
        && field(dpu::EW_OP_SRC) == 1
        && field(dpu::EW_LUT_BYPASS) == 1
        && field(dpu::EW_RELU_BYPASS) == 1
        && field(dpu::EW_DATA_MODE) == EACH
        && field(dpu::EW_DATA_SIZE) == TWO_BYTES
        && format == Some(Format::Fp16);
    let operation = match (field(dpu::EW_OP_TYPE), field(dpu::EW_ALU_ALGO)) {
        _ if !plain => None,
        (0, 0) => Some(Operation::Maximum),
        (0, 1) => Some(Operation::Minimum),
        (0, 2) => Some(Operation::Sum),
        (0, 3) => Some(Operation::Quotient),
        (0, 4) => Some(Operation::Difference),
        (1, 0) => Some(Operation::Product),
        _ => None,
    };
    let fields = [
        dpu::EW_OP_TYPE,
        dpu::EW_OP_SRC,
        dpu::EW_LUT_BYPASS,
        dpu::EW_OP_CVT_BYPASS,
        dpu::EW_RELU_BYPASS,
        dpu::EW_ALU_ALGO,
        dpu::EW_DATA_SIZE,
        dpu::EW_DATA_MODE,
    ];
    r.only(dpu::EW_CFG, &fields)?;
    if operation.is_none() {
        let expected = "bit 0 set (no operation), or one of two halves from memory: 0x108002c0 with the \
                        algorithm 0 to 4 in bits 19..16 (maximum, minimum, sum, quotient, difference), or \
                        0x108003c4 (product)";
        return Err(r.unexpected(dpu::EW_CFG, expected.into()));
    }
    let erdma = |field| r.field(rdma::ERDMA_CFG, field);
    if erdma(rdma::ERDMA_DISABLE) == 1
        || erdma(rdma::ERDMA_DATA_MODE) != EACH
        || erdma(rdma::ERDMA_DATA_SIZE) != TWO_BYTES
    {
        return Err(r.unexpected(rdma::ERDMA_CFG, "0x40000008 (a half for each element)".into()));
    }
    r.only(rdma::ERDMA_CFG, &[rdma::ERDMA_DISABLE, rdma::ERDMA_DATA_SIZE, rdma::ERDMA_DATA_MODE])?;
    Ok(operation)
}
