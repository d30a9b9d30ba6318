//! An NPU that behaves otherwise than is believed of boards, so that whatever finds such things out can be
//! tested.
//!
//! It looks at what the NPU model reads and writes, program after program, and spoils results on the way out;
//! of registers it knows nothing.

use std::fmt;
use std::str::FromStr;

use crate::engine::{Bus, BusFault, Engine, Outcome, Run, Start, Unit};
use crate::npu::Npu;

/// Something that is believed of boards, and is not so.
///
/// ```
/// use rknpu_sim::otherwise::Otherwise;
///
/// assert_eq!("chain-buffers".parse(), Ok(Otherwise::ChainBuffers));
/// assert!(Otherwise::ALL.iter().all(|one| one.to_string().parse() == Ok(*one)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// In a chain, results of a second weight with the same input are wrong.
    ChainWeights,
    /// So they are where that weight lies in another buffer than the first.
    ChainBuffers,
    /// A chain that goes on with a weight of another buffer never ends.
    ChainBuffersHang,
    /// A core computes wrong, the last one.
    Core,
    /// Results of int4 products are wrong.
    Int4,
    /// Results of fp16 products are wrong.
    Fp16,
}

/// A text that names none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing is called {text:?} that could be otherwise: {}", names())]
#[non_exhaustive]
pub struct ParseOtherwiseError {
    /// The text.
    pub text: Box<str>,
}

impl Otherwise {
    /// All of them.
    pub const ALL: [Otherwise; 6] = [
        Otherwise::ChainWeights,
        Otherwise::ChainBuffers,
        Otherwise::ChainBuffersHang,
        Otherwise::Core,
        Otherwise::Int4,
        Otherwise::Fp16,
    ];

    const fn name(self) -> &'static str {
        match self {
            Otherwise::ChainWeights => "chain-weights",
            Otherwise::ChainBuffers => "chain-buffers",
            Otherwise::ChainBuffersHang => "chain-buffers-hang",
            Otherwise::Core => "core",
            Otherwise::Int4 => "int4",
            Otherwise::Fp16 => "fp16",
        }
    }
}

fn names() -> String {
    Otherwise::ALL.map(Otherwise::name).join(", ")
}

impl fmt::Display for Otherwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Otherwise {
    type Err = ParseOtherwiseError;

    fn from_str(text: &str) -> Result<Otherwise, ParseOtherwiseError> {
        let known = Otherwise::ALL.into_iter().find(|one| one.name() == text);
        known.ok_or_else(|| ParseOtherwiseError { text: text.into() })
    }
}

/// An NPU of which some things are otherwise.
///
/// ```
/// use rknpu_sim::otherwise::{Disbelieved, Otherwise};
/// use rknpu_sim::{Config, Machine, npu::Npu};
/// use std::sync::Arc;
///
/// let engine = Arc::new(Disbelieved::new(Npu::default(), vec![Otherwise::ChainBuffers]));
/// let machine = Machine::new(Config { engine, ..Config::default() });
/// assert!(machine.report().is_clean());
/// ```
#[derive(Debug)]
pub struct Disbelieved {
    npu: Npu,
    otherwise: Vec<Otherwise>,
}

impl Disbelieved {
    /// `npu`, but for `otherwise`.
    pub fn new(npu: Npu, otherwise: Vec<Otherwise>) -> Disbelieved {
        Disbelieved { npu, otherwise }
    }
}

impl Engine for Disbelieved {
    fn run(&self, start: &Start, bus: &mut dyn Bus) -> Run {
        let is = |one| self.otherwise.contains(&one);
        let mut watched = Watched {
            bus,
            seen: std::sync::Mutex::default(),
            otherwise: &self.otherwise,
            spoilt_core: start.core == 2 && is(Otherwise::Core),
        };
        let run = self.npu.run(start, &mut watched);
        let seen = watched.seen.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if seen.other_buffer && is(Otherwise::ChainBuffersHang) {
            return Run { outcome: Outcome::Hang { task_counter: 0 }, findings: run.findings };
        }
        run
    }
}

/// What a chain has read so far.
#[derive(Debug, Default)]
struct Seen {
    /// Whether a program was fetched, of which nothing has been read yet.
    begins: bool,
    /// Input and weights of the first program: addresses, and where the weights' buffer ends.
    first: Option<(u64, u64, u64)>,
    /// The present program's input.
    input: u64,
    /// Whether a weight has begun that is not the first.
    other_weight: bool,
    /// Whether that lies in another buffer.
    other_buffer: bool,
    /// Bits of a code or half of the present program.
    bits: u32,
}

struct Watched<'a> {
    bus: &'a mut dyn Bus,
    seen: std::sync::Mutex<Seen>,
    otherwise: &'a [Otherwise],
    spoilt_core: bool,
}

impl Watched<'_> {
    fn note(&self, unit: Unit, iova: u64, bytes: &[u8]) {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match unit {
            Unit::Pc => {
                seen.begins = true;
                seen.bits = bits(bytes).unwrap_or(seen.bits);
            }
            Unit::CnaFeature if seen.begins => (seen.begins, seen.input) = (false, iova),
            Unit::CnaWeight => {
                let end = iova + self.bus.writable(iova, u64::MAX).err().map_or(0, |f| f.mapped);
                let here = (seen.input, iova, end);
                let (input, weight, buffer) = *seen.first.get_or_insert(here);
                // The input from its beginning, and not the weights: another weight, or columns of another slice.
                if seen.input == input && iova != weight {
                    seen.other_weight = true;
                    seen.other_buffer |= end != buffer;
                }
            }
            Unit::CnaFeature | Unit::DpuRead | Unit::DpuWrite => {}
        }
    }

    fn spoils(&self) -> bool {
        let seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is = |one: &Otherwise| match one {
            Otherwise::ChainWeights => seen.other_weight,
            Otherwise::ChainBuffers => seen.other_buffer,
            Otherwise::Int4 => seen.bits == 4,
            Otherwise::Fp16 => seen.bits == 16,
            Otherwise::Core | Otherwise::ChainBuffersHang => false,
        };
        self.spoilt_core || self.otherwise.iter().any(is)
    }
}

/// Bits of the inputs of a program, by its CNA_CONV_CON1.
fn bits(program: &[u8]) -> Option<u32> {
    use rknpu_sys::regs::{Format, cna};
    let commands = program.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok());
    let mut values = commands.map(u64::from_le_bytes).filter(|command| command >> 48 == 0x201);
    let value = values.find(|command| *command as u16 == cna::CONV_CON1)? >> 16;
    match Format::from_code(cna::CONV_CON1_IN_PRECISION.get(value as u32))? {
        Format::Int4 => Some(4),
        Format::Fp16 => Some(16),
        _ => Some(8),
    }
}

impl Bus for Watched<'_> {
    fn read(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let bytes = self.bus.read(unit, iova, len)?;
        self.note(unit, iova, bytes);
        Ok(bytes)
    }

    fn kept(&self, unit: Unit, iova: u64, len: u64) -> Result<&[u8], BusFault> {
        let bytes = self.bus.kept(unit, iova, len)?;
        self.note(unit, iova, bytes);
        Ok(bytes)
    }

    fn write(&mut self, unit: Unit, iova: u64, bytes: &[u8]) -> Result<(), BusFault> {
        if !self.spoils() {
            return self.bus.write(unit, iova, bytes);
        }
        let spoilt: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x15).collect();
        self.bus.write(unit, iova, &spoilt)
    }

    fn writable(&self, iova: u64, len: u64) -> Result<(), BusFault> {
        self.bus.writable(iova, len)
    }
}
