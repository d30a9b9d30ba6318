//! A mixture on the device: routers name experts, exactly those are loaded, and every result is the
//! CPU's.

use std::sync::Arc;

use ork::run::traffic::Traffic;
use ork_cache::Visit;
use ork_cache::environment::PolicyKind;
use ork_cache::experts::{Experts, Routing, Transition};
use ork_cache::{Opened, Setup, Store};
use ork_tests::bench::{Bench, assert_nothing_left, machine};
use ork_weights::model::synth::Shape;
use ork_weights::reference;
use rknpu::matmul::Int8;
use rknpu::{Device, Matmul, Precision};

const LAYERS: u32 = 2;
const EXPERTS: u32 = 16;
const ACTIVE: u32 = 2;
const TOKENS: usize = 4;

fn shape() -> Shape {
    Shape { layers: LAYERS, experts: EXPERTS, ..Shape::tiny() }
}

/// A batch for each step, routed layer by layer: `[step][layer]`.
fn batches(steps: usize) -> Vec<Vec<Routing>> {
    let traffic = Traffic {
        layers: LAYERS,
        experts: EXPERTS,
        active: ACTIVE,
        zipf: 1.0,
        stickiness: 0.5,
        coupling: 0.5,
        seed: 3,
    };
    let tokens = traffic.tokens(steps * TOKENS);
    let batch = |tokens: &[Vec<Vec<u32>>]| {
        let layer = |l: u32| Routing::of_tokens(tokens.iter().map(|t| &t[l as usize][..]));
        (0..LAYERS).map(layer).collect()
    };
    tokens.chunks(TOKENS).map(batch).collect()
}

/// A model with experts on a device, within a budget of a third of its weights.
struct Mixture {
    store: Arc<Store>,
    opened: Opened,
    matmul: Matmul<Int8>,
    experts: Experts,
}

impl Mixture {
    fn new(bench: &Bench, device: &Device, policy: PolicyKind, guesses: usize) -> Mixture {
        let store = bench.store();
        let scratch = ork_cache::scratch_bytes(device, std::slice::from_ref(&store), TOKENS as u32);
        let setup = Setup {
            rows: TOKENS as u32,
            policy: Some(policy),
            routed: true,
            ..Setup::new(store.bytes() / 3 + scratch)
        };
        let opened = ork_cache::open(device, std::slice::from_ref(&store), &setup).unwrap();
        let limits = opened.limits(0, Precision::Int8).unwrap();
        let domain = &opened.cache.domains()[0];
        let matmul = Matmul::int8(domain, &device.cores().unwrap(), limits).unwrap();
        let mut experts = Experts::new(&opened.cache, store.items(), &opened.models[0]).unwrap();
        if guesses > 0 {
            experts = experts.guessing(Box::new(Transition::new(EXPERTS, 0.95)), guesses);
        }
        Mixture { store, opened, matmul, experts }
    }

    /// One layer of a batch: each expert of the routing with its rows.
    fn layer(&mut self, visit: &Visit, layer: u32, routing: &Routing) {
        self.experts.route(layer, routing).unwrap();
        let mut order = Vec::new();
        while let Some((expert, rows)) = self.experts.next_expert() {
            order.push((expert, rows));
            for weight in self.experts.weights(layer, expert).unwrap().to_vec() {
                let part = *self.opened.models[0].part(weight).unwrap();
                let k = part.layout.k() as usize;
                let input: Vec<i8> =
                    (0..rows as usize * k).map(|i| (i * 11 % 29) as i8 - 14).collect();
                let mut out = vec![0; rows as usize * part.layout.n() as usize];
                let pinned = visit.acquire(weight).unwrap();
                self.matmul.run(&pinned.weight_ref().unwrap(), &input, &mut out).unwrap();

                let mut tiled = vec![0; part.layout.bytes() as usize];
                self.store.load(part.item, part.column, &part.layout, &mut tiled).unwrap();
                let mut want = vec![0; out.len()];
                reference::sums(&part.layout, &tiled, &input, &mut want).unwrap();
                assert!(out == want, "layer {layer}, expert {expert}, {rows} rows");
            }
        }
        order.sort_unstable_by_key(|&(expert, rows)| (std::cmp::Reverse(rows), expert));
        assert_eq!(order, routing.rows(), "each expert once, with its rows");
    }
}

#[test]
fn routed_experts_give_the_cpus_results_and_no_others_are_loaded() {
    let bench = Bench::new(shape());
    for policy in [PolicyKind::Lfu, PolicyKind::PinnedRing, PolicyKind::Lru] {
        let machine = machine();
        let device = Device::simulated_on(&machine).unwrap();
        let mut mixture = Mixture::new(&bench, &device, policy, 0);
        let cache = mixture.opened.cache.clone();
        let buffers = |machine: &rknpu::sim::Machine| machine.report().calls;
        let before = buffers(&machine);
        let weights = mixture.experts.weights(0, 0).unwrap().len() as u64;

        let (mut uses, mut first) = (0, 0);
        for (step, batch) in batches(12).iter().enumerate() {
            let visit = cache.enter(ork_cache::DomainId(0)).unwrap();
            for (layer, routing) in batch.iter().enumerate() {
                mixture.layer(&visit, layer as u32, routing);
                uses += routing.rows().len() as u64 * weights;
                if step == 0 {
                    first += routing.rows().len() as u64 * weights;
                    assert_eq!(cache.stats().loads(), first, "{policy:?}: others were loaded");
                }
            }
        }
        let stats = cache.stats();
        assert_eq!(stats.failures, 0);
        assert!(stats.loads() < uses, "{policy:?}: popular experts stay: {stats:?}");
        assert!(stats.evictions > 0, "{policy:?}: all of them fit");
        let created = |calls: &std::collections::BTreeMap<_, rknpu::sim::report::Calls>| {
            calls.get(&rknpu::sim::CallKind::MemCreate).map_or(0, |calls| calls.ok)
        };
        assert_eq!(created(&before), created(&buffers(&machine)), "a buffer for an expert");
        assert!(cache.domains()[0].stats().peak <= mixture.opened.bytes);
        drop((cache, mixture, device));
        assert_nothing_left(&machine, "experts");
    }
}

#[test]
fn guesses_change_no_result() {
    let bench = Bench::new(shape());
    let machine = machine();
    let device = Device::simulated_on(&machine).unwrap();
    let mut mixture = Mixture::new(&bench, &device, PolicyKind::Lfu, 4);
    let cache = mixture.opened.cache.clone();
    for batch in batches(12) {
        let visit = cache.enter(ork_cache::DomainId(0)).unwrap();
        for (layer, routing) in batch.iter().enumerate() {
            mixture.layer(&visit, layer as u32, routing);
        }
    }
    assert!(cache.stats().prefetch_loads > 0);
    let outside = mixture.experts.route(0, &Routing::new([(EXPERTS, 1)])).unwrap_err();
    assert!(outside.to_string().contains("16 experts"), "{outside}");
}
