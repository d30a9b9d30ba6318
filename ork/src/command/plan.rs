//! `ork plan`: what will be resident, what streamed, and what a pass costs, before anything is loaded.

use std::fmt::Write as _;
use std::path::Path;

use ork_cache::npu::Store;
use ork_cache::plan::{Board, Item, Place, Plan, Shape};
use ork_cache::policy::simulate::{Compared, Trace};
use ork_cache::policy::{Lfu, Lru, NextUse, PinnedRing, Policy, S3Fifo};
use serde::Serialize;

use crate::cli::PlanArgs;
use crate::error::{Error, Result};
use crate::input::{Input, model_store, read_text};
use crate::output::{Report, Table, html, share};
use crate::size::Size;
use crate::target::{check_output, write_bytes};

#[derive(Serialize)]
struct View {
    plans: Vec<Plan>,
    simulated: Option<Simulated>,
}

/// Every policy on one trace.
#[derive(Serialize)]
struct Simulated {
    uses: usize,
    weights: usize,
    capacity: u64,
    policies: Vec<Compared>,
}

/// Runs the command.
///
/// # Errors
/// [`Error::Usage`] for an unknown board, or one that cannot even hold the ring; [`Error::Input`].
pub(super) fn run(args: &PlanArgs, report: Report) -> Result<()> {
    if let Some(path) = &args.html {
        check_output(path, &args.file)?;
    }
    let (name, items) = items(&args.file)?;
    let mut plans = Vec::new();
    for board in &args.board {
        let board = Board::known(board).ok_or_else(|| {
            Error::Usage(format!("no board {board:?}: {} are known", Board::KNOWN.join(", ")))
        })?;
        let board = Board {
            budget: args.budget.map(|size| size.0),
            rows: args.rows.unwrap_or(board.rows),
            ..board
        };
        let plan = Plan::new(&name, &items, &board);
        plans.push(plan.map_err(|e| Error::Usage(format!("{name} on {}: {e}", board.name)))?);
    }
    let simulated = match (&args.simulate, plans.first()) {
        (Some(path), Some(plan)) => Some(simulate(path, plan)?),
        _ => None,
    };
    if let Some(path) = &args.html {
        write_bytes(path, page(&name, &items, &plans).as_bytes())?;
    }
    let view = View { plans, simulated };
    report.print(&view, || text(&view))
}

/// Weights in order of use, of a pack, a model, a shape file or a known shape.
fn items(path: &Path) -> Result<(String, Vec<Item>)> {
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("model").to_owned();
    let shape = match path.to_str().filter(|_| !path.exists()) {
        Some(known) if Shape::known(known).is_some() => Shape::known(known),
        Some(missing) if !missing.contains(['/', '.']) => {
            let known: Vec<&str> = Shape::KNOWN.iter().map(|(known, _)| *known).collect();
            let known = known.join(", ");
            return Err(Error::Usage(format!(
                "{missing} is neither a file nor a model whose shapes are known ({known})"
            )));
        }
        _ if path.extension().is_some_and(|extension| extension == "json") => {
            let text = read_text(path)?;
            // An index of safetensors shards is JSON too.
            Shape::parse(&text)
                .map(Some)
                .or_else(
                    |error| {
                        if text.contains("\"weight_map\"") { Ok(None) } else { Err(error) }
                    },
                )
                .map_err(Error::input(path))?
        }
        _ => None,
    };
    if let Some(shape) = shape {
        let items = shape.items().map_err(Error::input(path))?;
        return Ok((shape.name, items));
    }
    let source = match Input::open(path)? {
        Input::Pack(pack) => Store::from_pack(*pack),
        Input::Model(model) => model_store(*model, None).map_err(Error::input(path))?,
    };
    Ok((name, source.items().to_vec()))
}

/// Half-life of the frequency policy, in uses.
const LFU_HALF_LIFE: u32 = 4096;

fn simulate(path: &Path, plan: &Plan) -> Result<Simulated> {
    let text = read_text(path)?;
    let trace = Trace::parse(&text).map_err(Error::input(path))?;
    let capacity = plan.domains.iter().map(|domain| domain.pinned + domain.slots).sum();
    let mut policies: Vec<Box<dyn Policy>> = vec![
        Box::new(PinnedRing::new(&[])),
        Box::new(NextUse::once_with_bypass(&trace.uses)),
        Box::new(Lru::new()),
        Box::new(Lfu::new(LFU_HALF_LIFE)),
        Box::new(S3Fifo::new()),
    ];
    let compared = trace.compare(&mut policies, capacity, 0);
    Ok(Simulated {
        uses: trace.uses.len(),
        weights: trace.bytes.len(),
        capacity,
        policies: compared,
    })
}

fn text(view: &View) -> String {
    let mut text = String::new();
    for plan in &view.plans {
        let _ = writeln!(text, "{plan}");
    }
    if let Some(simulated) = &view.simulated {
        let mut table = Table::new(["policy", "loads", "loaded", "hits", "of the optimum's hits"]);
        for row in &simulated.policies {
            let (ours, best) = (&row.outcome, &row.belady);
            table.row([
                row.policy.to_owned(),
                ours.loads().to_string(),
                Size(ours.bytes_loaded).to_string(),
                share(ours.hits as f64, ours.uses as f64),
                share(ours.hits as f64, best.hits as f64),
            ]);
        }
        if let Some(row) = simulated.policies.first() {
            table.row([
                "optimum (Belady)".into(),
                row.belady.loads().to_string(),
                Size(row.belady.bytes_loaded).to_string(),
                share(row.belady.hits as f64, row.belady.uses as f64),
                share(1.0, 1.0),
            ]);
        }
        let _ = writeln!(
            text,
            "\n{} uses of {} weights in {}\n{table}",
            simulated.uses,
            simulated.weights,
            Size(simulated.capacity)
        );
    }
    text
}

/// For each board what the plan says, what a pass loads beside what LRU would, and the residency map.
fn page(name: &str, items: &[Item], plans: &[Plan]) -> String {
    let mut body = String::new();
    for plan in plans {
        let cost = &plan.cost;
        let _ = writeln!(
            body,
            "<h2>{}</h2><pre>{}</pre>\n<table><tr><th>in a pass</th><th>weights</th><th>loads</th><th>bytes</th><th>switches of domain</th></tr>\n\
             <tr><td>this plan</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n\
             <tr><td>LRU on the same bytes</td><td>{lru}</td><td>{lru}</td><td>{}</td><td>{}</td></tr></table>",
            html::escape(&plan.board.name),
            html::escape(&plan.to_string()),
            cost.weights_per_pass,
            cost.loads_per_pass,
            Size(cost.bytes_per_pass),
            cost.switches_per_pass,
            Size(cost.lru_bytes_per_pass),
            cost.lru_switches_per_pass,
            lru = cost.lru_weights_per_pass,
        );
        body.push_str(&html::domains(&residency(items, plan)));
    }
    html::page(&format!("ork plan {name}"), &body)
}

/// The plan as a map of each domain.
fn residency(items: &[Item], plan: &Plan) -> Vec<html::Domain> {
    let mut domains: Vec<html::Domain> = plan
        .domains
        .iter()
        .map(|share| html::Domain {
            capacity: plan.board.window,
            pinned: share.pinned,
            slots: share.slots,
            scratch: share.scratch,
            cells: Vec::new(),
        })
        .collect();
    for (item, &place) in items.iter().zip(&plan.places) {
        let cell = html::Cell {
            name: item.name.to_string(),
            bytes: item.bytes(),
            place: match place {
                Place::Pinned(_) => html::Place::Pinned,
                Place::Slot(_, parts) => html::Place::Streamed(parts),
            },
        };
        if let Some(domain) = domains.get_mut(plan.domain_of(place).index()) {
            domain.cells.push(cell);
        }
    }
    domains
}
