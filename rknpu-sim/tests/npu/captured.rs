//! Register programs that others' programs ran on boards, as figures, each executed to the product that
//! plain loops give.

use half::f16;
use rknpu_sim::engine::{Engine, Start, Verdict};
use rknpu_sim::npu::{Npu, Timing};

use crate::encode::{Shape, Types};
use crate::memory::Memory;
use crate::reference::{Operands, Random, pack};
use crate::{START, assert_done, run};

/// Where a program lies, its amount, and its entries: block, register, value.
type Program = (u32, u32, Vec<(u16, u16, u32)>);

/// A file of captures: programs, one after the other, and bytes that a board read and wrote.
struct Capture {
    programs: Vec<Program>,
    bytes: Vec<(String, Vec<u8>)>,
}

impl Capture {
    fn read(text: &str) -> Capture {
        let hex = |word: &str| u32::from_str_radix(word, 16).unwrap();
        let mut capture = Capture { programs: Vec::new(), bytes: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["program", at, amount] => {
                    capture.programs.push((hex(at), amount.parse().unwrap(), Vec::new()));
                }
                [name, bytes] => {
                    let digits = bytes.as_bytes().chunks_exact(2);
                    let byte = |pair: &[u8]| hex(std::str::from_utf8(pair).unwrap()) as u8;
                    capture.bytes.push((name.to_owned(), digits.map(byte).collect()));
                }
                [block, register, value] => {
                    let entry = (hex(block) as u16, hex(register) as u16, hex(value));
                    capture.programs.last_mut().unwrap().2.push(entry);
                }
                _ => panic!("{line}"),
            }
        }
        capture
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.bytes.iter().find(|(n, _)| n == name).unwrap().1.clone()
    }

    /// What the first program's register holds.
    fn register(&self, register: u16) -> u32 {
        self.programs[0].2.iter().rev().find(|entry| entry.1 == register).unwrap().2
    }

    /// A submit of all programs, and a memory that holds them.
    fn start(&self) -> (Start, Memory) {
        let first = &self.programs[0];
        let base = first.0 & !0xfff;
        let mut page = vec![0; 4096];
        for (at, _, entries) in &self.programs {
            for (i, (block, register, value)) in entries.iter().enumerate() {
                let bits = u64::from(*block) << 48 | u64::from(*value) << 16 | u64::from(*register);
                page[(at - base) as usize + 8 * i..][..8].copy_from_slice(&bits.to_le_bytes());
            }
        }
        let mut memory = Memory::default();
        memory.map(base, page);
        let tasks = self.programs.len() as u32;
        (Start { regcmd_addr: first.0, regcfg_amount: first.1, tasks, ..START }, memory)
    }

    /// Runs a matmul whose input element `(m, k)` lies at `input`, its result `(m, n)` at `output`.
    fn multiplies(
        &self,
        s: Shape,
        input: impl Fn(u32, u32) -> u32,
        output: impl Fn(u32, u32) -> u32,
    ) {
        let operands = Operands::random(s, &mut Random(u64::from(s.k)));
        let pairs = |columns| (0..s.m).flat_map(move |m| (0..columns).map(move |c| (m, c)));
        let mut elements =
            vec![0.0; pairs(s.k).map(|(m, k)| input(m, k)).max().unwrap() as usize + 1];
        for (m, k) in pairs(s.k) {
            elements[input(m, k) as usize] = operands.a[(m * s.k + k) as usize];
        }
        let size = s.types.output_bytes() as usize;
        let room = size * (pairs(s.n).map(|(m, n)| output(m, n)).max().unwrap() as usize + 1);
        let (start, mut memory) = self.start();
        memory
            .map(self.register(0x1070), pack(s.types, &elements))
            .map(self.register(0x1110), operands.weights(s))
            .map(self.register(0x4020), vec![0xc5; room]);
        let run = run(start, &memory);
        assert!(run.findings.iter().all(|f| f.verdict == Verdict::Doubtful), "{run:?}");
        let mut expected = vec![0xc5; room];
        for ((m, n), element) in pairs(s.n).zip(operands.product(s)) {
            expected[output(m, n) as usize * size..][..size].copy_from_slice(&element);
        }
        assert!(memory.after(self.register(0x4020)) == expected, "{s:?}: {run:?}");
    }
}

macro_rules! capture {
    ($name:literal) => {
        Capture::read(include_str!(concat!("captures/", $name, ".txt")))
    };
}

fn shape(types: Types, m: u32, k: u32, n: u32) -> Shape {
    Shape { types, m, k, n, input: 0, weights: 0, output: 0 }
}

/// Element of a matrix in planes of `pixels` atoms, each of `c2` elements.
fn plane(pixels: u32, c2: u32) -> impl Fn(u32, u32) -> u32 {
    move |m, c| (c / c2 * pixels + m) * c2 + c % c2
}

/// The bytes that a board read, and the very bytes that it wrote.
#[test]
fn what_a_board_computed() {
    let capture = capture!("runtime-int8-4x32x32");
    let (start, mut memory) = capture.start();
    memory
        .map(capture.register(0x1070), capture.bytes("input"))
        .map(capture.register(0x1110), capture.bytes("weights"))
        .map(capture.register(0x4020), vec![0; 512]);
    assert_done(&run(start, &memory));
    assert_eq!(memory.after(capture.register(0x4020)), capture.bytes("output"));
}

#[test]
fn products_of_the_vendors_runtimes() {
    let rows = |columns| move |m, c| m * columns + c;
    let int8 = shape(Types::Int8Int32, 4, 32, 32);
    capture!("runtime-int8-4x32x32").multiplies(int8, rows(32), rows(32));
    let fp16 = shape(Types::Fp16Fp32, 4, 32, 16);
    capture!("runtime-fp16-4x32x16").multiplies(fp16, rows(32), rows(16));
    for (m, capture) in [
        (2, capture!("llm-runtime-int8-fold-2")),
        (4, capture!("llm-runtime-int8-fold-4")),
        (8, capture!("llm-runtime-int8-fold-8")),
    ] {
        let fold = shape(Types::Int8Int32, m, 3584, 1216);
        capture.multiplies(fold, plane(m, 16), plane(m, 4));
    }
    let part = shape(Types::Int8Int32, 36, 512, 64);
    capture!("fold-36-of-96").multiplies(part, plane(96, 16), plane(96, 4));
}

#[test]
fn products_of_public_programs() {
    let planes = shape(Types::Fp16Fp32, 4, 32, 16);
    capture!("rk3588-npu-fp16-4x32x16").multiplies(planes, plane(4, 8), plane(4, 4));
    let int4 = shape(Types::Int4Int16, 4, 512, 128);
    capture!("rocket-userspace-int4-4x512x128").multiplies(int4, plane(4, 32), plane(4, 8));
    let bf16 = shape(Types::Bf16Fp32, 4, 64, 64);
    capture!("rocket-userspace-bf16-4x64x64").multiplies(bf16, plane(4, 8), plane(4, 4));
    let fp32 = shape(Types::Fp16Fp32, 2, 32, 32);
    capture!("python-fp16-2x32x32").multiplies(fp32, |m, k| m * 32 + k, |m, n| m * 32 + n);
    let gaps = shape(Types::Fp16Fp16, 2, 32, 32);
    capture!("python-fp16-out-2x32x32").multiplies(
        gaps,
        |m, k| m * 32 + k,
        |m, n| m * 64 + n / 16 * 32 + n % 16,
    );
}

#[test]
fn halves_element_by_element() {
    type Operation = fn(f32, f32) -> f32;
    let cases: [(Capture, usize, Operation); 3] = [
        (capture!("toolkit-fp16-sum"), 512, |a, b| a + b),
        (capture!("toolkit-fp16-product"), 512, |a, b| a * b),
        (capture!("python-maximum-8"), 8, f32::max),
    ];
    for (capture, count, operation) in cases {
        let mut random = Random(count as u64);
        let mut halves = || -> Vec<f16> {
            let next = |_| f16::from_f32((random.next() % 4096) as f32 / 1024.0 - 2.0);
            (0..count).map(next).collect()
        };
        let (a, b) = (halves(), halves());
        let bytes = |h: &[f16]| h.iter().flat_map(|h| h.to_le_bytes()).collect::<Vec<u8>>();
        let expected: Vec<f16> = a
            .iter()
            .zip(&b)
            .map(|(a, b)| f16::from_f32(operation(a.to_f32(), b.to_f32())))
            .collect();
        let (start, mut memory) = capture.start();
        memory
            .map(capture.register(0x5018), bytes(&a))
            .map(capture.register(0x5038), bytes(&b))
            .map(capture.register(0x4020), vec![0; 2 * count]);
        let run = run(start, &memory);
        assert!(run.findings.iter().all(|f| f.verdict == Verdict::Doubtful), "{run:?}");
        assert_eq!(memory.after(capture.register(0x4020)), bytes(&expected));
    }
}

/// Three programs in a chain, without the array.
#[test]
fn copies_in_a_chain() {
    let capture = capture!("toolkit-copy-chain");
    let (start, mut memory) = capture.start();
    let page: Vec<u8> = (0..4096u32).map(|i| (i * 7 + i / 64) as u8).collect();
    memory.map(0xffff_1000, page.clone());
    assert_done(&run(start, &memory));
    let mut expected = page;
    for (from, to) in [(0x000, 0x0c0), (0x040, 0x080), (0x100, 0x040)] {
        expected.copy_within(from..from + 64, to);
    }
    assert_eq!(memory.after(0xffff_1000), expected);
}

/// As the vendor's toolkit sends them: two whole programs, one for each group of registers, and then what
/// changes alone.
#[test]
fn registers_keep_their_values_from_program_to_program_and_job_to_job() {
    let whole = capture!("runtime-int8-4x32x32");
    let (s, entries) = (shape(Types::Int8Int32, 4, 32, 32), &whole.programs[0].2);
    let body = &entries[..108];
    let output = |i: u32| 0xfffe_a000 + 512 * i;
    let change =
        |i: u32| [(0x1001u16, 0x4020u16, output(i)), (0x0201, 0x1070, 0xfffe_8000 + 128 * i)];
    let (base, step) = (0xfff0_0000, 0x400);
    let mut programs = Vec::new();
    for i in 0..4u32 {
        let mut entries = if i < 2 { body.to_vec() } else { Vec::new() };
        entries.extend(change(i));
        entries.resize(entries.len().next_multiple_of(2), (0, 0, 0));
        let next =
            if i == 3 { (0, 0) } else { (base + step * (i + 1), if i == 0 { 56 } else { 2 }) };
        entries.extend([
            (0x0101, 0x10, next.0),
            (0x0101, 0x14, next.1),
            (0x0041, 0, 0),
            (0x0081, 8, 0xd),
        ]);
        programs.push((base + step * i, entries.len() as u32 - 4, entries));
    }
    let operands: Vec<Operands> = (0..4).map(|i| Operands::random(s, &mut Random(i))).collect();
    let memory_of = |capture: &Capture| {
        let (start, mut memory) = capture.start();
        let input: Vec<u8> = operands.iter().flat_map(|o| o.rows(s, 32)).collect();
        memory
            .map(0xfffe_8000, input)
            .map(capture.register(0x1110), operands[0].weights(s))
            .map(0xfffe_a000, vec![0; 4 * 512]);
        (start, memory)
    };
    let product = |i: usize| {
        Operands { a: operands[i].a.clone(), b: operands[0].b.clone() }.product(s).concat()
    };
    let npu = Npu::new(Timing::instant());
    let capture = Capture { programs: programs.clone(), bytes: Vec::new() };
    let (start, memory) = memory_of(&capture);
    assert_done(&npu.run(&start, &mut &memory));
    for i in 0..4 {
        assert_eq!(memory.after(0xfffe_a000)[512 * i..][..512], product(i), "program {i}");
    }
    // The next job goes on where this one stopped, unless the core was reset.
    let mut last = programs[2].clone();
    let end = last.2.len() - 4;
    last.2[end..end + 2].fill((0x0101, 0x14, 0));
    last.0 = base;
    let mut rest = Capture { programs: vec![last], bytes: Vec::new() };
    rest.programs[0].2.insert(0, (0x0201, 0x1110, capture.register(0x1110)));
    rest.programs[0].2.insert(0, (0, 0, 0));
    rest.programs[0].1 += 2;
    let (start, memory) = memory_of(&rest);
    assert_done(&npu.run(&Start { fresh: false, ..start }, &mut &memory));
    assert_eq!(memory.after(0xfffe_a000)[1024..][..512], product(2));
    let reset = npu.run(&start, &mut &memory);
    assert_eq!(reset.findings[0].verdict, Verdict::NotModelled);
    assert!(reset.findings[0].text.contains("never written since the core's reset"), "{reset:?}");
}
