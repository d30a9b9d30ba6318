//! Values that the recorder wrote through one mapping of a buffer and read through another.

use crate::replay::format::{Step, number};
use crate::replay::observe::compare;
use crate::replay::run::{Run, View};
use serde_json::Value;

const PAGE: usize = 4096;
/// What the recorder wrote to the first word of page n, less n.
const PAGE_MARK: u64 = 0x100;

/// The step's latest mapping, and the oldest other one of the same buffer; itself where it is alone.
fn pair<'w>(views: &'w [View], step: &Step) -> Option<(&'w View, &'w View)> {
    let own = |view: &&View| view.thread == step.thread;
    let reader = views.iter().rev().find(own).or(views.last())?;
    let other =
        |view: &&View| !std::ptr::eq(*view, reader) && view.mapping.same_buffer(&reader.mapping);
    Some((views.iter().find(other).unwrap_or(reader), reader))
}

fn word(view: &View, at: usize) -> u64 {
    let mut bytes = [0; 4];
    view.mapping.read(at, &mut bytes);
    u32::from_le_bytes(bytes).into()
}

/// One value, written through one mapping, seen through another.
pub(crate) fn value(run: &Run<'_>, n: usize, step: &Step, field: &str, recorded: &Value) {
    let Some(written) = number(recorded).and_then(|value| u32::try_from(value).ok()) else {
        return run.not_compared(n, "a value that is no word");
    };
    let world = run.world();
    let seen = pair(&world.views, step).map(|(writer, reader)| {
        writer.mapping.write(0, &written.to_le_bytes());
        word(reader, 0)
    });
    drop(world);
    compare(run, n, field, recorded, seen.unwrap_or(0));
}

/// Bytes at both ends of a buffer.
pub(crate) fn ends(run: &Run<'_>, n: usize, step: &Step, recorded: &[Value]) {
    for (at, byte) in recorded.iter().enumerate() {
        let written = number(byte).and_then(|value| u8::try_from(value).ok());
        let Some(written) = written else { return run.not_compared(n, "a value that is no byte") };
        let world = run.world();
        let seen = pair(&world.views, step).map(|(writer, reader)| {
            let last = reader.mapping.len().min(writer.mapping.len()).saturating_sub(1);
            let place = if at == 0 { 0 } else { last.saturating_sub(recorded.len() - 1 - at) };
            writer.mapping.write(place, &[written]);
            let mut seen = [0];
            reader.mapping.read(place, &mut seen);
            seen[0]
        });
        drop(world);
        compare(run, n, &format!("[{at}]"), byte, seen.unwrap_or(0).into());
    }
}

/// Which page a mapping at an offset shows: every page has a mark of its own.
pub(crate) fn page(run: &Run<'_>, n: usize, step: &Step, recorded: &Value) {
    let world = run.world();
    let seen = pair(&world.views, step).map(|(writer, reader)| {
        for (page, at) in (0..writer.mapping.len()).step_by(PAGE).enumerate() {
            let mark = (PAGE_MARK + page as u64) as u32;
            writer.mapping.write(at, &mark.to_le_bytes());
        }
        word(reader, 0)
    });
    drop(world);
    compare(run, n, "value", recorded, seen.unwrap_or(0));
}

/// A new buffer: whether it is all zero, and whether a word that is written can be read.
pub(crate) fn touch(run: &Run<'_>, n: usize, step: &Step) {
    let world = run.world();
    let zero = pair(&world.views, step).map(|(_, reader)| {
        let mut bytes = vec![0; reader.mapping.len().min(PAGE)];
        reader.mapping.read(0, &mut bytes);
        bytes.iter().all(|byte| *byte == 0)
    });
    drop(world);
    if let Some(recorded) = step.value.get("zero") {
        compare(run, n, "zero", recorded, u64::from(zero == Some(true)));
    }
    if let Some(recorded) = step.value.get("rb") {
        value(run, n, step, "rb", recorded);
    }
}
