//! Programs that compute.

use proptest::prelude::*;
use rknpu_sim::engine::Unit;

use crate::encode::{self, Listing, Shape, Types};
use crate::memory::Memory;
use crate::reference::{Operands, Random};
use crate::{INPUT, OUTPUT, PROGRAM, START, WEIGHTS, amount, assert_done, run};

/// Filler of the output buffer: what is not written must keep it.
const FILL: u8 = 0xc5;

fn shape(types: Types, m: u32, k32: u32, tiles: u32) -> Shape {
    let (k, n) = (32 * k32, types.tile() * tiles);
    Shape { types, m, k, n, input: INPUT, weights: WEIGHTS, output: OUTPUT }
}

/// Runs `listing` and compares each element, which lies `place(m, n)` elements from the start.
fn check(
    s: Shape,
    listing: &Listing,
    operands: &Operands,
    input: Vec<u8>,
    place: impl Fn(u32, u32) -> u32,
) {
    let size = s.types.output_bytes() as usize;
    let last = (0..s.m).flat_map(|m| (0..s.n).map(move |n| (m, n))).map(|(m, n)| place(m, n));
    let elements = last.max().unwrap() as usize + 1;
    let mut memory = Memory::default();
    memory
        .map(PROGRAM, listing.bytes(None))
        .map(INPUT, input)
        .map(WEIGHTS, operands.weights(s))
        .map(OUTPUT, vec![FILL; elements * size]);
    let run = run(crate::Start { regcfg_amount: amount(listing), ..START }, &memory);
    assert_done(&run);
    let mut expected = vec![FILL; elements * size];
    for (i, element) in operands.product(s).iter().enumerate() {
        let (m, n) = (i as u32 / s.n, i as u32 % s.n);
        expected[place(m, n) as usize * size..][..size].copy_from_slice(element);
    }
    let got = memory.after(OUTPUT);
    let wrong = got.iter().zip(&expected).position(|(g, e)| g != e);
    assert_eq!(wrong, None, "first wrong byte of {s:?}");
    // Gaps between rows and planes are not touched, and nothing beside the operands.
    let atoms = |bytes: u32| bytes as usize / 16;
    for (unit, bytes) in [
        (Unit::CnaFeature, s.m * s.types.row_bytes(s.k)),
        (Unit::CnaWeight, s.n * s.types.row_bytes(s.k)),
        (Unit::DpuWrite, s.m * s.n * s.types.output_bytes()),
        (Unit::Pc, 8 * (amount(listing) + 4).next_multiple_of(2)),
    ] {
        assert_eq!(memory.atoms(unit), atoms(bytes), "{unit:?} of {s:?}");
    }
}

fn row_major_types() -> impl Strategy<Value = Types> {
    prop_oneof![
        Just(Types::Int8Int32),
        (1u16..0x7fff, 8u32..24)
            .prop_map(|(multiplier, shift)| Types::Int8Int8 { multiplier, shift }),
        Just(Types::Fp16Fp32),
        Just(Types::Fp16Fp16),
        Just(Types::Bf16Fp32),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(320))]

    #[test]
    fn row_major(
        types in row_major_types(), m in 1u32..20, k32 in 1u32..8, tiles in 1u32..5,
        gap in 0u32..3, seed: u64,
    ) {
        let s = shape(types, m, k32, tiles);
        let stride = s.n + gap * 16;
        let operands = Operands::random(s, &mut Random(seed));
        check(s, &encode::row_major(s, stride), &operands, operands.rows(s, s.k), |m, n| {
            m * stride + n
        });
    }

    #[test]
    fn row_major_input_of_a_wider_matrix(
        m in 2u32..12, k32 in 1u32..5, gap in 1u32..4, seed: u64,
    ) {
        let s = shape(Types::Int8Int32, m, k32, 2);
        let pitch = s.k + 16 * gap;
        let operands = Operands::random(s, &mut Random(seed));
        let mut listing = encode::row_major(s, s.n);
        listing.patch(0x107c, pitch / 16);
        check(s, &listing, &operands, operands.rows(s, pitch), |m, n| m * s.n + n);
    }

    #[test]
    fn planes(
        types in prop_oneof![Just(Types::Int8Int32), Just(Types::Fp16Fp32), Just(Types::Fp16Fp16)],
        quarter in 0u32..6, k32 in 1u32..8, tiles in 1u32..5, seed: u64,
    ) {
        let s = shape(types, (4 * quarter).max(1), k32, tiles);
        let operands = Operands::random(s, &mut Random(seed));
        let c2 = 16 / types.output_bytes();
        check(s, &encode::planes(s), &operands, operands.planes(s), |m, n| {
            (n / c2 * s.m + m) * c2 + n % c2
        });
    }

    #[test]
    fn int4_rows_and_batches(m in 1u32..9, k32 in 1u32..12, tiles in 1u32..4, seed: u64) {
        let s = shape(Types::Int4Int16, m, k32, tiles);
        let operands = Operands::random(s, &mut Random(seed));
        let input = operands.rows(s, if m == 1 { s.k } else { 2 * s.k });
        check(s, &encode::int4(s), &operands, input, |m, n| {
            if s.m == 1 { n } else { (4 * m + 4 * s.m * (n / 64)) * 64 + n % 64 }
        });
    }

    #[test]
    fn chains_run_every_program(programs in 1u32..6, m in 1u32..5, seed: u64) {
        let mut random = Random(seed);
        let mut memory = Memory::default();
        let mut expected = Vec::new();
        for i in 0..programs {
            let mut s = shape(Types::Int8Int32, m, 1 + i, 1 + i % 3);
            s.input += i << 20;
            s.weights += i << 20;
            s.output += i << 20;
            let operands = Operands::random(s, &mut random);
            let listing = encode::row_major(s, s.n);
            let pairs = (amount(&listing) + 4).div_ceil(2);
            let next = (i + 1 < programs).then(|| (PROGRAM + ((i + 1) << 16), pairs - 1));
            memory
                .map(PROGRAM + (i << 16), listing.bytes(next))
                .map(s.input, operands.rows(s, s.k))
                .map(s.weights, operands.weights(s))
                .map(s.output, vec![0; (4 * s.m * s.n) as usize]);
            expected.push((s.output, operands.product(s).concat()));
        }
        let listing = encode::row_major(shape(Types::Int8Int32, m, 1, 1), 32);
        let start = crate::Start { tasks: programs, regcfg_amount: amount(&listing), ..START };
        let run = run(start, &memory);
        assert_done(&run);
        for (output, bytes) in expected {
            prop_assert_eq!(memory.after(output), bytes);
        }
    }
}

/// Shapes that public programs run on boards, at the edges of CBUF.
#[test]
fn shapes_known_from_boards() {
    for (types, m, k32, tiles) in [
        (Types::Int8Int32, 544, 17, 1),
        (Types::Fp16Fp32, 384, 12, 1),
        (Types::Fp16Fp16, 1, 256, 1),
        (Types::Int8Int32, 1, 128, 2),
    ] {
        let s = shape(types, m, k32, tiles);
        let operands = Operands::random(s, &mut Random(7));
        let c2 = 16 / types.output_bytes();
        check(s, &encode::planes(s), &operands, operands.planes(s), |m, n| {
            (n / c2 * s.m + m) * c2 + n % c2
        });
    }
    for (m, k32) in [(64, 128), (1, 336), (256, 32)] {
        let s = shape(Types::Int8Int32, m, k32, 1);
        let operands = Operands::random(s, &mut Random(8));
        check(s, &encode::row_major(s, s.n), &operands, operands.rows(s, s.k), |m, n| m * s.n + n);
    }
}

/// Some programs with planes state a surface stride of 0 for a single row.
#[test]
fn a_single_row_may_have_no_surface_stride() {
    let s = shape(Types::Int8Int32, 1, 4, 1);
    let operands = Operands::random(s, &mut Random(9));
    let mut listing = encode::planes(s);
    listing.patch(0x1080, 0);
    check(s, &listing, &operands, operands.planes(s), |m, n| m * s.n + n);
}

/// A chain may keep the weights of the program before.
#[test]
fn weights_may_stay_in_cbuf() {
    let s = shape(Types::Int8Int32, 4, 2, 1);
    let other = Shape { input: INPUT + 0x10_0000, output: OUTPUT + 0x10_0000, ..s };
    let mut random = Random(10);
    let first = Operands::random(s, &mut random);
    let second = Operands { a: Operands::random(s, &mut random).a, b: first.b.clone() };
    let mut kept = encode::row_major(other, s.n);
    kept.patch(0x1040, 0x20b1);
    let next = (PROGRAM + 0x1000, (amount(&kept) + 4).div_ceil(2) - 1);
    let mut memory = Memory::default();
    memory
        .map(PROGRAM, encode::row_major(s, s.n).bytes(Some(next)))
        .map(next.0, kept.bytes(None))
        .map(s.input, first.rows(s, s.k))
        .map(other.input, second.rows(s, s.k))
        .map(WEIGHTS, first.weights(s))
        .map(s.output, vec![0; 512])
        .map(other.output, vec![0; 512]);
    let start = crate::Start { tasks: 2, regcfg_amount: amount(&kept), ..START };
    assert_done(&run(start, &memory));
    assert_eq!(memory.after(other.output), second.product(s).concat());
    // Without a program before it, nothing is there to be kept.
    let alone = crate::Start { regcmd_addr: next.0, regcfg_amount: amount(&kept), ..START };
    assert!(run(alone, &memory).findings[0].text.contains("weight reuse"));
}
