//! A model through a budget smaller than itself, on the simulator: identical results in every way.

use std::path::Path;

use ork::demo::{Outcome, Scenario, Way, run};
use ork_weights::model::synth::Shape;
use rknpu::Device;

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
