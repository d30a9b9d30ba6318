//! The files under a run change, vanish, or are half made: an error or the right results, and a good
//! pack is never lost.

use std::fs::{self, OpenOptions};
use std::sync::Arc;

use ork_cache::Store;
use ork_tests::bench::{Bench, assert_nothing_left, machine, passes, session};
use ork_weights::convert::writer_options;
use ork_weights::model::synth::Shape;
use ork_weights::pack::{PackWriter, verify};
use ork_weights::quantise::Tier;
use rknpu::Device;
use rknpu::sim::{CallKind, Fault};
use rustix::io::Errno;

#[test]
fn a_pack_cut_short_under_a_run_is_an_error_and_works_when_opened_again() {
    let bench = Bench::new(Shape::tiny());
    let (want, budget) = (bench.digest(), bench.budget());
    let whole = fs::read(bench.pack_path()).unwrap();
    for prefetch in [false, true] {
        let machine = machine();
        let device = Device::simulated_on(&machine).unwrap();
        let mut first = session(&device, bench.store(), budget, prefetch).unwrap();
        first.pass(0).unwrap();
        let file = OpenOptions::new().write(true).open(bench.pack_path()).unwrap();
        file.set_len(whole.len() as u64 / 8).unwrap();
        // What has been loaded ahead may last for a pass, no longer.
        let error = (0..2).find_map(|_| first.pass(0).err()).expect("half of the pack is gone");
        let error = error.to_string();
        assert!(error.contains("weight") && error.contains("changed while it was open"), "{error}");

        fs::write(bench.pack_path(), &whole).unwrap();
        let error = first.pass(0).unwrap_err().to_string();
        assert!(error.contains("open it again"), "who knows what it is now: {error}");
        drop(first);
        let mut again = session(&device, bench.store(), budget, prefetch).unwrap();
        assert_eq!(passes(&mut again).unwrap(), want);
        drop((again, device));
        assert_nothing_left(&machine, "a pack cut short");
    }
}

#[test]
fn a_pack_removed_under_a_run_serves_it_to_the_end() {
    let bench = Bench::new(Shape::tiny());
    let want = bench.digest();
    let machine = machine();
    let device = Device::simulated_on(&machine).unwrap();
    let mut session = session(&device, bench.store(), bench.budget(), true).unwrap();
    fs::remove_file(bench.pack_path()).unwrap();
    assert_eq!(passes(&mut session).unwrap(), want);
}

#[test]
fn packing_while_running_goes_on_where_a_fault_ended_it() {
    let bench = Bench::new(Shape::tiny());
    let (want, budget) = (bench.digest(), bench.budget());
    let undisturbed = fs::read(bench.pack_path()).unwrap();
    fs::remove_file(bench.pack_path()).unwrap();
    let store = || {
        let model = bench.model();
        let identity = model.identity(false).unwrap();
        let options = writer_options(&model, Tier::default()).unwrap();
        let writer = PackWriter::create(bench.pack_path(), &identity, options).unwrap();
        Arc::new(Store::from_model(model, Tier::default(), Some(writer)).unwrap())
    };
    // Once is not enough: a job that fails is run again after a reset.
    for after in [2, 9] {
        // A device of its own: one that fails twice is given up, with all that it may still write to.
        let machine = machine();
        let device = Device::simulated_on(&machine).unwrap();
        let (kind, errno) = (CallKind::Submit, Errno::INVAL);
        machine.inject(Fault::Call { kind, after, times: u32::MAX, errno });
        let result = session(&device, store(), budget, false).and_then(|mut run| passes(&mut run));
        assert!(result.is_err(), "job {after} failed");
        assert!(!bench.pack_path().exists(), "half a pack has the final name");
    }
    let machine = machine();
    let device = Device::simulated_on(&machine).unwrap();
    let resumed = store();
    let mut session = session(&device, resumed.clone(), budget, false).unwrap();
    assert_eq!(passes(&mut session).unwrap(), want);
    assert!(resumed.given().loaded > 0, "nothing of the earlier runs was used");
    drop((session, device));
    assert_nothing_left(&machine, "resumed");
    let pack = bench.pack();
    let verified = verify(&pack, &|_| {});
    assert!(verified.problems.is_empty(), "{:?}", verified.problems);
    assert_eq!(pack.entries().len(), bench.model().weights().len());
    assert_eq!(fs::metadata(bench.pack_path()).unwrap().len(), undisturbed.len() as u64);
}
