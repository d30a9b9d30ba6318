//! Register programs of random shapes, types and encodings, written by an encoder of the tests' own,
//! against plain loops; and programs that a board would hang on or get wrong.

mod captured;
mod encode;
mod malformed;
mod memory;
mod random;
mod reference;

use memory::Memory;
use rknpu_sim::engine::{Engine, Outcome, Run, Start};
use rknpu_sim::npu::{Npu, Timing};

/// Where things are mapped.
const PROGRAM: u32 = 0x1000_0000;
const INPUT: u32 = 0x2000_0000;
const WEIGHTS: u32 = 0x4000_0000;
const OUTPUT: u32 = 0x8000_0000;

/// A blocking submit of one program of 108 entries.
const START: Start = Start {
    core: 0,
    regcmd_addr: PROGRAM,
    regcfg_amount: 108,
    tasks: 1,
    dma_base: 0,
    int_mask: 0x300,
    ping_pong: true,
    fresh: true,
};

fn run(start: Start, mut memory: &Memory) -> Run {
    Npu::new(Timing::instant()).run(&start, &mut memory)
}

/// The amount that the driver would program for this listing, as `regcfg_amount`.
fn amount(listing: &encode::Listing) -> u32 {
    listing.0.len() as u32
}

#[track_caller]
fn assert_done(run: &Run) {
    assert!(matches!(run.outcome, Outcome::Done { .. }), "{run:?}");
    assert!(run.findings.is_empty(), "{run:?}");
}
