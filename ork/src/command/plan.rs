//! `ork plan`: what will be resident, what streamed, and what a pass costs, before anything is loaded.

use std::fmt::Write as _;
use std::path::Path;

use ork_cache::Store;
use ork_cache::plan::{Board, Item, Place, Plan, Shape, Speeds};
use ork_cache::profile::Profile;
use serde::Serialize;

use crate::cli::{PlanArgs, PlanDriver};
use crate::error::{Error, Result};
use crate::input::{Input, model_store, read_text};
use crate::output::{Report, html};
use crate::size::Size;
use crate::target::{check_output, write_bytes};

#[derive(Serialize)]
struct View {
    plans: Vec<Timed>,
    speeds: Speeds,
    /// Whether these are from a profile of `ork check`; what that did not measure is assumed all the same.
    measured: bool,
}

/// A plan, and what its passes take.
#[derive(Serialize)]
struct Timed {
    #[serde(flatten)]
    plan: Plan,
    disk_seconds: f64,
    submit_seconds: f64,
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
        let board = match args.driver {
            PlanDriver::Rknpu => board,
            PlanDriver::Rocket => board.mainline(),
        };
        let board = Board {
            budget: args.budget.map(|size| size.0),
            rows: args.rows.unwrap_or(board.rows),
            ..board
        };
        let plan = Plan::new(&name, &items, &board);
        plans.push(
            plan.map_err(|e| {
                Error::Usage(format!("{name} on {}: {}", board.name, Error::from(e)))
            })?,
        );
    }
    if let Some(path) = &args.html {
        write_bytes(path, page(&name, &items, &plans).as_bytes())?;
    }
    let driver = match args.driver {
        PlanDriver::Rknpu => "rknpu",
        PlanDriver::Rocket => "rocket",
    };
    let profile = Profile::of_user(false).filter(|profile| profile.driver == driver);
    let speeds = profile.as_ref().map(Profile::speeds).unwrap_or_default();
    let timed = |plan: Plan| {
        let (disk, submit) = (plan.cost.disk_seconds(&speeds), plan.cost.submit_seconds(&speeds));
        Timed { plan, disk_seconds: disk, submit_seconds: submit }
    };
    let plans = plans.into_iter().map(timed).collect();
    let view = View { plans, speeds, measured: profile.is_some() };
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

fn text(view: &View) -> String {
    let mut text = String::new();
    let Speeds { disk_bytes_per_second, submit_seconds } = view.speeds;
    let known =
        if view.measured { "as `ork check` found" } else { "assumed, `ork check` measures" };
    for Timed { plan, disk_seconds, submit_seconds: submits } in &view.plans {
        let _ = writeln!(
            text,
            "{plan}\n  the disk needs {disk_seconds:.2} s for a pass at {:.2} GB/s, submits at most {submits:.2} s \
             at {:.0} µs ({known})",
            disk_bytes_per_second / 1e9,
            submit_seconds * 1e6,
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
            capacity: plan.board.domain_bytes,
            resident: share.resident,
            slots: share.slots,
            scratch: share.scratch,
            cells: Vec::new(),
        })
        .collect();
    // A weight that is split over domains side by side is in as many.
    let lanes = usize::from(plan.board.lanes.max(1));
    for (item, &place) in items.iter().zip(&plan.places) {
        let cell = || html::Cell {
            name: item.name.to_string(),
            bytes: item.bytes() / lanes as u64,
            place: match place {
                Place::Resident(_) => html::Place::Resident,
                Place::Slot(_, parts) => html::Place::Streamed(parts),
            },
        };
        for domain in domains.iter_mut().skip(plan.domain_of(place).index()).take(lanes) {
            domain.cells.push(cell());
        }
    }
    domains
}
