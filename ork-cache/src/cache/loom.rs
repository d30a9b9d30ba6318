//! The concurrent part under the model checker: two threads in all interleavings, three in those of
//! at most three preemptions.
//!
//! Each model prints how many interleavings it ran and fails when it ran none. The assertions are
//! those of the fake device's own ledger, which shares nothing with the cache's accounting.
//!
//! Three threads are bounded because their interleavings grow more than tenfold with each preemption:
//!
//! | model | 1 | 2 | 3 |
//! |---|---|---|---|
//! | no lost wake-up | 32 | 770 | 11,774 |
//! | ring hand-over with 2 consumers | 34 | 658 | 8,721 |
//! | ring of 2, 3 weights, 2 consumers | 53 | 1,743 | 41,456 |
//! | visitors of one domain meet | 22 | 232 | 1,590 |
//!
//! The models can fail. Each of these faults, put into the code on purpose, makes at least one fail:
//!
//! | fault | caught by |
//! |---|---|
//! | uses, or workers, are not notified | nearly all |
//! | a pin given back, a failed load, a finished one wakes nobody | pinned never freed; failed load into a slot; creating prefetch |
//! | a queued weight or the end of a visit wakes nobody | all with a worker; visits exclude |
//! | room is used before the device has freed it, or a free is reported before it is done | physical bytes |
//! | the pin of a load or of a hit is forgotten, a pinned weight may be evicted | pinned never freed; ring hand-over |
//! | the pin goes before the share of the memory | pinned never freed |
//! | two loads of one weight | single flight |
//! | waiters do not hear of a failure; the buffer of a failed load is not freed | failed load |
//! | the worker is not stopped, or waits for a domain | shutdown mid-load; shutdown during a visit, or during a copy |
//! | buffers are not freed at the end | domain closed last and once |
//! | a prefetch takes the place of what was loaded ahead | loaded ahead |
//! | domains are not exclusive; bytes are synced in the wrong domain, or not | visits exclude; prefetch across domains |
//!
//! Wake-ups at the end of a free and of a memory call cannot be missed by a model: the load that follows
//! wakes as well, and without them others only wait longer.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::fake::{Fake, Watch};
use crate::policy::Lru;
use crate::residency::{Home, Limits, WeightSpec};
use crate::{Cache, DomainId, Error, Prefetcher, WeightId};
use ::loom::sync::{Arc, Condvar, Mutex};
use ::loom::thread;

const PAGE: u64 = 4096;
const D0: DomainId = DomainId(0);
const D1: DomainId = DomainId(1);

/// Runs `model` in every interleaving with at most `bound` preemptions (`None`: in all). To measure how
/// a model grows, `ORK_LOOM_BOUND` sets another bound, or `none`.
fn explore(name: &str, bound: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let bound = match std::env::var("ORK_LOOM_BOUND").as_deref() {
        Ok("none") => None,
        Ok(other) => Some(other.parse().expect("ORK_LOOM_BOUND is a number or `none`")),
        Err(_) => bound,
    };
    let runs = std::sync::Arc::new(AtomicUsize::new(0));
    let mut builder = ::loom::model::Builder::new();
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

/// Acquires and reads. Whoever else runs before the pin is given back and wants the buffer finds it
/// shared, and fails.
fn read(cache: &Cache<Fake>, weight: u32) {
    let pinned = cache.acquire(WeightId(weight)).expect("a load that was not told to fail");
    assert_eq!(pinned.content(), Some(WeightId(weight)));
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
    // There is room for a second load of it.
    explore("single flight", None, || {
        let (cache, watch) = cache(2);
        cache.attach(&[own(1)]).unwrap();
        let other = cache.clone();
        let t = thread::spawn(move || read(&other, 0));
        read(&cache, 0);
        t.join().unwrap();
        assert_eq!(watch.ledger().copies, 1);
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn physical_bytes_stay_within_the_budget() {
    // A victim of two pages makes room for two loads of one: the room may be used when the
    // device has freed it, not when the victim was chosen.
    explore("physical bytes within budget", None, || {
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

/// Two threads want a weight whose first load fails: each hears of the load that it waited for.
fn one_load_fails(home: impl Fn(&Cache<Fake>) -> Home) {
    let (cache, watch) = cache(1);
    let spec = WeightSpec { home: home(&cache), ..own(1) };
    let w = cache.attach(&[spec; 2]).unwrap();
    watch.fail_copies(w, 1);
    let other = cache.clone();
    let t = thread::spawn(move || other.acquire(w).is_err());
    let mine = cache.acquire(w).map(drop);
    let theirs_failed = t.join().unwrap();
    assert!(matches!(mine, Ok(()) | Err(Error::Load { .. })));
    // Whoever waited did so for the load that failed: nobody waits for the one that follows.
    let (failed, waited) =
        (u64::from(mine.is_err()) + u64::from(theirs_failed), cache.stats().joins);
    assert_eq!(failed, 1 + waited);
    assert_eq!(watch.ledger().copies, 2 - waited);
    read(&cache, 1);
    read(&cache, 0);
    drop(cache);
    at_the_end(&watch, 1);
}

#[test]
fn a_failed_load_reaches_those_who_wait() {
    explore("failed load", None, || one_load_fails(|_| Home::Own));
}

#[test]
fn a_failed_load_into_a_slot_reaches_those_who_wait() {
    explore("failed load into a slot", None, || {
        one_load_fails(|cache| Home::Class(cache.add_class(D0, PAGE, 1).unwrap()));
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
    explore("superseded prefetch", None, || {
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
    explore("demand overtakes queued", None, || {
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
fn what_was_loaded_ahead_stays_until_its_use() {
    explore("loaded ahead, used, overwritten", None, || {
        let (cache, watch) = ring(1, 2);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        prefetcher.follow(&[WeightId(0), WeightId(1)]);
        read(&cache, 0);
        read(&cache, 1);
        assert_eq!(cache.stats().wasted, 0, "loaded in vain");
        drop(prefetcher);
        drop(cache);
        at_the_end(&watch, 1);
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
    explore("ring of 2, 3 weights, 2 consumers", Some(3), || {
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
        let (cache, watch) = two_domains(|_| Home::Own);
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

/// One weight in each of two domains, the one in `D1` with this kind of home.
fn two_domains(home: impl Fn(&Cache<Fake>) -> Home) -> (Cache<Fake>, Watch) {
    let device = Fake::new(2 * PAGE).with_slow_calls();
    let watch = device.watch();
    let limits = Limits { total: 2 * PAGE, domains: vec![PAGE; 2] };
    let cache = Cache::new(device, limits, Box::new(Lru::new()));
    let far = WeightSpec { bytes: PAGE, domain: D1, home: home(&cache) };
    cache.attach(&[own(1), far]).unwrap();
    (cache, watch)
}

/// Visits `D0` while a prefetch for `D1` is queued or under way, then `D1`.
fn visit_both(cache: Cache<Fake>, watch: &Watch) {
    let prefetcher = Prefetcher::new(&cache).unwrap();
    prefetcher.queue(&[WeightId(1)]);
    let visit = cache.enter(D0).unwrap();
    watch.work(Some(D0));
    watch.work(None);
    drop(visit);
    let visit = cache.enter(D1).unwrap();
    assert_eq!(visit.acquire(WeightId(1)).unwrap().content(), Some(WeightId(1)));
    drop(visit);
    drop(prefetcher);
    drop(cache.enter(D0).unwrap());
    drop(cache);
    at_the_end(watch, 2);
}

#[test]
fn a_prefetch_for_another_domain_waits_for_its_turn() {
    // The bytes may be copied at any time; handing them to the NPU is left to the visit.
    explore("prefetch across domains", None, || {
        let slot = |cache: &Cache<Fake>| Home::Class(cache.add_class(D1, PAGE, 1).unwrap());
        let (cache, watch) = two_domains(slot);
        visit_both(cache, &watch);
    });
}

#[test]
fn a_prefetch_creates_no_buffer_while_another_domain_works() {
    explore("creating prefetch across domains", None, || {
        let (cache, watch) = two_domains(|_| Home::Own);
        visit_both(cache, &watch);
    });
}

#[test]
fn shutdown_during_a_visit_to_another_domain() {
    // The worker may not wait for the visit to end: it is the visitor who waits for the worker.
    explore("shutdown during a visit", None, || {
        let (cache, watch) = two_domains(|_| Home::Own);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        let visit = cache.enter(D0).unwrap();
        prefetcher.queue(&[WeightId(1)]);
        drop(prefetcher);
        drop(visit);
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn shutdown_while_a_copy_for_another_domain_is_under_way() {
    // The slot is there, so that only the sync could wait.
    explore("shutdown during a copy across domains", None, || {
        let slot = |cache: &Cache<Fake>| Home::Class(cache.add_class(D1, PAGE, 1).unwrap());
        let (cache, watch) = two_domains(slot);
        let prefetcher = Prefetcher::new(&cache).unwrap();
        let visit = cache.enter(D0).unwrap();
        prefetcher.queue(&[WeightId(1)]);
        drop(prefetcher);
        drop(visit);
        drop(cache);
        at_the_end(&watch, 2);
    });
}

#[test]
fn visitors_of_one_domain_meet_there() {
    // Both wait for the same visit to end, and then for each other.
    explore("visitors of one domain meet", Some(3), || {
        let (cache, watch) = two_domains(|_| Home::Own);
        let met = Arc::new((Mutex::new(0), Condvar::new()));
        let visit = cache.enter(D1).unwrap();
        let both: Vec<_> = (0..2)
            .map(|_| {
                let (cache, met) = (cache.clone(), met.clone());
                thread::spawn(move || {
                    let _visit = cache.enter(D0).unwrap();
                    let mut here = met.0.lock().unwrap();
                    *here += 1;
                    met.1.notify_all();
                    while *here < 2 {
                        here = met.1.wait(here).unwrap();
                    }
                })
            })
            .collect();
        drop(visit);
        both.into_iter().for_each(|t| t.join().unwrap());
        drop(cache);
        at_the_end(&watch, 2);
    });
}
