//! What a program's registers say to compute, once everything in them is understood.

use rknpu_sys::regs::{CBUF_BANK_BYTES, CBUF_BANKS, Field, Format, cna, core, dpu};

use super::cube::Cube;
use super::refusal::Refusal;
use super::registers::Registers;
use super::weights::{K_BLOCK, Weights};
use super::{constants, feature, output};
use crate::engine::Finding;

/// Output channels of a program at most: one for 16384 is silently wrong on a board.
const MAX_CHANNELS: u32 = 8192;
/// Bytes of a CBUF entry.
const CBUF_ENTRY: u32 = 64;

/// Types of input and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Int8ToInt32,
    Int8ToInt8(Requant),
    Fp16ToFp32,
    Fp16ToFp16,
    Bf16ToFp32,
    /// Accumulates wider, saturates.
    Int4ToInt16,
}

/// Scale of an int8 result: `accumulator × multiplier / 2^shift`, ties to even, saturated.
/// The rounding was checked on boards by public drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requant {
    pub(super) multiplier: i16,
    pub(super) shift: u32,
}

impl Kind {
    /// Bits of an input or weight element.
    fn bits(self) -> u32 {
        match self {
            Kind::Int8ToInt32 | Kind::Int8ToInt8(_) => 8,
            Kind::Fp16ToFp32 | Kind::Fp16ToFp16 | Kind::Bf16ToFp32 => 16,
            Kind::Int4ToInt16 => 4,
        }
    }

    /// Whether sums are fp32 rather than int32.
    pub(super) fn is_float(self) -> bool {
        matches!(self, Kind::Fp16ToFp32 | Kind::Fp16ToFp16 | Kind::Bf16ToFp32)
    }

    /// Bytes of an output element.
    pub(super) fn output_bytes(self) -> u32 {
        match self {
            Kind::Int8ToInt32 | Kind::Fp16ToFp32 | Kind::Bf16ToFp32 => 4,
            Kind::Fp16ToFp16 | Kind::Int4ToInt16 => 2,
            Kind::Int8ToInt8(_) => 1,
        }
    }
}

/// Rows of which a board makes something other than the product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// Rows from here on are computed from what CBUF holds, which are the first ones again; `None`: the
    /// rows are not computed at all.
    pub(super) wraps_at: Option<u32>,
    /// Who found that.
    pub(super) finding: Finding,
}

/// A matmul `C[m][n] = Σ A[m][k] × B[k][n]`, fully validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matmul {
    pub(super) kind: Kind,
    pub(super) m: u32,
    pub(super) k: u32,
    pub(super) n: u32,
    pub(super) input: Cube,
    /// Whether CBUF still holds it from the program before.
    pub(super) input_kept: bool,
    pub(super) weights: Weights,
    pub(super) output: Cube,
    pub(super) lost: Option<Lost>,
}

/// Pixels of the input: a matmul's rows are all of them, line by line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pixels {
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Pixels {
    pub(super) fn count(self) -> u32 {
        self.width * self.height
    }
}

impl Matmul {
    /// Reads and validates the registers. `before` is the program run before in this job, for CBUF
    /// contents that are kept.
    pub(super) fn decode(r: &Registers, before: Option<&Matmul>) -> Result<Matmul, Refusal> {
        constants::check(r)?;
        let kind = kind(r)?;
        let pixels = Pixels {
            width: r.field(cna::DATA_SIZE0, cna::DATA_SIZE0_WIDTH),
            height: r.field(cna::DATA_SIZE0, cna::DATA_SIZE0_HEIGHT),
        };
        let k = r.field(cna::DATA_SIZE1, cna::DATA_SIZE1_CHANNEL);
        let n = r.field(cna::WEIGHT_SIZE2, cna::WEIGHT_SIZE2_KERNELS);
        let tile_channels = Weights::tile_channels(kind);
        if pixels.width == 0 || pixels.height == 0 {
            return Err(r.unexpected(cna::DATA_SIZE0, "a width and a height above 0".into()));
        }
        if k == 0 || !k.is_multiple_of(K_BLOCK) {
            let expected = format!("K, a multiple of {K_BLOCK} above 0, in bits 15..0");
            return Err(r.unexpected(cna::DATA_SIZE1, expected));
        }
        if n == 0 || !n.is_multiple_of(tile_channels) {
            let expected =
                format!("N, a multiple of {tile_channels} for these types, in bits 13..0");
            return Err(r.unexpected(cna::WEIGHT_SIZE2, expected));
        }
        if n > MAX_CHANNELS {
            let expected = format!("N of at most {MAX_CHANNELS}, in bits 13..0");
            let source = "ork-driver: results are wrong on boards beyond it";
            return Err(r.wrong(cna::WEIGHT_SIZE2, expected, source));
        }
        let row_bytes = k * kind.bits() / 8;
        sizes(r, pixels, k, n, row_bytes)?;
        // int4 rows lie in planes, as other types' do, or with the surface stride of a single row in a batch
        // at twice their pitch, so that its height counts every row twice.
        let line = r.field(cna::DMA_CON1, cna::DMA_CON1_LINE_STRIDE);
        let alone = r.get(cna::DMA_CON2) == feature::SURFACE_OF_ONE_ROW;
        let int4_rows = kind == Kind::Int4ToInt16 && pixels.count() > 1 && alone;
        let batch = int4_rows && (line != feature::LINE_OF_ONE_PIXEL || line == k / 16);
        let m = match (int4_rows, batch) {
            (false, _) => pixels.count(),
            (true, true) => pixels.count() / 2,
            (true, false) => 1,
        };
        if batch {
            int4_batch(r, pixels, m, k, n)?;
        }
        let mut lost = cbuf(r, batch, m, k, row_bytes)?;
        if int4_rows && !batch {
            lost = Some(Lost {
                wraps_at: None,
                finding: Finding::wrong(format!(
                    "program at IOVA {:#x}: int4 rows with a line stride of {line}: the first of {} rows \
                     is computed, the others never are; expected a batch with a line stride of {} \
                     (ork-driver's probe of several rows)",
                    r.at(),
                    pixels.count(),
                    k / 16
                )),
            });
        }

        let shown = if int4_rows && !batch { Pixels { width: 1, height: 1 } } else { pixels };
        let input = feature::cube(r, shown, m, row_bytes, batch)?;
        let weights = Weights {
            base: aligned(r, cna::DCOMP_ADDR0)?,
            channels: n,
            channel_bytes: row_bytes,
            tile_channels,
            resident: r.field(cna::CBUF_CON0, cna::CBUF_CON0_WEIGHT_REUSE) == 1,
        };
        let output = output::cube(r, kind, shown, m, n, batch)?;
        let input_kept = r.field(cna::CBUF_CON0, cna::CBUF_CON0_DATA_REUSE) == 1;
        let matmul = Matmul { kind, m, k, n, input, input_kept, weights, output, lost };
        matmul.kept(r, before)?;
        matmul.overlaps(r)?;
        Ok(matmul)
    }

    /// What CBUF is said to hold already must be what the program before brought in.
    fn kept(&self, r: &Registers, before: Option<&Matmul>) -> Result<(), Refusal> {
        let same_weights = before.is_some_and(|b| {
            Weights { resident: false, ..b.weights } == Weights { resident: false, ..self.weights }
        });
        if self.weights.resident && !same_weights {
            return Err(r.unexpected(
                cna::CBUF_CON0,
                "weight reuse (bit 13) only after a program with the same weights".into(),
            ));
        }
        let same_input = before.is_some_and(|b| b.input == self.input);
        if self.input_kept && !same_input {
            return Err(r.unexpected(
                cna::CBUF_CON0,
                "data reuse (bit 12) only after a program with the same input".into(),
            ));
        }
        Ok(())
    }

    /// Results go out while later rows and weights are still coming in; and operands that lie on the
    /// program are a sign of addresses that belong to another domain.
    fn overlaps(&self, r: &Registers) -> Result<(), Refusal> {
        let range = |base: u32, len: u64| u64::from(base)..u64::from(base) + len;
        let program = ("program", r.program());
        let input = ("input", range(self.input.base, self.input.extent()));
        let weights = ("weights", range(self.weights.base, self.weights.bytes()));
        let output = ("output", range(self.output.base, self.output.extent()));
        let pairs = [
            (&output, &input),
            (&output, &weights),
            (&output, &program),
            (&input, &program),
            (&weights, &program),
        ];
        for ((one, a), (other, b)) in pairs {
            if a.start < b.end && b.start < a.end {
                let hint =
                    if *other == program.0 { "; is every buffer in the job's domain?" } else { "" };
                let problem = format!(
                    "the {one} at {:#x}..{:#x} overlaps the {other} at {:#x}..{:#x}{hint}",
                    a.start, a.end, b.start, b.end
                );
                return Err(r.wrong_shape(problem, "what is read would be what is being written"));
            }
        }
        Ok(())
    }
}

/// An address register; the NPU moves 16-byte atoms.
pub(super) fn aligned(r: &Registers, register: u16) -> Result<u32, Refusal> {
    let address = r.get(register);
    if address == 0 || !address.is_multiple_of(rknpu_sys::regs::ATOM_BYTES) {
        return Err(r.unexpected(register, "an IOVA above 0, a multiple of 16".into()));
    }
    Ok(address)
}

/// The formats of array and output stage, which must agree.
fn kind(r: &Registers) -> Result<Kind, Refusal> {
    use Format::{Bf16, Fp16, Fp32, Int4, Int8, Int16, Int32};
    let format = |register, field: Field| Format::from_code(r.field(register, field));
    let formats = [
        format(cna::CONV_CON1, cna::CONV_CON1_IN_PRECISION),
        format(cna::CONV_CON1, cna::CONV_CON1_PROC_PRECISION),
        format(core::MISC_CFG, core::MISC_CFG_PROC_PRECISION),
        format(dpu::DATA_FORMAT, dpu::DATA_FORMAT_IN_PRECISION),
        format(dpu::DATA_FORMAT, dpu::DATA_FORMAT_PROC_PRECISION),
    ];
    let input = formats[0];
    if formats.iter().any(|f| *f != input) {
        return Err(r.shape(format!(
            "input, array and output stage disagree on the format: {formats:?} in CONV_CON1 (in, \
             proc), MISC_CFG (proc), DATA_FORMAT (in, proc)"
        )));
    }
    let out = format(dpu::DATA_FORMAT, dpu::DATA_FORMAT_OUT_PRECISION);
    let scale = r.get(dpu::OUT_CVT_SCALE);
    let kind = match (input, out) {
        (Some(Int8), Some(Int32)) => Kind::Int8ToInt32,
        (Some(Int8), Some(Int8)) => Kind::Int8ToInt8(requant(r)?),
        (Some(Fp16), Some(Fp32)) => Kind::Fp16ToFp32,
        (Some(Bf16), Some(Fp32)) => Kind::Bf16ToFp32,
        (Some(Fp16), Some(Fp16)) => Kind::Fp16ToFp16,
        (Some(Int4), Some(Int16)) => Kind::Int4ToInt16,
        _ => {
            return Err(r.unexpected(
                dpu::DATA_FORMAT,
                "int8 to int32 or int8, fp16 to fp32 or fp16, bf16 to fp32, int4 to int16".into(),
            ));
        }
    };
    match kind {
        // fp32 results are not converted, and its scale is not looked at.
        Kind::Int8ToInt8(_) | Kind::Fp16ToFp32 | Kind::Bf16ToFp32 => {}
        Kind::Fp16ToFp16 if scale == 0x1_0001 => {}
        Kind::Fp16ToFp16 => {
            return Err(r.unexpected(dpu::OUT_CVT_SCALE, "0x10001 (conversion to fp16)".into()));
        }
        Kind::Int8ToInt32 | Kind::Int4ToInt16 => r.expect(dpu::OUT_CVT_SCALE, 1, "no scaling")?,
    }
    if !matches!(kind, Kind::Int8ToInt8(_) | Kind::Fp16ToFp32 | Kind::Bf16ToFp32) {
        r.expect(dpu::OUT_CVT_SHIFT, 0, "no scaling")?;
    }
    Ok(kind)
}

fn requant(r: &Registers) -> Result<Requant, Refusal> {
    r.only(dpu::OUT_CVT_SCALE, &[dpu::OUT_CVT_SCALE_MULTIPLIER])?;
    let shift = r.get(dpu::OUT_CVT_SHIFT);
    if shift > 62 {
        return Err(r.unexpected(dpu::OUT_CVT_SHIFT, "a shift of 0 to 62".into()));
    }
    let multiplier = r.field(dpu::OUT_CVT_SCALE, dpu::OUT_CVT_SCALE_MULTIPLIER) as u16;
    Ok(Requant { multiplier: multiplier as i16, shift })
}

/// Registers that repeat width, height, K and N must agree.
fn sizes(r: &Registers, pixels: Pixels, k: u32, n: u32, row_bytes: u32) -> Result<(), Refusal> {
    let Pixels { width, height } = pixels;
    let size = cna::DATA_SIZE0_WIDTH.put(width) | height;
    r.expect(cna::DATA_SIZE0, size, "the width and the height alone")?;
    r.expect(cna::FC_DATA_SIZE0, r.get(cna::DATA_SIZE0), "as DATA_SIZE0")?;
    r.expect(
        cna::DATA_SIZE1,
        cna::DATA_SIZE1_CHANNEL_REAL.put(k - 1) | k,
        "K - 1 in bits 29..16 and K in bits 15..0",
    )?;
    r.expect(cna::FC_DATA_SIZE1, k, "K")?;
    r.expect(cna::DATA_SIZE2, width, "output width")?;
    r.expect(cna::DATA_SIZE3, pixels.count(), "the rows")?;
    r.expect(cna::WEIGHT_SIZE0, n * row_bytes, "N times the bytes of a channel")?;
    r.expect(cna::WEIGHT_SIZE1, row_bytes, "bytes of a channel's weights")?;
    r.expect(cna::WEIGHT_SIZE2, 0x0101_0000 | n, "a 1 by 1 kernel and N")?;
    let entries = (u64::from(width) * u64::from(row_bytes)).div_ceil(u64::from(CBUF_ENTRY));
    r.expect(cna::CBUF_CON1, entries as u32, "CBUF entries of a line")?;
    let (right, bottom) = (width - 1, height - 1);
    let size = core::DATAOUT_SIZE_0_HEIGHT.put(bottom) | core::DATAOUT_SIZE_0_WIDTH.put(right);
    r.expect(core::DATAOUT_SIZE_0, size, "height - 1 and width - 1")?;
    r.expect(core::DATAOUT_SIZE_1, n - 1, "N - 1")?;
    r.expect(dpu::DATA_CUBE_WIDTH, right, "width - 1")?;
    r.expect(dpu::DATA_CUBE_HEIGHT, bottom, "height - 1")?;
    r.expect(dpu::WDMA_SIZE_0, n - 1, "N - 1")
}

/// Limits of a batch of int4 rows, found by trial on boards.
fn int4_batch(r: &Registers, pixels: Pixels, m: u32, k: u32, n: u32) -> Result<(), Refusal> {
    const SOURCE: &str = "ork-driver: wrong or hanging on boards beyond it";
    if pixels.width != 1 || !pixels.height.is_multiple_of(2) {
        let expected = "an even height: int4 rows are counted twice".into();
        return Err(r.unexpected(cna::DATA_SIZE0, expected));
    }
    let tile = Weights::tile_channels(Kind::Int4ToInt16);
    let widest = (131_072 / k / tile * tile).max(tile);
    if n > widest {
        let problem = format!("int4 batch of {n} channels at K = {k}; expected at most {widest}");
        return Err(r.wrong_shape(problem, SOURCE));
    }
    let banks = r.field(cna::CBUF_CON0, cna::CBUF_CON0_DATA_BANK);
    let rows = (CBUF_BANK_BYTES / 2 * banks).div_ceil(k);
    if m > rows {
        let problem = format!(
            "int4 batch of {m} rows at K = {k} and {banks} data banks; expected at most {rows}"
        );
        return Err(r.wrong_shape(problem, SOURCE));
    }
    Ok(())
}

/// CBUF must hold all rows of the input and one tile of weights. That data banks are
/// `ceil(rows × bytes / 32 KiB)` fits every captured program; that weights need a bank per 1024 k
/// is inferred from the limits that public drivers found. With too few data banks a board completes,
/// and rows that do not fit are wrong.
fn cbuf(
    r: &Registers,
    batch: bool,
    m: u32,
    k: u32,
    row_bytes: u32,
) -> Result<Option<Lost>, Refusal> {
    let data = r.field(cna::CBUF_CON0, cna::CBUF_CON0_DATA_BANK);
    let weight = r.field(cna::CBUF_CON0, cna::CBUF_CON0_WEIGHT_BANK);
    r.only(
        cna::CBUF_CON0,
        &[
            cna::CBUF_CON0_DATA_BANK,
            cna::CBUF_CON0_WEIGHT_BANK,
            cna::CBUF_CON0_DATA_REUSE,
            cna::CBUF_CON0_WEIGHT_REUSE,
        ],
    )?;
    let banks = |bytes: u64| bytes.div_ceil(u64::from(CBUF_BANK_BYTES)).max(1);
    let data_needed = if batch { 1 } else { banks(u64::from(m) * u64::from(row_bytes)) };
    let weight_needed = banks(u64::from(k) * u64::from(K_BLOCK));
    let fit = data * CBUF_BANK_BYTES / row_bytes;
    let expected = format!(
        "at least {data_needed} data banks ({m} rows of {row_bytes} bytes) and {weight_needed} \
         weight banks (a tile of K = {k}), together at most {CBUF_BANKS}"
    );
    if u64::from(weight) < weight_needed || fit == 0 {
        return Err(r.unexpected(cna::CBUF_CON0, expected));
    }
    if data + weight > CBUF_BANKS {
        let expected =
            format!("data banks ({data}) and weight banks ({weight}) within {CBUF_BANKS}");
        return Err(r.unexpected(cna::CBUF_CON0, expected));
    }
    if u64::from(data) >= data_needed {
        return Ok(None);
    }
    let expected = format!("{expected}; rows from {fit} on are wrong");
    let source = "ork-driver: such programs complete on boards, with rows from 64 on wrong";
    let finding = r.wrong(cna::CBUF_CON0, expected, source).finding();
    Ok(Some(Lost { wraps_at: Some(fit), finding }))
}
