//! What the library adds to a warm product.

mod host;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ork_cache::Store;
use ork_linear::{Product, Setup};
use ork_weights::model::gguf::Tensors;
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::quantise::Tier;

use host::*;

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

const ROWS: usize = 40;
const NAMES: [&str; 2] = ["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"];

/// The fewest allocations between two calls: threads of the simulator make some of their own.
fn fewest(calls: impl FnOnce(&dyn Fn(usize))) -> u64 {
    let (before, fewest) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    calls(&|call| {
        let now = ratio::allocations();
        if call > 3 {
            fewest.fetch_min(now - before.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        before.store(now, Ordering::Relaxed);
    });
    fewest.into_inner()
}

#[test]
fn a_warm_product_allocates_no_more_than_its_layers() {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    Shape::tiny().write(file.as_file()).unwrap();
    let model =
        Model::open(file.path(), &OpenOptions { tied_head: true, ..OpenOptions::default() });
    let store = Store::from_model(model.unwrap(), Tier::RotatedInt8 { group: None }, None).unwrap();
    let device = rknpu::Device::simulated(Default::default()).unwrap();
    let mut models = ork_linear::open(&device, &[Arc::new(store)], &Setup::new(64 << 20)).unwrap();
    let layers = &mut models[0];
    let weights = NAMES.map(|name| layers.find(name).unwrap());
    let (k, n) = layers.shape(weights[0]).unwrap();
    let (k, n) = (k as usize, n as usize);
    let input = noise(ROWS * k, 7);
    let mut outs = [vec![0.0; ROWS * n], vec![0.0; ROWS * n]];
    let alone = fewest(|each| {
        for call in 0..40 {
            each(call);
            let products = weights.iter().zip(&mut outs);
            let products = products.map(|(weight, out)| Product { weight: *weight, out });
            layers.multiply(ROWS, &input, products).unwrap();
        }
        each(40);
    });

    let host = Host::new(Kind::V3, &[]).unwrap();
    let (tensors, map) = (Tensors::open(file.path()).unwrap(), map(file.path()));
    let start = tensors.header().data_start() as usize;
    let buffer = host.wrap(&map[start..]).usage(1);
    let mut input = noise(ROWS * k, 7);
    let mut rows = numbers([k as i64, ROWS as i64, 1, 1], &mut input);
    let mut operands = NAMES.map(|name| weight(&tensors, name, &buffer, start));
    let mut nodes = Vec::new();
    for (weight, out) in operands.iter_mut().zip(&mut outs) {
        nodes.push(product(MUL_MAT, &mut [weight, &mut rows], [n as i64, ROWS as i64, 1, 1], out));
    }
    let through = fewest(|each| {
        let graph = nodes.iter_mut().map(|node| &raw mut *node).collect();
        host.compute_often(graph, 40, each);
    });
    assert_eq!(through, alone);
    let asked = ratio::allocations();
    for _ in 0..100 {
        assert!(nodes.iter().all(|node| host.supports(node)));
    }
    assert_eq!(ratio::allocations() - asked, 0, "a question is a look at a table");
}
