//! The cache over the fake device, whose ledger checks every step.

use static_assertions::assert_impl_all;

use crate::backend::fake::{Fake, Watch};
use crate::policy::Lru;
use crate::residency::{Home, Limits, WeightSpec};
use crate::{Cache, DomainId, Error, WeightId};

const PAGE: u64 = 4096;
const D0: DomainId = DomainId(0);
const D1: DomainId = DomainId(1);

assert_impl_all!(Cache<Fake>: Send, Sync, Clone);
assert_impl_all!(crate::Pinned<Fake>: Send, Sync);

fn cache(pages: u64) -> (Cache<Fake>, Watch) {
    let device = Fake::new(pages * PAGE);
    let watch = device.watch();
    (Cache::new(device, Limits::single(pages * PAGE), Box::new(Lru::new())), watch)
}

fn spec(pages: u64, home: Home) -> WeightSpec {
    WeightSpec { bytes: pages * PAGE, domain: D0, home }
}

fn ids(first: WeightId, n: u32) -> impl Iterator<Item = WeightId> {
    (first.0..first.0 + n).map(WeightId)
}

#[test]
fn a_second_use_hits_and_a_full_cache_recycles_the_oldest_buffer() {
    let (cache, watch) = cache(2);
    let first = cache.attach(&[spec(1, Home::Own); 3]).unwrap();
    for w in ids(first, 3) {
        assert_eq!(cache.acquire(w).unwrap().content(), Some(w));
    }
    drop(cache.acquire(WeightId(1)).unwrap());
    let stats = cache.stats();
    let did = stats;
    assert_eq!((did.hits, did.demand_loads, did.evictions, did.frees), (1, 3, 1, 0));
    assert_eq!(stats.bytes_loaded, 3 * PAGE);
    drop(cache);
    let ledger = watch.ledger();
    assert_eq!((ledger.created, ledger.freed, ledger.peak), (2, 2, 2 * PAGE));
    assert_eq!(ledger.closed, [0], "closed once, after the last buffer");
    assert_eq!(ledger.broken, [""; 0]);
}

#[test]
fn unequal_sizes_free_until_there_is_room() {
    let (cache, watch) = cache(4);
    let small = cache.attach(&[spec(1, Home::Own); 4]).unwrap();
    let large = cache.attach(&[spec(3, Home::Own)]).unwrap();
    for w in ids(small, 4) {
        drop(cache.acquire(w).unwrap());
    }
    assert_eq!(cache.acquire(large).unwrap().content(), Some(large));
    assert_eq!(cache.stats().frees, 3);
    assert_eq!(cache.stats().bytes_peak, 4 * PAGE);
    assert_eq!(watch.ledger().broken, [""; 0]);
}

#[test]
fn whoever_holds_pins_takes_what_is_ready_and_never_waits_for_room() {
    let (cache, watch) = cache(2);
    let first = cache.attach(&[spec(1, Home::Own); 3]).unwrap();
    let [a, b, c] = [0, 1, 2].map(|i| WeightId(first.0 + i));
    drop(cache.acquire(b).unwrap());
    let visit = cache.enter(D0).unwrap();
    let held = visit.acquire(a).unwrap();
    let ready = visit.acquire_ready(b).unwrap().expect("it has been loaded");
    assert_eq!(ready.content(), Some(b));
    // There is no room as long as both are held: waiting for it would never end.
    assert!(visit.acquire_ready(c).unwrap().is_none());
    let unknown = visit.acquire_ready(WeightId(9)).unwrap();
    assert!(unknown.is_none());
    drop((held, ready));
    assert_eq!(visit.acquire(c).unwrap().content(), Some(c));
    assert_eq!(watch.ledger().broken, [""; 0]);
}

#[test]
fn bytes_are_rounded_to_pages() {
    let (cache, _) = cache(1);
    let w = cache.attach(&[WeightSpec { bytes: 1, domain: D0, home: Home::Own }]).unwrap();
    assert_eq!(cache.acquire(w).unwrap().bytes(), PAGE);
    assert_eq!(cache.stats().bytes_now, PAGE);
}

#[test]
fn fixed_weights_stay_and_what_they_leave_is_named() {
    let (cache, _) = cache(3);
    let fixed = cache.attach(&[spec(2, Home::Fixed)]).unwrap();
    let others =
        cache.attach(&[spec(1, Home::Own), spec(1, Home::Own), spec(2, Home::Own)]).unwrap();
    drop(cache.acquire(fixed).unwrap());
    drop(cache.acquire(others).unwrap());
    drop(cache.acquire(WeightId(others.0 + 1)).unwrap());
    assert_eq!(cache.stats().evictions, 1);
    let error = cache.acquire(WeightId(others.0 + 2)).unwrap_err();
    assert!(
        matches!(error, Error::NoRoom { bytes, held, limit, short, .. }
            if bytes == 2 * PAGE && held == 2 * PAGE && limit == 3 * PAGE && short == PAGE),
        "{error}"
    );
    drop(cache.acquire(fixed).unwrap());
    assert_eq!(cache.stats().hits, 1);
}

#[test]
fn slots_of_a_class_are_created_once() {
    let (cache, watch) = cache(4);
    let ring = cache.add_class(D0, 2 * PAGE, 2).unwrap();
    let first = cache.attach(&[spec(2, Home::Class(ring)); 5]).unwrap();
    for _ in 0..3 {
        for w in ids(first, 5) {
            assert_eq!(cache.acquire(w).unwrap().content(), Some(w));
        }
    }
    assert_eq!((watch.ledger().created, watch.ledger().freed), (2, 0));
    assert_eq!(cache.stats().demand_loads, 15, "LRU never hits on a scan");
}

#[test]
fn what_cannot_fit_is_refused_with_both_numbers() {
    let (cache, _) = cache(2);
    let ring = cache.add_class(D0, PAGE, 1).unwrap();
    let over = |spec| cache.attach(&[spec]).unwrap_err();
    assert!(matches!(over(spec(3, Home::Own)), Error::TooLarge { bytes, limit, .. }
        if bytes == 3 * PAGE && limit == 2 * PAGE));
    assert!(matches!(over(spec(2, Home::Class(ring))), Error::LargerThanSlot { .. }));
    let elsewhere = WeightSpec { bytes: PAGE, domain: D1, home: Home::Own };
    assert!(matches!(over(elsewhere), Error::UnknownDomain { known: 1, .. }));
    let huge = WeightSpec { bytes: u64::MAX, domain: D0, home: Home::Own };
    assert!(matches!(over(huge), Error::TooLarge { .. }));
    let nowhere = spec(1, Home::Class(crate::ClassId(7)));
    assert!(matches!(over(nowhere), Error::UnknownClass { .. }));
    let error = cache.add_class(D0, PAGE, 2).unwrap_err();
    assert!(
        matches!(error, Error::NoRoomForSlots { left: PAGE, needed, .. } if needed == 3 * PAGE)
    );
    assert!(matches!(cache.add_class(D0, u64::MAX, 2), Err(Error::NoRoomForSlots { .. })));
    assert!(matches!(cache.acquire(WeightId(9)), Err(Error::UnknownWeight { known: 0, .. })));
}

#[test]
fn a_failed_load_is_told_and_the_place_is_used_again() {
    let (cache, watch) = cache(1);
    let first = cache.attach(&[spec(1, Home::Own); 2]).unwrap();
    watch.fail_copies(first, 1);
    watch.refuse_creates(1);
    let create = cache.acquire(first).unwrap_err();
    assert!(create.to_string().contains("create"), "{create}");
    let copy = cache.acquire(first).unwrap_err();
    assert!(matches!(copy, Error::Load { weight, .. } if weight == first));
    assert_eq!(cache.stats().bytes_now, 0);
    assert_eq!(cache.acquire(first).unwrap().content(), Some(first));
    assert_eq!(cache.stats().failures, 2);
}

#[test]
fn a_failed_sync_is_told_and_the_memory_serves_again() {
    let (cache, watch) = cache(1);
    let ring = cache.add_class(D0, PAGE, 1).unwrap();
    let w = cache.attach(&[spec(1, Home::Class(ring))]).unwrap();
    watch.refuse_syncs(1);
    assert!(matches!(cache.acquire(w), Err(Error::Load { weight, .. }) if weight == w));
    assert_eq!(cache.acquire(w).unwrap().content(), Some(w));
    drop(cache);
    assert_eq!((watch.ledger().created, watch.ledger().live), (1, 0));
    assert_eq!(watch.ledger().broken, [""; 0]);
}

#[test]
fn a_failed_free_keeps_its_bytes_accounted() {
    let (cache, watch) = cache(3);
    let first =
        cache.attach(&[spec(1, Home::Own), spec(2, Home::Own), spec(3, Home::Own)]).unwrap();
    drop(cache.acquire(first).unwrap());
    drop(cache.acquire(WeightId(1)).unwrap());
    watch.refuse_frees(1);
    let error = cache.acquire(WeightId(2)).unwrap_err();
    assert!(matches!(error, Error::NoRoom { held: PAGE, .. }), "{error}");
    assert_eq!(cache.stats().lost, 1);
    assert_eq!(cache.stats().bytes_now, PAGE);
    assert_eq!(cache.acquire(WeightId(1)).unwrap().content(), Some(WeightId(1)));
}

#[test]
fn refused_slots_leave_the_others_in_service() {
    let (cache, watch) = cache(3);
    watch.refuse_creates(1);
    assert!(matches!(cache.add_class(D0, PAGE, 2), Err(Error::Slot { .. })));
    assert_eq!(cache.stats().bytes_now, 0);
    cache.add_class(D0, PAGE, 3).unwrap();
}

#[test]
fn a_pin_outlives_the_cache_handle() {
    let (cache, watch) = cache(1);
    let w = cache.attach(&[spec(1, Home::Own)]).unwrap();
    let pinned = cache.acquire(w).unwrap();
    drop(cache);
    assert_eq!(pinned.content(), Some(w));
    assert_eq!(watch.ledger().closed, [0u64; 0]);
    drop(pinned);
    assert_eq!(watch.ledger().closed, [0]);
}

#[test]
fn a_visit_keeps_the_other_domain_waiting() {
    let device = Fake::new(4 * PAGE);
    let watch = device.watch();
    let limits = Limits { total: 4 * PAGE, domains: vec![2 * PAGE; 2] };
    let cache = Cache::new(device, limits, Box::new(Lru::new()));
    let near = cache.attach(&[spec(1, Home::Own)]).unwrap();
    let far = cache.attach(&[WeightSpec { bytes: PAGE, domain: D1, home: Home::Own }]).unwrap();
    let visit = cache.enter(D0).unwrap();
    watch.work(Some(D0));
    assert!(matches!(visit.acquire(far), Err(Error::OtherDomain { .. })));
    std::thread::scope(|s| {
        let waiting = s.spawn(|| cache.acquire(far).unwrap().content());
        assert_eq!(visit.acquire(near).unwrap().content(), Some(near));
        watch.work(None);
        drop(visit);
        assert_eq!(waiting.join().unwrap(), Some(far));
    });
    assert_eq!(watch.ledger().broken, [""; 0]);
    assert!(matches!(cache.enter(DomainId(2)), Err(Error::UnknownDomain { known: 2, .. })));
}

#[test]
fn threads_that_want_the_same_weight_share_one_load() {
    let (cache, watch) = cache(2);
    let w = cache.attach(&[spec(1, Home::Own)]).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| assert_eq!(cache.acquire(w).unwrap().content(), Some(w)));
        }
    });
    assert_eq!(watch.ledger().copies, 1);
}

/// The worker copies whatever domain is at work, and leaves the sync to the use: waiting for the domain, it
/// would keep whoever is in the other from ending it.
#[test]
fn a_load_ahead_never_waits_for_another_domain() {
    let device = Fake::new(2 * PAGE);
    let watch = device.watch();
    let limits = Limits { total: 2 * PAGE, domains: vec![PAGE; 2] };
    let cache = Cache::new(device, limits, Box::new(Lru::new()));
    let class = cache.add_class(D1, PAGE, 1).unwrap();
    let far = WeightSpec { bytes: PAGE, domain: D1, home: Home::Class(class) };
    let far = cache.attach(&[far]).unwrap();
    let visit = cache.enter(D0).unwrap();
    watch.work(Some(D0));
    let (gone, ends) = std::sync::mpsc::channel();
    let theirs = cache.clone();
    let their_watch = watch.clone();
    std::thread::spawn(move || {
        let prefetcher = crate::Prefetcher::new(&theirs).unwrap();
        prefetcher.queue(&[far]);
        while their_watch.ledger().copies == 0 {
            std::thread::yield_now();
        }
        // Waits for the worker.
        drop(prefetcher);
        gone.send(()).unwrap();
    });
    let patience = std::time::Duration::from_secs(60);
    assert!(ends.recv_timeout(patience).is_ok(), "the worker waits for the domain");
    watch.work(None);
    drop(visit);
    assert_eq!(cache.acquire(far).unwrap().content(), Some(far));
    assert_eq!((watch.ledger().copies, watch.ledger().broken.len()), (1, 0));
}
