//! A draft that stays on the device, and a verifier that is streamed, in one process and one budget.

mod host;

use std::path::Path;
use std::sync::Arc;

use ork_cache::Store;
use ork_linear::Setup;
use ork_weights::model::gguf::Tensors;
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions};
use ork_weights::quantise::Tier;

use host::*;

/// Rows that the verifier takes at once: drafted tokens, and the one before them.
const ROWS: usize = 16;
const BUDGET_MB: u64 = 3;

fn written(shape: Shape) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    shape.write(file.as_file()).unwrap();
    file
}

fn store(path: &Path) -> Arc<Store> {
    let options = OpenOptions { tied_head: true, ..OpenOptions::default() };
    let model = Model::open(path, &options).unwrap();
    Arc::new(Store::from_model(model, Tier::RotatedInt8 { group: None }, None).unwrap())
}

/// A batch through every block of a model, in the order of a pass.
fn batch(host: &Host, file: &Tensors, buffer: &Buf, start: usize) {
    for layer in 0.. {
        for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        {
            let name = format!("blk.{layer}.{name}.weight");
            let Some(entry) = file.get(&name) else { return };
            let (k, n) = (entry.dimensions[0], entry.dimensions[1]);
            let mut input = noise(ROWS * k as usize, 3);
            let mut out = vec![f32::NAN; ROWS * n as usize];
            let mut rows = numbers([k as i64, ROWS as i64, 1, 1], &mut input);
            let mut weight = weight(file, &name, buffer, start);
            let ne = [n as i64, ROWS as i64, 1, 1];
            let mut node = product(MUL_MAT, &mut [&mut weight, &mut rows], ne, &mut out);
            assert!(host.supports(&node), "{name}");
            assert_eq!(host.compute(vec![&mut node]), 0, "{:?}", log());
            assert!(out.iter().all(|value| value.is_finite()));
        }
    }
}

/// Loads of weights so far, by the last summary.
fn loads() -> usize {
    let lines = log();
    let line =
        lines.iter().rev().find(|line| line.contains(" loads of weights")).expect("a summary");
    let before = line.split(" loads of weights").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn each_verified_batch_is_one_pass_over_the_streamed_weights() {
    let (draft, verifier) = (
        written(Shape::tiny()),
        written(Shape { embedding: 512, feed_forward: 1024, layers: 3, ..Shape::tiny() }),
    );
    // What is streamed in a pass, as planned: the draft is the smaller one.
    let device = rknpu::Device::simulated(Default::default()).unwrap();
    let stores = [store(draft.path()), store(verifier.path())];
    let planned = ork_linear::open(&device, &stores, &Setup::new(BUDGET_MB << 20)).unwrap();
    let [small, large] = [0, 1].map(|i| planned[i].placed().streamed.len());
    assert_eq!(small, 0, "the draft stays");
    assert!(large > 5, "{large}");
    let resident: usize = stores.iter().map(|store| store.items().len()).sum::<usize>() - large;
    drop(planned);

    let budget = BUDGET_MB.to_string();
    let host = Host::new(Kind::V3, &[("ORK_WCACHE_BUDGET_MB", &budget), ("ORK_MIN_ROWS", "8")]);
    let host = host.unwrap();
    let files = [&draft, &verifier].map(|file| Tensors::open(file.path()).unwrap());
    let maps = [&draft, &verifier].map(|file| map(file.path()));
    let starts = files.each_ref().map(|file| file.header().data_start() as usize);
    let buffers = [0, 1].map(|i| host.wrap(&maps[i][starts[i]..]).usage(1));
    let rounds = 12;
    for _ in 0..rounds {
        for i in [0, 1] {
            batch(&host, &files[i], &buffers[i], starts[i]);
        }
    }
    let loads = loads();
    // The prefetcher may be ahead, by less than a pass; a head that nobody used is not there at all.
    let least = large.saturating_sub(1) * rounds;
    assert!((least..=large * (rounds + 1) + resident).contains(&loads), "{loads}, {large} a pass");
}
