//! Memory of a conversion, alone in its process.

use ork_weights::convert::{Options, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions, Read};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Memory of this process that is no mapped file, in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_conversion_takes_64_mib_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    // Matrices of 46 million values, a head of 134 million.
    let shape = Shape {
        embedding: 4096,
        feed_forward: 11008,
        layers: 1,
        vocabulary: 32768,
        ..Shape::tiny()
    };
    shape.write(std::fs::File::create(&path).unwrap()).unwrap();
    let mut packs = Vec::new();
    for read in [Read::Buffered, Read::Direct] {
        let model = Model::open(&path, &OpenOptions { read, ..OpenOptions::default() }).unwrap();
        let target = folder.path().join(format!("{read:?}.orkpack"));
        let options = Options { evict_source: true, ..Options::default() };
        let (start, converting) = (anonymous(), AtomicBool::new(true));
        let peak = std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut peak = 0;
                while converting.load(Relaxed) {
                    peak = peak.max(anonymous());
                    std::thread::sleep(Duration::from_millis(1));
                }
                peak
            });
            let converted = convert(&model, &target, &options, |_| {});
            converting.store(false, Relaxed);
            let largest = converted.unwrap().weights.iter().map(|weight| weight.bytes).max();
            assert!(largest > Some(128 << 20));
            sampler.join().unwrap()
        });
        let above = peak.saturating_sub(start);
        println!("{read:?}: {} MiB above the start", above >> 20);
        assert!(above <= 64 << 20, "{read:?}: {} MiB above the start", above >> 20);
        packs.push(target);
    }
    for other in &packs[1..] {
        let same = Command::new("cmp").arg(&packs[0]).arg(other).status().unwrap();
        assert!(same.success(), "all ways of reading give the same pack");
    }
}
