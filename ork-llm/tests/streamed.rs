//! Weights that do not fit: what a pass, a draft and a router load.

mod common;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{families, gguf::Model};
use ork_cache::plan::PlanError;
use ork_cache::{Cache, Error as CacheError, Stats, Store};
use ork_linear::{Error as LayersError, Layers, Setup};
use ork_llm::{
    Decoder, DraftModel, LinearError, Linears, Product, Reference, Sampler, Session, Weight,
};
use ork_weights::model::gguf::Tensors;
use ork_weights::model::{Model as Weights, OpenOptions};
use ork_weights::quantise::Tier;

/// A model's file, which lives as long as the test.
fn file(model: &Model) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    model.write(file.path());
    file
}

/// The layers of a model within the least budget that works, and `more` bytes.
fn streamed(file: &tempfile::NamedTempFile, more: u64) -> Layers {
    let open = |budget| {
        let weights = Weights::open(file.path(), &OpenOptions::default()).unwrap();
        let store = Arc::new(Store::from_model(weights, Tier::default(), None).unwrap());
        let device = rknpu::Device::simulated(Default::default()).unwrap();
        let mut setup = Setup::new(budget);
        setup.cache.rows = 16;
        setup.cache.routed = store.items().iter().any(|item| item.expert.is_some());
        ork_linear::open(&device, &[store], &setup)
    };
    let smallest = match open(1) {
        Err(LayersError::Cache(CacheError::Plan(PlanError::Budget { smallest, .. }))) => smallest,
        other => panic!("{other:?}"),
    };
    open(smallest + more).unwrap().remove(0)
}

#[test]
fn a_round_of_a_draft_is_one_pass_over_what_is_streamed() {
    let model = file(&families::qwen3());
    let layers = streamed(&model, 0);
    let (cache, once) = (layers.cache().clone(), layers.placed().streamed_bytes());
    let resident = layers.store().bytes() - once;
    assert!(once > resident / 4, "{once} of {resident} bytes are streamed");
    let open = || Tensors::open(model.path()).unwrap();
    let decoder = Decoder::new(open(), Box::new(layers)).unwrap();
    // The same model in f32, which is often right.
    let small = Decoder::new(open(), Box::new(Reference::f32(&open()).unwrap())).unwrap();
    let mut session =
        Session::new(decoder, 128).with_draft(Box::new(DraftModel::new(small, 128)), 5);
    session.prompt(&families::PROMPT).unwrap();
    let done =
        session.generate(&Sampler::greedy(), 60, |_| false, |_| ControlFlow::Continue(())).unwrap();
    assert!(done.tokens == 60 && done.passes <= 20 && done.accepted >= 40, "{done:?}");
    // What is loaded ahead for a pass that does not come is less than a pass.
    let loaded = cache.stats().bytes_loaded - resident;
    let range = (done.passes - 1) * once..(done.passes + 1) * once;
    assert!(range.contains(&loaded), "{loaded} bytes are not {} passes of {once}", done.passes);
}

/// What a mixture asks for, and what is there by then.
struct Watched {
    layers: Layers,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// Weights of the experts that were chosen.
    chosen: HashSet<u32>,
    /// Loads that began while a product waited for them, of experts.
    demanded: u64,
}

/// Waits until nothing is loaded any more, `quiet` at a time.
fn settle(cache: &Cache) -> Stats {
    let end = Instant::now() + Duration::from_secs(20);
    let mut before = cache.stats();
    loop {
        sleep(Duration::from_millis(20));
        let now = cache.stats();
        if now.loads() == before.loads() && now.bytes_loaded == before.bytes_loaded
            || Instant::now() > end
        {
            return now;
        }
        before = now;
    }
}

impl Linears for Watched {
    fn weight(&self, name: &str) -> Option<Weight> {
        self.layers.weight(name)
    }

    fn multiply(
        &mut self,
        rows: usize,
        input: &[f32],
        products: &mut [Product<'_>],
    ) -> Result<(), LinearError> {
        let expert = |product: &Product<'_>| {
            let items = self.layers.store().items();
            items[product.weight.id as usize].expert.is_some()
        };
        let experts = products.iter().all(expert);
        let before = self.layers.cache().stats().demand_loads;
        Linears::multiply(&mut self.layers, rows, input, products)?;
        if experts {
            let after = self.layers.cache().stats().demand_loads;
            self.seen.lock().unwrap().demanded += after - before;
        }
        Ok(())
    }

    fn expect(&mut self, rows: usize, groups: &[&[Weight]]) {
        let ids = groups.iter().copied().flatten().map(|weight| weight.id);
        self.seen.lock().unwrap().chosen.extend(ids);
        Linears::expect(&mut self.layers, rows, groups);
        // A test's layers are small: give the loader the time that a large one's products take.
        settle(self.layers.cache());
    }

    fn next(&mut self, waiting: &[&[Weight]]) -> usize {
        Linears::next(&mut self.layers, waiting)
    }
}

fn mixture(more: u64) -> (Decoder, Cache, Arc<Mutex<Seen>>, tempfile::NamedTempFile) {
    let file = file(&families::qwen3_moe());
    let layers = streamed(&file, more);
    assert!(!layers.placed().streamed.is_empty());
    let (cache, seen) = (layers.cache().clone(), Arc::<Mutex<Seen>>::default());
    let watched = Watched { layers, seen: seen.clone() };
    let tensors = Tensors::open(file.path()).unwrap();
    (Decoder::new(tensors, Box::new(watched)).unwrap(), cache, seen, file)
}

/// Room for the experts of a token, beside the least.
const ROOM: u64 = 64 << 10;

#[test]
fn experts_are_there_when_they_are_computed_and_others_are_never_loaded() {
    for rows in [1, 2] {
        let (mut decoder, cache, seen, _file) = mixture(ROOM);
        let mut text = decoder.cache(64);
        decoder.forward(&mut text, &families::PROMPT[..rows], 0).unwrap();
        let (loads, seen) = (cache.stats().loads(), seen.lock().unwrap());
        // 2 layers of q, k, v and output beside the experts; no token was wanted of the head.
        let dense = 2 * 4;
        assert!(seen.chosen.len() >= 2 * 2 * 3 && seen.chosen.len() < 2 * 6 * 3, "{rows}");
        assert_eq!(loads, dense + seen.chosen.len() as u64, "{rows} rows");
        assert_eq!(seen.demanded, 0, "{rows} rows: an expert was waited for");
    }
}

#[test]
fn single_tokens_have_the_next_experts_guessed() {
    // What was loaded ahead and never used was a guess; a batch's experts are known, not guessed.
    for (rows, guesses) in [(1, true), (2, false)] {
        let (mut decoder, cache, _seen, _file) = mixture(ROOM);
        let mut text = decoder.cache(64);
        let tokens: Vec<u32> = families::PROMPT.iter().cycle().take(40).copied().collect();
        for tokens in tokens.chunks(rows) {
            decoder.forward(&mut text, tokens, 0).unwrap();
        }
        let stats = cache.stats();
        assert_eq!(stats.wasted > 0, guesses, "{rows} rows: {stats:?}");
    }
}
