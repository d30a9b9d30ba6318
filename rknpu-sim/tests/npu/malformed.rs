//! Programs that a board would hang on or get wrong: none computes, each is named.

use proptest::prelude::*;
use rknpu_sim::engine::{Engine, Outcome, Run, Start, Verdict};
use rknpu_sim::npu::{Npu, Timing};

use crate::encode::{self, Listing, Shape, Types};
use crate::memory::Memory;
use crate::reference::{Operands, Random};
use crate::{INPUT, OUTPUT, PROGRAM, START, WEIGHTS, amount, run};

const SHAPE: Shape = Shape {
    types: Types::Int8Int32,
    m: 4,
    k: 64,
    n: 64,
    input: INPUT,
    weights: WEIGHTS,
    output: OUTPUT,
};

fn memory(s: Shape, mut program: Vec<u8>) -> Memory {
    program.resize(4096, 0);
    let operands = Operands::random(s, &mut Random(1));
    let mut memory = Memory::default();
    memory
        .map(PROGRAM, program)
        .map(INPUT, operands.rows(s, s.k))
        .map(WEIGHTS, operands.weights(s))
        .map(OUTPUT, vec![0; (s.m * s.n * s.types.output_bytes()) as usize]);
    memory
}

fn start(listing: &Listing) -> Start {
    Start { regcfg_amount: amount(listing), ..START }
}

/// The program hangs, writes nothing, and the finding contains every one of `words`.
#[track_caller]
fn hangs(run: &Run, memory: &Memory, words: &[&str]) {
    assert_eq!(run.outcome, Outcome::Hang { task_counter: 0 }, "{run:?}");
    assert!(!memory.was_written());
    for word in words {
        assert!(run.findings[0].text.contains(word), "{word:?} not in {:?}", run.findings);
    }
}

#[track_caller]
fn patched(register: u16, value: u32, words: &[&str]) {
    let mut listing = encode::row_major(SHAPE, SHAPE.n);
    listing.patch(register, value);
    let memory = memory(SHAPE, listing.bytes(None));
    let name = format!("{register:#06x}");
    let words: Vec<&str> = words.iter().copied().chain([name.as_str()]).collect();
    hangs(&run(start(&listing), &memory), &memory, &words);
}

#[test]
fn values_that_a_board_would_choke_on() {
    patched(0x1014, 0x12, &["CONV_CON3", "strides"]);
    patched(0x1020, 0x1_0000, &["height above 0"]);
    patched(0x1020, 0x0801_0004, &["the width and the height alone"]);
    patched(0x1024, 0x0021_0022, &["multiple of 32"]);
    patched(0x1024, 0x003e_0040, &["K - 1"]);
    patched(0x102c, 5, &["DATA_SIZE3"]);
    patched(0x1030, 63 * 64, &["bytes of a channel"]);
    patched(0x1034, 32, &["channel's weights"]);
    patched(0x1038, 0x0101_0030, &["multiple of 32"]);
    patched(0x1038, 0x0101_2020, &["8192"]);
    patched(0x1040, 0xb0, &["at least 1 data banks"]);
    patched(0x1040, 0x01, &["weight banks"]);
    patched(0x1040, 0xb2, &["within 12"]);
    patched(0x1040, 0x1b1, &["only bits"]);
    patched(0x1040, 0x10b1, &["data reuse"]);
    patched(0x1044, 2, &["CBUF entries"]);
    patched(0x104c, 0xa, &["no input conversion"]);
    patched(0x1070, INPUT + 8, &["multiple of 16"]);
    patched(0x1070, 0, &["above 0"]);
    patched(0x107c, 3, &["from row to row"]);
    patched(0x1080, 1, &["a row is one piece"]);
    patched(0x1110, WEIGHTS + 1, &["multiple of 16"]);
    patched(0x1100, 4, &["decompression"]);
    patched(0x3014, 0, &["height - 1"]);
    patched(0x3018, 62, &["N - 1"]);
    patched(0x400c, 0x1e0, &["to memory"]);
    patched(0x4010, 0x6000_0000, &["int8 to int32"]);
    patched(0x4038, 0x000f_0000, &["atoms of a row"]);
    patched(0x403c, 0x0040_003f, &["from row to row"]);
    patched(0x403c, 0x003f_0000, &["N - 1"]);
    patched(0x4040, 0x52, &["bias stage"]);
    patched(0x4060, 0x52, &["batch-norm stage"]);
    patched(0x4070, 0x382, &["element-wise stage"]);
    patched(0x4050, 0x36e, &["size code 7"]);
    patched(0x405c, 0, &["height - 1"]);
    patched(0x4084, 2, &["no scaling"]);
    patched(0x4088, 1, &["no scaling"]);
}

#[test]
fn registers_that_contradict_each_other() {
    let cases: [(u16, u32, &str); 5] = [
        (0x100c, 0x2000_0120, "disagree on the format"),
        (0x4038, 0x000e_000f, "output atoms overlap"),
        (0x4020, INPUT, "overlaps the input"),
        (0x1110, PROGRAM + 16, "the weights at 0x10000010..0x10001010 overlaps the program"),
        (0x4020, PROGRAM - 16, "is every buffer in the job's domain?"),
    ];
    for (register, value, word) in cases {
        let mut listing = encode::row_major(SHAPE, SHAPE.n);
        listing.patch(register, value);
        let memory = memory(SHAPE, listing.bytes(None));
        hangs(&run(start(&listing), &memory), &memory, &[word]);
    }
}

#[test]
fn a_register_that_was_never_written() {
    let mut listing = encode::row_major(SHAPE, SHAPE.n);
    listing.0.retain(|entry| entry.1 != 0x1044);
    let memory = memory(SHAPE, listing.bytes(None));
    hangs(&run(start(&listing), &memory), &memory, &["never written", "CBUF_CON1"]);
}

#[test]
fn int8_output_and_fp16_output_need_their_conversion() {
    let s = Shape { types: Types::Fp16Fp16, ..SHAPE };
    let mut listing = encode::row_major(s, s.n);
    listing.patch(0x4084, 1);
    let fp16 = memory(s, listing.bytes(None));
    hangs(&run(start(&listing), &fp16), &fp16, &["0x10001"]);
    let s = Shape { types: Types::Int8Int8 { multiplier: 1, shift: 63 }, ..SHAPE };
    let listing = encode::row_major(s, s.n);
    let int8 = memory(s, listing.bytes(None));
    hangs(&run(start(&listing), &int8), &int8, &["a shift of 0 to 62"]);
}

#[test]
fn planes_that_overlap() {
    // A height that is no multiple of 4 makes the surface stride too small.
    let s = Shape { m: 6, ..SHAPE };
    let listing = encode::planes(s);
    let memory = memory(s, listing.bytes(None));
    hangs(&run(start(&listing), &memory), &memory, &["DMA_CON2", "6 atoms apart"]);
}

#[test]
fn int4_batches_beyond_what_boards_do() {
    let base = Shape { types: Types::Int4Int16, m: 2, k: 8192, n: 64, ..SHAPE };
    for (m, k, n, word) in [(3, 8192, 64, "at most 2"), (2, 1024, 192, "at most 128")] {
        let s = Shape { m, k, n, ..base };
        let listing = encode::int4(s);
        let memory = memory(s, listing.bytes(None));
        hangs(&run(start(&listing), &memory), &memory, &[word]);
    }
    let mut odd = encode::int4(Shape { k: 64, ..base });
    for register in [0x1020, 0x1084] {
        odd.patch(register, 0x1_0003);
    }
    for (register, value) in [(0x102c, 3), (0x3014, 2 << 16), (0x4034, 2)] {
        odd.patch(register, value);
    }
    let memory = memory(Shape { k: 64, ..base }, odd.bytes(None));
    hangs(&run(start(&odd), &memory), &memory, &["even height"]);
}

#[test]
fn entries_that_mean_nothing() {
    let cases: [((u16, u16, u32), &str); 8] = [
        ((0x0999, 0x1010, 1), "no such block"),
        ((0x0201, 0x4010, 1), "no such register"),
        ((0x0201, 0x1011, 1), "no such register"),
        ((0x1001, 0x4ff0, 1), "no such register"),
        ((0x0101, 0x20, 0x300), "this register of the PC"),
        ((0x0081, 0x08, 0x60), "what these blocks compute"),
        ((0x1001, 0x4004, 0x30), "a group of registers"),
        ((0x1001, 0x4008, 1), "starts one block alone"),
    ];
    for (entry, word) in cases {
        let mut listing = encode::row_major(SHAPE, SHAPE.n);
        listing.0[5] = entry;
        let memory = memory(SHAPE, listing.bytes(None));
        let at = format!("{:#x}", PROGRAM + 5 * 8);
        hangs(&run(start(&listing), &memory), &memory, &[word, "entry 5", &at, "expected"]);
    }
}

#[test]
fn programs_that_cannot_be_fetched() {
    let listing = encode::row_major(SHAPE, SHAPE.n);
    let good = memory(SHAPE, listing.bytes(None));
    let with = |start: Start| run(start, &good);
    let full = start(&listing);
    hangs(&with(Start { regcfg_amount: 40, ..full }), &good, &["starts the blocks"]);
    hangs(&with(Start { regcmd_addr: PROGRAM + 8, ..full }), &good, &["multiple of 16"]);
    hangs(&with(Start { regcmd_addr: 0x7000_0000, ..full }), &good, &["0x70000000"]);
    hangs(&with(Start { dma_base: 0x1000, ..full }), &good, &["task_base_addr"]);
}

/// The program ends in time, but more was to be fetched than its buffer holds; or it does not end.
#[test]
fn amounts_that_reach_past_the_buffer() {
    let listing = encode::row_major(SHAPE, SHAPE.n);
    let good = memory(SHAPE, listing.bytes(None));
    for amount in [4096 / 8 - 2, u32::MAX] {
        let run = run(Start { regcfg_amount: amount, ..start(&listing) }, &good);
        assert!(matches!(run.outcome, Outcome::Done { .. }), "{run:?}");
        assert_eq!(run.findings[0].verdict, Verdict::Doubtful);
        assert!(run.findings[0].text.contains("past its buffer"), "{run:?}");
    }
    let mut endless = memory(SHAPE, Vec::new());
    endless.map(0x7000_0000, listing.bytes(None)[..100 * 8].to_vec());
    let run = run(Start { regcmd_addr: 0x7000_0000, ..start(&listing) }, &endless);
    hangs(&run, &endless, &["fetching its entries", "only 800 are mapped"]);
}

#[test]
fn operands_that_are_not_mapped() {
    for (register, what) in [
        (0x1070, "reading the input"),
        (0x1110, "reading the weights"),
        (0x4020, "writing the output"),
    ] {
        let mut listing = encode::row_major(SHAPE, SHAPE.n);
        listing.patch(register, 0xf000_0000);
        let memory = memory(SHAPE, listing.bytes(None));
        hangs(&run(start(&listing), &memory), &memory, &[what, "0xf0000000"]);
    }
}

#[test]
fn a_chain_that_ends_early() {
    let listing = encode::row_major(SHAPE, SHAPE.n);
    let memory = memory(SHAPE, listing.bytes(None));
    let run = run(Start { tasks: 3, ..start(&listing) }, &memory);
    // Boards show a counter of 0: the first program ran, but no second was started.
    assert_eq!(run.outcome, Outcome::Hang { task_counter: 0 });
    assert!(run.findings[0].text.contains("after 1 of 3 tasks"));
}

/// What boards complete and get wrong: the rows that are right are, and the finding says the rest.
#[test]
fn rows_that_a_board_loses() {
    let rows = |register, value, s: Shape, listing: &mut Listing| {
        listing.patch(register, value);
        let operands = Operands::random(s, &mut Random(1));
        let memory = memory(s, listing.bytes(None));
        let run = run(start(listing), &memory);
        assert!(matches!(run.outcome, Outcome::Done { .. }), "{run:?}");
        let [finding] = &run.findings[..] else { panic!("{run:?}") };
        assert_eq!(finding.verdict, Verdict::Wrong, "{run:?}");
        let row = (s.n * s.types.output_bytes()) as usize;
        let (got, expected) = (memory.after(OUTPUT), operands.product(s).concat());
        let right = got.chunks(row).zip(expected.chunks(row)).map(|(got, right)| got == right);
        (right.collect::<Vec<bool>>(), finding.text.clone())
    };
    // Banks for 64 rows of 512 bytes, as floor(M / 64) has them, and 100 rows.
    let s = Shape { m: 100, k: 512, ..SHAPE };
    let (right, text) = rows(0x1040, 0xb1, s, &mut encode::row_major(s, s.n));
    assert!(text.contains("rows from 64 on are wrong"), "{text}");
    assert!(right[..64].iter().all(|right| *right) && right[64..].iter().all(|right| !right));
    // Four int4 rows with the line stride of a single one.
    let s = Shape { types: Types::Int4Int16, m: 1, k: 128, ..SHAPE };
    let mut probe = encode::int4(s);
    for (register, value) in [
        (0x1020, 1 << 16 | 4),
        (0x1084, 1 << 16 | 4),
        (0x102c, 4),
        (0x3014, 3 << 16),
        (0x4034, 3),
        (0x405c, 3 << 16),
    ] {
        probe.patch(register, value);
    }
    let (right, text) = rows(0x107c, 4, s, &mut probe);
    assert!(text.contains("the first of 4 rows"), "{text}");
    assert_eq!(right, [true]);
}

#[test]
fn interrupt_masks() {
    let listing = encode::row_major(SHAPE, SHAPE.n);
    let memory = memory(SHAPE, listing.bytes(None));
    let with = |int_mask| run(Start { int_mask, ..start(&listing) }, &memory);
    let status = |run: &Run| match run.outcome {
        Outcome::Done { int_status, tasks_done, .. } => Some((int_status, tasks_done)),
        Outcome::Hang { .. } => None,
    };
    assert_eq!(status(&with(0x300)), Some((0x100, 1)));
    assert!(with(0x300).findings.is_empty());
    for (mask, raised) in
        [(0x100, Some((0x100, 1))), (0x303, Some((0x1, 1))), (0xc00, None), (0x200, None)]
    {
        let run = with(mask);
        assert_eq!(status(&run), raised, "{mask:#x}");
        assert!(run.findings[0].text.contains("expected 0x300"), "{run:?}");
    }
}

#[test]
fn time_is_the_floor_and_the_longer_of_arithmetic_and_stream() {
    let listing = encode::row_major(SHAPE, SHAPE.n);
    let memory = memory(SHAPE, listing.bytes(None));
    let timing = Timing {
        submit_floor_ns: 1000,
        int8_ops_per_second: 2 * 4 * 64 * 64 * 10_000_000, // one program in 100 ns
        weight_bytes_per_second: 64 * 64 * 20_000_000,     // in 50 ns
        ..Timing::instant()
    };
    let busy = |timing| match Npu::new(timing).run(&start(&listing), &mut &memory).outcome {
        Outcome::Done { busy_ns, .. } => busy_ns,
        Outcome::Hang { .. } => panic!("{listing:?}"),
    };
    assert_eq!(busy(timing), 1100);
    assert_eq!(busy(Timing { int8_ops_per_second: 0, ..timing }), 1050);
    assert_eq!(busy(Timing::instant()), 0);
}

/// A program of any kind for the fuzzing below.
fn any_program(kind: u8) -> (Shape, Listing) {
    match kind % 5 {
        0 => (SHAPE, encode::row_major(SHAPE, SHAPE.n)),
        1 => (SHAPE, encode::planes(SHAPE)),
        2 => {
            let s = Shape { types: Types::Fp16Fp16, ..SHAPE };
            (s, encode::row_major(s, s.n))
        }
        3 => {
            let s = Shape { types: Types::Int8Int8 { multiplier: 3, shift: 4 }, ..SHAPE };
            (s, encode::row_major(s, s.n))
        }
        _ => {
            let s = Shape { types: Types::Int4Int16, ..SHAPE };
            (s, encode::int4(s))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Whatever a program holds, the run ends, without a panic, and a hang has a reason.
    #[test]
    fn damaged_programs_end(
        kind: u8, damage in prop::collection::vec((0usize..4096, any::<u64>(), any::<bool>()), 1..6),
        tasks in 1u32..4, int_mask: u32, amount in 0u32..300,
    ) {
        let (s, listing) = any_program(kind);
        let mut program = listing.bytes(Some((PROGRAM, 0x37)));
        for (at, bits, whole) in damage {
            let at = at % (program.len() / 8) * 8;
            let mut entry = [0; 8];
            entry.copy_from_slice(&program[at..at + 8]);
            // A flipped bit of the value keeps the entry decodable; a new entry rarely is.
            let old = u64::from_le_bytes(entry);
            let new = if whole { bits } else { old ^ 1 << (16 + bits % 32) };
            program[at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
        let memory = memory(s, program);
        let run = run(Start { tasks, int_mask, regcfg_amount: amount, ..START }, &memory);
        if matches!(run.outcome, Outcome::Hang { .. }) {
            prop_assert!(!run.findings.is_empty());
        }
    }
}

/// Every bit of every entry, flipped alone: the program is refused before anything is written, or
/// writes within the output.
#[test]
fn a_flipped_bit_is_refused_or_computes() {
    for kind in 0..5 {
        let (s, listing) = any_program(kind);
        let program = listing.bytes(None);
        let output = u64::from(OUTPUT);
        let end = output + u64::from(s.m * s.n * s.types.output_bytes());
        for bit in 0..program.len() * 8 {
            let mut program = program.clone();
            program[bit / 8] ^= 1 << (bit % 8);
            let memory = memory(s, program);
            let run = run(start(&listing), &memory);
            let place = format!("kind {kind}, entry {}, bit {}: {run:?}", bit / 64, bit % 64);
            if matches!(run.outcome, Outcome::Hang { .. }) {
                let finding = &run.findings[0].text;
                assert!(finding.contains("expected") || finding.contains("0x"), "{place}");
                assert!(!memory.was_written(), "{place}");
            } else {
                assert!(memory.writes_lie_in(output..end), "{place}");
            }
        }
    }
}

/// The last atoms of such an output lie far beyond its buffer, the first do not.
#[test]
fn a_surface_stride_that_its_companion_cannot_hold() {
    let mut listing = encode::planes(SHAPE);
    listing.patch(0x4024, SHAPE.m << 4 | 1 << 29);
    let memory = memory(SHAPE, listing.bytes(None));
    hangs(&run(start(&listing), &memory), &memory, &["surface stride times 8", "SURFACE_ADD"]);
}

/// Rows further apart than the output's buffer is long: the first would still fit.
#[test]
fn an_output_that_is_partly_mapped() {
    let listing = encode::row_major(SHAPE, 4 * SHAPE.n);
    let memory = memory(SHAPE, listing.bytes(None));
    hangs(&run(start(&listing), &memory), &memory, &["writing the output"]);
}
