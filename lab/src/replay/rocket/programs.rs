//! What the recorder wrote into objects before it submitted: the little programs behind 0xB… addresses, told
//! only by the remarks beside them.

use super::Run;

const WRITE: u32 = 1;
const COPY: u32 = 2;
const WAIT: u32 = 3;
const END: [u32; 3] = [0, 0, 0];

/// A program that a remark announces: the file, the address of the object that holds it, its words.
struct Program {
    remark: &'static str,
    file: &'static str,
    offset: usize,
    object: u64,
    words: &'static [[u32; 3]],
}

const PROGRAMS: &[Program] = &[
    Program {
        remark: "both files: program at IOVA 0 writes a word to IOVA 0x1000",
        file: "A",
        offset: 0,
        object: 0x1_0000_0000,
        words: &[[WRITE, 0x1000, 0xaaaa], END],
    },
    Program {
        remark: "both files: program at IOVA 0 writes a word to IOVA 0x1000",
        file: "B",
        offset: 0,
        object: 0x1_0000_2000,
        words: &[[WRITE, 0x1000, 0xbbbb], END],
    },
    Program {
        remark: "A: program writes to an IOVA it has not mapped (0x5000)",
        file: "A",
        offset: 0,
        object: 0x1_0000_0000,
        words: &[[WRITE, 0x5000, 0x5555], END],
    },
    Program {
        remark: "A: object not named in any list, closed while the job is queued behind another",
        file: "A",
        offset: 0,
        object: 0x1_0000_0000,
        words: &[[WRITE, 0x2000, 0x7777], END],
    },
    Program {
        remark: "a create of 2 GiB fails; its pages go back to the system",
        file: "A",
        offset: 0,
        object: 0x1_0000_0000,
        words: &[[COPY, 0x1000, 0x2000], END],
    },
    Program {
        remark: "a job of B whose program reads the imported object at the address A was given",
        file: "B",
        offset: 0x1000,
        object: 0,
        words: &[],
    },
    Program {
        remark: "close(fd) 5 ms into a job of 200 ms that names no objects",
        file: "",
        offset: 0,
        object: 0,
        words: &[],
    },
];

/// The word that a remark says was found in a file's object after a program.
const FOUND: &[(&str, &str, u64, u32)] = &[
    ("A's word 0xaaaa, B's word 0xbbbb", "A", 0x1_0000_1000, 0xaaaa),
    ("A's word 0xaaaa, B's word 0xbbbb", "B", 0x1_0000_3000, 0xbbbb),
    ("word read: 0x0 (A's object holds 0x1234", "B", 0x1_0000_4000, 0),
];

fn write(run: &Run<'_>, file: &str, object: u64, offset: usize, words: &[[u32; 3]]) {
    let view = run.views.iter().find(|view| view.of == file && view.offset == object);
    let bytes: Vec<u8> = words.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    if let Some(view) = view {
        view.mapping.write(offset, &bytes);
    }
}

/// Does what a remark says was done, and looks where it says what was found.
pub(super) fn noted(run: &mut Run<'_>, text: &str) {
    for program in PROGRAMS.iter().filter(|program| text.starts_with(program.remark)) {
        write(run, program.file, program.object, program.offset, program.words);
    }
    for (remark, file, object, recorded) in FOUND {
        if !text.starts_with(remark) {
            continue;
        }
        let mut word = [0xff; 4];
        let view = run.views.iter().find(|view| view.of == *file && view.offset == *object);
        if let Some(view) = view {
            view.mapping.read(0, &mut word);
        }
        let simulated = u32::from_le_bytes(word);
        if simulated != *recorded {
            run.differ("word", format!("{recorded:#x}"), format!("{simulated:#x}"));
        }
    }
}

/// Writes the programs that no remark stands before, as a submit's own first address tells.
pub(super) fn before_submit(run: &Run<'_>, regcmd: u64) {
    match (run.scenario.name.as_str(), regcmd) {
        // In B's object at 0x1000: what lies at A's address goes into the object at 0x2000.
        ("prime", 0xb000_1000) => {
            write(run, "B", 0x1_0000_3000, 0, &[[COPY, 0x2000, 0], END]);
        }
        ("close_nolist", 0xb000_0000) => {
            write(run, "A", 0x1_0000_0000, 0, &[[WAIT, 200_000, 0], END]);
        }
        _ => {}
    }
}
