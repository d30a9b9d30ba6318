//! What is where: a bar for the memory of each domain, and a cell for each of its weights.

use std::fmt::Write as _;

use super::{escape, fitting, key};
use crate::size::Size;

/// One domain and the weights that are used in it.
#[derive(Clone, Debug, Default)]
pub struct Domain {
    /// Bytes of its address space.
    pub capacity: u64,
    /// Bytes of weights that stay.
    pub resident: u64,
    /// Bytes of slots, or of weights that may leave.
    pub slots: u64,
    /// Bytes of register commands, activations and results.
    pub scratch: u64,
    /// Weights in order of use.
    pub cells: Vec<Cell>,
}

/// One weight.
///
/// ```
/// use ork::output::html::{Cell, Place};
///
/// let head = Cell { name: "output.weight".into(), bytes: 875 << 20, place: Place::Streamed(16) };
/// assert_ne!(head.place, Place::Resident);
/// ```
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name.
    pub name: String,
    /// Bytes on the device.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
}

/// Where a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a buffer of its own, for good.
    Resident,
    /// In slots when it is needed, in this many loads.
    Streamed(u32),
}

/// Width of the drawing in SVG units.
const WIDTH: f64 = 1200.0;

/// The residency map as HTML.
///
/// ```
/// use ork::output::html::{self, Cell, Domain, Place};
///
/// let weight = |i: u32, place| Cell { name: format!("blk.{i}"), bytes: 1 << 20, place };
/// let cells = vec![weight(0, Place::Resident), weight(1, Place::Streamed(1))];
/// let domain = Domain { capacity: 8 << 20, resident: 1 << 20, slots: 4 << 20, scratch: 0, cells };
/// assert!(html::domains(&[domain]).contains("Domain 0"));
/// ```
pub fn domains(domains: &[Domain]) -> String {
    let mut html = key(&[
        ("core", "stays"),
        ("load", "streamed, and the slots it goes through"),
        ("some", "cells of several weights: some stay"),
        ("visit", "scratch: register commands, activations, results"),
    ]);
    for (index, domain) in domains.iter().enumerate() {
        let stay = domain.cells.iter().filter(|cell| cell.place == Place::Resident).count();
        let _ = writeln!(
            html,
            "<h3>Domain {index}</h3><p class=\"dim\">{} weights, {stay} stay; {} of {} is used.</p>",
            domain.cells.len(),
            Size(domain.resident.saturating_add(domain.slots).saturating_add(domain.scratch)),
            Size(domain.capacity)
        );
        address_space(domain, &mut html);
        cells(&domain.cells, &mut html);
    }
    html
}

fn address_space(domain: &Domain, svg: &mut String) {
    const HEIGHT: f64 = 30.0;
    let scale = WIDTH / domain.capacity.max(1) as f64;
    let _ = write!(
        svg,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"address space\">"
    );
    let mut x = 0.0;
    for (class, what, bytes) in [
        ("core", "stay", domain.resident),
        ("load", "slots", domain.slots),
        ("visit", "scratch", domain.scratch),
    ] {
        let width = (bytes as f64 * scale).min(WIDTH - x);
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"1\" width=\"{width:.1}\" height=\"28\"><title>{what}: {}</title></rect>",
            Size(bytes)
        );
        if let Some(text) = fitting(&format!("{what} {}", Size(bytes)), width - 8.0) {
            let _ = write!(svg, "<text class=\"in\" x=\"{:.1}\" y=\"19\">{text}</text>", x + 4.0);
        }
        x += width;
    }
    let rest = WIDTH - x;
    if let Some(text) = fitting("free", rest - 8.0) {
        let _ = write!(svg, "<text class=\"dim\" x=\"{:.1}\" y=\"19\">{text}</text>", x + 6.0);
    }
    let _ = writeln!(
        svg,
        "<rect class=\"frame\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"29\"/></svg>",
        WIDTH - 1.0
    );
}

fn cells(all: &[Cell], svg: &mut String) {
    const SIDE: f64 = 12.0;
    const ACROSS: usize = (WIDTH / SIDE) as usize;
    const MOST: usize = 40 * ACROSS;
    // A cell stands for several weights where there are very many.
    let each = all.len().div_ceil(MOST).max(1);
    if each > 1 {
        let _ = writeln!(svg, "<p class=\"dim\">A cell is {each} weights.</p>");
    }
    let rows = all.len().div_ceil(each).div_ceil(ACROSS);
    let height = rows as f64 * SIDE;
    let _ =
        writeln!(svg, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"weights\">");
    for (cell, weights) in all.chunks(each).enumerate() {
        let stay = weights.iter().filter(|w| w.place == Place::Resident).count();
        let class = match stay {
            0 => "load",
            n if n == weights.len() => "core",
            _ => "some",
        };
        let (x, y) = ((cell % ACROSS) as f64 * SIDE, (cell / ACROSS) as f64 * SIDE);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"10.5\" height=\"10.5\"><title>{}</title></rect>",
            title(weights)
        );
    }
    svg.push_str("</svg>\n");
}

fn title(weights: &[Cell]) -> String {
    let bytes: u64 = weights.iter().fold(0, |sum, w| sum.saturating_add(w.bytes));
    match weights {
        [one] => {
            let place = match one.place {
                Place::Resident => "stays".to_owned(),
                Place::Streamed(1) => "streamed".to_owned(),
                Place::Streamed(parts) => format!("streamed in {parts} parts"),
            };
            format!("{}: {}, {place}", escape(&one.name), Size(bytes))
        }
        [first, .., last] => {
            format!("{} to {}: {}", escape(&first.name), escape(&last.name), Size(bytes))
        }
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(n: usize) -> Domain {
        let cell = |i: usize| Cell {
            name: format!("<w{i}>\""),
            bytes: 4096,
            place: if i < n / 2 { Place::Resident } else { Place::Streamed(2) },
        };
        let cells = (0..n).map(cell).collect();
        Domain { capacity: 1 << 30, resident: 1 << 28, slots: 1 << 28, scratch: 1 << 20, cells }
    }

    #[test]
    fn every_weight_is_there_by_name_and_none_breaks_the_page() {
        let html = domains(&[many(4)]);
        for i in 0..4 {
            assert!(html.contains(&format!("<title>&lt;w{i}&gt;&quot;: 4 KiB")), "{html}");
        }
        assert!(html.contains("streamed in 2 parts") && html.contains("4 weights, 2 stay"));
        assert!(!html.contains("<w0>"));
    }

    #[test]
    fn very_many_weights_share_cells() {
        let html = domains(&[many(100_001), Domain::default()]);
        assert!(html.contains("A cell is 26 weights"));
        assert!(html.matches("<rect").count() < 5000);
        assert!(html.contains("class=\"some\"") && html.contains("Domain 1"));
    }
}
