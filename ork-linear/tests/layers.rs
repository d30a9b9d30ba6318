//! Layers of made-up models on the simulator: whoever computes and wherever weights are, the same bits.

#[path = "../../rknpu/tests/support/drivers.rs"]
mod drivers;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use ork_cache::Store;
use ork_cache::plan::{Board, Plan};
use ork_linear::{Depth, Error, Layers, Product, Setup, open};
use ork_weights::convert::{Options, TierChoice, convert};
use ork_weights::model::{Model, OpenOptions, synth::Shape};
use ork_weights::pack::Pack;
use ork_weights::quantise::Tier;
use rknpu::Device;
use rknpu::sim::config::{Config, Driver};
use rknpu::sim::{Fault, Machine};

const ROTATED: Tier = Tier::RotatedInt8 { group: None };

/// A made-up model, and the pack of a tier.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        Shape::tiny().write(File::create(path).unwrap()).unwrap();
        Files { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn model(&self) -> Model {
        Model::open(self.path().join("model.gguf"), &OpenOptions::default()).unwrap()
    }

    fn store_of_model(&self, tier: Tier) -> Arc<Store> {
        Arc::new(Store::from_model(self.model(), tier, None).unwrap())
    }

    fn store_of_pack(&self, tier: Tier) -> Arc<Store> {
        let path = self.path().join(format!("{tier}.orkpack"));
        if !path.exists() {
            let options = Options { tiers: TierChoice::fixed(tier), ..Options::default() };
            convert(&self.model(), &path, &options, |_| {}).unwrap();
        }
        Arc::new(Store::from_pack(Pack::open(&path).unwrap()))
    }
}

fn device(driver: Driver) -> Device {
    Device::simulated(drivers::with(driver)).unwrap()
}

fn setup(store: &Store, part: u64, depth: Depth) -> Setup {
    let mut setup = Setup::new(store.bytes() / part + (1 << 20));
    setup.cache.rows = 40;
    setup.depth = depth;
    setup
}

/// Noise of [−1, 1).
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mix = |i: usize| (i as u32).wrapping_add(seed).wrapping_mul(0x9e37_79b9).rotate_left(13);
    (0..count).map(|i| mix(i).wrapping_mul(0x85eb_ca6b) as i32 as f32 / 2f32.powi(31)).collect()
}

/// Two passes over all weights, `m` rows of noise: lists of all that follow each other with one K.
fn passes(layers: &mut Layers, m: usize) -> Result<Vec<Vec<f32>>, Error> {
    let weights = layers.store().items().len();
    let shape = |layers: &Layers, weight| {
        let (k, n) = layers.shape(weight).unwrap();
        (k as usize, n as usize)
    };
    let mut all = Vec::new();
    for _ in 0..2 {
        let mut first = 0;
        while first < weights {
            let k = shape(layers, first).0;
            let same = (first..weights).take_while(|w| shape(layers, *w).0 == k).count();
            let input = noise(m * k, first as u32);
            let mut outs: Vec<Vec<f32>> = (first..first + same)
                .map(|weight| vec![f32::NAN; m * shape(layers, weight).1])
                .collect();
            let products = outs.iter_mut().zip(first..);
            layers.multiply(m, &input, products.map(|(out, weight)| Product { weight, out }))?;
            all.extend(outs);
            first += same;
        }
    }
    Ok(all)
}

fn bits(results: &[Vec<f32>]) -> Vec<u32> {
    results.iter().flatten().map(|value| value.to_bits()).collect()
}

fn who_computes_and_where_weights_are_does_not_show(driver: Driver) {
    let files = Files::new();
    for tier in [Tier::Int8, ROTATED, Tier::Nf4, Tier::Fp16] {
        for depth in [Depth::Bits8, Depth::Bits16] {
            let store = files.store_of_pack(tier);
            let resident = Setup { npu_rows: usize::MAX, ..setup(&store, 1, depth) };
            let mut layers = open(&device(driver), slice::from_ref(&store), &resident).unwrap();
            let want = bits(&passes(&mut layers[0], 33).unwrap());
            let context = format!("{tier}, {depth} bits");
            assert!(want.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{context}");
            // Streamed and resident, NPU and CPU, cut into other batches.
            for part in [1, 3] {
                for npu_rows in [1, usize::MAX] {
                    let machine = Machine::new(drivers::with(driver));
                    let device = Device::simulated_on(&machine).unwrap();
                    let setup = Setup { npu_rows, ..setup(&store, part, depth) };
                    let mut layers = open(&device, slice::from_ref(&store), &setup).unwrap();
                    let streamed = !layers[0].placed().streamed.is_empty();
                    assert_eq!(streamed, part > 1, "{context}, a {part}th of the budget");
                    let before = machine.report().jobs;
                    let got = bits(&passes(&mut layers[0], 33).unwrap());
                    assert!(got == want, "{context}, a {part}th, NPU from {npu_rows} rows");
                    let on_npu = npu_rows == 1 && tier != Tier::Fp16;
                    assert_eq!(machine.report().jobs > before, on_npu, "{context}");
                    assert!(layers[0].npu_failure().is_none());
                }
            }
        }
    }
}

fn packs_and_models_give_the_same(driver: Driver) {
    let files = Files::new();
    for tier in [Tier::Int8, ROTATED, Tier::Fp16] {
        let [one, other] = [files.store_of_pack(tier), files.store_of_model(tier)].map(|store| {
            let setup = setup(&store, 3, Depth::Bits16);
            let mut layers = open(&device(driver), &[store], &setup).unwrap();
            bits(&passes(&mut layers[0], 5).unwrap())
        });
        assert!(one == other, "{tier}");
    }
}

/// Two tiers beside each other: the same input goes to the device as it is and transformed, in turn.
fn lists_of_two_tiers_get_the_rows_that_each_needs(driver: Driver) {
    let files = Files::new();
    let path = files.path().join("mixed.orkpack");
    let mut tiers = TierChoice::fixed(ROTATED);
    tiers.add("*attn_k*=int8").unwrap();
    tiers.add("*ffn_up*=int8").unwrap();
    convert(&files.model(), &path, &Options { tiers, ..Options::default() }, |_| {}).unwrap();
    let store = Arc::new(Store::from_pack(Pack::open(&path).unwrap()));
    let [one, other] = [1, usize::MAX].map(|npu_rows| {
        let setup = Setup { npu_rows, ..setup(&store, 1, Depth::Bits16) };
        let mut layers = open(&device(driver), slice::from_ref(&store), &setup).unwrap();
        bits(&passes(&mut layers[0], 5).unwrap())
    });
    assert!(one == other);
}

fn two_models_share_a_device(driver: Driver) {
    let files = Files::new();
    let stores = [files.store_of_pack(ROTATED), files.store_of_pack(Tier::Int8)];
    let alone = stores.each_ref().map(|store| {
        let mut layers =
            open(&device(driver), slice::from_ref(store), &setup(store, 1, Depth::Bits8)).unwrap();
        bits(&passes(&mut layers[0], 40).unwrap())
    });
    let setup = setup(&stores[0], 1, Depth::Bits8);
    let mut both = open(&device(driver), &stores, &setup).unwrap();
    assert!(!both[1].placed().streamed.is_empty(), "the second has what is left");
    for (layers, alone) in both.iter_mut().zip(&alone).rev() {
        assert!(bits(&passes(layers, 40).unwrap()) == *alone);
    }
}

fn a_row_is_the_same_in_every_batch(driver: Driver) {
    let files = Files::new();
    let store = files.store_of_pack(ROTATED);
    let mut setup = setup(&store, 3, Depth::Bits16);
    setup.cache.rows = 7; // the NPU takes batches in blocks
    let mut layers = open(&device(driver), &[store], &setup).unwrap();
    let layers = &mut layers[0];
    let (k, n) = layers.shape(0).unwrap();
    let (k, n) = (k as usize, n as usize);
    let input = noise(50 * k, 1);
    let mut all = vec![0.0; 50 * n];
    layers.multiply(50, &input, [Product { weight: 0, out: &mut all }]).unwrap();
    for (row, want) in input.chunks(k).zip(all.chunks(n)) {
        let mut out = vec![0.0; n];
        layers.multiply(1, row, [Product { weight: 0, out: &mut out }]).unwrap();
        assert_eq!(out, want);
    }
}

fn a_wedged_npu_is_replaced_in_the_middle(driver: Driver) {
    let files = Files::new();
    let store = files.store_of_pack(ROTATED);
    for part in [1, 3] {
        let setup = Setup { npu_rows: 1, ..setup(&store, part, Depth::Bits16) };
        let mut sound = open(&device(driver), slice::from_ref(&store), &setup).unwrap();
        let want = bits(&passes(&mut sound[0], 3).unwrap());
        for after in [0, 3, 11] {
            let machine = Machine::new(drivers::with(driver));
            let device = Device::simulated_on(&machine).unwrap();
            let mut layers = open(&device, slice::from_ref(&store), &setup).unwrap();
            // A product and its repetition, in each space that has a part of it.
            let times = 2 * device.capabilities().spaces.lanes() as u32;
            machine.inject(Fault::Hang { core: None, after, times });
            let got = bits(&passes(&mut layers[0], 3).unwrap());
            assert!(got == want, "a {part}th, hang number {after}");
            let failure = layers[0].npu_failure().expect("the NPU was lost");
            assert!(failure.to_string().contains("matmul"), "{failure}");
            assert!(layers[0].npu_failure().is_none(), "said once");
            let jobs = machine.report().jobs;
            assert!(bits(&passes(&mut layers[0], 3).unwrap()) == want, "afterwards");
            assert_eq!(machine.report().jobs, jobs, "nothing more is submitted");
        }
    }
}

fn a_job_that_hangs_once_is_repeated(driver: Driver) {
    let files = Files::new();
    let store = files.store_of_pack(Tier::Int8);
    let setup = Setup { npu_rows: 1, ..setup(&store, 1, Depth::Bits8) };
    let mut sound = open(&device(driver), slice::from_ref(&store), &setup).unwrap();
    let want = bits(&passes(&mut sound[0], 3).unwrap());
    let machine = Machine::new(drivers::with(driver));
    let device = Device::simulated_on(&machine).unwrap();
    let mut layers = open(&device, &[store], &setup).unwrap();
    machine.inject(Fault::Hang { core: None, after: 2, times: 1 });
    assert!(bits(&passes(&mut layers[0], 3).unwrap()) == want);
    assert!(layers[0].npu_failure().is_none());
}

fn what_cannot_be_multiplied_is_refused(driver: Driver) {
    let files = Files::new();
    let int4 = files.store_of_pack(Tier::Int4 { group: None });
    let error =
        open(&device(driver), slice::from_ref(&int4), &setup(&int4, 1, Depth::Bits8)).unwrap_err();
    assert!(
        matches!(&error, Error::Stored { .. }) && error.to_string().contains("int4"),
        "{error}"
    );

    let store = files.store_of_pack(Tier::Int8);
    let mut layers =
        open(&device(driver), slice::from_ref(&store), &setup(&store, 1, Depth::Bits8)).unwrap();
    let layers = &mut layers[0];
    let (k, n) = layers.shape(0).unwrap();
    let (k, n) = (k as usize, n as usize);
    let mut out = vec![0.0; n];
    let known = store.items().len();
    let error = layers.multiply(1, &vec![0.0; k], [Product { weight: known, out: &mut out }]);
    assert!(matches!(error, Err(Error::Unknown { weight, known: k }) if weight == k && k == known));
    for (inputs, outputs) in [(k - 1, n), (k, n - 1), (2 * k, n)] {
        let product = Product { weight: 0, out: &mut out[..outputs] };
        let error = layers.multiply(1, &vec![0.0; inputs], [product]);
        assert!(matches!(error, Err(Error::Length { .. })), "{inputs} {outputs}");
    }
    assert_eq!(layers.find(&store.items()[3].name), Some(3));
    assert_eq!(layers.find("no such weight"), None);
}

fn a_damaged_pack_is_an_error(driver: Driver) {
    let files = Files::new();
    let store = files.store_of_pack(Tier::Int8);
    let mut layers =
        open(&device(driver), slice::from_ref(&store), &setup(&store, 1, Depth::Bits8)).unwrap();
    let path = files.path().join("int8.orkpack");
    File::options().write(true).open(path).unwrap().set_len(8192).unwrap();
    for m in [1, 40] {
        let error = passes(&mut layers[0], m).unwrap_err().to_string();
        assert!(!error.is_empty(), "{error}");
    }
}

/// What happens to one weight is nothing to the NPU: the others are still its.
fn a_weight_that_cannot_be_read_leaves_the_npu_to_the_others(driver: Driver) {
    let files = Files::new();
    let path = files.path().join("int8.orkpack");
    files.store_of_pack(Tier::Int8);
    let pack = Pack::open(&path).unwrap();
    let bad = pack.entries().iter().find(|entry| entry.name.contains("ffn_up")).unwrap();
    let (bad, at) = (bad.name.clone(), bad.blob_range().start);
    drop(pack);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    for part in [1, 3] {
        let store = files.store_of_pack(Tier::Int8);
        let machine = Machine::new(drivers::with(driver));
        let device = Device::simulated_on(&machine).unwrap();
        let setup = Setup { npu_rows: 1, ..setup(&store, part, Depth::Bits8) };
        let mut layers = open(&device, slice::from_ref(&store), &setup).unwrap();
        let layers = &mut layers[0];
        for _ in 0..2 {
            for weight in 0..store.items().len() {
                let (k, n) = layers.shape(weight).unwrap();
                let (input, mut out) = (noise(3 * k as usize, 1), vec![0.0; 3 * n as usize]);
                let jobs = machine.report().jobs;
                let done = layers.multiply(3, &input, [Product { weight, out: &mut out }]);
                if store.items()[weight].name == bad {
                    let error = done.unwrap_err();
                    assert!(matches!(&error, Error::Store(_)), "{error:?}");
                    assert!(error.to_string().contains(&*bad), "{error}");
                } else {
                    done.unwrap();
                    assert!(machine.report().jobs > jobs, "weight {weight}, a {part}th");
                }
                assert!(layers.npu_failure().is_none());
            }
        }
    }
}

/// The seven products of each layer, as a decoder asks for them: q, k and v, then o, gate and up, down.
fn decoder_passes(layers: &mut Layers, blocks: u32, m: usize, passes: usize) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for _ in 0..passes {
        for block in 0..blocks {
            for names in [
                &["attn_q", "attn_k", "attn_v"][..],
                &["attn_output"],
                &["ffn_gate", "ffn_up"],
                &["ffn_down"],
            ] {
                let find =
                    |name: &&str| layers.find(&format!("blk.{block}.{name}.weight")).unwrap();
                let weights: Vec<usize> = names.iter().map(find).collect();
                let shape = |weight: &usize| layers.shape(*weight).unwrap();
                let input = noise(m * shape(&weights[0]).0 as usize, block);
                let mut outs: Vec<Vec<f32>> =
                    weights.iter().map(|w| vec![f32::NAN; m * shape(w).1 as usize]).collect();
                let products = weights.iter().zip(&mut outs);
                layers
                    .multiply(m, &input, products.map(|(&weight, out)| Product { weight, out }))
                    .unwrap();
                all.extend(outs);
            }
        }
    }
    all
}

#[test]
fn a_dense_layer_is_four_submits_a_core() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let shape = Shape { embedding: 1024, feed_forward: 2048, layers: 2, ..Shape::tiny() };
    shape.write(File::create(&path).unwrap()).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    let store = Arc::new(Store::from_model(model, ROTATED, None).unwrap());
    for depth in [Depth::Bits8, Depth::Bits16] {
        let mut setup = setup(&store, 1, depth);
        setup.cache.budget = 1 << 30;
        let by_cpu = Setup { npu_rows: usize::MAX, ..setup.clone() };
        let mut cpu = open(&device(Driver::Rknpu), slice::from_ref(&store), &by_cpu).unwrap();
        let want = bits(&decoder_passes(&mut cpu[0], shape.layers, 40, 1));

        let machine = Machine::new(Config::default());
        let device = Device::simulated_on(&machine).unwrap();
        let mut layers = open(&device, slice::from_ref(&store), &setup).unwrap();
        assert!(layers[0].placed().streamed.is_empty());
        // Loads the weights, one by one.
        assert!(bits(&decoder_passes(&mut layers[0], shape.layers, 40, 1)) == want, "{depth} bits");
        let starts = || machine.report().cores.map(|core| core.starts);
        let before = starts();
        assert!(bits(&decoder_passes(&mut layers[0], shape.layers, 40, 1)) == want, "{depth} bits");
        for (core, (after, before)) in starts().into_iter().zip(before).enumerate() {
            let submits = after - before;
            assert!((1..=4 * u64::from(shape.layers)).contains(&submits), "core {core}: {submits}");
        }
    }
}

/// What the cache has loaded, once nothing more is loaded ahead.
fn settled_loads(layers: &Layers) -> u64 {
    let loads = || layers.cache().stats().loads();
    let (mut last, mut same) = (loads(), 0);
    while same < 10 {
        std::thread::sleep(Duration::from_millis(10));
        let now = loads();
        (last, same) = (now, if now == last { same + 1 } else { 0 });
    }
    last
}

#[test]
fn a_pass_loads_what_ork_plan_says_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let shape = Shape { embedding: 512, feed_forward: 1024, layers: 4, ..Shape::tiny() };
    shape.write(File::create(&path).unwrap()).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    let store = Arc::new(Store::from_model(model, ROTATED, None).unwrap());
    for part in [2, 4] {
        let setup = setup(&store, part, Depth::Bits16);
        let board = Board {
            budget: Some(setup.cache.budget),
            rows: setup.cache.rows * 2,
            ..Board::known("rk3588-16g").unwrap()
        };
        let plan = Plan::new("model", store.items(), &board).unwrap();
        let best = plan.cost.loads_per_pass;
        assert!(best > 0, "a {part}th");
        let device = device(Driver::Rknpu);
        let mut layers = open(&device, slice::from_ref(&store), &setup).unwrap();
        let layers = &mut layers[0];
        // The first passes load what stays.
        every_weight(layers, 2);
        let before = settled_loads(layers);
        every_weight(layers, 5);
        assert_eq!(settled_loads(layers) - before, 5 * best, "a {part}th");
    }
}

/// Passes over all weights in the order of their file, 33 rows each.
fn every_weight(layers: &mut Layers, passes: usize) {
    let weights = layers.store().items().len();
    for weight in (0..passes).flat_map(|_| 0..weights) {
        let (k, n) = layers.shape(weight).unwrap();
        let (input, mut out) = (noise(33 * k as usize, 1), vec![0.0; 33 * n as usize]);
        layers.multiply(33, &input, [Product { weight, out: &mut out }]).unwrap();
    }
}

fn lists_that_stream_take_what_is_ready_and_never_wait_for_their_own_slots(driver: Driver) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let shape = Shape { embedding: 512, feed_forward: 1024, layers: 3, ..Shape::tiny() };
    shape.write(File::create(&path).unwrap()).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    let store = Arc::new(Store::from_model(model, ROTATED, None).unwrap());
    let by_cpu = Setup { npu_rows: usize::MAX, ..setup(&store, 1, Depth::Bits8) };
    let mut cpu = open(&device(driver), slice::from_ref(&store), &by_cpu).unwrap();
    let want = bits(&decoder_passes(&mut cpu[0], shape.layers, 33, 2));
    for part in [2, 3, 6] {
        let mut layers =
            open(&device(driver), slice::from_ref(&store), &setup(&store, part, Depth::Bits8))
                .unwrap();
        assert!(!layers[0].placed().streamed.is_empty());
        let got = bits(&decoder_passes(&mut layers[0], shape.layers, 33, 2));
        assert!(got == want, "a {part}th");
        assert!(layers[0].npu_failure().is_none());
    }
}

drivers::on_both_drivers!(
    who_computes_and_where_weights_are_does_not_show,
    packs_and_models_give_the_same,
    lists_of_two_tiers_get_the_rows_that_each_needs,
    two_models_share_a_device,
    a_row_is_the_same_in_every_batch,
    a_wedged_npu_is_replaced_in_the_middle,
    a_job_that_hangs_once_is_repeated,
    what_cannot_be_multiplied_is_refused,
    a_damaged_pack_is_an_error,
    a_weight_that_cannot_be_read_leaves_the_npu_to_the_others,
    lists_that_stream_take_what_is_ready_and_never_wait_for_their_own_slots,
);
