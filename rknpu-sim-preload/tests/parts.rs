//! The parts of the library that need no program around them. They are compiled in here, because the
//! library itself, linked in, would stand in front of the test's own calls.

#![allow(dead_code, reason = "each part is tested for itself")]

#[path = "../src/nodes.rs"]
mod nodes;
#[path = "../src/ranges.rs"]
mod ranges;
#[path = "../src/settings.rs"]
mod settings;
#[path = "../src/table.rs"]
mod table;
#[path = "../src/text.rs"]
mod text;

use rknpu_sim::config::Driver;
use std::sync::{Arc, Weak};

use nodes::Place;
use proptest::prelude::*;
use ranges::Ranges;
use rknpu_sim::Fault;
use rknpu_sim::config::{Mode, OnHazard, Version};
use settings::{Destination, Settings};
use table::Table;

fn read(settings: &[(&str, &str)]) -> Result<Settings, String> {
    let owned = settings.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    Settings::read(owned).map_err(|error| error.to_string())
}

#[test]
fn settings_are_read_and_checked() {
    let settings = read(&[
        ("HOME", "/root"),
        ("RKNPU_SIM_SOC", "rk3588"),
        ("RKNPU_SIM_VERSION", "0.9.7"),
        ("RKNPU_SIM_MODE", "strict"),
        ("RKNPU_SIM_SRAM", "956K"),
        ("RKNPU_SIM_HAZARD", "abort"),
        ("RKNPU_SIM_EXIT", "3"),
        ("RKNPU_SIM_REPORT", "/tmp/report"),
        ("RKNPU_SIM_TIMING", "board,floor_ns=5"),
        ("RKNPU_SIM_FAULTS", "mem_map=EIO:after=2:times=3,hang:core=1"),
    ])
    .unwrap();
    assert_eq!(settings.config.version, Version::V0_9_7);
    assert_eq!(settings.config.mode, Mode::Strict);
    assert_eq!(settings.config.sram, 956 << 10);
    assert_eq!(settings.config.on_hazard, OnHazard::Panic);
    assert_eq!(settings.exit, Some(3));
    assert_eq!(settings.report, Destination::File("/tmp/report".into()));
    assert!(matches!(settings.faults[0], Fault::Call { after: 2, times: 3, .. }));
    assert_eq!(settings.faults[1], Fault::Hang { core: Some(1), after: 0, times: 1 });
    assert_eq!(read(&[("RKNPU_SIM_VERSION", "0.8")]).unwrap().config.version, Version::V0_8);
}

#[test]
fn a_value_that_is_not_understood_says_what_is() {
    for (name, value, expected) in [
        ("SOC", "rk3576", "rk3588"),
        ("VERSION", "1.0", "0.9.5"),
        ("MODE", "", "strict"),
        ("DOMAINS", "16", "stub"),
        ("IOMMU", "yes", "off"),
        ("FENCES", "1", "off"),
        ("SRAM", "1T", "K or M"),
        ("CMA", "99999999999G", "G"),
        ("MEMORY", "-1", "unlimited"),
        ("ALIGNMENT", "2m", "cap-2m"),
        ("ADDRESSES", "slab", "reused"),
        ("CLOCK", "fast", "virtual"),
        ("TIMING", "board,speed=1", "floor_ns"),
        ("TIMING", "board,floor_ns", "floor_ns"),
        ("FAULTS", "hang:core=3", "CALL=ERRNO"),
        ("FAULTS", "mem_create=EWHAT", "CALL=ERRNO"),
        ("HAZARD", "panic", "abort"),
        ("EXIT", "0", "1 to 255"),
        ("EXIT", "256", "1 to 255"),
        ("LEAKS", "yes", "count"),
        ("REPORT", "", "stderr"),
        ("FORMAT", "xml", "json"),
    ] {
        let error = read(&[(&format!("RKNPU_SIM_{name}"), value)]).unwrap_err();
        assert!(error.contains(&format!("RKNPU_SIM_{name}={value}: ")), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let error = read(&[("RKNPU_SIM_", "x")]).unwrap_err();
    assert!(error.contains("RKNPU_SIM_FORMAT"), "{error}");
}

#[test]
fn paths_lead_to_places() {
    assert_eq!(nodes::find(b"/dev/dri/card1", Driver::Rknpu), Some(Place::Card));
    assert_eq!(nodes::find(b"/dev/dma_heap/system", Driver::Rknpu), Some(Place::Heap));
    for ordinary in ["/dev/dri/card0", "/dev/dri/card11", "dev/dri/card1", "", "/proc/self/maps"] {
        assert_eq!(nodes::find(ordinary.as_bytes(), Driver::Rknpu), None, "{ordinary}");
    }
}

#[test]
fn directories_have_their_places() {
    let names = |path: &str| {
        nodes::entries(path.as_bytes(), Driver::Rknpu).iter().map(|e| e.name).collect::<Vec<_>>()
    };
    assert_eq!(names("/dev/dri"), ["by-path", "card1", "renderD129"]);
    assert_eq!(names("/dev/dma_heap/"), ["system"]);
    assert_eq!(names("/dev"), Vec::<&str>::new());
    assert_eq!(nodes::find(b"/dev/dri/", Driver::Rknpu), Some(Place::Directory));
    assert_eq!(nodes::find(b"/sys/class", Driver::Rknpu), None);
    // Each driver has its own.
    let rocket = Driver::Rocket(Default::default());
    assert_eq!(nodes::find(b"/dev/accel/accel0", rocket), Some(Place::Accel));
    assert_eq!(nodes::find(b"/dev/accel/accel0", Driver::Rknpu), None);
    assert_eq!(nodes::find(b"/dev/dri/card1", rocket), None);
    assert!(nodes::entries(b"/dev/dri", rocket).is_empty());
}

#[test]
fn a_descriptor_beyond_the_table_is_given_back() {
    let table = Table::new();
    assert_eq!(table.add(table::LIMIT as i32, Arc::new(())), Err(table::LIMIT as i32));
    assert!(!table.has(-1) && table.get(table::LIMIT as i32).is_none());
    table.add(5, Arc::new(())).unwrap();
    assert_eq!(table.within(0, 5), [5]);
    assert!(table.within(6, u32::MAX).is_empty());
    assert!(table.remove(5).is_some() && table.remove(5).is_none());
}

/// What is done to ranges, in pages.
#[derive(Clone, Copy, Debug)]
enum Step {
    Add(usize, usize),
    Remove(usize, usize),
    Move(usize, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (at, len) = (1usize..40, 1usize..8);
    prop_oneof![
        (at.clone(), len.clone()).prop_map(|(at, len)| Step::Add(at, len)),
        (at.clone(), len.clone()).prop_map(|(at, len)| Step::Remove(at, len)),
        (at, len, 100usize..140).prop_map(|(from, len, to)| Step::Move(from, len, to)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Page by page, each page with the number of the mapping it belongs to.
    #[test]
    fn ranges_equal_a_table_of_pages(steps in prop::collection::vec(step(), 1..30)) {
        let ranges = Ranges::new();
        let mut pages: Vec<Option<Arc<usize>>> = vec![None; 200];
        let mut tokens = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Add(at, len) => {
                    let token = Arc::new(number);
                    tokens.push(Arc::downgrade(&token));
                    pages[at..at + len].fill(Some(token.clone()));
                    drop(ranges.add(at, len, token));
                }
                Step::Remove(at, len) => {
                    pages[at..at + len].fill(None);
                    drop(ranges.remove(at, len));
                }
                Step::Move(from, len, to) => {
                    // The kernel unmaps what was in the way first.
                    drop(ranges.remove(to, len));
                    ranges.moved(from, len, to);
                    for i in 0..len {
                        pages[to + i] = pages[from + i].take();
                    }
                }
            }
            for (page, owner) in pages.iter().enumerate() {
                prop_assert_eq!(ranges.touches(page, 1), owner.is_some(), "page {}", page);
            }
            // A token lives exactly as long as a page of it; the table of pages holds it as well.
            for token in tokens.iter().filter_map(Weak::upgrade) {
                let held = pages.iter().flatten().filter(|page| Arc::ptr_eq(page, &token)).count();
                let shares = Arc::strong_count(&token) - 1 - held;
                prop_assert_eq!(shares > 0, held > 0, "mapping {}", token);
            }
        }
    }
}
