//! What must be right: probes, and products of every form of weights and of shapes that models have.

use rknpu::{Precision, probe};

use super::experiments::{Shapes, products};
use super::record::Outcome;
use super::steps::{Board, Danger, Kind, Step};
use crate::error::Result;

const fn step(
    name: &'static str,
    says: &'static str,
    run: fn(&Board<'_>) -> Result<Outcome>,
) -> Step {
    let (kind, danger) = (Kind::Product, Danger::Safe);
    Step { name, kind, says, source: "", careful: "", danger, seconds: 120, run }
}

/// In the order in which they are tried.
pub(super) const PRODUCTS: &[Step] = &[
    step("cores", "each core computes a small job", cores),
    step("product-int8", "small int8 products", |board| small(board, Precision::Int8)),
    step("product-fp16", "small fp16 products", |board| small(board, Precision::Fp16)),
    step("product-int4", "small int4 products", |board| small(board, Precision::Int4)),
    step("edges", "int8 products whose last tiles, rows and slices are not whole", edges),
    step("shapes-270m", "shapes of a model of 270M, 1 to 512 rows", |board| {
        model(board, &[(640, 1024), (1024, 640), (640, 2048), (2048, 640)], &[1, 8, 32, 128, 512])
    }),
    step("shapes-1.7b", "shapes of a model of 1.7B, 1 to 128 rows", |board| {
        model(board, &[(2048, 1024), (2048, 2048), (6144, 256)], &[1, 8, 32, 128])
    }),
    step("stream", "address space comes back", stream),
    step("domains", "jobs alternate between domains", domains),
];

fn cores(board: &Board<'_>) -> Result<Outcome> {
    let device = board.open()?;
    let found = probe::cores(&device)?;
    let holds = found.cores.iter().all(|core| core.works());
    let lines = found.to_string().lines().collect::<Vec<_>>().join("; ");
    Ok(Outcome { holds, detail: lines, ..Outcome::default() })
}

fn small(board: &Board<'_>, precision: Precision) -> Result<Outcome> {
    let of = |m, k, n: &'static [u32]| Shapes { precision, m, k, ns: n, together: true };
    products(board, &[of(1, 64, &[64]), of(4, 96, &[64]), of(33, 256, &[128])])
}

fn edges(board: &Board<'_>) -> Result<Outcome> {
    let of = |m, k, n: &'static [u32]| Shapes {
        precision: Precision::Int8,
        m,
        k,
        ns: n,
        together: true,
    };
    products(board, &[of(3, 1056, &[96]), of(65, 2080, &[32]), of(5, 32, &[8192 + 32])])
}

fn model(board: &Board<'_>, shapes: &'static [(u32, u32)], rows: &[usize]) -> Result<Outcome> {
    let all = rows.iter().flat_map(|m| shapes.iter().map(move |(k, n)| (*m, *k, n)));
    let all = all.map(|(m, k, n)| Shapes {
        precision: Precision::Int8,
        m,
        k,
        ns: std::slice::from_ref(n),
        together: true,
    });
    products(board, &all.collect::<Vec<_>>())
}

fn stream(board: &Board<'_>) -> Result<Outcome> {
    let device = board.open()?;
    // More than a domain in all.
    let found = probe::stream(&device.domain(0)?, 64 << 20, 80, |_, bytes| bytes[0] = 1)?;
    let detail = format!(
        "{} of {} weights of 64 MiB through a domain of 4 GiB, {} bytes left",
        found.done, found.wanted, found.left
    );
    Ok(Outcome { holds: found.is_clean(), detail, ..Outcome::default() })
}

fn domains(board: &Board<'_>) -> Result<Outcome> {
    let device = board.open()?;
    let count = device.capabilities().domains.count().min(4);
    let found = probe::domains(&device, count, 16 << 20, 25)?;
    let detail = format!("{count} domains, {} jobs, {} wrong", found.jobs, found.wrong);
    Ok(Outcome { holds: found.wrong == 0, detail, ..Outcome::default() })
}
