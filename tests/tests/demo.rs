//! A model through a budget smaller than itself, on the simulator: identical results in every way.

use std::path::Path;
use std::sync::Arc;

use ork::demo::{Outcome, Scenario, Way, run};
use ork::error::Error;
use ork_weights::model::synth::Shape;
use rknpu::Device;
use rknpu::sim::engine::{Bus, Engine, Outcome as Ended, Run, Start};
use rknpu::sim::{Config, Fault, Machine};

fn outcome(shape: Shape, budget: Option<u64>, passes: u32) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    shape.write(std::fs::File::create(&model).unwrap()).unwrap();
    let scenario = Scenario { model, folder: folder.path().to_owned(), budget, rows: 5, passes };
    let device = Device::simulated(Default::default()).unwrap();
    let outcome = run(&device, &scenario).unwrap();
    assert!(device.health().is_good(), "{}", device.health());
    assert_eq!(left_over(folder.path()), ["demo.orkpack", "model.gguf"]);
    outcome
}

fn left_over(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_way_gives_the_same_results_within_its_budget() {
    let outcome = outcome(Shape::tiny(), None, 3);
    assert!(outcome.is_identical(), "{outcome:#?}");
    assert_eq!(outcome.rows.len(), 5);
    assert_eq!(outcome.cpu_digest, Some(outcome.rows[0].digest));
    assert_eq!(outcome.recovered_jobs, 0);
    assert!(outcome.rows.iter().all(|row| row.verified > 0), "{outcome:#?}");
    assert!(outcome.budget < outcome.packed_bytes);
    for row in &outcome.rows {
        assert!(row.peak_mapped <= row.budget, "{row:#?}");
        assert!(row.peak_weights < row.peak_mapped, "{row:#?}");
    }
    let row = |way| outcome.row(way).unwrap();
    assert_eq!(row(Way::Resident).packed, outcome.weights as u64);
    assert_eq!((row(Way::Resident).loaded, row(Way::Resident).evicted), (0, 0));
    assert!(row(Way::Convert).packed >= outcome.weights as u64);
    assert!(row(Way::Convert).evicted > 0);
    for way in [Way::Reload, Way::Prefetch, Way::TwoModels] {
        assert_eq!(row(way).packed, 0, "{way:?} needed the model");
        assert!(row(way).loaded > outcome.weights as u64 && row(way).evicted > 0);
    }
}

#[test]
fn more_passes_on_a_resident_model_load_nothing() {
    let shape = Shape::tiny();
    let all = outcome(shape, Some(u64::MAX >> 8), 2);
    assert!(all.is_identical());
    let reload = all.row(Way::Reload).unwrap();
    assert_eq!((reload.loaded, reload.evicted), (all.weights as u64, 0));
}

#[test]
fn experts_go_the_same_way() {
    let outcome = outcome(Shape { experts: 4, ..Shape::tiny() }, None, 2);
    assert!(outcome.is_identical(), "{outcome:#?}");
    assert!(outcome.row(Way::Prefetch).unwrap().evicted > 0);
}

/// A model, and what running it on a machine gives.
fn run_on(machine: &Machine) -> Result<Outcome, Error> {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    Shape::tiny().write(std::fs::File::create(&model).unwrap()).unwrap();
    let folder = folder.path().to_owned();
    let scenario = Scenario { model, folder, budget: None, rows: 5, passes: 1 };
    run(&Device::simulated_on(machine)?, &scenario)
}

/// Cores that report every job as done and compute nothing.
#[derive(Debug)]
struct Idle;

impl Engine for Idle {
    fn run(&self, start: &Start, _: &mut dyn Bus) -> Run {
        let (int_status, tasks_done) = (start.int_mask, start.tasks);
        Run { outcome: Ended::Done { int_status, tasks_done, busy_ns: 1 }, findings: Vec::new() }
    }
}

#[test]
fn an_npu_that_computes_nothing_is_not_called_identical() {
    let machine = Machine::new(Config { engine: Arc::new(Idle), ..Config::default() });
    let error = run_on(&machine).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    let text = error.to_string();
    assert!(text.contains("the device says 0, the CPU"), "{text}");
}

#[test]
fn jobs_that_were_run_again_are_counted() {
    let machine = Machine::new(Config::default());
    machine.inject(Fault::Hang { core: None, after: 20, times: 1 });
    let outcome = run_on(&machine).unwrap();
    assert!(outcome.is_identical(), "{outcome:#?}");
    assert_eq!(outcome.recovered_jobs, 1);
}
