//! The recordings of the vendor driver, all of them.

use rknpu_sim::replay;
use std::path::Path;

#[test]
fn every_recorded_answer_is_the_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/driver-traces");
    let results = replay::folder(&folder).unwrap();
    println!("{results}");
    if std::env::var_os("REPLAY_INTERNALS").is_some() {
        for scenario in &results.scenarios {
            for line in &scenario.internals {
                println!("{}: {line}", scenario.name);
            }
        }
    }
    assert_eq!(results.scenarios.len(), 152);
    assert_eq!(results.totals(), (3483, 0));
    assert!(results.all_equal());
}
