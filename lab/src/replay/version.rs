//! VERSION and other calls of the DRM core that the recorder made beside the steps it recorded.

use crate::replay::compare::outcome;
use crate::replay::format::{Step, number};
use crate::replay::layout::{get, put};
use crate::replay::observe::{compare_in, compare_text};
use crate::replay::run::Run;
use rknpu_sim::File;
use rknpu_sys::drm::Version;
use rknpu_sys::ioctl;
use serde_json::Value;

const GET_CAP: u32 = 0xC010_640C;
const ROOM: usize = 64;

/// VERSION: lengths first, then texts, then a name in too little room.
pub(super) fn version(run: &Run<'_>, n: usize, step: &Step) {
    let value = &step.value;
    let Some(file) = run.named_file(&step.step) else {
        return run.not_compared(n, "no file is open");
    };
    let with_texts = value.get("name").is_some();
    let mut texts = [[0u8; ROOM]; 3];
    let room = match value.get("name_len_in").and_then(number) {
        Some(room) => room.min(ROOM as u64),
        None => ROOM as u64,
    };
    let mut version = Version::default();
    let result = if with_texts {
        let [name, date, desc] = &mut texts;
        let at = |text: &mut [u8; ROOM]| text.as_mut_ptr().expose_provenance() as u64;
        version = Version {
            name: at(name),
            date: at(date),
            desc: at(desc),
            name_len: room,
            date_len: ROOM as u64,
            desc_len: ROOM as u64,
            ..version
        };
        ask(&file, &mut version)
    } else {
        file.call(&mut version).map(|()| 0)
    };
    compare_text(run, n, value, "errno", &outcome(&result));
    for (field, found) in [
        ("major", version.version_major),
        ("minor", version.version_minor),
        ("patch", version.version_patchlevel),
    ] {
        compare_in(run, n, value, field, i64::from(found).cast_unsigned());
    }
    let lengths = [version.name_len, version.date_len, version.desc_len];
    for (field, len) in ["name_len", "date_len", "desc_len"].into_iter().zip(lengths) {
        compare_in(run, n, value, field, len);
    }
    let rooms = [room, ROOM as u64, ROOM as u64];
    for (((field, text), len), room) in
        ["name", "date", "desc"].into_iter().zip(&texts).zip(lengths).zip(rooms)
    {
        let text = &text[..(len.min(room) as usize).min(ROOM)];
        compare_text(run, n, value, field, &String::from_utf8_lossy(text));
    }
}

/// VERSION with addresses of texts in it.
pub(super) fn ask(file: &File, version: &mut Version) -> Result<i32, rustix::io::Errno> {
    // SAFETY: the word takes a `Version`, which is exclusive here; its only caller lets its addresses
    // be those of arrays of `ROOM` bytes, exclusive as well, of which no more are asked for.
    unsafe { file.ioctl(ioctl::DRM_VERSION, std::ptr::from_mut(version).cast()) }
}

/// GET_CAP.
pub(super) fn capability(run: &Run<'_>, n: usize, step: &Step) {
    let Some(file) = run.named_file(&step.step) else {
        return run.not_compared(n, "no file is open");
    };
    let mut bytes = [0; 16];
    put(&mut bytes, 0, 8, step.value.get("cap").and_then(number).unwrap_or(0));
    let result = file.call_bytes(GET_CAP, &mut bytes);
    compare_text(run, n, &step.value, "errno", &outcome(&result));
    compare_in(run, n, &step.value, "value", get(&bytes, 8, 8));
}

/// A call that is named and shows its errno only.
pub(super) fn named(run: &Run<'_>, n: usize, step: &Step, name: &str) {
    let word = match name {
        "SET_MASTER" => 0x0000_641e,
        "GET_MAGIC" => 0x8004_6402,
        // Of a handle that is not open any more.
        "GEM_FLINK" => 0xC008_640A,
        _ => return run.not_compared(n, "a call that the model does not know"),
    };
    let Some(file) = run.named_file(&step.step) else {
        return run.not_compared(n, "no file is open");
    };
    let mut bytes = [0; 8];
    put(&mut bytes, 0, 4, 1);
    let result = file.call_bytes(word, &mut bytes);
    compare_text(run, n, &step.value, "errno", &outcome(&result));
}

/// A file of the driver's: that it is there, and what kind it is.
pub(super) fn listed(run: &Run<'_>, n: usize, path: &str, value: &Value) {
    let knob =
        ["/sys/kernel/debug/rknpu/", "/proc/rknpu/"].iter().find_map(|p| path.strip_prefix(p));
    let Some(knob) = knob else {
        return run.not_compared(n, "a file that is not the driver's");
    };
    // A regular file that all may read.
    let mode = if run.machine.knob(knob).is_some() { "100444" } else { "absent" };
    compare_text(run, n, value, "mode", mode);
}
