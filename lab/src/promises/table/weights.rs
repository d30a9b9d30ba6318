//! What packs and conversions promise.

use super::{integration, unit};
use crate::promises::Promise;

const CRATE: &str = "ork-weights";

pub(super) const PROMISES: &[Promise] = &[
    Promise {
        says: "a pack's bytes are on the disk before it has its name",
        file: "ork-weights/src/pack/writer/finish.rs",
        right: "        self.disk.sync(&self.file).map_err(PackError::io(\"sync\", &partial))?;\n",
        wrong: "",
        test: unit(
            CRATE,
            "pack::writer::tests::bytes_are_on_the_disk_before_the_name_and_the_name_before_the_journal_goes",
        ),
    },
    Promise {
        says: "a pack's name is on the disk before the journal goes",
        file: "ork-weights/src/pack/writer/finish.rs",
        right: "        self.disk.sync(&folder).map_err(PackError::io(\"sync\", &self.paths.folder))?;\n",
        wrong: "        let _ = folder;\n",
        test: unit(
            CRATE,
            "pack::writer::tests::bytes_are_on_the_disk_before_the_name_and_the_name_before_the_journal_goes",
        ),
    },
    Promise {
        says: "what was written is read back before it counts",
        file: "ork-weights/src/pack/writer/finish.rs",
        right: "        self.read_back()?;\n",
        wrong: "",
        test: unit(CRATE, "pack::writer::tests::a_write_that_the_disk_spoilt_makes_no_pack"),
    },
    Promise {
        says: "pieces of a weight that come out of order are read back as well",
        file: "ork-weights/src/pack/writer/pieces.rs",
        right: "            if found != *expected {",
        wrong: "            if false && found != *expected {",
        test: unit(CRATE, "pack::writer::tests::a_write_that_the_disk_spoilt_makes_no_pack"),
    },
    Promise {
        says: "a pack that was put there meanwhile is not overwritten",
        file: "ork-weights/src/pack/writer/disk.rs",
        right: "RenameFlags::NOREPLACE",
        wrong: "RenameFlags::empty()",
        test: unit(CRATE, "pack::writer::tests::the_kernel_refuses_to_rename_over_a_new_file"),
    },
    Promise {
        says: "of an interrupted conversion only weights that are whole are taken over",
        file: "ork-weights/src/pack/writer/resume.rs",
        right: "            if sound.is_err() || !in_place || self.contains(&entry.name) {",
        wrong: "            if !in_place || self.contains(&entry.name) || sound.is_err() && false {",
        test: unit(CRATE, "pack::writer::tests::only_what_is_whole_is_taken_over"),
    },
    Promise {
        says: "two conversions never write one pack",
        file: "ork-weights/src/pack/writer/target.rs",
        right: "FlockOperation::NonBlockingLockExclusive",
        wrong: "FlockOperation::NonBlockingLockShared",
        test: unit(CRATE, "pack::writer::tests::locked"),
    },
    Promise {
        says: "a pack of another model is refused by its name, whatever its size and time",
        file: "ork-weights/src/pack/identity.rs",
        right: "        if self.sample_hash != model.sample_hash {",
        wrong: "        if self.sample_hash != model.sample_hash && self.modified_ns != model.modified_ns {",
        test: unit(CRATE, "pack::identity::tests::other_model_names_what_differs"),
    },
    Promise {
        says: "bytes between the parts of a pack are zero",
        file: "ork-weights/src/pack/verify.rs",
        right: "    problems.extend(pack.check_gaps().err());\n",
        wrong: "",
        test: integration(CRATE, "pack_errors", "gap"),
    },
    Promise {
        says: "a changed byte of a weight is found by verifying",
        file: "ork-weights/src/pack/verify.rs",
        right: "    if found == expected {",
        wrong: "    if found == expected || part == Part::Blob {",
        test: integration(CRATE, "pack_errors", "checksum"),
    },
    Promise {
        says: "an int8 code is the rounded quotient, also next to a tie",
        file: "ork-weights/src/quantise/int8.rs",
        right: "            _ => divided(values, step.scale),",
        wrong: "            _ => rounded.map(|bits| bits as i8),",
        test: unit(CRATE, "quantise::int8::tests::ties_and_their_neighbours"),
    },
];
