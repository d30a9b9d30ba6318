//! The call in which the kernel stopped, which is not recorded itself, and what the model says to it.

use super::{Run, calls};
use crate::replay::Fatal;
use rknpu_sim::Hazard;
use rknpu_sys::rocket::{CREATE_BO, CreateBo};
use std::time::Duration;
use zerocopy::IntoBytes;

const GET_MAGIC: u32 = 0x8004_6402;
const GET_UNIQUE: u32 = 0xC010_6401;
/// Until whatever still ran has ended.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// Makes the call; nothing when the recorder itself ran out of time.
pub(super) fn end(run: &mut Run<'_>) -> Option<Fatal> {
    let ended = run.scenario.ended.clone().unwrap_or_default();
    if !ended.contains("the kernel stopped") {
        return None;
    }
    let file = run.files.values().next().cloned();
    let call = match (&file, ended.as_str()) {
        (Some(file), text) if text.contains("in GET_MAGIC") => {
            let _ = file.call_bytes(GET_MAGIC, &mut [0; 4]);
            "GET_MAGIC"
        }
        (Some(file), text) if text.contains("in GET_UNIQUE") => {
            let _ = file.call_bytes(GET_UNIQUE, &mut [0; 16]);
            "GET_UNIQUE"
        }
        (Some(file), text) if text.contains("unknown handle") => {
            let _ = calls::Jobs::one(0x8000_03e8, 16, &[77], &[1]).submit(file);
            "SUBMIT"
        }
        (Some(file), text) if text.contains("regcmd_count 0") => {
            let _ = calls::Jobs::one(0x8000_03e8, 0, &[], &[1]).submit(file);
            "SUBMIT"
        }
        (Some(file), text) if text.contains("in CREATE_BO") => {
            let mut object = CreateBo { size: 8192, ..CreateBo::default() };
            let _ = file.call_bytes(CREATE_BO, object.as_mut_bytes());
            "CREATE_BO"
        }
        _ => "the end of a file",
    };
    drop(file);
    run.exit();
    run.machine.sleep(AFTERWARDS);
    let function = run.scenario.kernel_log.last().cloned().unwrap_or_default();
    let met = run.machine.report().hazards.into_iter();
    let fatal = |hazard: &Hazard| hazard.kills() || matches!(hazard, Hazard::OutlivesFile { .. });
    let hazard = met.filter(|met| fatal(&met.hazard)).map(|met| met.text).next();
    Some(Fatal { function, call: Some(call.to_owned()), hazard })
}
