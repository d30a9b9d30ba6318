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
use crate::input::{Input, model_store};
use crate::output::{Report, Table, html};
use crate::size::Size;

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
        std::fs::write(path, page(&name, &items, &plans)).map_err(Error::file("write", path))?;
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
            let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
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
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
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
        let percent =
            |part: u64, of: u64| format!("{:.1} %", part as f64 * 100.0 / of.max(1) as f64);
        for row in &simulated.policies {
            let (ours, best) = (&row.outcome, &row.belady);
            table.row([
                row.policy.to_owned(),
                ours.loads().to_string(),
                Size(ours.bytes_loaded).to_string(),
                percent(ours.hits, ours.uses),
                percent(ours.hits, best.hits),
            ]);
        }
        if let Some(row) = simulated.policies.first() {
            table.row([
                "optimum (Belady)".into(),
                row.belady.loads().to_string(),
                Size(row.belady.bytes_loaded).to_string(),
                percent(row.belady.hits, row.belady.uses),
                percent(1, 1),
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

/// The residency map: a bar for each domain, and every weight as a cell that is pinned or streamed.
fn page(name: &str, items: &[Item], plans: &[Plan]) -> String {
    let mut body = String::new();
    for plan in plans {
        let _ = writeln!(
            body,
            "<h2>{}</h2><pre>{}</pre>",
            html::escape(&plan.board.name),
            html::escape(&plan.to_string())
        );
        body.push_str(&windows(plan));
        body.push_str(&cells(items, plan));
    }
    html::page(&format!("ork plan {name}"), &body)
}

fn windows(plan: &Plan) -> String {
    const WIDTH: f64 = 1000.0;
    let scale = WIDTH / plan.board.window.max(1) as f64;
    let height = plan.domains.len() * 22;
    let mut svg = format!("<svg viewBox=\"0 0 1100 {height}\" role=\"img\">\n");
    for (row, share) in plan.domains.iter().enumerate() {
        let y = row * 22;
        let mut x = 90.0;
        let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">domain {row}</text>", y + 14);
        for (class, what, bytes) in [
            ("core", "pinned", share.pinned),
            ("load", "slots", share.slots),
            ("wait", "scratch", share.scratch),
        ] {
            let width = bytes as f64 * scale;
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"16\"><title>{what} {}</title></rect>",
                y + 2,
                Size(bytes)
            );
            x += width;
        }
        let _ = writeln!(
            svg,
            "<rect class=\"grid\" fill=\"none\" x=\"90\" y=\"{}\" width=\"{WIDTH}\" height=\"16\"/>",
            y + 2
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn cells(items: &[Item], plan: &Plan) -> String {
    const ACROSS: usize = 160;
    const SIDE: usize = 7;
    // A cell stands for several weights where there are very many.
    let each = items.len().div_ceil(40 * ACROSS).max(1);
    let count = items.len().div_ceil(each);
    let height = count.div_ceil(ACROSS) * SIDE;
    let mut svg = format!(
        "<p class=\"dim\">Each cell is {each} of {} weights in order of use: blue is pinned, orange is streamed.</p><svg viewBox=\"0 0 {} {height}\" role=\"img\">\n",
        items.len(),
        ACROSS * SIDE
    );
    for (cell, places) in plan.places.chunks(each).enumerate() {
        let streamed = places.iter().any(|place| matches!(place, Place::Slot(..)));
        let class = if streamed { "load" } else { "core" };
        let (x, y) = (cell % ACROSS * SIDE, cell / ACROSS * SIDE);
        let title = items.get(cell * each).map_or("", |item| &item.name);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"6\" height=\"6\"><title>{}</title></rect>",
            html::escape(title)
        );
    }
    svg.push_str("</svg>\n");
    svg
}
