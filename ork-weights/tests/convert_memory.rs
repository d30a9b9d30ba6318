//! Memory of conversions, alone in their process.

mod common;

use common::hub::{Kept, folder};
use ork_weights::convert::{Options, convert};
use ork_weights::model::synth::Shape;
use ork_weights::model::{Model, OpenOptions, Read};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Memory of this process that is no mapped file, in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// What a conversion takes above what there was, in MiB.
fn above_the_start(model: &Model, target: &Path) -> u64 {
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
        let converted = convert(model, target, &options, |_| {});
        converting.store(false, Relaxed);
        let largest = converted.unwrap().weights.iter().map(|weight| weight.bytes).max();
        assert!(largest > Some(128 << 20));
        sampler.join().unwrap()
    });
    peak.saturating_sub(start) >> 20
}

const WAYS: [Read; 2] = [Read::Buffered, Read::Direct];

/// Opens a model in every way and converts it; the packs are the same.
fn convert_in_64_mib(path: &Path, folder: &Path, what: &str) {
    let mut packs = Vec::new();
    for read in WAYS {
        let options = OpenOptions { read, ..OpenOptions::default() };
        let model = Model::open(path, &options).unwrap();
        let target = folder.join(format!("{what}-{read:?}.orkpack"));
        let above = above_the_start(&model, &target);
        println!("{what}, {read:?}: {above} MiB above the start");
        assert!(above <= 64, "{what}, {read:?}: {above} MiB above the start");
        packs.push(target);
    }
    for other in &packs[1..] {
        let same = Command::new("cmp").arg(&packs[0]).arg(other).status().unwrap();
        assert!(same.success(), "all ways of reading give the same pack");
    }
    packs.iter().for_each(|pack| std::fs::remove_file(pack).unwrap());
}

/// Matrices of 46 million values, a head of 134 million: from a GGUF, from a folder of the hub, from one
/// in FP8. One test, since others would count.
#[test]
fn a_conversion_takes_64_mib_beside_the_model() {
    let (embedding, inner, words) = (4096, 11008, 32768);
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.gguf");
    let shape =
        Shape { embedding, feed_forward: inner, layers: 1, vocabulary: words, ..Shape::tiny() };
    shape.write(std::fs::File::create(&path).unwrap()).unwrap();
    convert_in_64_mib(&path, place.path(), "gguf");
    std::fs::remove_file(path).unwrap();
    for kept in [Kept::Half, Kept::Fp8] {
        let hub = tempfile::tempdir().unwrap();
        folder(hub.path(), kept, embedding as usize, inner as usize, words as usize).unwrap();
        convert_in_64_mib(hub.path(), place.path(), &format!("{kept:?}"));
    }
}
