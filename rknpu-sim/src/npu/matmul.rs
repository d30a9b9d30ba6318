//! What a program's registers say to compute, once everything in them is understood.

use rknpu_sys::regs::{CBUF_BANK_BYTES, CBUF_BANKS, Field, Format, cna, core, dpu};

use super::cube::Cube;
use super::refusal::Refusal;
use super::registers::Registers;
use super::weights::{K_BLOCK, Weights};
use super::{constants, feature, output};

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
            Kind::Fp16ToFp32 | Kind::Fp16ToFp16 => 16,
            Kind::Int4ToInt16 => 4,
        }
    }

    /// Whether sums are fp32 rather than int32.
    pub(super) fn is_float(self) -> bool {
        matches!(self, Kind::Fp16ToFp32 | Kind::Fp16ToFp16)
    }

    /// Bytes of an output element.
    pub(super) fn output_bytes(self) -> u32 {
        match self {
            Kind::Int8ToInt32 | Kind::Fp16ToFp32 => 4,
            Kind::Fp16ToFp16 | Kind::Int4ToInt16 => 2,
            Kind::Int8ToInt8(_) => 1,
        }
    }
}

/// A matmul `C[m][n] = Σ A[m][k] × B[k][n]`, fully validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

impl Matmul {
    /// Reads and validates the registers. `before` is the program run before in this job, for CBUF
    /// contents that are kept.
    pub(super) fn decode(r: &Registers, before: Option<&Matmul>) -> Result<Matmul, Refusal> {
        constants::check(r)?;
        let kind = kind(r)?;
        let height = r.field(cna::DATA_SIZE0, cna::DATA_SIZE0_HEIGHT);
        let k = r.field(cna::DATA_SIZE1, cna::DATA_SIZE1_CHANNEL);
        let n = r.field(cna::WEIGHT_SIZE2, cna::WEIGHT_SIZE2_KERNELS);
        let tile_channels = Weights::tile_channels(kind);
        if height == 0 {
            return Err(r.unexpected(cna::DATA_SIZE0, "a height above 0".into()));
        }
        if k == 0 || !k.is_multiple_of(K_BLOCK) {
            let expected = format!("K, a multiple of {K_BLOCK} above 0, in bits 15..0");
            return Err(r.unexpected(cna::DATA_SIZE1, expected));
        }
        if n == 0 || !n.is_multiple_of(tile_channels) || n > MAX_CHANNELS {
            let expected = format!(
                "N, a multiple of {tile_channels} for these types, 1 to {MAX_CHANNELS}, in bits 13..0"
            );
            return Err(r.unexpected(cna::WEIGHT_SIZE2, expected));
        }
        let row_bytes = k * kind.bits() / 8;
        sizes(r, height, k, n, row_bytes)?;
        // A batch of int4 rows is written at twice the pitch, so its height counts every row twice.
        let batch = kind == Kind::Int4ToInt16 && height > 1;
        let m = if batch { height / 2 } else { height };
        if batch {
            int4_batch(r, height, m, k, n)?;
        }
        cbuf(r, batch, m, k, row_bytes)?;

        let input = feature::cube(r, m, row_bytes, batch)?;
        let weights = Weights {
            base: aligned(r, cna::DCOMP_ADDR0)?,
            channels: n,
            channel_bytes: row_bytes,
            tile_channels,
            resident: r.field(cna::CBUF_CON0, cna::CBUF_CON0_WEIGHT_REUSE) == 1,
        };
        let output = output::cube(r, kind, m, n, batch)?;
        let input_kept = r.field(cna::CBUF_CON0, cna::CBUF_CON0_DATA_REUSE) == 1;
        let matmul = Matmul { kind, m, k, n, input, input_kept, weights, output };
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
                return Err(r.shape(format!(
                    "the {one} at {:#x}..{:#x} overlaps the {other} at {:#x}..{:#x}{hint}",
                    a.start, a.end, b.start, b.end
                )));
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
    use Format::{Fp16, Fp32, Int4, Int8, Int16, Int32};
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
        (Some(Fp16), Some(Fp16)) => Kind::Fp16ToFp16,
        (Some(Int4), Some(Int16)) => Kind::Int4ToInt16,
        _ => {
            return Err(r.unexpected(
                dpu::DATA_FORMAT,
                "int8 to int32 or int8, fp16 to fp32 or fp16, int4 to int16".into(),
            ));
        }
    };
    match kind {
        Kind::Int8ToInt8(_) => {}
        Kind::Fp16ToFp16 if scale == 0x1_0001 => {}
        Kind::Fp16ToFp16 => {
            return Err(r.unexpected(dpu::OUT_CVT_SCALE, "0x10001 (conversion to fp16)".into()));
        }
        _ => r.expect(dpu::OUT_CVT_SCALE, 1, "no scaling")?,
    }
    if !matches!(kind, Kind::Int8ToInt8(_)) {
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

/// Registers that repeat height, K and N must agree.
fn sizes(r: &Registers, height: u32, k: u32, n: u32, row_bytes: u32) -> Result<(), Refusal> {
    r.expect(cna::DATA_SIZE0, cna::DATA_SIZE0_WIDTH.put(1) | height, "width 1 and the rows")?;
    r.expect(cna::FC_DATA_SIZE0, r.get(cna::DATA_SIZE0), "as DATA_SIZE0")?;
    r.expect(
        cna::DATA_SIZE1,
        cna::DATA_SIZE1_CHANNEL_REAL.put(k - 1) | k,
        "K - 1 in bits 29..16 and K in bits 15..0",
    )?;
    r.expect(cna::FC_DATA_SIZE1, k, "K")?;
    r.expect(cna::DATA_SIZE2, 1, "output width")?;
    r.expect(cna::DATA_SIZE3, height, "the rows")?;
    r.expect(cna::WEIGHT_SIZE0, n * row_bytes, "N times the bytes of a channel")?;
    r.expect(cna::WEIGHT_SIZE1, row_bytes, "bytes of a channel's weights")?;
    r.expect(cna::WEIGHT_SIZE2, 0x0101_0000 | n, "a 1 by 1 kernel and N")?;
    r.expect(cna::CBUF_CON1, row_bytes.div_ceil(CBUF_ENTRY), "CBUF entries of a row")?;
    r.expect(core::DATAOUT_SIZE_0, core::DATAOUT_SIZE_0_HEIGHT.put(height - 1), "rows - 1")?;
    r.expect(core::DATAOUT_SIZE_1, n - 1, "N - 1")?;
    r.expect(dpu::DATA_CUBE_WIDTH, 0, "width - 1")?;
    r.expect(dpu::DATA_CUBE_HEIGHT, height - 1, "rows - 1")?;
    r.expect(dpu::WDMA_SIZE_0, n - 1, "N - 1")
}

/// Limits of a batch of int4 rows, found by trial on boards.
fn int4_batch(r: &Registers, height: u32, m: u32, k: u32, n: u32) -> Result<(), Refusal> {
    if !height.is_multiple_of(2) {
        let expected = "an even height: int4 rows are counted twice".into();
        return Err(r.unexpected(cna::DATA_SIZE0, expected));
    }
    let tile = Weights::tile_channels(Kind::Int4ToInt16);
    let widest = (131_072 / k / tile * tile).max(tile);
    if n > widest {
        return Err(r.shape(format!("int4 batch of {n} channels at K = {k}; at most {widest}")));
    }
    let banks = r.field(cna::CBUF_CON0, cna::CBUF_CON0_DATA_BANK);
    let rows = (CBUF_BANK_BYTES / 2 * banks).div_ceil(k);
    if m > rows {
        let problem =
            format!("int4 batch of {m} rows at K = {k} and {banks} data banks; at most {rows}");
        return Err(r.shape(problem));
    }
    Ok(())
}

/// CBUF must hold all rows of the input and one tile of weights. That data banks are
/// `ceil(rows × bytes / 32 KiB)` fits every captured program; that weights need a bank per 1024 k
/// is inferred from the limits that public drivers found.
fn cbuf(r: &Registers, batch: bool, m: u32, k: u32, row_bytes: u32) -> Result<(), Refusal> {
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
    if u64::from(data) < data_needed || u64::from(weight) < weight_needed {
        let expected = format!(
            "at least {data_needed} data banks ({m} rows of {row_bytes} bytes) and {weight_needed} \
             weight banks (a tile of K = {k}), together at most {CBUF_BANKS}"
        );
        return Err(r.unexpected(cna::CBUF_CON0, expected));
    }
    if data + weight > CBUF_BANKS {
        let expected =
            format!("data banks ({data}) and weight banks ({weight}) within {CBUF_BANKS}");
        return Err(r.unexpected(cna::CBUF_CON0, expected));
    }
    Ok(())
}
