//! Stages that a product does without: each is looked at only where it is not bypassed.

use rknpu_sys::regs::{Field, cna, core, dpu};

use super::refusal::Refusal;
use super::registers::Registers;

/// Register, value, meaning: what every known program of a product writes, and what would ask for
/// something that is not modelled.
const FIXED: [(u16, u32, &str); 12] = [
    (cna::CONV_CON3, 9, "strides of 1"),
    (cna::FC_CON0, 0, "no fully-connected mode"),
    (cna::FC_CON1, 0, "no fully-connected mode"),
    (cna::FC_CON2, 0, "no fully-connected mode"),
    (cna::PAD_CON0, 0, "no padding"),
    (cna::DCOMP_CTRL, 0, "no weight decompression"),
    (cna::DCOMP_REGNUM, 0, "no weight decompression"),
    (cna::CVT_CON5, 0, "no input conversion per channel"),
    (core::CLIP_TRUNCATE, 0, "no truncation"),
    (dpu::OFFSET_PEND, 0, "no pending offset"),
    (dpu::BS_OW_OP, 0, "no offset of the bias stage"),
    (dpu::OUT_CVT_OFFSET, 0, "no output offset"),
];

/// [`cna::CVT_CON0`]: the input is not converted, and its scales are not looked at.
const CVT_BYPASS: Field = Field::new(0, 0);
/// Burst lengths, which change speed alone.
const WEIGHT_BURST: Field = Field::new(19, 16);
const DATA_BURST: Field = Field::new(3, 0);
/// [`dpu::FEATURE_MODE_OUTPUT`]: results go to memory.
const TO_MEMORY: u32 = 2;

/// Checks what belongs to the array.
pub(super) fn check(r: &Registers) -> Result<(), Refusal> {
    for (register, value, why) in FIXED {
        r.expect(register, value, why)?;
    }
    if r.field(cna::CVT_CON0, CVT_BYPASS) == 0 {
        return Err(r.unexpected(cna::CVT_CON0, "bit 0 set (no input conversion)".into()));
    }
    r.only(cna::DMA_CON0, &[WEIGHT_BURST, DATA_BURST])?;
    r.only(
        cna::CONV_CON1,
        &[cna::CONV_CON1_PROC_PRECISION, cna::CONV_CON1_IN_PRECISION, cna::CONV_CON1_ROW_MAJOR],
    )?;
    r.only(core::MISC_CFG, &[core::MISC_CFG_PROC_PRECISION, core::MISC_CFG_QD_EN])?;
    if !bypassed(r, dpu::EW_CFG, dpu::EW_BYPASS) {
        return Err(r.unexpected(dpu::EW_CFG, "bit 0 set (no element-wise stage)".into()));
    }
    output(r, false)
}

/// Checks what every program's output stage has; `flying`, that its input comes from memory.
pub(super) fn output(r: &Registers, flying: bool) -> Result<(), Refusal> {
    for (register, what) in [
        (dpu::BS_CFG, "bit 0 set (no bias stage)"),
        (dpu::BN_CFG, "bit 0 set (no batch-norm stage)"),
    ] {
        if !bypassed(r, register, dpu::STAGE_BYPASS) {
            return Err(r.unexpected(register, what.into()));
        }
    }
    r.only(
        dpu::FEATURE_MODE_CFG,
        &[dpu::FEATURE_MODE_BURST, dpu::FEATURE_MODE_OUTPUT, dpu::FEATURE_MODE_FLYING],
    )?;
    if r.field(dpu::FEATURE_MODE_CFG, dpu::FEATURE_MODE_OUTPUT) != TO_MEMORY
        || (r.field(dpu::FEATURE_MODE_CFG, dpu::FEATURE_MODE_FLYING) == 1) != flying
    {
        let expected = if flying { "0x1e5" } else { "0x1e4" };
        return Err(r.unexpected(dpu::FEATURE_MODE_CFG, format!("{expected} (results to memory)")));
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

/// Whether a stage is bypassed. Programs of the field that never write it work, so that after a reset
/// it is taken for bypassed.
fn bypassed(r: &Registers, register: u16, bypass: Field) -> bool {
    r.field(register, bypass) == 1 || r.written(register).is_none()
}
