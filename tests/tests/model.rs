//! The same on a real model, when ORK_TEST_MODEL names one.

use ork::demo::{Scenario, Way, run};
use rknpu::Device;

#[test]
fn a_real_model_through_a_small_budget() {
    let Some(model) = std::env::var_os("ORK_TEST_MODEL") else {
        eprintln!("left out: set ORK_TEST_MODEL to a GGUF file to run this on it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let scenario = Scenario {
        model: model.into(),
        folder: folder.path().to_owned(),
        budget: Some(40 << 20),
        rows: 16,
        passes: 2,
    };
    let device = Device::simulated(Default::default()).unwrap();
    let outcome = run(&device, &scenario).unwrap();
    assert!(outcome.is_identical(), "{outcome:#?}");
    assert!(outcome.packed_bytes > 2 * outcome.budget);
    let convert = outcome.row(Way::Convert).unwrap();
    assert!(convert.packed >= outcome.weights as u64 && convert.evicted > 0);
    assert!(outcome.rows.iter().all(|row| row.peak_weights <= row.budget));
}
