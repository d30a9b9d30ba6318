//! The cache on the simulated device: the same bytes whatever the budget, the policy and the source.

#[path = "../../rknpu/tests/support/drivers.rs"]
mod drivers;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ork_cache::environment::PolicyKind;
use ork_cache::plan::{Item, PlanError};
use ork_cache::{Error, Given, Note, Opened, Prefetcher, Setup, Store, StoreError, Visit};
use ork_weights::convert::{Options, TierChoice, convert};
use ork_weights::model::{Model, OpenOptions, synth};
use ork_weights::pack::{Dtype, Pack, PackWriter, WriterOptions};
use ork_weights::quantise::Tier;
use rknpu::sim::config::Driver;
use rknpu::{Cores, Device, Domain, Matmul, Precision};

const ROWS: usize = 3;
/// Parts that lie side by side are counted as if all were as wide as the widest.
const SPARE: u64 = 512 << 10;

struct Bench {
    device: Device,
    cores: Cores,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(driver: Driver) -> Bench {
        let device = Device::simulated(drivers::with(driver)).unwrap();
        let cores = device.cores().unwrap();
        Bench { device, cores, folder: tempfile::tempdir().unwrap() }
    }

    fn model(&self) -> PathBuf {
        let path = self.folder.path().join("tiny.gguf");
        synth::Shape::sized(2 << 20).write(std::fs::File::create(&path).unwrap()).unwrap();
        path
    }

    fn pack_path(&self) -> PathBuf {
        self.folder.path().join("tiny.orkpack")
    }

    fn pack(&self) -> Pack<ork_weights::pack::PackFile> {
        Pack::open(self.pack_path()).unwrap()
    }

    /// Scratch for what is in each domain, or in those side by side.
    fn matmuls(&self, opened: &Opened) -> Vec<Option<Matmul>> {
        let matmul = |(group, domains): (usize, &[Domain])| {
            let limits = opened.limits(group, Precision::Int8)?;
            Some(Matmul::side_by_side(domains, &self.cores, limits).unwrap())
        };
        opened.groups().enumerate().map(matmul).collect()
    }

    fn run(&self, opened: &Opened, model: usize, items: &[Item], passes: usize) -> Vec<u64> {
        multiply(&mut self.matmuls(opened), opened, model, items, passes)
    }
}

/// A digest of each item's results in each of `passes` passes over a model, in order of use: every domain, or
/// those side by side, in a visit.
fn multiply(
    matmuls: &mut [Option<Matmul>],
    opened: &Opened,
    model: usize,
    items: &[Item],
    passes: usize,
) -> Vec<u64> {
    let (cache, placed) = (&opened.cache, &opened.models[model]);
    let mut digest = Vec::new();
    for _ in 0..passes {
        let mut visit: Option<Visit> = None;
        for (index, item) in items.iter().enumerate() {
            let columns = item.layout.n() as usize;
            let (mut whole, mut seen) = (vec![0; ROWS * columns], 0);
            for parts in placed.together(index) {
                let domain = parts[0].domain;
                if visit.as_ref().is_none_or(|visit| visit.domain() != domain) {
                    drop(visit.take());
                    visit = Some(cache.enter(domain).unwrap());
                }
                let matmul = matmuls[domain.index() / opened.lanes].as_mut().unwrap();
                let visit = visit.as_ref().unwrap();
                let pins = parts.iter().map(|part| visit.acquire(part.weight).unwrap());
                let pins: Vec<_> = pins.collect();
                let weights: Vec<_> = pins.iter().map(|p| p.weight_ref().unwrap()).collect();
                let k = item.layout.k();
                let mut rows = matmul.activations().lease(ROWS, k).unwrap();
                for row in 0..ROWS {
                    let input = (0..k as usize).map(|i| ((row * 3 + i) * 7 % 31) as i8 - 15);
                    rows.write_row(row, &input.collect::<Vec<_>>()).unwrap();
                }
                let rows = rows.to_device().unwrap();
                let mut product = matmul.multiply_all(&weights, &rows).unwrap();
                while let Some(outputs) = product.next_columns().unwrap() {
                    let column = parts[outputs.weight()].column as usize;
                    for row in 0..ROWS {
                        for segment in outputs.row(row) {
                            segment.sums(|at, sums| {
                                let start = row * columns + column + at.start as usize;
                                whole[start..start + sums.len()].copy_from_slice(sums);
                                seen += sums.len();
                            });
                        }
                    }
                }
            }
            assert_eq!(seen, whole.len());
            let fold = |d: u64, &v: &i32| d.wrapping_mul(31).wrapping_add(v as u64);
            digest.push(whole.iter().fold(0, fold));
        }
    }
    digest
}

fn open(path: &Path) -> Model {
    Model::open(path, &OpenOptions::default()).unwrap()
}

/// Models opened with `weights` bytes of device memory beside the scratch.
fn opened(
    bench: &Bench,
    stores: &[Arc<Store>],
    weights: u64,
    policy: Option<PolicyKind>,
) -> Opened {
    let scratch = ork_cache::scratch_bytes(&bench.device, stores, ROWS as u32);
    let setup = Setup { rows: ROWS as u32, policy, ..Setup::new(weights + scratch) };
    ork_cache::open(&bench.device, stores, &setup).unwrap()
}

fn resident_built_streamed_and_reloaded_give_the_same_results(driver: Driver) {
    let bench = Bench::new(driver);
    let path = bench.model();

    // Resident: room for everything, quantised on first use.
    let store = Arc::new(Store::from_model(open(&path), Tier::Int8, None).unwrap());
    let items = store.items();
    let total: u64 = items.iter().map(|i| i.bytes()).sum();
    let count = items.len() as u64;
    let all = opened(&bench, std::slice::from_ref(&store), total + SPARE, None);
    let resident = bench.run(&all, 0, items, 2);
    // On each core's domain there may be a part of a weight.
    let parts = all.models[0].parts.len() as u64;
    assert_eq!(parts, if all.lanes == 1 { count } else { 3 * count });
    assert_eq!((store.given().packed, all.cache.stats().hits), (parts, parts));
    drop(all);

    // Through half of the bytes, building the pack.
    let model = open(&path);
    let identity = model.identity(false).unwrap();
    let writer =
        PackWriter::create(bench.pack_path(), &identity, WriterOptions::default()).unwrap();
    let building = Arc::new(Store::from_model(model, Tier::Int8, Some(writer)).unwrap());
    let half = opened(&bench, std::slice::from_ref(&building), total / 2, Some(PolicyKind::Lru));
    assert_eq!(bench.run(&half, 0, items, 2), resident);
    let (limits, stats) = (half.cache.limits(), half.cache.stats());
    assert!(limits.total < total && stats.bytes_peak <= limits.total);
    assert!(stats.evictions > 0);
    let given = building.given();
    assert_eq!(given.packed + given.loaded, 2 * parts, "LRU never hits on a scan");
    drop(half);
    assert_eq!(u64::from(building.finish().unwrap().unwrap().weights), count);

    // From the pack, by policies and by plan, with and without prefetch.
    let store = Arc::new(Store::from_pack(bench.pack()));
    for policy in [Some(PolicyKind::Lfu), Some(PolicyKind::PinnedRing), None] {
        for prefetch in [false, true] {
            let half = opened(&bench, std::slice::from_ref(&store), total / 2, policy);
            let prefetcher = Prefetcher::new(&half.cache).unwrap();
            if prefetch {
                prefetcher.follow(&half.models[0].streamed);
            }
            let results = bench.run(&half, 0, items, 2);
            assert!(results == resident, "{policy:?}, prefetch {prefetch}");
            assert!(half.cache.stats().bytes_peak <= half.cache.limits().total);
            let domains = half.cache.domains().to_vec();
            drop((half, prefetcher));
            assert!(domains.iter().all(|d| d.stats().used == 0), "everything was freed");
        }
    }
    assert_eq!(store.given().packed, 0);
    assert!(bench.device.health().is_good());
}

fn a_model_over_several_domains_enters_each_once_a_pass(driver: Driver) {
    let bench = Bench::new(driver);
    let path = bench.model();
    let store = Arc::new(Store::from_model(open(&path), Tier::Int8, None).unwrap());
    let items = store.items();
    let total: u64 = items.iter().map(|i| i.bytes()).sum();
    let all = opened(&bench, std::slice::from_ref(&store), total + SPARE, None);
    let reference = bench.run(&all, 0, items, 1);
    drop(all);
    // Everything resident over several small domains, then less memory than the model needs.
    let head = items.last().map_or(0, |i| i.bytes());
    let scratch =
        ork_cache::scratch_bytes(&bench.device, std::slice::from_ref(&store), ROWS as u32);
    for budget in [total, total * 3 / 4] {
        // A domain, or those side by side, holds the layer, or the head, but not both.
        let lanes = bench.device.capabilities().spaces.lanes() as u64;
        let domain_bytes = (head.max(total - head) + SPARE + scratch) / lanes;
        let budget = budget + SPARE;
        let setup = Setup { rows: ROWS as u32, domain_bytes, ..Setup::new(budget + 2 * scratch) };
        let opened = ork_cache::open(&bench.device, std::slice::from_ref(&store), &setup).unwrap();
        let (cache, placed) = (&opened.cache, &opened.models[0]);
        let domains = opened.groups().count() as u64;
        assert!(budget < total || domains > 1);
        let prefetcher = Prefetcher::new(cache).unwrap();
        prefetcher.follow(&placed.streamed);
        let mut matmuls = bench.matmuls(&opened);
        assert_eq!(multiply(&mut matmuls, &opened, 0, items, 1), reference);
        let before = bench.device.stats().domain_switches;
        assert_eq!(multiply(&mut matmuls, &opened, 0, items, 1), reference);
        let switches = bench.device.stats().domain_switches - before;
        // The ring's worker may sync a slot between two visits.
        assert!(switches <= 2 * domains, "{switches} switches");
        assert!(cache.stats().bytes_peak <= budget);
    }
    assert!(bench.device.health().is_good());
}

fn two_models_share_a_process_a_budget_and_a_domain(driver: Driver) {
    let bench = Bench::new(driver);
    let model = open(&bench.model());
    let writer = PackWriter::create(bench.pack_path(), None, WriterOptions::default()).unwrap();
    Store::from_model(model, Tier::Int8, Some(writer)).unwrap().finish().unwrap();
    let stores = [0, 1].map(|_| Arc::new(Store::from_pack(bench.pack())));
    let (items, total) = (stores[0].items(), stores[0].bytes());
    // The first is resident, the second streamed.
    let both = opened(&bench, &stores, total + total / 2, None);
    assert!(both.models[0].streamed.is_empty() && !both.models[1].streamed.is_empty());
    let prefetcher = Prefetcher::new(&both.cache).unwrap();
    prefetcher.follow(&both.models[1].streamed);
    let (a, b) = std::thread::scope(|s| {
        let first = s.spawn(|| bench.run(&both, 0, items, 2));
        let second = s.spawn(|| bench.run(&both, 1, items, 2));
        (first.join().unwrap(), second.join().unwrap())
    });
    assert_eq!(a, b, "the same weights, so the same results");
    assert!(both.cache.stats().bytes_peak <= total + total / 2);
}

fn errors_name_the_numbers(driver: Driver) {
    let bench = Bench::new(driver);
    let path = bench.model();
    let store = Arc::new(Store::from_model(open(&path), Tier::Int8, None).unwrap());
    assert!(Store::from_model(open(&path), Tier::Nf4, None).is_err());
    let mut out = vec![0; 64];
    let layout = store.items()[0].layout;
    let short = store.load(0, 0, &layout, &mut out).unwrap_err();
    assert!(short.to_string().contains("64"), "{short}");
    assert!(store.load(usize::MAX, 0, &layout, &mut out).is_err());
    assert!(store.scales(usize::MAX).is_err());
    assert_eq!(store.scales(0).unwrap().len(), layout.n() as usize);
}

fn scratch_is_in_the_budget_and_the_smallest_budget_works(driver: Driver) {
    let bench = Bench::new(driver);
    let store = Arc::new(Store::from_model(open(&bench.model()), Tier::Int8, None).unwrap());
    let stores = [store.clone(), store.clone()];
    for (count, policy) in
        [(1, None), (1, Some(PolicyKind::Lru)), (2, None), (2, Some(PolicyKind::Lfu))]
    {
        let setup = |budget| Setup { rows: 256, policy, ..Setup::new(budget) };
        let error = ork_cache::open(&bench.device, &stores[..count], &setup(5000)).unwrap_err();
        let Error::Plan(PlanError::Budget { budget: 5000, smallest, scratch }) = error else {
            panic!("{error}");
        };
        let text = error.to_string();
        assert!(text.contains("5000") && text.contains(&smallest.to_string()), "{text}");
        assert_eq!(scratch, ork_cache::scratch_bytes(&bench.device, &stores[..count], 1));
        let below = ork_cache::open(&bench.device, &stores[..count], &setup(smallest - 4096));
        assert!(matches!(below, Err(Error::Plan(PlanError::Budget { .. }))), "{count} {policy:?}");
        for budget in [smallest, store.bytes() * count as u64 + (256 << 20)] {
            let opened = ork_cache::open(&bench.device, &stores[..count], &setup(budget)).unwrap();
            let blocks = opened.notes.iter().any(|n| matches!(n, Note::Blocks { .. }));
            assert_eq!(blocks, opened.rows < 256);
            assert_eq!(blocks, budget == smallest);
            let domains = opened.groups().next().unwrap();
            let limits = opened.limits(0, Precision::Int8).unwrap();
            let scratch: Matmul = Matmul::side_by_side(domains, &bench.cores, limits).unwrap();
            for model in 0..count {
                for part in &opened.models[model].parts {
                    drop(opened.cache.acquire(part.weight).unwrap());
                }
            }
            let peak: u64 = domains.iter().map(|domain| domain.stats().peak).sum();
            assert!(peak <= opened.bytes && opened.bytes <= budget);
            drop(scratch);
        }
    }
}

#[test]
fn without_domains_everything_goes_through_one() {
    use rknpu::{capabilities::Domains, sim};
    let real = Bench::new(Driver::Rknpu);
    let path = real.model();
    let store = Arc::new(Store::from_model(open(&path), Tier::Int8, None).unwrap());
    let head = store.items().last().unwrap().bytes();
    let scratch = ork_cache::scratch_bytes(&real.device, std::slice::from_ref(&store), ROWS as u32);
    // A domain holds the layer, or the head, but not both.
    let domain_bytes = head.max(store.bytes() - head) + scratch;
    let setup = Setup { rows: ROWS as u32, domain_bytes, ..Setup::new(1 << 30) };
    let several = ork_cache::open(&real.device, std::slice::from_ref(&store), &setup).unwrap();
    assert!(several.cache.domains().len() > 1 && several.notes.is_empty());
    let wanted = real.run(&several, 0, store.items(), 1);
    let configs = [
        (sim::Config { domains: sim::config::Domains::Stub, ..Default::default() }, Domains::Stub),
        (sim::Config { iommu: false, ..Default::default() }, Domains::None),
        (
            sim::Config { version: sim::config::Version::V0_9_7, ..Default::default() },
            Domains::None,
        ),
    ];
    for (config, domains) in configs {
        let device = Device::simulated(config).unwrap();
        let bench =
            Bench { cores: device.cores().unwrap(), device, folder: tempfile::tempdir().unwrap() };
        let opened = ork_cache::open(&bench.device, std::slice::from_ref(&store), &setup).unwrap();
        assert_eq!(opened.notes, [Note::OneDomain { domains, bytes: domain_bytes }]);
        assert!(opened.notes[0].to_string().contains("one domain of"));
        assert_eq!(opened.cache.domains().len(), 1);
        assert!(!opened.models[0].streamed.is_empty(), "one domain does not hold all");
        assert_eq!(bench.run(&opened, 0, store.items(), 1), wanted);
        assert!(opened.cache.domains()[0].stats().peak <= domain_bytes);
        assert!(bench.device.health().is_good(), "{}", bench.device.health());
    }
}

fn a_finished_pack_serves_and_columns_are_cut_out_of_compact_forms(driver: Driver) {
    let bench = Bench::new(driver);
    let model = open(&bench.model());
    let writer = PackWriter::create(bench.pack_path(), None, WriterOptions::default()).unwrap();
    let store = Store::from_model(model, Tier::Int8, Some(writer)).unwrap();
    let whole = store.items()[0].layout;
    let mut all = vec![0; whole.bytes() as usize];
    store.load(0, 0, &whole, &mut all).unwrap();
    assert!(store.is_building() && store.finish_if_whole().unwrap().is_none());
    for (item, i) in store.items().iter().enumerate() {
        store.load(item, 0, &i.layout, &mut vec![0; i.bytes() as usize]).unwrap();
    }
    assert_eq!(store.finish_if_whole().unwrap().unwrap().weights as usize, store.items().len());
    let (packed, mut again) = (store.given().packed, vec![1; all.len()]);
    store.load(0, 0, &whole, &mut again).unwrap();
    assert_eq!((store.given(), store.is_building()), (Given { loaded: 1, packed }, false));
    assert!(again == all);
    let small = Store::from_pack(bench.pack()).head(1);
    assert_eq!(small.items().len(), 1);

    // The same weight in a compact form: a part of it is what the whole has there.
    let path = bench.folder.path().join("compact.orkpack");
    let tiers = TierChoice::fixed(Tier::O4n1);
    let options = Options { tiers, ..Options::default() };
    convert(&open(&bench.model()), &path, &options, |_| ()).unwrap();
    let store = Store::from_pack(Pack::open(&path).unwrap());
    let whole = store.items()[0].layout;
    let part = rknpu::Layout::new(whole.k(), 64, whole.precision()).unwrap();
    let mut all = vec![0; whole.bytes() as usize];
    let mut some = vec![1; part.bytes() as usize];
    store.load(0, 0, &whole, &mut all).unwrap();
    store.load(0, 64, &part, &mut some).unwrap();
    let k = whole.k() as usize;
    assert!(codes(&part, &some) == codes(&whole, &all)[64 * k..128 * k]);
}

/// Codes of a tiled weight, channel by channel.
fn codes(layout: &rknpu::Layout, tiles: &[u8]) -> Vec<i8> {
    ork_weights::reference::codes(layout, tiles).unwrap()
}

/// Loads every weight of a store in parts of so many columns, the last of them narrower, and compares
/// each with those columns of the whole.
fn load_in_parts(store: &Store, width: u32, wholes: &[Vec<u8>]) {
    for (item, i) in store.items().iter().enumerate() {
        let whole = i.layout;
        let (k, all) = (whole.k() as usize, codes(&whole, &wholes[item]));
        for column in (0..whole.n()).step_by(width as usize) {
            let n = width.min(whole.n() - column);
            let part = rknpu::Layout::new(whole.k(), n, whole.precision()).unwrap();
            let mut out = vec![9; part.bytes() as usize];
            store.load(item, column, &part, &mut out).unwrap();
            let theirs = &all[column as usize * k..(column + n) as usize * k];
            assert!(codes(&part, &out) == theirs, "{} from {column}", i.name);
        }
    }
}

fn weights_that_come_in_columns_make_the_same_pack(driver: Driver) {
    let bench = Bench::new(driver);
    let path = bench.folder.path().join("wide.gguf");
    // One of its kinds is quantised in pieces and spans two n-slices and three k-slices.
    let shape =
        synth::Shape { embedding: 2304, feed_forward: 8704, layers: 1, ..synth::Shape::tiny() };
    shape.write(std::fs::File::create(&path).unwrap()).unwrap();
    let identity = open(&path).identity(false).unwrap();
    let options = WriterOptions::default();
    let at = |name: &str| bench.folder.path().join(name);
    let building = |name: &str| {
        let writer = PackWriter::create(at(name), &identity, options.clone()).unwrap();
        Store::from_model(open(&path), Tier::Int8, Some(writer)).unwrap().evict_source(true)
    };
    let bytes = |name: &str| std::fs::read(at(name)).unwrap();

    let store = building("whole.orkpack");
    let load = |(item, i): (usize, &Item)| {
        let mut out = vec![0; i.bytes() as usize];
        store.load(item, 0, &i.layout, &mut out).unwrap();
        out
    };
    let wholes: Vec<_> = store.items().iter().enumerate().map(load).collect();
    store.finish_if_whole().unwrap().unwrap();
    let expected = bytes("whole.orkpack");
    let count = store.items().len() as u64;

    // Each is made once, with its first columns; the rest is read from what is written.
    let store = building("columns.orkpack");
    load_in_parts(&store, 1056, &wholes);
    let parts: u64 = store.items().iter().map(|i| u64::from(i.layout.n().div_ceil(1056))).sum();
    assert_eq!(store.given(), Given { packed: count, loaded: parts - count });
    let scales: Vec<_> = (0..store.items().len()).map(|i| store.scales(i).unwrap()).collect();
    assert_eq!(store.given().packed, count, "scales came with the columns");
    store.finish_if_whole().unwrap().unwrap();
    assert!(bytes("columns.orkpack") == expected);

    // Never used: made at the end.
    building("unused.orkpack").finish().unwrap().unwrap();
    assert!(bytes("unused.orkpack") == expected);

    // Interrupted after some columns of the third, and gone on with.
    let store = building("resumed.orkpack");
    for item in 0..3 {
        let whole = store.items()[item].layout;
        let part = rknpu::Layout::new(whole.k(), 64, whole.precision()).unwrap();
        store.load(item, 64, &part, &mut vec![0; part.bytes() as usize]).unwrap();
    }
    drop(store);
    let store = building("resumed.orkpack");
    // Narrow enough for all three to come in parts, which are read from what is there.
    load_in_parts(&store, 512, &wholes);
    assert_eq!(store.given().packed, count - 3);
    assert!((0..3).all(|i| store.scales(i).unwrap() == scales[i]));
    assert_eq!(store.finish().unwrap().unwrap().resumed, 3);
    assert!(bytes("resumed.orkpack") == expected);

    // Without a pack, the columns that are asked for are made, and nothing else.
    let store = Store::from_model(open(&path), Tier::Int8, None).unwrap();
    load_in_parts(&store, 1056, &wholes);
    assert_eq!(store.given().loaded, 0);
    assert!(scales.iter().enumerate().all(|(i, scales)| store.scales(i).unwrap() == *scales));
}

fn columns_of_another_weight_in_the_pack_being_built_are_not_used(driver: Driver) {
    let bench = Bench::new(driver);
    let model = open(&bench.model());
    let mut writer = PackWriter::create(bench.pack_path(), None, WriterOptions::default()).unwrap();
    // The name of the first weight is taken by something else.
    let name = model.weights()[0].name.clone();
    writer.add(&name, 32, 128, Dtype::Int8, &[7; 4096], &[1.0; 128]).unwrap();
    let store = Store::from_model(model, Tier::Int8, Some(writer)).unwrap();
    let whole = store.items()[0].layout;
    let part = rknpu::Layout::new(whole.k(), 64, whole.precision()).unwrap();
    let (mut all, mut some) = (vec![0; whole.bytes() as usize], vec![1; part.bytes() as usize]);
    store.load(0, 0, &whole, &mut all).unwrap();
    store.load(0, 64, &part, &mut some).unwrap();
    let k = whole.k() as usize;
    assert!(codes(&part, &some) == codes(&whole, &all)[64 * k..128 * k]);
}

fn a_model_that_changes_while_its_pack_is_built_gives_no_weight_and_no_pack(driver: Driver) {
    let bench = Bench::new(driver);
    let path = bench.model();
    let building = || {
        let model = open(&path);
        let identity = model.identity(false).unwrap();
        let writer =
            PackWriter::create(bench.pack_path(), &identity, WriterOptions::default()).unwrap();
        Store::from_model(model, Tier::Int8, Some(writer)).unwrap()
    };
    let overwrite = || {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0x11; 4096], std::fs::metadata(&path).unwrap().len() - 8192).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    let load = |store: &Store, item: usize| {
        let layout = store.items()[item].layout;
        store.load(item, 0, &layout, &mut vec![0; layout.bytes() as usize])
    };
    let changed = |error: StoreError| {
        let text = error.to_string();
        assert!(text.contains("tiny.gguf") && text.contains("chang"), "{text}");
    };

    // Between two weights: the second is refused.
    let store = building();
    load(&store, 0).unwrap();
    overwrite();
    changed(load(&store, 1).unwrap_err());
    changed(store.finish().unwrap_err());
    drop(store);
    assert!(!bench.pack_path().exists());

    // After the last one: there is no pack.
    let path = bench.model();
    let store = building();
    (0..store.items().len()).for_each(|item| load(&store, item).unwrap());
    overwrite();
    changed(store.finish_if_whole().unwrap_err());
    drop((store, path));
    let left: Vec<_> = std::fs::read_dir(bench.folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the model is left: {left:?}");
}

drivers::on_both_drivers!(
    resident_built_streamed_and_reloaded_give_the_same_results,
    a_model_over_several_domains_enters_each_once_a_pass,
    two_models_share_a_process_a_budget_and_a_domain,
    errors_name_the_numbers,
    scratch_is_in_the_budget_and_the_smallest_budget_works,
    a_finished_pack_serves_and_columns_are_cut_out_of_compact_forms,
    weights_that_come_in_columns_make_the_same_pack,
    columns_of_another_weight_in_the_pack_being_built_are_not_used,
    a_model_that_changes_while_its_pack_is_built_gives_no_weight_and_no_pack,
);
