//! What is only believed of boards: derived, inferred, or seen on one board by others. Each with who says so, what
//! holds as long as nobody has looked, and an experiment.

use rknpu::chains::Chains;
use rknpu::{Precision, limits};

use super::experiments::{Shapes, chain, jobs, products};
use super::measures::direct_reads;
use super::record::Outcome;
use super::steps::{Board, Danger, Kind, Step};
use crate::error::Result;

/// Who has seen what.
const C_PROJECT: &str = "the C project, on boards";
const UNSEEN: &str = "nobody has said";

/// As many weights in a chain as there are here.
const ALL: Chains = Chains { weights: 8, buffers: true, n_slices: false };
const TOGETHER: Chains = Chains { buffers: false, ..ALL };

const fn fact(
    name: &'static str,
    says: &'static str,
    source: &'static str,
    careful: &'static str,
    danger: Danger,
    run: fn(&Board<'_>) -> Result<Outcome>,
) -> Step {
    Step { name, kind: Kind::Fact, says, source, careful, danger, seconds: 60, run }
}

/// In rising order of danger.
pub(super) const FACTS: &[Step] = &[
    fact(
        "direct-reads",
        "the disk writes into mapped device memory (O_DIRECT)",
        "recordings of driver 0.9.8 over a stand-in for the IOMMU",
        "what the kernel refuses is read through the page cache",
        Danger::Safe,
        |board| direct_reads(board).map(|(outcome, _)| outcome),
    ),
    fact(
        "first-submit",
        "the first submit into fresh memory gives its results",
        "the C project has seen stale ones",
        "a submit into fresh memory is made twice",
        Danger::Safe,
        |board| told(jobs(&board.open()?, 1)?),
    ),
    fact(
        "input-moves",
        "a submit may read its input at another address than the one before",
        "the C project has seen stale data",
        "all submits begin at one address",
        Danger::Safe,
        |board| told(jobs(&board.open()?, 8)?),
    ),
    fact(
        "rows-int8",
        "int8 programs take rows for eight banks of CBUF",
        "inferred from captured programs",
        "the same, up to 512 rows",
        Danger::Safe,
        |board| rows(board, Precision::Int8, &[32, 256, 512, 1024]),
    ),
    fact(
        "rows-fp16",
        "fp16 programs take rows for eight banks of CBUF",
        "inferred from captured programs",
        "the same, up to 512 rows",
        Danger::Safe,
        |board| rows(board, Precision::Fp16, &[32, 256, 1024, 2048]),
    ),
    fact(
        "int4-nibbles",
        "the even element of int4 is the low nibble, and the sums are saturated 16 bits",
        "inferred from programs that pack so",
        "the same",
        Danger::Safe,
        |board| {
            let shapes =
                |m, k| Shapes { precision: Precision::Int4, m, k, ns: &[64, 192], together: true };
            products(board, &[shapes(1, 512), shapes(7, 1024)])
        },
    ),
    fact(
        "chain-weights-int8",
        "a chain of int8 programs may hold several weights of one buffer",
        C_PROJECT,
        "they are chained, as was seen",
        Danger::Safe,
        |board| chain(board, list(Precision::Int8, true), TOGETHER),
    ),
    fact(
        "chain-buffers-int8",
        "a chain of int8 programs may hold weights of several buffers",
        C_PROJECT,
        "they are chained, as was seen",
        Danger::Safe,
        |board| chain(board, list(Precision::Int8, false), ALL),
    ),
    fact(
        "chain-weights-fp16",
        "a chain of fp16 programs may hold several weights of one buffer",
        UNSEEN,
        "each weight is submitted by itself",
        Danger::MayWedge,
        |board| chain(board, list(Precision::Fp16, true), TOGETHER),
    ),
    fact(
        "chain-buffers-fp16",
        "a chain of fp16 programs may hold weights of several buffers",
        "the C project had K slices of several buffers fail",
        "each weight is submitted by itself",
        Danger::MayWedge,
        |board| chain(board, list(Precision::Fp16, false), ALL),
    ),
    fact(
        "chain-weights-int4",
        "a chain of int4 programs may hold several weights of one buffer",
        UNSEEN,
        "each weight is submitted by itself",
        Danger::MayWedge,
        |board| chain(board, list(Precision::Int4, true), TOGETHER),
    ),
    fact(
        "chain-n-slices-int8",
        "a chain of int8 programs may go on from one N slice of a buffer to the next",
        "the C project had N slices of several buffers time out",
        "each N slice is submitted by itself",
        Danger::MayWedge,
        |board| {
            let shapes = Shapes {
                precision: Precision::Int8,
                m: 2,
                k: 64,
                ns: &[2 * 8192 + 64],
                together: true,
            };
            chain(board, shapes, Chains { n_slices: true, ..TOGETHER })
        },
    ),
];

/// As q, k and v of a layer, or gate and up.
fn list(precision: Precision, together: bool) -> Shapes<'static> {
    Shapes { precision, m: 5, k: 1024, ns: &[192, 64, 64, 128], together }
}

/// As many rows as a program takes, and one more program.
fn rows(board: &Board<'_>, precision: Precision, ks: &[u32]) -> Result<Outcome> {
    let shapes = ks.iter().map(|k| Shapes {
        precision,
        m: limits::rows(precision, *k) as usize + 1,
        k: *k,
        ns: &[96],
        together: true,
    });
    products(board, &shapes.collect::<Vec<_>>())
}

fn told(right: Vec<bool>) -> Result<Outcome> {
    let wrong = right.iter().filter(|right| !**right).count();
    let detail = format!("{wrong} of {} jobs wrong", right.len());
    Ok(Outcome { holds: wrong == 0, detail, ..Outcome::default() })
}
