//! What `ork run` promises.

use super::integration;
use crate::promises::Promise;

const CRATE: &str = "ork";

pub(super) const PROMISES: &[Promise] = &[
    Promise {
        says: "a damaged weight of a pack ends a run and never becomes text",
        file: "ork-cache/src/store/mod.rs",
        right: "                if !expected.form.checked.load(Ordering::Relaxed) {",
        wrong: "                if expected.form.checked.load(Ordering::Relaxed) {",
        test: integration(CRATE, "cli", "run::a_damaged_pack_writes_nothing"),
    },
    Promise {
        says: "what `ork convert` writes is what `ork run` keeps, byte for byte",
        file: "ork-weights/src/pack/writer/mod.rs",
        right: "        place.unwrap_or_else(|| self.end.next_multiple_of(PAGE))",
        wrong: "        place.filter(|_| false).unwrap_or_else(|| self.end.next_multiple_of(PAGE))",
        test: integration(CRATE, "cli", "run::weights_come_from_a_pack_that_has_them_all"),
    },
    Promise {
        says: "an interrupt ends a long prompt between two products",
        file: "ork/src/text/interrupt.rs",
        right: "        match self.asked.load(Ordering::Relaxed) {",
        wrong: "        match rows == 1 && self.asked.load(Ordering::Relaxed) {",
        test: integration(CRATE, "cli", "run::an_interrupt_ends_a_long_prompt"),
    },
    Promise {
        says: "a line that cannot be answered leaves the other answers of a conversation alone",
        file: "ork/src/text/conversation.rs",
        right: "                refuse(&mut conversation, error.to_string());",
        wrong: "                conversation.answers.clear();\n                \
                refuse(&mut conversation, error.to_string());",
        test: integration(
            CRATE,
            "cli",
            "run::a_line_that_cannot_be_answered_does_not_take_the_others_along",
        ),
    },
];
