//! ACTION.

use crate::domain::real;
use crate::hazard::Hazard;
use crate::kernel::Call;
use rknpu_sys::action as code;
use rknpu_sys::uapi::Action;
use rustix::io::Errno;

/// Runs an action; `value` is unchanged when it fails.
pub(crate) fn action(call: &mut Call<'_>, _file: u32, args: &mut Action) -> Result<(), Errno> {
    let config = call.config();
    let version = config.version;
    match args.flags {
        code::GET_HW_VERSION => args.value = config.hardware.version,
        code::GET_DRV_VERSION => args.value = version.code(),
        code::GET_FREQ => args.value = config.hardware.frequency,
        code::GET_VOLT => match config.hardware.microvolts {
            Some(microvolts) => args.value = microvolts,
            None => {
                call.hazard(config, Hazard::NoSupply);
                return Err(Errno::FAULT);
            }
        },
        code::ACT_RESET => return call.soft_reset(),
        code::ACT_CLR_TOTAL_RW_AMOUNT..=code::GET_TOTAL_RW_AMOUNT => {}
        code::GET_IOMMU_EN => args.value = config.iommu.into(),
        code::SET_PROC_NICE => {
            let nice = args.value.cast_signed();
            if (-20..=19).contains(&nice) {
                call.nice = nice;
            }
        }
        code::POWER_ON | code::POWER_OFF if !version.refuses_power() => {}
        code::GET_TOTAL_SRAM_SIZE => args.value = bytes(call.sram.total()),
        code::GET_FREE_SRAM_SIZE => args.value = bytes(call.sram.free()),
        code::GET_IOMMU_DOMAIN_ID if version.has_domains() => {
            let current = if real(config) { call.domains.current } else { 0 };
            args.value = current.cast_unsigned();
        }
        code::SET_IOMMU_DOMAIN_ID if version.has_domains() => {
            call.get_domain(args.value.cast_signed())?;
            call.put_domain(config);
        }
        _ => return Err(Errno::INVAL),
    }
    Ok(())
}

fn bytes(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
