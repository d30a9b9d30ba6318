//! Plans of models that no machine here holds: how long they take, and passes of them.

use std::hint::black_box;
use std::time::Instant;

use ork_cache::plan::{Board, Experts, Plan, Shape};

use super::figure;
use crate::Result;
use crate::virtual_time::{Passes, Timing};

/// 30,720 expert weights: 40 layers of 256 experts.
pub(super) fn experts() -> Result<()> {
    let shape = Shape {
        name: "35b-a3b".into(),
        source: "sizes of a pack of 30,720 experts".into(),
        layers: 40,
        hidden: 2048,
        heads: 16,
        kv_heads: 2,
        head_dim: 256,
        ffn: None,
        vocab: 151_936,
        experts: Some(Experts { count: 256, active: 8, ffn: 512 }),
    };
    let items = shape.items()?;
    let experts = items.iter().filter(|i| i.expert.is_some()).count();
    for board in ["rk3588-8g", "rk3588-16g", "rk3588-32g"] {
        let board = Board::known(board).ok_or(board)?;
        let run = |_| {
            let start = Instant::now();
            black_box(Plan::new(&shape.name, &items, &board).is_ok());
            start.elapsed()
        };
        let time = (0..5).map(run).min().unwrap_or_default();
        figure(
            &format!("plan of {experts} experts on {}", board.name),
            "<= 50 ms",
            format!("{:.1} ms", time.as_secs_f64() * 1e3),
        );
    }
    Ok(())
}

/// Passes of models that no machine here holds.
pub(super) fn large_models() -> Result<()> {
    for (name, board) in [("gemma-2-27b", "rk3588-8g"), ("qwen3-235b-a22b", "rk3588-32g")] {
        let items = Shape::known(name).ok_or(name)?.items()?;
        let board = Board::known(board).ok_or(board)?;
        let plan = Plan::new(name, &items, &board)?;
        let start = Instant::now();
        let mut passes = Passes::new(&plan, &items, Timing::default(), 512)?;
        let first = passes.run()?;
        let steady = passes.run()?;
        figure(
            &format!("{name} on {}, a pass of 512 rows in virtual time", board.name),
            "seconds",
            format!(
                "{:.2} s to simulate; first pass {:.1} s, then {:.1} s ({} loads)",
                start.elapsed().as_secs_f64(),
                first.wall.as_secs_f64(),
                steady.wall.as_secs_f64(),
                steady.loads
            ),
        );
    }
    Ok(())
}
