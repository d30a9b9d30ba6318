//! The concurrent part under the model checker: every interleaving up to three preemptions, and
//! all of them where only two threads run.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
//!     cargo test --release -p ork-cache --test loom -- --nocapture
//! ```
//!
//! Each model prints how many interleavings it ran and fails when it ran none. The assertions are
//! those of the fake device's own ledger, which shares nothing with the cache's accounting.
#![cfg(loom)]

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;
use ork_cache::core::{Home, Limits, WeightSpec};
use ork_cache::fake::{Fake, Watch};
use ork_cache::policy::Lru;
use ork_cache::prefetch::Prefetcher;
use ork_cache::{Cache, DomainId, Error, WeightId};

const PAGE: u64 = 4096;
const D0: DomainId = DomainId(0);
const D1: DomainId = DomainId(1);

/// Runs `model` in every interleaving with at most `bound` preemptions (`None`: in all).
fn explore(name: &str, bound: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.max_branches = 100_000;
    let counter = runs.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let runs = runs.load(Ordering::Relaxed);
    let bound = bound.map_or("unbounded".to_owned(), |b| format!("bound {b}"));
    println!("loom: {name}: {runs} iterations, {bound}");
    assert!(runs > 0, "{name} ran no iterations");
}

fn cache(pages: u64) -> (Cache<Fake>, Watch) {
    let device = Fake::new(pages * PAGE);
    let watch = device.watch();
    (Cache::new(device, Limits::single(pages * PAGE), Box::new(Lru::new())), watch)
}

fn own(pages: u64) -> WeightSpec {
    WeightSpec { bytes: pages * PAGE, domain: D0, home: Home::Own }
}

/// Acquires, reads, and checks that nobody overwrote it while it was pinned.
fn read(cache: &Cache<Fake>, weight: u32) {
    let pinned = cache.acquire(WeightId(weight)).expect("a load that was not told to fail");
    assert_eq!(pinned.content(), Some(WeightId(weight)));
    thread::yield_now();
    assert_eq!(pinned.content(), Some(WeightId(weight)), "overwritten while pinned");
}

/// The device's view once everything is gone: no rule broken, nothing left, closed once.
fn at_the_end(watch: &Watch, budget_pages: u64) {
    let ledger = watch.ledger();
    assert_eq!(ledger.broken, [""; 0]);
    assert!(ledger.peak <= budget_pages * PAGE, "{} bytes existed", ledger.peak);
    assert_eq!(ledger.live, 0);
    assert_eq!(ledger.closed, [0], "closed once, after the last buffer");
}

#[test]
fn single_flight() {
    explore("single flight", None, || {
        let (cache, watch) = cache(1);
        cache.attach(&[own(1)]).unwrap();
        let other = cache.clone();
        let t = thread::spawn(move || read(&other, 0));
        read(&cache, 0);
        t.join().unwrap();
        assert_eq!(watch.ledger().copies, 1);
        drop(cache);
        at_the_end(&watch, 1);
    });
}

#[test]
fn physical_bytes_stay_within_the_budget() {
    // A victim of two pages makes room for two loads of one: the room may be used when the
    // device has freed it, not when the victim was chosen.
    explore("physical bytes within budget", Some(3), || {
        let (cache, watch) = cache(2);
        cache.attach(&[own(2), own(1), own(1)]).unwrap();
        read(&cache, 0);
        let other = cache.clone();
        let t = thread::spawn(move || read(&other, 1));
        read(&cache, 2);
        t.join().unwrap();
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn a_pinned_weight_is_never_freed() {
    explore("pinned never freed", None, || {
        let (cache, watch) = cache(1);
        cache.attach(&[own(1), own(1)]).unwrap();
        let other = cache.clone();
        let t = thread::spawn(move || read(&other, 1));
        read(&cache, 0);
        t.join().unwrap();
        drop(cache);
        at_the_end(&watch, 1);
    });
}

#[test]
fn no_wake_up_is_lost() {
    // Each thread wants what the other pins in turn; a lost wake-up is a deadlock for loom.
    explore("no lost wake-up", Some(3), || {
        let (cache, watch) = cache(2);
        cache.attach(&[own(1), own(2), own(2)]).unwrap();
        let (second, third) = (cache.clone(), cache.clone());
        let a = thread::spawn(move || read(&second, 1));
        let b = thread::spawn(move || read(&third, 2));
        read(&cache, 0);
        a.join().unwrap();
        b.join().unwrap();
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn a_failed_load_reaches_those_who_wait() {
    explore("failed load", None, || {
        let (cache, watch) = cache(1);
        let w = cache.attach(&[own(1), own(1)]).unwrap();
        watch.fail_copies(w, 1);
        let other = cache.clone();
        let t = thread::spawn(move || other.acquire(w).is_err());
        let mine = cache.acquire(w).map(drop);
        let theirs_failed = t.join().unwrap();
        assert!(matches!(mine, Ok(()) | Err(Error::Load { .. })));
        // One load fails. Both heard of it if both waited for it; else one tried again.
        assert!(mine.is_err() || theirs_failed, "somebody must hear of the failure");
        read(&cache, 1);
        read(&cache, 0);
        drop(cache);
        at_the_end(&watch, 1);
    });
}

fn ring(slots: usize, weights: usize) -> (Cache<Fake>, Watch) {
    let (cache, watch) = cache(slots as u64);
    let class = cache.add_class(D0, PAGE, slots).unwrap();
    let spec = WeightSpec { bytes: PAGE, domain: D0, home: Home::Class(class) };
    cache.attach(&vec![spec; weights]).unwrap();
    (cache, watch)
}

#[test]
fn shutdown_in_the_middle_of_a_load() {
    explore("shutdown mid-load", None, || {
        let (cache, watch) = ring(1, 2);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.queue(&[WeightId(0), WeightId(1)]);
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 1);
    });
}

#[test]
fn the_domain_closes_last_and_once() {
    explore("domain closed last and once", None, || {
        let (cache, watch) = cache(1);
        let w = cache.attach(&[own(1)]).unwrap();
        let pinned = cache.acquire(w).unwrap();
        let t = thread::spawn(move || {
            assert_eq!(pinned.content(), Some(w));
            drop(pinned);
        });
        drop(cache);
        t.join().unwrap();
        at_the_end(&watch, 1);
    });
}

#[test]
fn a_superseded_prefetch_gives_its_slot_away() {
    explore("superseded prefetch", Some(3), || {
        let (cache, watch) = ring(1, 3);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.queue(&[WeightId(0)]);
        prefetcher.replace(&[WeightId(1)]);
        read(&cache, 2);
        read(&cache, 1);
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 1);
    });
}

#[test]
fn a_demand_overtakes_what_is_queued() {
    explore("demand overtakes queued", Some(3), || {
        let (cache, watch) = ring(2, 3);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.queue(&[WeightId(0), WeightId(1)]);
        read(&cache, 2);
        read(&cache, 0);
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn the_ring_hands_over_to_two_consumers() {
    explore("ring hand-over with 2 consumers", Some(3), || {
        let (cache, watch) = ring(1, 2);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.follow(&[WeightId(0), WeightId(1)]);
        let other = cache.clone();
        let t = thread::spawn(move || read(&other, 1));
        read(&cache, 0);
        t.join().unwrap();
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 1);
    });
}

#[test]
fn a_ring_of_two_hands_over_three_weights() {
    explore("ring of 2, 3 weights, 2 consumers", Some(2), || {
        let (cache, watch) = ring(2, 3);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.follow(&[WeightId(0), WeightId(1), WeightId(2)]);
        let other = cache.clone();
        let t = thread::spawn(move || read(&other, 1));
        read(&cache, 0);
        read(&cache, 2);
        t.join().unwrap();
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn visits_of_two_domains_do_not_overlap() {
    explore("visits exclude other domains", None, || {
        let device = Fake::new(2 * PAGE);
        let watch = device.watch();
        let limits = Limits { total: 2 * PAGE, domains: vec![PAGE; 2] };
        let cache = Cache::new(device, limits, Box::new(Lru::new()));
        let far = WeightSpec { bytes: PAGE, domain: D1, home: Home::Own };
        cache.attach(&[own(1), far]).unwrap();
        let (other, their_watch) = (cache.clone(), watch.clone());
        let t = thread::spawn(move || visit(&other, &their_watch, D1, 1));
        visit(&cache, &watch, D0, 0);
        t.join().unwrap();
        drop(cache);
        at_the_end(&watch, 2);
    });

    fn visit(cache: &Cache<Fake>, watch: &Watch, domain: DomainId, weight: u32) {
        let visit = cache.enter(domain).unwrap();
        watch.work(Some(domain));
        assert_eq!(visit.acquire(WeightId(weight)).unwrap().content(), Some(WeightId(weight)));
        watch.work(None);
    }
}

#[test]
fn a_prefetch_for_another_domain_waits_for_its_turn() {
    explore("prefetch across domains", Some(3), || {
        let device = Fake::new(2 * PAGE);
        let watch = device.watch();
        let limits = Limits { total: 2 * PAGE, domains: vec![PAGE; 2] };
        let cache = Cache::new(device, limits, Box::new(Lru::new()));
        let class = cache.add_class(D1, PAGE, 1).unwrap();
        let far = WeightSpec { bytes: PAGE, domain: D1, home: Home::Class(class) };
        cache.attach(&[own(1), far]).unwrap();
        let prefetcher = Prefetcher::new(&cache).unwrap();
        let visit = cache.enter(D0).unwrap();
        watch.work(Some(D0));
        prefetcher.queue(&[WeightId(1)]);
        assert_eq!(visit.acquire(WeightId(0)).unwrap().content(), Some(WeightId(0)));
        watch.work(None);
        drop(visit);
        let visit = cache.enter(D1).unwrap();
        assert_eq!(visit.acquire(WeightId(1)).unwrap().content(), Some(WeightId(1)));
        drop(visit);
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 2);
    });
}
