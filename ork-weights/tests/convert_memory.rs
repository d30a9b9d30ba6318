//! Memory of a conversion, alone in its process.

use ork_weights::convert::{Options, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions};

/// Memory of this process that is no mapped file, in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_conversion_takes_64_mib_beside_the_mapped_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Matrices of up to 46 million values.
    let shape = Shape {
        embedding: 4096,
        feed_forward: 11008,
        layers: 1,
        vocabulary: 1024,
        ..Shape::tiny()
    };
    shape.write(std::fs::File::create(&path).unwrap()).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    let start = anonymous();
    let mut peak = 0;
    let options = Options { evict_source: true, ..Options::default() };
    convert(&model, folder.path().join("m.orkpack"), &options, |_| peak = peak.max(anonymous()))
        .unwrap();
    let above = peak.saturating_sub(start);
    assert!(above <= 64 << 20, "{} MiB above the start", above >> 20);
    assert!(above > 30 << 20, "{} MiB: the largest weight alone takes more", above >> 20);
}
