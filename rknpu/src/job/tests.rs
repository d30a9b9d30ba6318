//! That a job which is accepted touches nothing but what was checked: programs of the encoder, changed at
//! random, run on a simulated NPU that notes every range it asks for.
//!
//! `RKNPU_EXTENT_CASES` sets another number of programs.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use rknpu_sim::engine::{Bus, BusFault, Engine, Run, Start, Unit};
use rknpu_sim::npu::{Npu, Timing};
use rknpu_sim::{Config, Machine};
use rknpu_sys::layout::Precision;
use rknpu_sys::regs::{Command, cna, core, dpu};

use super::Job;
use super::allowed_registers::Registers;
use super::extents::{Operand, extents};
use crate::buffer::{Buffer, OnDevice};
use crate::cores::Core;
use crate::device::Device;
use crate::domain::Domain;
use crate::error::Error;
use crate::program::{AMOUNT, MatmulProgram, output_bytes};

/// Programs that are tried, unless the environment says otherwise: seconds in a debug build.
const CASES: u32 = 10_000;
/// Bytes of each operand's buffer, and of the foreign ones between them.
const ROOM: u64 = 1 << 20;

/// A unit of a core, and a range that it asked for.
type Touch = (Unit, Range<u64>);

/// The simulated NPU with a note of what it asks memory for, granted or not.
#[derive(Debug)]
struct Watched {
    npu: Npu,
    touched: Mutex<Vec<Touch>>,
}

struct WatchedBus<'a> {
    bus: &'a mut dyn Bus,
    touched: &'a Mutex<Vec<Touch>>,
}

impl WatchedBus<'_> {
    fn note(&self, unit: Unit, iova: u64, len: u64) {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.push((unit, iova..iova + len));
    }
}

impl Bus for WatchedBus<'_> {
    fn read(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        self.note(unit, iova, len);
        self.bus.read(unit, iova, len)
    }

    fn write(&mut self, unit: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
        self.note(unit, iova, bytes.len() as u64);
        self.bus.write(unit, iova, bytes)
    }

    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
        self.note(Unit::DpuWrite, iova, len);
        self.bus.writable(iova, len)
    }
}

impl Engine for Watched {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        self.npu.run(start, &mut WatchedBus { bus, touched: &self.touched })
    }
}

/// A device with buffers for a program's operands, foreign ones above each.
struct Bench {
    watched: Arc<Watched>,
    machine: Machine,
    core: Core,
    domain: Domain,
    /// Input, weights, output; given to a job and taken back.
    operands: Vec<Buffer<OnDevice>>,
    _foreign: Vec<Buffer<OnDevice>>,
}

impl Bench {
    fn new() -> Bench {
        let touched = Mutex::default();
        let watched = Arc::new(Watched { npu: Npu::new(Timing::instant()), touched });
        let machine = Machine::new(Config { engine: watched.clone(), ..Config::default() });
        let device = Device::simulated_on(&machine).unwrap();
        let domain = device.domain(0).unwrap();
        let (mut operands, mut foreign) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            // Addresses go downwards: an operand that is too long runs into a foreign buffer.
            foreign.push(domain.alloc(ROOM as usize).unwrap().to_device().unwrap());
            operands.push(domain.alloc(ROOM as usize).unwrap().to_device().unwrap());
        }
        let core = device.core(0).unwrap();
        Bench { watched, machine, core, domain, operands, _foreign: foreign }
    }
}

/// A program before it is changed.
#[derive(Clone, Debug)]
struct Case {
    precision: Precision,
    m: u32,
    k: u32,
    n: u32,
    /// Room behind each operand's address, as a multiple of what the program needs.
    room: [u32; 3],
    changes: Vec<Change>,
    /// Whether a sound program runs before it.
    chained: bool,
}

/// Registers whose values are not the same in all programs.
const MEANINGFUL: [u16; 28] = [
    cna::CONV_CON1,
    cna::CONV_CON2,
    cna::DATA_SIZE0,
    cna::DATA_SIZE1,
    cna::DATA_SIZE2,
    cna::DATA_SIZE3,
    cna::WEIGHT_SIZE0,
    cna::WEIGHT_SIZE1,
    cna::WEIGHT_SIZE2,
    cna::CBUF_CON0,
    cna::CBUF_CON1,
    cna::FEATURE_DATA_ADDR,
    cna::DMA_CON1,
    cna::DMA_CON2,
    cna::FC_DATA_SIZE0,
    cna::FC_DATA_SIZE1,
    cna::DCOMP_ADDR0,
    core::DATAOUT_SIZE_0,
    core::DATAOUT_SIZE_1,
    dpu::DST_BASE_ADDR,
    dpu::DST_SURF_STRIDE,
    dpu::DATA_CUBE_HEIGHT,
    dpu::DATA_CUBE_NOTCH_ADDR,
    dpu::DATA_CUBE_CHANNEL,
    dpu::WDMA_SIZE_0,
    dpu::WDMA_SIZE_1,
    dpu::SURFACE_ADD,
    dpu::OUT_CVT_SCALE,
];

/// A change to a program: of one register by chance, or of those that say one thing.
#[derive(Clone, Debug)]
enum Change {
    /// One bit of one command, whatever it writes.
    Any { index: usize, bit: u32 },
    /// One bit of a register that goes into addresses or sizes.
    Bit { register: u16, bit: u32 },
    /// The value of such a register.
    Value { register: u16, value: u32 },
    /// A little more or less in such a register.
    Near { register: u16, by: i32 },
    /// Input rows further apart.
    InputPitch(u32),
    /// Output rows further apart, in bytes of 64.
    OutputPitch(u32),
    /// Output in planes, that many atoms apart.
    OutputPlanes(u32),
    /// Input in planes, that many atoms apart.
    InputPlanes(u32),
    /// Another number of rows.
    Rows(u32),
    /// A batch of int4 rows.
    Int4Batch(u32),
    /// Results scaled to int8, or converted to half floats.
    Narrow { scale: u32, shift: u32 },
    /// What the weights or the input of the program before left in CBUF.
    Keep(u32),
}

fn set(commands: &mut [Command], register: u16, value: u32) {
    for command in commands.iter_mut().filter(|command| command.register == register) {
        command.value = value;
    }
}

fn get(commands: &[Command], register: u16) -> u32 {
    commands.iter().rev().find(|c| c.register == register).map_or(0, |command| command.value)
}

impl Change {
    fn apply(&self, program: &mut [Command], case: &Case) {
        let row = case.k * case.precision.bits() / 8;
        let out_row = case.n * output_bytes(case.precision);
        let rows = get(program, cna::DATA_SIZE3);
        match self {
            Change::Any { index, bit } => {
                let at = index % program.len();
                program[at].value ^= 1 << bit;
            }
            Change::Bit { register, bit } => {
                set(program, *register, get(program, *register) ^ 1 << bit);
            }
            Change::Value { register, value } => set(program, *register, *value),
            Change::Near { register, by } => {
                set(program, *register, get(program, *register).wrapping_add_signed(*by));
            }
            Change::InputPitch(atoms) => set(program, cna::DMA_CON1, row / 16 + atoms),
            Change::OutputPitch(cells) => {
                let elements = case.n + cells * 64 / output_bytes(case.precision);
                let atoms = elements * output_bytes(case.precision) / 16;
                let notch = dpu::NOTCH_1.put(atoms - 1) | dpu::NOTCH_0.put(out_row / 16 - 1);
                set(program, dpu::DATA_CUBE_NOTCH_ADDR, notch);
                let wide = dpu::CHANNEL_ORIGINAL.put(elements - 1) | dpu::CHANNEL.put(case.n - 1);
                set(program, dpu::DATA_CUBE_CHANNEL, wide);
            }
            Change::OutputPlanes(atoms) => {
                let code = (get(program, dpu::BS_OW_CFG) >> 8 & 7) + 1;
                let stride = rows.wrapping_add(*atoms) & 0x07ff_ffff;
                set(program, dpu::DST_SURF_STRIDE, dpu::DST_SURF_STRIDE_ATOMS.put(stride));
                set(
                    program,
                    dpu::SURFACE_ADD,
                    dpu::SURFACE_ADD_ATOMS.put(stride.wrapping_mul(code)),
                );
                set(program, dpu::DATA_CUBE_NOTCH_ADDR, 0);
            }
            Change::InputPlanes(atoms) => {
                let con1 = get(program, cna::CONV_CON1) & !cna::CONV_CON1_ROW_MAJOR.mask();
                set(program, cna::CONV_CON1, con1);
                set(program, cna::DMA_CON1, 4);
                let surface = rows.wrapping_add(*atoms).wrapping_sub(4);
                set(program, cna::DMA_CON2, cna::DMA_CON2_SURF_STRIDE.put(surface));
            }
            Change::Rows(rows) => {
                for (register, value) in [
                    (cna::DATA_SIZE0, 1 << 16 | rows),
                    (cna::FC_DATA_SIZE0, 1 << 16 | rows),
                    (cna::DATA_SIZE3, *rows),
                    (core::DATAOUT_SIZE_0, (rows - 1) << 16),
                    (dpu::DATA_CUBE_HEIGHT, rows - 1),
                    (dpu::WDMA_SIZE_1, (rows - 1) << 16),
                ] {
                    set(program, register, value);
                }
            }
            Change::Int4Batch(rows) => {
                Change::Rows(2 * rows).apply(program, case);
                set(program, dpu::WDMA_SIZE_1, 0);
                set(program, cna::DMA_CON1, case.k / 16);
                set(program, cna::DMA_CON2, 0);
                let notch = case.n / 4 - 1;
                set(program, dpu::DATA_CUBE_NOTCH_ADDR, notch << 16 | notch);
            }
            Change::Narrow { scale, shift } => {
                let int8 = case.precision == Precision::Int8;
                let (format, scale) = if int8 { (0, *scale) } else { (0x4800_0002, 0x1_0001) };
                let atoms = case.n / if int8 { 16 } else { 8 };
                let sizes = get(program, dpu::BS_OW_CFG) & 2 | 0x124;
                set(program, dpu::DATA_FORMAT, format);
                set(program, dpu::BS_OW_CFG, sizes);
                set(program, dpu::SURFACE_ADD, 0x20);
                set(program, dpu::OUT_CVT_SCALE, scale);
                set(program, dpu::OUT_CVT_SHIFT, if int8 { *shift } else { 0 });
                let notch = (atoms - 1) << 16 | (atoms - 1);
                set(program, dpu::DATA_CUBE_NOTCH_ADDR, notch);
            }
            Change::Keep(bits) => {
                let con0 = get(program, cna::CBUF_CON0);
                set(program, cna::CBUF_CON0, con0 | bits << 12);
            }
        }
    }
}

fn changes() -> impl Strategy<Value = Change> {
    let register = || prop::sample::select(&MEANINGFUL);
    let value = prop_oneof![0u32..64, 0u32..0x2000, any::<u32>(), Just(u32::MAX)];
    prop_oneof![
        1 => (0..AMOUNT as usize, 0u32..32).prop_map(|(index, bit)| Change::Any { index, bit }),
        2 => (register(), 0u32..32).prop_map(|(register, bit)| Change::Bit { register, bit }),
        2 => (register(), value).prop_map(|(register, value)| Change::Value { register, value }),
        2 => (register(), -8i32..=64).prop_map(|(register, by)| Change::Near { register, by }),
        1 => (register(), 1i32..=64)
            .prop_map(|(register, by)| Change::Near { register, by: 16 * by }),
        4 => (0u32..40).prop_map(Change::InputPitch),
        4 => (0u32..40).prop_map(Change::OutputPitch),
        4 => prop_oneof![4 => 0u32..40, 1 => 0u32..0x400_0000].prop_map(Change::OutputPlanes),
        4 => prop_oneof![4 => 0u32..40, 1 => 0u32..0x700_0000].prop_map(Change::InputPlanes),
        4 => (1u32..=64).prop_map(Change::Rows),
        2 => (1u32..=8).prop_map(Change::Int4Batch),
        2 => (0u32..0x8000, 0u32..40).prop_map(|(scale, shift)| Change::Narrow { scale, shift }),
        1 => (1u32..=3).prop_map(Change::Keep),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let precision =
        prop_oneof![Just(Precision::Int8), Just(Precision::Fp16), Just(Precision::Int4)];
    let room = prop::array::uniform3(prop_oneof![1 => Just(1u32), 2 => 2u32..=64]);
    let changes = prop_oneof![2 => prop::collection::vec(changes(), 1..=1), 3 => prop::collection::vec(changes(), 2..=4)];
    (precision, 1u32..=24, 1u32..=12, 1u32..=4, room, changes, any::<bool>()).prop_map(
        |(precision, m, k, n, room, changes, chained)| {
            let m = if precision == Precision::Int4 { 1 } else { m };
            let (k, n) = (32 * k, precision.tile_width() * n);
            Case { precision, m, k, n, room, changes, chained }
        },
    )
}

/// What became of the cases.
#[derive(Debug, Default)]
struct Tally {
    refused: u32,
    ran: u32,
    hung: u32,
    /// Programs that ran and touched more than they did before they were changed.
    grew: u32,
}

/// Tries one case; an error says which access was not checked.
fn attempt(bench: &mut Bench, case: &Case, tally: &mut Tally) -> Result<(), TestCaseError> {
    let need = [
        case.m * case.k * case.precision.bits() / 8,
        case.n * case.k * case.precision.bits() / 8,
        case.m * case.n * output_bytes(case.precision),
    ];
    let [input, weights, output] = [0, 1, 2].map(|i| {
        let buffer = &bench.operands[i];
        let room = u64::from(need[i] * case.room[i]).min(ROOM).next_multiple_of(16);
        buffer.iova() + ROOM - room
    });
    let Case { precision, m, k, n, .. } = *case;
    let sound = MatmulProgram { precision, m, k, n, input, weights, output, next: None };
    let sound = sound.encode().map_err(|error| TestCaseError::fail(error.to_string()))?;
    let sound = &sound[..AMOUNT as usize];
    let mut program = sound.to_vec();
    for change in &case.changes {
        change.apply(&mut program, case);
    }
    let programs: Vec<&[Command]> =
        if case.chained { vec![sound, &program] } else { vec![&program] };

    let job = match Job::new(&bench.domain, &programs, std::mem::take(&mut bench.operands)) {
        Ok(job) => job,
        Err(refused) => {
            bench.operands = refused.kept;
            tally.refused += 1;
            return Ok(());
        }
    };
    let own = job.0.programs.iova()..job.0.programs.iova() + job.0.programs.size();
    let mut checked = vec![(Unit::Pc, own)];
    for (index, commands) in programs.iter().enumerate() {
        let registers =
            Registers::read(index, commands).map_err(|e| TestCaseError::fail(e.to_string()))?;
        for extent in extents(&registers).map_err(|e| TestCaseError::fail(e.to_string()))? {
            let range = extent.iova..extent.iova.saturating_add(extent.len);
            let unit = match extent.operand {
                Operand::Input => Unit::CnaFeature,
                Operand::Weights => Unit::CnaWeight,
                Operand::Output => Unit::DpuWrite,
            };
            checked.push((unit, range));
        }
    }
    bench.watched.touched.lock().unwrap().clear();
    let job = match job.run(&mut bench.core) {
        Ok((job, _)) => {
            tally.ran += 1;
            job
        }
        Err(rejected) => {
            tally.hung += 1;
            let failed = matches!(rejected.error, Error::JobFailed(_));
            prop_assert!(failed, "{}", rejected.error);
            rejected.kept
        }
    };
    bench.operands = job.into_buffers();
    let touched = std::mem::take(&mut *bench.watched.touched.lock().unwrap());
    prop_assert!(!touched.is_empty(), "nothing was noted");
    let inside = |inner: &Range<u64>, outer: &Range<u64>| {
        outer.start <= inner.start && inner.end <= outer.end
    };
    let owned: Vec<_> =
        bench.operands.iter().map(|b| b.iova()..b.iova() + b.len() as u64).collect();
    for (unit, range) in &touched {
        let own = *unit == Unit::Pc || owned.iter().any(|buffer| inside(range, buffer));
        prop_assert!(own, "{unit:?} at {range:x?} is in no buffer of the job");
        let known = checked.iter().any(|(of, extent)| of == unit && inside(range, extent));
        prop_assert!(known, "{unit:?} at {range:x?} is in none of {checked:x?}");
    }
    let end = |unit| touched.iter().filter(|(of, _)| *of == unit).map(|(_, range)| range.end).max();
    let before = [(Unit::CnaFeature, input, need[0]), (Unit::DpuWrite, output, need[2])];
    if before.iter().any(|(unit, first, len)| end(*unit) > Some(first + u64::from(*len))) {
        tally.grew += 1;
    }
    Ok(())
}

#[test]
fn accepted_programs_touch_only_what_was_checked() {
    let cases =
        std::env::var("RKNPU_EXTENT_CASES").map_or(CASES, |cases| cases.parse().expect("a number"));
    let bench = RefCell::new(Bench::new());
    let tally = RefCell::new(Tally::default());
    let mut runner = TestRunner::new(Runs { failure_persistence: None, ..Runs::with_cases(cases) });
    runner
        .run(&self::cases(), |case| {
            attempt(&mut bench.borrow_mut(), &case, &mut tally.borrow_mut())
        })
        .unwrap();
    let tally = tally.into_inner();
    println!("{tally:?}");
    // Otherwise nothing has been shown.
    assert!(tally.refused >= cases / 10, "{tally:?}");
    assert!(tally.ran >= cases / 10, "{tally:?}");
    assert!(tally.grew >= cases / 100, "{tally:?}");
    assert_eq!(bench.borrow().machine.report().domain_count, 0);
}
