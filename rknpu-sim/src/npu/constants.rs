//! Registers that every known matmul program sets alike: other values ask for stages that are not
//! modelled (bias, scaling, activation, padding, strides, decompression).

use rknpu_sys::regs::{Field, cna, core, dpu};

use super::refusal::Refusal;
use super::registers::Registers;

/// Register, value, meaning.
const FIXED: [(u16, u32, &str); 41] = [
    (cna::CONV_CON3, 9, "strides of 1"),
    (cna::CVT_CON0, 0x0b, "no input conversion"),
    (cna::CVT_CON1, 0x1_0000, "input scale 1"),
    (cna::CVT_CON2, 0x1_0000, "input scale 1"),
    (cna::CVT_CON3, 0x1_0000, "input scale 1"),
    (cna::CVT_CON4, 0x1_0000, "input scale 1"),
    (cna::FC_CON0, 0, "no fully-connected mode"),
    (cna::FC_CON1, 0, "no fully-connected mode"),
    (cna::FC_CON2, 0, "no fully-connected mode"),
    (cna::PAD_CON0, 0, "no padding"),
    (cna::PAD_CON1, 0, "no padding"),
    (cna::DCOMP_CTRL, 0, "no weight decompression"),
    (cna::DCOMP_REGNUM, 0, "no weight decompression"),
    (cna::CVT_CON5, 0, "no input conversion per channel"),
    (core::CLIP_TRUNCATE, 0, "no truncation"),
    (core::RESERVED_3030, 0, "what all known programs write"),
    (dpu::OFFSET_PEND, 0, "no pending offset"),
    (dpu::BS_CFG, 0x53, "bias stage bypassed"),
    (dpu::BS_ALU_CFG, 0, "bias stage bypassed"),
    (dpu::BS_MUL_CFG, 0, "bias stage bypassed"),
    (dpu::BS_RELUX_CMP_VALUE, 0, "bias stage bypassed"),
    (dpu::BS_OW_OP, 0, "bias stage bypassed"),
    (dpu::BN_CFG, 0x53, "batch-norm stage bypassed"),
    (dpu::BN_ALU_CFG, 0, "batch-norm stage bypassed"),
    (dpu::BN_MUL_CFG, 0, "batch-norm stage bypassed"),
    (dpu::BN_RELUX_CMP_VALUE, 0, "batch-norm stage bypassed"),
    (dpu::EW_CFG, 0x383, "element-wise stage bypassed"),
    (dpu::EW_CVT_OFFSET_VALUE, 0, "element-wise stage bypassed"),
    (dpu::EW_CVT_SCALE_VALUE, 1, "element-wise stage bypassed"),
    (dpu::EW_RELUX_CMP_VALUE, 0, "element-wise stage bypassed"),
    (dpu::OUT_CVT_OFFSET, 0, "no output offset"),
    (dpu::RESERVED_40C4, 0, "what all known programs write"),
    (dpu::EW_OP_VALUE_0, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 4, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 8, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 12, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 16, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 20, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 24, 0, "element-wise stage bypassed"),
    (dpu::EW_OP_VALUE_0 + 28, 0, "element-wise stage bypassed"),
    (cna::CLK_GATE, 0, "clocks on"),
];

/// Burst lengths, which change speed alone.
const WEIGHT_BURST: Field = Field::new(19, 16);
const DATA_BURST: Field = Field::new(3, 0);
/// [`dpu::FEATURE_MODE_CFG`]: burst length.
const OUTPUT_BURST: Field = Field::new(8, 5);
/// [`dpu::FEATURE_MODE_CFG`] without its burst length: results go to memory.
const OUTPUT_TO_MEMORY: u32 = 0x004;
/// Pointer and ping-pong bits of an S_POINTER register.
const POINTER: Field = Field::new(3, 0);
/// Kernel groups of [`cna::CONV_CON2`].
const KERNEL_GROUPS: Field = Field::new(23, 16);

/// Checks all of them.
pub(super) fn check(r: &Registers) -> Result<(), Refusal> {
    for (register, value, why) in FIXED {
        r.expect(register, value, why)?;
    }
    for register in (0..16).map(|i| cna::DCOMP_AMOUNT0 + 4 * i) {
        r.expect(register, 0, "no weight decompression")?;
    }
    for register in (0..12).map(|i| dpu::LUT_ACCESS_CFG + 4 * i) {
        r.expect(register, 0, "no look-up table")?;
    }
    for register in [cna::S_POINTER, core::S_POINTER, dpu::S_POINTER] {
        r.only(register, &[POINTER])?;
    }
    r.only(cna::DMA_CON0, &[WEIGHT_BURST, DATA_BURST])?;
    r.only(
        cna::CONV_CON1,
        &[cna::CONV_CON1_PROC_PRECISION, cna::CONV_CON1_IN_PRECISION, cna::CONV_CON1_ROW_MAJOR],
    )?;
    r.only(cna::CONV_CON2, &[cna::CONV_CON2_FEATURE_GRAINS, KERNEL_GROUPS])?;
    if r.field(cna::CONV_CON2, cna::CONV_CON2_FEATURE_GRAINS) == 0 {
        return Err(r.unexpected(cna::CONV_CON2, "rows to fetch ahead in bits 13..4".into()));
    }
    r.only(core::MISC_CFG, &[core::MISC_CFG_PROC_PRECISION, core::MISC_CFG_QD_EN])?;
    if r.get(dpu::FEATURE_MODE_CFG) & !OUTPUT_BURST.mask() != OUTPUT_TO_MEMORY {
        return Err(r.unexpected(dpu::FEATURE_MODE_CFG, "0x1e4 (results to memory)".into()));
    }
    r.only(
        dpu::DATA_FORMAT,
        &[
            dpu::DATA_FORMAT_OUT_PRECISION,
            dpu::DATA_FORMAT_IN_PRECISION,
            dpu::DATA_FORMAT_PROC_PRECISION,
        ],
    )
}
