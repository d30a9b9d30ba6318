//! Mixtures through slots for a quarter of their experts.

use ork::run::traffic::Traffic;
use ork_cache::experts::{Predictor, Routing, Transition};
use ork_cache::internals::{
    self, ExpertTable, Home, Lfu, Limits, Lru, PinnedRing, Policy, Popularity, Residency,
    WeightSpec,
};
use ork_cache::{DomainId, WeightId};
use rknpu_sys::layout::{Layout, Precision};

use super::figure;
use crate::Result;
use crate::experts::{Decode, LastUsed};
use crate::policies::S3Fifo;
use crate::virtual_time::{Clock, PassReport, Timing};

const D0: DomainId = DomainId(0);

/// Layers of the mixture for prefill, and experts of each.
const MIXTURE: (u32, u32) = (12, 128);

/// Prefill of a mixture through slots for a quarter of its experts.
pub(super) fn prefill() -> Result<()> {
    let (layers, experts) = MIXTURE;
    for zipf in [0.6, 1.0] {
        let (stickiness, coupling) = (0.3, 0.3);
        let traffic = Traffic { layers, experts, active: 8, zipf, stickiness, coupling, seed: 11 };
        let batches: Vec<_> = traffic.tokens(256 * 4).chunks(256).map(<[_]>::to_vec).collect();
        for ratio in [1.0, 0.5] {
            // LFU is what routed models get; 28 of 128 pinned leave a ring of 48 slots.
            let due = |w: &u32| (w + 1) * 28 / 128 > w * 28 / 128;
            let pinned: Vec<WeightId> = (0..layers * experts).filter(due).map(WeightId).collect();
            let policies: [Box<dyn Policy>; 2] =
                [Box::new(Lfu::new(layers * experts * 4)), Box::new(PinnedRing::new(&pinned))];
            for policy in policies {
                let name = policy.name();
                let report = prefill_in(&batches, ratio, policy)?;
                let share = report.stall.as_secs_f64() / report.compute.as_secs_f64();
                let uses = report.hits + report.demand_loads;
                figure(
                    &format!(
                        "experts, prefill, Zipf {zipf}, cache 25 %, {name}, T_load = {ratio} mean T_compute: stall"
                    ),
                    "<= 0.03",
                    format!("{share:.4} ({} loads, {uses} uses)", report.loads),
                );
            }
        }
    }
    Ok(())
}

/// All batches but the first, in virtual time. A row takes an expert 125 µs, so that it computes for
/// 2 ms on average; a load takes `ratio` times as long.
fn prefill_in(
    batches: &[Vec<Vec<Vec<u32>>>],
    ratio: f64,
    policy: Box<dyn Policy>,
) -> Result<PassReport> {
    const ROW_NS: u64 = 125_000;
    let (layers, experts) = MIXTURE;
    let layout = Layout::new(2048, 768, Precision::Int8)?;
    let load = (2e6 * ratio) as u64;
    let speed = layout.bytes() * 1_000_000_000 / load;
    let timing = Timing { load_bytes_per_second: speed, load_ns: 0, ..Timing::default() };
    let slots = (layers * experts / 4) as usize;
    let mut residency = Residency::new(Limits::single(slots as u64 * layout.bytes()), policy);
    let (class, list) = residency.add_class(D0, layout.bytes(), slots)?;
    list.into_iter().for_each(|s| residency.slot_created(s));
    let spec = WeightSpec { bytes: layout.bytes(), domain: D0, home: Home::Class(class) };
    residency.attach(&vec![spec; (layers * experts) as usize])?;
    let id = |layer: u32, expert: u32| WeightId(layer * experts + expert);
    let mut table = ExpertTable::default();
    for (layer, expert) in (0..layers * experts).map(|i| (i / experts, i % experts)) {
        table.add(layer, expert, &[id(layer, expert)]);
    }
    let mut popularity = Popularity::new(experts, 0.9);
    let mut clock = Clock::new(residency, timing, true);
    let mut warm = None;
    for batch in batches {
        for layer in 0..layers {
            let routing = Routing::of_tokens(batch.iter().map(|t| &t[layer as usize][..]));
            let (mut remaining, needed) =
                internals::remaining(&table, layer, &routing, |w| clock.presence(w))?;
            clock.replace(&needed);
            let used: Vec<u32> = routing.rows().iter().map(|r| r.0).collect();
            popularity.observe(layer, &used);
            let (next, mut guesses) = ((layer + 1) % layers, Vec::new());
            popularity.predict(next, experts as usize, &mut guesses);
            clock.speculate(&guesses.iter().map(|e| id(next, *e)).collect::<Vec<_>>());
            while let Some((expert, rows)) = remaining.next(&table, |w| clock.presence(w)) {
                clock.use_weight(id(layer, expert), u64::from(rows) * ROW_NS)?;
            }
        }
        warm.get_or_insert(clock.report());
    }
    Ok(clock.report() - warm.unwrap_or_default())
}

/// Decode: hit rates of predictors and policies against Belady's.
pub(super) fn decode(tokens: usize) -> Result<()> {
    for (zipf, stickiness, coupling) in
        [(0.6, 0.0, 0.0), (1.0, 0.0, 0.0), (0.6, 0.3, 0.3), (1.0, 0.3, 0.3)]
    {
        let traffic =
            Traffic { layers: 24, experts: 128, active: 8, zipf, stickiness, coupling, seed: 5 };
        let list = traffic.tokens(tokens);
        let decode =
            Decode { tokens: &list, experts: 128, slots: 24 * 128 / 4, warm_up: tokens / 4 };
        let belady = decode.belady()?.hit_rate();
        let mut best = (0.0, String::new());
        for (name, policy) in [("lru", 0), ("lfu", 1), ("s3fifo", 2)] {
            let make = || -> Box<dyn Policy> {
                match policy {
                    0 => Box::new(Lru::new()),
                    1 => Box::new(Lfu::new(24 * 8 * 64)),
                    _ => Box::new(S3Fifo::new()),
                }
            };
            let mut predictors: [Option<Box<dyn Predictor>>; 4] = [
                None,
                Some(Box::<LastUsed>::default()),
                Some(Box::new(Popularity::new(128, 0.98))),
                Some(Box::new(Transition::new(128, 0.98))),
            ];
            for predictor in &mut predictors {
                let label = predictor.as_ref().map_or("no guesses", |p| p.name());
                let guess = predictor.as_mut().map(|p| (p.as_mut() as &mut dyn Predictor, 16));
                let report = decode.run(make(), guess)?;
                let rate = report.hit_rate();
                if rate > best.0 {
                    let loads = report.loads as f64 / report.uses as f64;
                    best = (rate, format!("{name} + {label}, {loads:.2} loads a use"));
                }
            }
        }
        figure(
            &format!(
                "experts, decode, Zipf {zipf}, stickiness {stickiness}, coupling {coupling}: hits / Belady"
            ),
            ">= 0.85",
            format!("{:.3} / {belady:.3} = {:.3} ({})", best.0, best.0 / belady, best.1),
        );
    }
    Ok(())
}
